"""Usage in the file: the admitted amounts of finished hours, until they are collected.

Keys, with `scope` in 16 bytes: `open scope` is a scope whose record is counting, `hour number scope` its amounts in
an hour that its record counts no more, and `batch` the counts that were collected and are not confirmed yet.
The words `open` and `hour` are digests, which no scope begins with. In a namespace their second half, and the end of
`batch`, are digests of it; `named scope` is then the half by which the other entries of a scope are found.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from limits_app.engine import engine
from limits_app.engine.counting import KEPT_HOURS, Batch, Count, hour_of, label_of, unsealed
from limits_app.engine.keys import Scope, digest_in, namespace_digest, short_key, unique_name
from limits_app.engine.record import FinishedUsage, Record
from limits_app.stores.process.records import Records, entries
from limits_app.stores.process.state_file import Txn

_OPEN: Final = short_key("open")
_HOUR: Final = short_key("hour")
_NAMED: Final = short_key("named")
_HALF: Final = 8
_WORD_LENGTH: Final = 16
_HOUR_LENGTH: Final = 4
_BATCH: Final = b"batch"
_MAX_BATCH: Final = 256


class Usage:
    """Keeps the finished usage of records, and gives it out in batches, as `CountingStore` describes."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._next_open: dict[str, bytes] = {}
        """By namespace, the key to go on with."""

    def keep(self, txn: Txn, scope: Scope, record: Record, now: int) -> bool:
        """Keep what a record has finished, and note when it has begun to count; returns whether there was either."""
        usage = record.usage
        is_new = usage is not None and usage.until > 0 and not usage.is_noted
        has_more = is_new or bool(record.finished)
        if has_more:
            key, label = short_key(scope.key), label_of(scope)
            half = digest_in(scope.key)[:_HALF]
            is_open, hour = _words(half)
            self._add(txn, hour, (key, label), record, now)
            if is_new:
                txn.put(is_open + key, label)
                if half:
                    txn.put(_NAMED + key, half)
        return has_more

    def close(self, txn: Txn, scope: bytes, record: Record, now: int) -> None:
        """Keep all that a record has counted; it counts again from its next admitted request."""
        engine.close_usage(record)
        is_open, hour = _words(txn.pop(_NAMED + scope) or b"")
        label = txn.pop(is_open + scope)
        if label is not None:
            self._add(txn, hour, (scope, label), record, now)

    def give_way(self, txn: Txn, most: int) -> int:
        """Delete up to `most` entries, of a namespace those of the oldest hours first; returns how many were deleted.

        A scope whose label is deleted loses what it has counted in the current hour.
        """
        words = (_HOUR[:_HALF], _OPEN[:_HALF], _NAMED)
        keys = [key for prefix in words for key, _ in islice(entries(txn, prefix), most)][:most]
        for key in keys:
            txn.delete(key)
        return len(keys)

    def _add(  # noqa: PLR0917 - what one entry consists of
        self, txn: Txn, word: bytes, labelled: tuple[bytes, bytes], record: Record, now: int
    ) -> None:
        """Add what a record has finished, and delete old hours one by one, which were not collected."""
        for finished in record.finished:
            _add_hour(txn, word, labelled, finished)
        record.finished = ()
        oldest = next(entries(txn, word), None)
        if oldest is not None and _hour_in(oldest[0]) < hour_of(now) - KEPT_HOURS:
            txn.delete(oldest[0])

    def collect(self, txn: Txn, now: int, *, namespace: str) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        batch = _BATCH + namespace_digest(namespace)
        stored = txn.get(batch)
        if stored is None:
            self._close_some(txn, now, namespace)
            counts = list(self._take_hours(txn, _words(namespace_digest(namespace)[:_HALF])[1]))
            if not counts:
                return None
            is_full = namespace in self._next_open or len(counts) == _MAX_BATCH
            stored = json.dumps([unique_name(), counts, is_full]).encode()
            txn.put(batch, stored)
        name, counts, is_full = json.loads(stored)
        return Batch(name, [unsealed(Count(*count)) for count in counts], is_full)

    def _close_some(self, txn: Txn, now: int, namespace: str) -> None:
        """Close records that are counting, as many as a batch holds; the next call goes on behind them."""
        word = _words(namespace_digest(namespace)[:_HALF])[0]
        found = islice(entries(txn, word, self._next_open.pop(namespace, b"")), _MAX_BATCH)
        scopes = [key[_WORD_LENGTH:] for key, _ in found]
        for scope in scopes:
            record = self._records.find(txn, scope)
            if record is None:
                txn.delete(word + scope)
                txn.delete(_NAMED + scope)
            else:
                self.close(txn, scope, record, now)
                self._records.put(txn, scope, record)
        if len(scopes) == _MAX_BATCH:
            self._next_open[namespace] = scopes[-1] + b"\0"

    def _take_hours(self, txn: Txn, word: bytes) -> Iterator[tuple[Any, ...]]:
        for key, stored in list(islice(entries(txn, word), _MAX_BATCH)):
            label, amounts = json.loads(stored)
            yield *label, _hour_in(key), amounts
            txn.delete(key)

    def forget(self, txn: Txn, name: str, *, namespace: str) -> None:
        """See `CountingStore.forget_counts`."""
        batch = _BATCH + namespace_digest(namespace)
        stored = txn.get(batch)
        if stored is not None and json.loads(stored)[0] == name:
            txn.delete(batch)


def _words(half: bytes) -> tuple[bytes, bytes]:
    """What the keys of scopes that are counting begin with, and those of hours; in a namespace with half a digest."""
    return (_OPEN[:_HALF] + half, _HOUR[:_HALF] + half) if half else (_OPEN, _HOUR)


def _add_hour(txn: Txn, word: bytes, labelled: tuple[bytes, bytes], finished: FinishedUsage) -> None:
    scope, label = labelled
    key = word + finished.hour.to_bytes(_HOUR_LENGTH) + scope
    stored = txn.get(key)
    amounts: dict[str, int] = {} if stored is None else json.loads(stored)[1]
    for name, amount in finished.amounts.items():
        amounts[name] = amounts.get(name, 0) + amount
    txn.put(key, json.dumps([json.loads(label), amounts]).encode())


def _hour_in(key: bytes) -> int:
    return int.from_bytes(key[_WORD_LENGTH : _WORD_LENGTH + _HOUR_LENGTH])
