"""Counts in the file: what records have counted, once their hour is over or somebody collects it.

Keys, with `scope` in 16 bytes: `open scope` names a scope whose record is counting,
`hour number scope` holds what was counted in an hour that is over,
and `batch` what was collected and is not forgotten; the words are digests, so that no scope begins like them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeAlias

import lmdb

from limits_app.core.counting import KEPT_HOURS, Batch, Count, hour_of, label_of
from limits_app.core.keys import short_key, unique_name
from limits_app.core.parts import Amounts, Part
from limits_app.core.unrolled import Record
from limits_app.stores.process.records import Records
from limits_app.stores.process.scan import under

__all__ = ["Tallying"]

Txn: TypeAlias = "lmdb.Transaction[bytes]"

_OPEN: Final = short_key("open")
_HOUR: Final = short_key("hour")
_HOUR_LENGTH: Final = 4
_BATCH: Final = b"batch"
_MOST: Final = 256


class Tallying:
    """Keeps what is counted in records that are replaced by others which begin anew."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._hand = b""

    def begin(self, txn: Txn, begins: Iterable[Part], rebased: Iterable[Part], now: int) -> None:
        """Close the records of these parts, which are about to be replaced; those of `begins` count from now on."""
        for part in {part.short_key: part for part in (*begins, *rebased)}.values():
            record = self._records.stored(txn, part.short_key)
            if record is not None:
                self.close(txn, part.short_key, record, now)
        for part in begins:
            txn.put(_OPEN + part.short_key, label_of(part.scoped.scope))

    def close(self, txn: Txn, scope: bytes, record: Record, now: int) -> None:
        """Keep what a record of a scope has counted that is about to be replaced by one that begins anew."""
        layout = record[-1].layout
        label = txn.pop(_OPEN + scope) if layout.counts and record[-2] else None
        if label is not None:
            self._add(txn, scope, hour_of(record[-2] - 1), label, amounts=layout.counted(record), now=now)

    def add(self, txn: Txn, part: Part, changes: Amounts, *, taken_at: int, now: int) -> None:
        """Count what is settled of a part when the hour in which it was taken is over."""
        label = label_of(part.scoped.scope)
        self._add(txn, part.short_key, hour_of(taken_at), label, amounts=part.counted(changes), now=now)

    def _add(self, txn: Txn, scope: bytes, hour: int, label: bytes, *, amounts: Mapping[str, int], now: int) -> None:
        """The same; what nobody has collected for too long is forgotten, one for one."""
        if not amounts:
            return
        key = _HOUR + hour.to_bytes(_HOUR_LENGTH) + scope
        stored = txn.get(key)
        counts: dict[str, int] = {} if stored is None else json.loads(stored)[1]
        for name, amount in amounts.items():
            counts[name] = counts.get(name, 0) + amount
        txn.put(key, json.dumps([json.loads(label), counts]).encode())
        oldest = next(under(txn, _HOUR))[0]
        if _hour(oldest) < hour_of(now) - KEPT_HOURS:
            txn.delete(oldest)

    def collect(self, txn: Txn, now: int) -> Batch | None:
        """A batch of what was counted, as `CountingStore.collect_counts` gives it."""
        stored = txn.get(_BATCH)
        if stored is None:
            self._close_some(txn, now)
            counts = list(self._taken(txn))
            if not counts:
                return None
            stored = json.dumps([unique_name(), counts, bool(self._hand) or len(counts) == _MOST]).encode()
            txn.put(_BATCH, stored)
        name, counts, is_full = json.loads(stored)
        return Batch(name, [Count(*count) for count in counts], is_full)

    def _close_some(self, txn: Txn, now: int) -> None:
        """Close records that are counting, some of them at a time: those that count again wait for another turn."""
        scopes = [key[len(_OPEN) :] for key, _ in islice(under(txn, _OPEN, self._hand), _MOST)]
        for scope in scopes:
            self._close_counting(txn, scope, now)
        self._hand = scopes[-1] + b"\0" if len(scopes) == _MOST else b""

    def _close_counting(self, txn: Txn, scope: bytes, now: int) -> None:
        record = self._records.stored(txn, scope)
        if record is None:
            txn.delete(_OPEN + scope)
        else:
            self.close(txn, scope, record, now)
            self._records.write(txn, scope, record[-1].layout.recounting(record))

    def _taken(self, txn: Txn) -> Iterator[tuple[Any, ...]]:
        for key, stored in list(islice(under(txn, _HOUR), _MOST)):
            label, amounts = json.loads(stored)
            yield *label, _hour(key), amounts
            txn.delete(key)

    def forget(self, txn: Txn, name: str) -> None:
        """Forget a batch."""
        stored = txn.get(_BATCH)
        if stored is not None and json.loads(stored)[0] == name:
            txn.delete(_BATCH)


def _hour(key: bytes) -> int:
    return int.from_bytes(key[len(_HOUR) : len(_HOUR) + _HOUR_LENGTH])
