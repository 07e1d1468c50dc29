"""Codecs: records as bytes, and the definitions of their schemas as text.

A stored record begins with the name of its schema. The definitions are stored once under that name, so that a process
that was started later can read records which other limits wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import fields
from functools import partial
from hashlib import blake2b
from struct import Struct, error
from typing import Any, Final, Generic, TypeVar

from limits_app.engine import (
    NOTHING_KEPT,
    KeptUse,
    Lease,
    LeaseId,
    Log,
    Record,
    Rule,
    Schema,
    State,
    schema_of,
)
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    CountedUnit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)

NAME_LENGTH: Final = 8
_MAX_CODECS: Final = 4096
_MOST: Final = 2**63 - 1
_KINDS: Final[dict[str, type[AnyLimit]]] = {
    "rate": RateLimit,
    "call": CallLimit,
    "quota": QuotaLimit,
    "resource": ResourceLimit,
    "blocked": Blocked,
    "counted": CountedUnit,
}


def definitions_of(schema: Schema) -> bytes:
    """Return the limits of a schema as JSON."""
    plan = [schema.plan] if schema.plan else []
    counts = [True, *plan] if schema.counts_usage else []
    return json.dumps([schema.lease_us, [_described(limit) for limit in schema.limits], *counts]).encode()


def schema_from(definitions: bytes) -> Schema:
    """Return the schema that `definitions_of` wrote; TypeError or ValueError when a newer version wrote it."""
    lease_us, limits, *counts = json.loads(definitions)
    return schema_of(tuple([_limit(*fields) for fields in limits]), lease_us, bool(counts), *counts[1:])


def pack_kept(kept: KeptUse) -> bytes:
    """Return kept use as JSON, with the limits that it was recorded by and the logs of sliding windows."""
    uses = []
    for rule, state in kept.values():
        numbers = state[:-1] if rule.has_log else state
        log = state[-1].pack().hex() if rule.has_log else None
        uses.append([_described(rule.limit), numbers, log])
    return json.dumps(uses).encode() if uses else b""


def unpack_kept(packed: bytes | None) -> KeptUse:
    """Read what `pack_kept` wrote; nothing where a newer version wrote it."""
    kept: dict[str, tuple[Rule, State]] = {}
    try:
        for described, numbers, log in json.loads(packed) if packed else ():
            [rule] = schema_of((_limit(*described),)).rules
            logs = [] if log is None else [Log.stored(partial(bytes.fromhex, log))]
            for stored in logs:
                stored.arrays()  # so that it is saved with the record that takes it back
            kept[rule.key] = rule, (*numbers, *logs)
    except (TypeError, ValueError):
        return NOTHING_KEPT
    return kept


class SchemaCodec:
    """Reads and writes the records of one schema; `name` is a digest of the definitions with so many bytes."""

    __slots__ = ("definitions", "name", "schema")

    def __init__(self, schema: Schema, name_length: int) -> None:
        self.schema = schema
        self.definitions = definitions_of(schema)
        self.name = blake2b(self.definitions, digest_size=name_length).digest()


class Codec(SchemaCodec):
    """Reads and writes records in files and databases.

    A record is the name of the schema, which is a digest of its definitions, the time of the last reset, the integers
    of all states, and where usage is counted the end of the hour and the amounts. A store keeps leases, and the logs of
    the limits `with_log`, in its own way.
    """

    __slots__ = ("_form", "_spans", "_usage_at", "size", "with_log")

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema, NAME_LENGTH)
        self.with_log = [index for index, rule in enumerate(schema.rules) if rule.has_log]
        self._spans: list[tuple[int, int]] = []
        end = 2  # after the name and the reset
        for rule in schema.rules:
            start, end = end, end + len(rule.start) - rule.has_log
            self._spans.append((start, end))
        self._usage_at = end
        width = end + len(schema.rules) if schema.counts_usage else end - 1
        self._form = Struct(f"={NAME_LENGTH}s{width}q")
        self.size = self._form.size

    def decode(self, stored: bytes, leases: MutableMapping[LeaseId, Lease], logs: Sequence[Log] = ()) -> Record | None:
        """Return the record that begins `stored`, with its leases and logs; None when another schema wrote it."""
        if len(stored) < self.size:
            return None
        numbers = self._form.unpack_from(stored)
        if numbers[0] != self.name:
            return None
        states: list[State] = [numbers[start:end] for start, end in self._spans]
        if logs:
            for index, log in zip(self.with_log, logs, strict=True):
                states[index] += (log,)
        at = self._usage_at
        if self.schema.counts_usage:
            record = Record(self.schema, states, leases, [*numbers[at + 1 :]])
            record.counted_until = numbers[at]
        else:
            record = Record(self.schema, states, leases, None)
        record.reset_at = numbers[1]
        return record

    def encode(self, record: Record) -> bytes:
        """Return a record as bytes; numbers of more than 64 bits are stored as the largest."""
        numbers: list[int] = [record.reset_at]
        for state in record.states:
            numbers += state
        if self.with_log:
            numbers = [number for number in numbers if not isinstance(number, Log)]
        if record.amounts is not None:
            numbers.append(record.counted_until)
            numbers += record.amounts
        try:
            return self._form.pack(self.name, *numbers)
        except error:
            return self._form.pack(self.name, *[min(max(number, -_MOST), _MOST) for number in numbers])

    def logs_of(self, record: Record) -> list[Log]:
        """Return the logs of a record, in the order of `with_log`."""
        return [record.states[index][-1] for index in self.with_log]


K = TypeVar("K", bound=SchemaCodec)


class Codecs(Generic[K]):
    """The codecs of all schemas that a process has used, made by `make_codec` when they are needed.

    Where there are `most`, all are forgotten, and those that are needed are made again.
    """

    def __init__(self, make_codec: Callable[[Schema], K], most: int = _MAX_CODECS) -> None:
        self._make_codec = make_codec
        self._most = most
        self._by_schema: dict[Schema, K] = {}
        self._by_name: dict[bytes, K] = {}

    def of(self, schema: Schema) -> K:
        """Return the codec of a schema."""
        codec = self._by_schema.get(schema)
        return self._add(schema) if codec is None else codec

    def of_record(self, stored: bytes, find_definitions: Callable[[bytes], bytes | None]) -> K | None:
        """Return the codec of the schema that wrote a record; `find_definitions` is called with a name that is new."""
        name = stored[:NAME_LENGTH]
        return self.named(name) or self.defined(find_definitions(name))

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
        if len(self._by_schema) >= self._most:
            self._by_schema.clear()
            self._by_name.clear()
        codec = self._by_schema[schema] = self._make_codec(schema)
        self._by_name[codec.name] = codec
        return codec


def _described(limit: AnyLimit) -> list[object]:
    kind = next(name for name, kind in _KINDS.items() if isinstance(limit, kind))
    # The values are plain, and are only read: `asdict` would copy each.
    return [kind, {field.name: getattr(limit, field.name) for field in fields(limit)}]


def _limit(kind: str, fields: dict[str, Any]) -> AnyLimit:
    if kind not in _KINDS:
        raise ValueError(f"not a limit: {kind}")
    if "algorithm" in fields:
        fields["algorithm"] = RateLimitAlgorithm(fields["algorithm"])
    return _KINDS[kind](**fields)
