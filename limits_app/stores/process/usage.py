"""Usage in the file: the record of a scope counts the current hour; what it has finished waits until it is collected.

A label names the scope and its namespace. It is behind the record that is counting (see `records`), and in the entries
`hour number scope`, or `Hour namespace number scope`, with the amounts of an hour that the record counts no more.
`rejected namespace minute limit` are the rejections by a limit in a minute, under its digest.
`batch namespace part` are the counts that were collected and are not confirmed yet. There the namespace is its digest
(nothing for the empty one), elsewhere the first half of that.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain, count, islice, takewhile
from typing import Any, Final, Protocol

from limits_app import engine
from limits_app.engine import (
    HOUR_MINUTES,
    KEPT_HOURS,
    Batch,
    Count,
    FinishedUsage,
    Record,
    RejectionCounts,
    Scope,
    Times,
    digest_in,
    hour_of,
    namespace_digest,
    rejection_label,
    seal,
    short_key,
    unique_name,
    unpacked_rejections,
    unsealed,
)
from limits_app.engine.errors import StoreFull
from limits_app.stores.process.records import SCOPE_LENGTH, Records, entries, keys_begin_with
from limits_app.stores.process.state_file import Txn

_HOUR: Final = b"hour"
_HOUR_IN_NAMESPACE: Final = b"Hour"
_REJECTED: Final = b"rejected"
_BATCH: Final = b"batch"
_HALF: Final = 8
_HOUR_LENGTH: Final = 4
_LENGTH: Final = 2
_MAX_BATCH: Final = 256
_PART: Final = 4000
_MOST_SCANNED: Final = 4096
"""How many keys are looked at in one transaction for scopes that are counting."""
_IN_NAMESPACE, _IS_SHARED, _HAS_RESOURCE, _HAS_MEMBER, _HAS_ENTITY = 1, 2, 4, 8, 16


class Transact(Protocol):
    """Calls a step with a transaction and an argument, and returns the result of the step."""

    def __call__(self, step: Any, argument: Any, *, write: bool = True) -> Any: ...


class Usage:
    """Keeps the finished usage of records, and gives it out in batches, as `CountingStore` describes."""

    def __init__(self, records: Records, clock: Callable[[], int]) -> None:
        self._records = records
        self._clock = clock
        self._next: dict[str, bytes] = {}
        """By namespace, the key from which on to look for scopes that are counting."""

    def keep(self, txn: Txn, key: bytes, scope: Scope, record: Record) -> None:
        """Keep what a record has finished, and label it where it has begun to count."""
        label = record.label or pack_label(scope)
        if record.counted_until:
            record.label = label
        self._add(txn, key, label, record)

    def close(self, txn: Txn, key: bytes, record: Record) -> None:
        """Keep all that a record has counted, which is deleted next."""
        label = _close(record)
        if label:
            self._add(txn, key, label, record)

    def _add(self, txn: Txn, scope: bytes, label: bytes, record: Record) -> None:
        """Add what a record has finished, and delete an old hour, which was not collected."""
        if not record.finished:
            return
        word = _word(_half_in(label))
        for finished in record.finished:
            _add_hour(txn, word + finished.hour.to_bytes(_HOUR_LENGTH) + scope, label, finished)
        record.finished = ()
        oldest = next(_hours(txn, word), None)
        if oldest is not None and _hour_in(oldest[0]) < hour_of(self._clock()) - KEPT_HOURS:
            txn.delete(oldest[0])

    def give_way(self, txn: Txn, most: int) -> int:
        """Delete up to `most` finished hours, of a namespace the oldest first; returns how many were deleted."""
        hours = chain(_hours(txn, _word(b"")), _hours(txn, _HOUR_IN_NAMESPACE, _HALF))
        keys = [key for key, _ in islice(chain(entries(txn, _REJECTED), hours), most)]
        for key in keys:
            txn.delete(key)
        return len(keys)

    def collect(self, transact: Transact, namespace: str) -> Batch | None:
        """See `CountingStore.collect_counts`. Scopes are looked for in transactions that no other one waits for."""
        batch: Batch | None = None
        most = _MAX_BATCH
        while batch is None:
            scopes = transact(partial(self._find_counting, most=most), namespace, write=False)
            is_done = namespace not in self._next
            try:
                batch = transact(partial(self._make_batch, scopes=scopes, is_done=is_done), namespace)
            except StoreFull:  # each changed page is written to another one, of which a full file has few
                if most == 1:
                    raise
                most //= 16
                self._next[namespace] = scopes[0] if scopes else keys_begin_with(namespace)
            else:
                if is_done:
                    break
        return batch

    def _find_counting(self, txn: Txn, namespace: str, *, most: int) -> list[bytes]:
        """Find up to `most` scopes that are counting; the next call goes on behind them."""
        if _read_batch(txn, namespace):
            return []
        prefix, half = keys_begin_with(namespace), namespace_digest(namespace)[:_HALF]
        scopes: list[bytes] = []
        with txn.cursor() as cursor:
            keys = cursor.iternext(values=False) if cursor.set_range(self._next.pop(namespace, prefix)) else ()
            for step, key in enumerate(keys):
                if not key.startswith(prefix):
                    break
                if step == _MOST_SCANNED or len(scopes) == most:
                    self._next[namespace] = key
                    break
                label = self._records.label(txn, cursor.value()) if len(key) == SCOPE_LENGTH else b""
                if label and _half_in(label) == half:
                    scopes.append(key)
        return scopes

    def _make_batch(self, txn: Txn, namespace: str, *, scopes: Iterable[bytes], is_done: bool) -> Batch | None:
        """Make a batch of finished hours and of what scopes have counted, or return the one that waits."""
        stored = _read_batch(txn, namespace)
        if not stored:
            finished = list(_take_hours(txn, namespace_digest(namespace)[:_HALF]))
            counts = [*finished, *self._take_counted(txn, scopes)]
            rejections = list(_take_rejections(txn, namespace))
            if not counts and not rejections:
                return None
            is_full = len(finished) >= _MAX_BATCH or len(rejections) == _MAX_BATCH or not is_done
            stored = json.dumps([unique_name(), counts, is_full, rejections]).encode()
            for key, part in _parts(namespace, stored):
                txn.put(key, part)
        name, counts, is_full, rejections = json.loads(stored)
        return Batch(
            name, [unsealed(Count(*count)) for count in counts], is_full, unpacked_rejections(map(tuple, rejections))
        )

    def add_rejections(self, txn: Txn, rejections: RejectionCounts, *, namespace: str) -> None:
        """See `CountingStore.add_rejections`; of those that were not collected for too long, the oldest are deleted."""
        word = _rejected(namespace)
        for rejected, times in rejections.items():
            label = rejection_label(rejected)
            key = word + rejected.minute.to_bytes(_HOUR_LENGTH) + short_key(json.dumps(label))
            stored = txn.get(key)
            sums = times if stored is None else Times(*json.loads(stored)[len(label) :]).merged(times)
            txn.put(key, json.dumps([*label, *sums]).encode())
        oldest_kept = max((rejected.minute for rejected in rejections), default=0) - KEPT_HOURS * HOUR_MINUTES
        for key in [key for key, _ in islice(entries(txn, word), len(rejections))]:
            if _hour_in(key) < oldest_kept:
                txn.delete(key)

    def _take_counted(self, txn: Txn, scopes: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        """Take the counts of scopes, which count again from their next admitted request."""
        for scope in scopes:
            record = self._records.find(txn, scope)
            label = b"" if record is None else _close(record)
            if record is not None and label:
                yield from [(*_unpack_label(label), hour, amounts, plan) for hour, amounts, plan in record.finished]
                record.finished = ()
                self._records.put(txn, scope, record)

    def forget(self, txn: Txn, name: str, *, namespace: str) -> None:
        """See `CountingStore.forget_counts`."""
        stored = _read_batch(txn, namespace)
        if stored and json.loads(stored)[0] == name:
            for key, _ in _parts(namespace, stored):
                txn.delete(key)


def pack_label(scope: Scope) -> bytes:
    """Return what the counts of a scope begin with; the name of the entity is sealed."""
    half, entity, flags = digest_in(scope.key)[:_HALF], seal(scope.entity), _IS_SHARED * scope.shared
    if entity is None:
        return _label_before_entity(flags, half, scope.resource, scope.member)
    return _label_before_entity(flags | _HAS_ENTITY, half, scope.resource, scope.member) + bytes.fromhex(entity)


@lru_cache(maxsize=1024)
def _label_before_entity(flags: int, half: bytes, resource: str | None, member: str | None) -> bytes:
    """Return what many labels begin with; the sealed name of the entity follows."""
    flags |= _IN_NAMESPACE * bool(half)
    texts = []
    for flag, text in ((_HAS_RESOURCE, resource), (_HAS_MEMBER, member)):
        if text is not None:
            flags |= flag
            encoded = text.encode()
            texts.append(len(encoded).to_bytes(_LENGTH) + encoded)
    return bytes([flags]) + half + b"".join(texts)


def _unpack_label(label: bytes) -> tuple[str | None, str | None, bool, str | None]:
    """Return the fields of a label that a Count begins with."""
    flags, at = label[0], 1 + len(_half_in(label))
    texts: list[str | None] = [None, None]
    for index, flag in enumerate((_HAS_RESOURCE, _HAS_MEMBER)):
        if flags & flag:
            start = at + _LENGTH
            at = start + int.from_bytes(label[at:start])
            texts[index] = label[start:at].decode()
    entity = label[at:].hex() if flags & _HAS_ENTITY else None
    return texts[0], entity, bool(flags & _IS_SHARED), texts[1]


def _half_in(label: bytes) -> bytes:
    """Return the namespace in a label."""
    return label[1 : 1 + _HALF] if label[0] & _IN_NAMESPACE else b""


def _close(record: Record) -> bytes:
    """Finish the usage of a record; returns its label, or nothing where it was not counting."""
    label = record.label
    engine.close_usage(record)
    return label


def _read_batch(txn: Txn, namespace: str) -> bytes:
    """Return the batch that waits, if there is one."""
    parts = (txn.get(_part_key(namespace, number)) or b"" for number in count())
    return b"".join(takewhile(bool, parts))


def _parts(namespace: str, stored: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a batch. Each has a page at most, since a file that is nearly full has no longer gaps."""
    for number, start in enumerate(range(0, len(stored), _PART)):
        yield _part_key(namespace, number), stored[start : start + _PART]


