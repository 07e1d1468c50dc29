"""Collecting counts: from the rows that count into the table of counts, a few rows at a time, and into a batch.

A batch is made of finished counts only, so that no request waits for it. Several collectors share the rows: each goes
around all of them once, from a place of its own, and takes the next ones that no other process has locked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from random import randrange
from threading import local
from typing import TYPE_CHECKING, Any, Final

from limits_app import engine
from limits_app.engine import (
    HOUR_MINUTES,
    Batch,
    Count,
    RejectionCounts,
    namespace_digest,
    packed_rejections,
    unique_name,
    unpacked_rejections,
    unsealed,
)
from limits_app.stores.database.connections import insert_sql, marks, namespace_id
from limits_app.stores.database.records import COUNT, COUNT_COLUMNS, next_counting_sql

if TYPE_CHECKING:
    from limits_app.stores.database.runner import TransactionRunner
    from limits_app.stores.database.transaction import Transaction

_COUNTED: Final = "SELECT id, hour, label, amounts FROM limits_app_count WHERE namespace = %s ORDER BY id LIMIT %s"
_BATCH: Final = "SELECT name, counts FROM limits_app_batch WHERE namespace = %s AND collector = %s"
_FILL_BATCH: Final = "UPDATE limits_app_batch SET counts = %s WHERE name = %s"
_FORGET_BATCH: Final = "DELETE FROM limits_app_batch WHERE name = %s"
_MAX_COUNTS: Final = 1000
_ROWS_TOGETHER: Final = 64
_LAST_PLACE: Final = 2**63 - 1
_REJECTIONS_LABEL: Final = b"rejections"
"""The label of rows with rejections."""
_REJECTIONS_TOGETHER: Final = 20


class _Round:
    """How far a collector has come: from the place where it began to the last one, and then from the first one on.

    What counts again behind it is left to the next round, so that each ends. It begins anywhere, so that collectors
    start with different rows, and that none is always left over where a round is interrupted.
    """

    def __init__(self) -> None:
        self._began = self._place = randrange(_LAST_PLACE)
        self._is_around = False
        self.is_complete = False

    @property
    def places(self) -> tuple[int, int]:
        """The rows that come next are after the first of these, up to the second one."""
        return self._place, self._began if self._is_around else _LAST_PLACE

    def pass_to(self, reached: int) -> None:
        """Go on after a place."""
        self._place = reached
        if reached == self.places[1]:
            self.is_complete, self._is_around, self._place = self._is_around, True, -1


class CollectorRounds(local):
    """The unfinished rounds of each thread, by the number of the namespace and the collector."""

    def __init__(self) -> None:
        self.unfinished: dict[tuple[int, int], _Round] = {}


def collect(runner: TransactionRunner, rounds: CollectorRounds, namespace: str, collector: int) -> Batch | None:
    """See `CountingStore.collect_counts`. Where it is interrupted nothing is lost, and nothing is collected twice."""
    number = namespace_id(namespace_digest(namespace))
    waiting = runner.run(partial(_waiting_batch, number, collector))
    if waiting is not None:
        return waiting
    whose = number, collector
    this_round = rounds.unfinished.setdefault(whose, _Round())
    while True:
        if not this_round.is_complete:
            _close_next_rows(runner, number, this_round)
        batch = runner.run(partial(make_batch, number, collector, is_full=not this_round.is_complete))
        if this_round.is_complete and (batch is None or not batch.is_full):
            del rounds.unfinished[whose]
            return batch
        if batch is not None:
            return batch


def _close_next_rows(runner: TransactionRunner, namespace: int, this_round: _Round) -> None:
    """Move the counted usage of the next rows of a round into the table of counts, nearly as many as a batch has."""
    closed, passed = set[bytes](), list[tuple[int, int]]()
    while len(closed) + _ROWS_TOGETHER <= _MAX_COUNTS and not this_round.is_complete:
        start, end = this_round.places
        rows = runner.run(partial(_close_unlocked, namespace, (start, end)))
        closed |= rows.keys()
        reached = max(rows.values()) if len(rows) == _ROWS_TOGETHER else end
        passed.append((start, reached))
        this_round.pass_to(reached)
    for places in _joined(passed):
        while locked := runner.run(partial(_locked_rows, namespace, places, closed)):
            # It is waited for alone, so that other rows are not locked meanwhile.
            key, label = locked[0]
            runner.run(partial(_close_row, namespace, key, label))
            closed.add(key)


def _joined(passed: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return places where those that follow each other are joined."""
    joined = list[tuple[int, int]]()
    for start, end in passed:
        first = joined.pop()[0] if joined and joined[-1][1] == start else start
        joined.append((first, end))
    return joined


