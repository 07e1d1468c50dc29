"""Definitions of a layout as text, so that a store can read what an older configuration has written."""

from __future__ import annotations

import json
from typing import Any

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

__all__ = ["definitions_of", "layout_from"]


def definitions_of(layout: Schema) -> bytes:
    """Write the limits of a layout."""
    counts = [True] * layout.counts_usage
    return json.dumps([layout.lease_us, [_fields(limit) for limit in layout.limits], *counts]).encode()


def layout_from(definitions: bytes) -> Schema:
    """Compile the layout that `definitions_of` has written; TypeError or ValueError when a newer version wrote it."""
    lease_us, limits, *counts = json.loads(definitions)
    return schema_of(tuple(_limit(*fields) for fields in limits), lease_us, *counts)


def _fields(limit: AnyLimit) -> list[object]:
    if isinstance(limit, ResourceLimit):
        return ["resource", limit.key, limit.capacity, limit.max_hold_seconds]
    if isinstance(limit, Blocked):
        return ["blocked"]
    # Last and only where it is so: hard limits are written as they were before there were others.
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
        case _, (key, capacity, window_seconds, algorithm, burst, *soft):
            return RateLimit(key, capacity, window_seconds, RateLimitAlgorithm(algorithm), burst, *soft)
    raise ValueError(f"not a limit: {kind} {fields}")