def _part_key(namespace: str, number: int) -> bytes:
    return _BATCH + namespace_digest(namespace) + number.to_bytes(_LENGTH)


def _add_hour(txn: Txn, key: bytes, label: bytes, finished: FinishedUsage) -> None:
    stored = txn.get(key)
    by_plan: dict[str, dict[str, int]] = {} if stored is None else _unpack_hour(stored)[1]
    amounts = by_plan.setdefault(finished.plan, {})
    for name, amount in finished.amounts.items():
        amounts[name] = amounts.get(name, 0) + amount
    txn.put(key, len(label).to_bytes(_LENGTH) + label + json.dumps(by_plan, separators=(",", ":")).encode())


def _take_hours(txn: Txn, half: bytes) -> Iterator[tuple[Any, ...]]:
    """Take the oldest hours of a namespace, as many as a batch holds."""
    for key, stored in list(islice(_hours(txn, _word(half)), _MAX_BATCH)):
        label, by_plan = _unpack_hour(stored)
        for plan, amounts in by_plan.items():
            yield *_unpack_label(label), _hour_in(key), amounts, plan
        txn.delete(key)


def _rejected(namespace: str) -> bytes:
    """Return the prefix of the keys of the rejections of a namespace; the length keeps namespaces apart."""
    digest = namespace_digest(namespace)[:_HALF]
    return _REJECTED + bytes([len(digest)]) + digest


def _take_rejections(txn: Txn, namespace: str) -> Iterator[list[Any]]:
    for key, stored in list(islice(entries(txn, _rejected(namespace)), _MAX_BATCH)):
        yield json.loads(stored)
        txn.delete(key)


def _word(half: bytes) -> bytes:
    """Return what the keys of the hours of a namespace begin with."""
    return _HOUR_IN_NAMESPACE + half if half else _HOUR


def _hours(txn: Txn, word: bytes, more: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Iterate over the hours whose keys begin with a word and `more` bytes; a scope may begin with it too."""
    length = len(word) + more + _HOUR_LENGTH + SCOPE_LENGTH
    return ((key, stored) for key, stored in entries(txn, word) if len(key) == length)


def _unpack_hour(stored: bytes) -> tuple[bytes, dict[str, dict[str, int]]]:
    """Return the label and the amounts of an hour, by plan."""
    end = _LENGTH + int.from_bytes(stored[:_LENGTH])
    return stored[_LENGTH:end], json.loads(stored[end:])


def _hour_in(key: bytes) -> int:
    return int.from_bytes(key[-SCOPE_LENGTH - _HOUR_LENGTH : -SCOPE_LENGTH])
