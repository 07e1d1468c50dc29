"""Collecting counts: from the rows that count into the table of counts, a few rows at a time, and into a batch.

A batch is made of finished counts only, so that no request waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
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
from limits_app.stores.database.records import COUNT, COUNT_COLUMNS

if TYPE_CHECKING:
    from limits_app.stores.database.runner import TransactionRunner
    from limits_app.stores.database.transaction import Transaction

_COUNTING: Final = (
    "SELECT scope, label FROM limits_app_state WHERE namespace = %s AND counted_until IS NOT NULL "
    "ORDER BY counted_until LIMIT %s"
)
_COUNTED: Final = "SELECT id, hour, label, amounts FROM limits_app_count WHERE namespace = %s ORDER BY id LIMIT %s"
_BATCH: Final = "SELECT name, counts FROM limits_app_batch WHERE id = %s"
_FILL_BATCH: Final = "UPDATE limits_app_batch SET counts = %s WHERE name = %s"
_FORGET_BATCH: Final = "DELETE FROM limits_app_batch WHERE name = %s"
_MAX_COUNTS: Final = 1000
_ROWS_TOGETHER: Final = 64
_REJECTIONS_LABEL: Final = b"rejections"
"""The label of rows with rejections."""
_REJECTIONS_TOGETHER: Final = 20


def collect(runner: TransactionRunner, namespace: str) -> Batch | None:
    """See `CountingStore.collect_counts`. Where it is interrupted nothing is lost, and nothing is collected twice."""
    number = namespace_id(namespace_digest(namespace))
    waiting = runner.run(partial(_waiting_batch, number))
    if waiting is not None:
        return waiting
    labels = runner.run(partial(_counting_rows, number))
    keys = iter(sorted(labels))
    locked = set[bytes]()
    while together := list(islice(keys, _ROWS_TOGETHER)):
        locked |= runner.run(partial(_close_rows, number, labels, together, skip_locked=True))
    for key in locked:
        # It is waited for alone, so that other rows are not locked meanwhile.
        runner.run(partial(_close_rows, number, labels, [key], skip_locked=False))
    return runner.run(partial(make_batch, number, is_full=len(labels) == _MAX_COUNTS))


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


def make_batch(namespace: int, transaction: Transaction, *, is_full: bool) -> Batch | None:
    """Make a batch of finished counts, or return the one that another process has made meanwhile.

    `namespace` is the number of theirs.
    """
    connection, name = transaction.connection, unique_name()
    transaction.begin()
    # The table has room for one batch, so that processes that collect at the same time wait for each other here.
    if not connection.insert("limits_app_batch", "id, name, counts", (namespace, name, b"")):
        return _waiting_batch(namespace, transaction)
    rows = connection.execute(_COUNTED, (namespace, _MAX_COUNTS))
    if not rows:
        return None
    packed = _pack(rows, is_full=is_full or len(rows) == _MAX_COUNTS)
    ids = [row[0] for row in rows]
    connection.execute(f"DELETE FROM limits_app_count WHERE id IN ({marks(len(ids))})", ids)  # noqa: S608 - marks only
    connection.execute(_FILL_BATCH, (packed, name))
    transaction.commit()
    return _unpack(name, packed)


def _close_rows(
    namespace: int, labels: Mapping[bytes, bytes], keys: Sequence[bytes], transaction: Transaction, *, skip_locked: bool
) -> set[bytes]:
    """Move the counted usage of some rows into the table of counts; returns the keys of rows that were left out."""
    locked = transaction.lock_rows(keys, skip_locked=skip_locked)
    for stored in locked:
        stored.label = labels[stored.key], namespace
        engine.close_usage(stored.record)
    transaction.save()
    return set(keys).difference([stored.key for stored in locked])


def _counting_rows(namespace: int, transaction: Transaction) -> dict[bytes, bytes]:
    """Return the labels of the rows that count, by key; those whose hour ended first come first."""
    rows = transaction.connection.execute(_COUNTING, (namespace, _MAX_COUNTS))
    return {bytes(key): bytes(label) for key, label in rows}


def _waiting_batch(namespace: int, transaction: Transaction) -> Batch | None:
    """Return the batch that was collected and not forgotten."""
    for name, packed in transaction.connection.execute(_BATCH, (namespace,)):
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