def add_rejections(runner: TransactionRunner, rejections: RejectionCounts, namespace: str) -> None:
    """See `CountingStore.add_rejections`; several are in one row."""
    number, rows = namespace_id(namespace_digest(namespace)), iter(packed_rejections(rejections))
    values = list[object]()
    while together := list(islice(rows, _REJECTIONS_TOGETHER)):
        hour = max(row[0] for row in together) // HOUR_MINUTES
        values += [hour, _REJECTIONS_LABEL, number, json.dumps(together).encode()]
    if values:
        insert = insert_sql(*COUNT, rows=len(values) // COUNT_COLUMNS)
        runner.run(lambda transaction: transaction.connection.execute(insert, values))


def forget(runner: TransactionRunner, name: str) -> None:
    """See `CountingStore.forget_counts`."""
    runner.run(lambda transaction: transaction.connection.execute(_FORGET_BATCH, (name,)))


def make_batch(namespace: int, collector: int, transaction: Transaction, *, is_full: bool) -> Batch | None:
    """Make a batch of finished counts that no other collector takes, or return the one that was made meanwhile.

    `namespace` is the number of theirs.
    """
    connection, name, whose = transaction.connection, unique_name(), (namespace, collector)
    transaction.begin()
    # The table has room for one batch, so that processes with the same collector wait for each other here.
    if not connection.insert("limits_app_batch", "name, namespace, collector, counts", (name, *whose, b"")):
        return _waiting_batch(*whose, transaction)
    rows = connection.execute(_COUNTED + connection.skip_locked_sql, (namespace, _MAX_COUNTS))
    if not rows:
        return None
    packed = _pack(rows, is_full=is_full or len(rows) == _MAX_COUNTS)
    ids = [row[0] for row in rows]
    connection.execute(f"DELETE FROM limits_app_count WHERE id IN ({marks(len(ids))})", ids)  # noqa: S608 - marks only
    connection.execute(_FILL_BATCH, (packed, name))
    transaction.commit()
    return _unpack(name, packed)


def _close_unlocked(namespace: int, places: tuple[int, int], transaction: Transaction) -> dict[bytes, int]:
    """Move the counted usage of the next rows that are not locked into the table of counts; returns their places."""
    place_of_each, rows = transaction.lock_counting(namespace, places, _ROWS_TOGETHER)
    for stored in rows:
        engine.close_usage(stored.record)
    transaction.save()
    return place_of_each


def _locked_rows(
    namespace: int, places: tuple[int, int], closed: Collection[bytes], transaction: Transaction
) -> list[tuple[bytes, bytes]]:
    """Return rows that count and were left out because they were locked, with their labels."""
    connection = transaction.connection
    sql = next_counting_sql("scope, label", connection.by_place_sql)
    rows = connection.execute(sql, (namespace, *places, _MAX_COUNTS))
    return [(key, bytes(label)) for key, label in ((bytes(key), label) for key, label in rows) if key not in closed]


def _close_row(namespace: int, key: bytes, label: bytes, transaction: Transaction) -> None:
    """Move the counted usage of a row into the table of counts, once it is not locked."""
    for stored in transaction.lock_rows([key]):
        stored.label = label, namespace
        engine.close_usage(stored.record)
    transaction.save()


def _waiting_batch(namespace: int, collector: int, transaction: Transaction) -> Batch | None:
    """Return the batch that a collector has collected and not forgotten."""
    for name, packed in transaction.connection.execute(_BATCH, (namespace, collector)):
        return _unpack(name, bytes(packed))
    return None


def _pack(rows: Iterable[Sequence[bytes]], *, is_full: bool) -> bytes:
    counts, rejections = list[Any](), list[Any]()
    for _, hour, label, stored in rows:
        content = json.loads(bytes(stored))
        if bytes(label) == _REJECTIONS_LABEL:
            rejections += content
        else:
            counts.append([*json.loads(bytes(label)), hour, *content])
    return json.dumps([is_full, counts, rejections]).encode()


def _unpack(name: str, packed: bytes) -> Batch:
    is_full, counts, rejections = json.loads(packed)
    return Batch(
        name, [unsealed(Count(*count)) for count in counts], is_full, unpacked_rejections(map(tuple, rejections))
    )
