"""Schemas in a store: definitions as text, and codecs by schema, by name and by definitions.

A stored record carries the name of its schema. The definitions are stored once under that name, so that a process
that was started later can read records which other limits wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.core.record import Schema, schema_of

_MAX_CODECS: Final = 4096


def definitions_of(schema: Schema) -> bytes:
    """Return the limits of a schema as JSON."""
    counts = [True] if schema.counts_usage else []
    return json.dumps([schema.lease_us, [_fields(limit) for limit in schema.limits], *counts]).encode()


def schema_from(definitions: bytes) -> Schema:
    """Return the schema that `definitions_of` wrote; TypeError or ValueError when a newer version wrote it."""
    lease_us, limits, *counts = json.loads(definitions)
    return schema_of(tuple([_limit(*fields) for fields in limits]), lease_us, bool(counts))


class SchemaCodec:
    """Reads and writes the records of one schema; `name` is a digest of the definitions with so many bytes."""

    __slots__ = ("definitions", "name", "schema")

    def __init__(self, schema: Schema, name_length: int) -> None:
        self.schema = schema
        self.definitions = definitions_of(schema)
        self.name = blake2b(self.definitions, digest_size=name_length).digest()


K = TypeVar("K", bound=SchemaCodec)


class Codecs(Generic[K]):
    """The codecs of all schemas that a store has used, made by `make_codec` when they are needed."""

    def __init__(self, make_codec: Callable[[Schema], K]) -> None:
        self._make_codec = make_codec
        self._by_schema: dict[Schema, K] = {}
        self._by_name: dict[bytes, K] = {}

    def of(self, schema: Schema) -> K:
        """Return the codec of a schema."""
        codec = self._by_schema.get(schema)
        return self._add(schema) if codec is None else codec

    def named(self, name: bytes) -> K | None:
        """Return the codec of the schema with a name; None when this process has not used it yet."""
        return self._by_name.get(name)

    def defined(self, definitions: bytes | None) -> K | None:
        """Return the codec of definitions; None when there are none, or a newer version has written them."""
        if definitions is None:
            return None
        try:
            return self.of(schema_from(definitions))
        except (TypeError, ValueError):
            return None

    def _add(self, schema: Schema) -> K:
        if len(self._by_schema) >= _MAX_CODECS:
            self._by_schema.clear()
            self._by_name.clear()
        codec = self._by_schema[schema] = self._make_codec(schema)
        self._by_name[codec.name] = codec
        return codec


def _fields(limit: AnyLimit) -> list[object]:
    if isinstance(limit, ResourceLimit):
        return ["resource", limit.key, limit.capacity, limit.max_hold_seconds]
    if isinstance(limit, Blocked):
        return ["blocked"]
    soft = [True] * limit.soft
    if isinstance(limit, QuotaLimit):
        return ["quota", limit.key, limit.capacity, limit.period, limit.time_zone, limit.session_seconds, *soft]
    kind = "call" if isinstance(limit, CallLimit) else "rate"
    return [kind, limit.key, limit.capacity, limit.window_seconds, limit.algorithm, limit.burst, *soft]


def _limit(kind: str, *fields: Any) -> AnyLimit:
    match kind, fields:
        case "blocked", ():
            return Blocked()
        case "resource", (key, capacity, max_hold_seconds):
            return ResourceLimit(key, capacity, max_hold_seconds)
        case "quota", _:
            return QuotaLimit(*fields)
        case "call", (_, capacity, window_seconds, algorithm, burst, *soft):
            return CallLimit(capacity, window_seconds, RateLimitAlgorithm(algorithm), burst, *soft)
        case "rate", (key, capacity, window_seconds, algorithm, burst, *soft):
            return RateLimit(key, capacity, window_seconds, RateLimitAlgorithm(algorithm), burst, *soft)
    raise ValueError(f"not a limit: {kind} {fields}")
