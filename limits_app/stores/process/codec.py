"""How state is written: a layout's name and its states as 64-bit integers; logs and leases apart."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from itertools import count
from struct import Struct
from typing import Any, Final, TypeAlias, cast

import lmdb

from limits_app.core.algorithms.log import Log
from limits_app.core.keys import short_key
from limits_app.core.layout import Layout, layout_of
from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.core.unrolled import Record, written_out

__all__ = ["NAME_LENGTH", "Codec", "layout_from"]

NAME_LENGTH: Final = 8

Decode: TypeAlias = "Callable[[bytes, lmdb.Transaction[bytes], bytes], Record | None]"
Encode: TypeAlias = "Callable[[Record], bytes]"


class Codec:
    """Writes and reads the states of one layout.

    What is stored is the layout's name, 8 bytes, and the integers of all states.
    The log of a sliding window stands in an entry of its own, which is read and written only when it is needed.

    `decode(stored, txn, scope)` is the record, whose last item is this codec, or None when another layout wrote it;
    its logs are fetched through the transaction when somebody looks into them.
    `encode(record)` is what is stored, without the logs.
    """

    __slots__ = ("decode", "definitions", "encode", "layout", "logs", "name")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.definitions = _definitions(layout)
        self.name = blake2b(self.definitions, digest_size=NAME_LENGTH).digest()
        self.logs = {index: b"g" + short_key(rule.key)[:8] for index, rule in enumerate(layout.rules) if rule.has_log}
        widths = tuple([len(rule.start) - rule.has_log for rule in layout.rules])
        form = Struct(f"={NAME_LENGTH}s{sum(widths)}q")
        suffixes = [self.logs.get(index) for index in range(len(widths))]
        decode, encode = _written_out(widths, tuple(self.logs))
        self.decode = cast("Decode", decode(form.unpack, form.size, self.name, self, StoredLog, *suffixes))
        self.encode = cast("Encode", encode(form.pack, self.name))

    def changed_logs(self, scope: bytes, record: Record) -> list[tuple[bytes, bytes]]:
        """Keys and contents of the logs that are not the stored ones."""
        logs = [(scope + suffix, cast("Log", record[index][-1])) for index, suffix in self.logs.items()]
        return [(key, log.pack()) for key, log in logs if not isinstance(log, StoredLog)]

    def load_logs(self, record: Record) -> None:
        """Fetch all logs now, for states that will be read after their transaction."""
        for index in self.logs:
            cast("Log", record[index][-1]).arrays()


@lru_cache(maxsize=1024)
def _written_out(widths: tuple[int, ...], logs: tuple[int, ...]) -> tuple[Callable[..., object], Callable[..., object]]:
    """Decoding and encoding for states of these numbers of integers, of which `logs` (by index) have a log."""
    numbers = count()
    states = ["".join(f"i{next(numbers)}, " for _ in range(width)) for width in widths]
    read = [f"({state}{f'log(txn, scope + g{index})' if index in logs else ''})" for index, state in enumerate(states)]
    written = [f"({state}{'_' if index in logs else ''})" for index, state in enumerate(states)]
    decode = written_out(
        bound=f"unpack, size, own_name, codec, log, {''.join(f'g{index}, ' for index in range(len(widths)))}",
        arguments="stored, txn, scope",
        lines=[
            "if len(stored) != size: return None",
            f"name, {''.join(states)} = unpack(stored)",
            "if name != own_name: return None",
        ],
        result=f"{''.join(f'{state}, ' for state in read)}codec,",
    )
    encode = written_out(
        bound="pack, own_name",
        arguments="record",
        lines=[f"{''.join(f'{state}, ' for state in written)}_ = record"],
        result=f"pack(own_name, {''.join(states)})",
    )
    return decode, encode


class StoredLog(Log):
    """A log that stays in the file until somebody looks into it.

    Whoever decides looks into it only when something has expired, so what was not fetched then is not needed later.
    """

    __slots__ = ("_key", "_txn")

    def __init__(self, txn: lmdb.Transaction[bytes], key: bytes) -> None:
        super().__init__(array("q"), array("q"))
        self._txn: lmdb.Transaction[bytes] | None = txn
        self._key = key

    def arrays(self) -> tuple[array[int], array[int]]:
        """The log as it was in the transaction."""
        if self._txn is not None:
            packed = self._txn.get(self._key)
            if packed is not None:
                self._times, self._totals = Log.unpack(packed).arrays()
            self._txn = None
        return self._times, self._totals


def layout_from(definitions: bytes) -> Layout:
    """Compile the layout whose definitions were written by a codec."""
    lease_us, limits = json.loads(definitions)
    return layout_of(tuple(_limit(*fields) for fields in limits), lease_us)


def _definitions(layout: Layout) -> bytes:
    return json.dumps([layout.lease_us, [_fields(limit) for limit in layout.limits]]).encode()


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
