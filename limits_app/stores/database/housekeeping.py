"""Housekeeping: after transactions that have added rows, idle rows are deleted, and once an hour old counts."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Final

from limits_app.engine import HOUR_US, KEPT_HOURS, hour_of, lasts
from limits_app.stores.database.connections import marks
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, GRACE_US, is_idle, that_give_way

if TYPE_CHECKING:
    from limits_app.engine import Record
    from limits_app.stores.database.connections import StoreConnection
    from limits_app.stores.database.transaction import Transaction

_OLD_COUNTS: Final = "SELECT id FROM limits_app_count WHERE hour < %s ORDER BY hour, id LIMIT %s"
_NEW_ROWS_PER_ROUND: Final = 16
_OLDEST_COUNTS: Final = "SELECT id FROM limits_app_count ORDER BY hour, id LIMIT %s"
_ROWS_THAT_GIVE_WAY: Final = 256
_SECONDS_BETWEEN_SEARCHES: Final = 0.1
"""In a full database."""


class RowHousekeeping:
    """Goes through the table in the order of keys, two rows for each that is created, so that few rows are idle."""

    def __init__(self) -> None:
        self._new_rows = 0
        self._position = os.urandom(16)
        """Random, so that processes do not look at the same rows."""
        self._counted_hour = self._cleaned_hour = 0
        self._has_more_counts = False
        self._searched_at = -inf

    def note(self, transaction: Transaction) -> None:
        """Note the rows and counts that a transaction has added."""
        self._new_rows += transaction.added
        if transaction.added and self._has_more_counts:
            self._cleaned_hour = 0
        if transaction.counted:
            self._counted_hour = hour_of(transaction.now)

    def is_due(self) -> bool:
        """Whether there are enough new rows for a round, or counts of another hour than at the last one."""
        return self._new_rows >= _NEW_ROWS_PER_ROUND or self._counted_hour != self._cleaned_hour

    def clean(self, transaction: Transaction) -> None:
        """Delete the next rows that have been unused for a minute, and once an hour old counts."""
        connection, clock = transaction.connection, transaction.clock()
        if self._counted_hour != self._cleaned_hour:
            # Some at a time, since a request waits for it: where nothing was collected for days there are many.
            self._cleaned_hour = self._counted_hour
            old = connection.execute(_OLD_COUNTS, (hour_of(clock) - KEPT_HOURS, _ROWS_THAT_GIVE_WAY))
            counts = [row[0] for row in old]
            _delete_counts(counts, connection)
            self._has_more_counts = len(counts) == _ROWS_THAT_GIVE_WAY
        if self._new_rows:
            number, self._new_rows = self._new_rows * CHECKS_PER_NEW_SCOPE, 0
            rows = transaction.lock_next(self._position, number)
            self._position = rows[-1][0] if len(rows) == number else b""
            idle = {key for key, stored in rows if stored is None or _is_unused(stored.record, clock)}
            # States that were written before the clock was set back are idle some time after they were moved.
            kept = [stored for key, stored in rows if stored is not None and key not in idle]
            transaction.change([stored for stored in kept if stored.record.changed])
            _delete(idle, transaction)

    def make_room(self, transaction: Transaction) -> bool:
        """Delete the oldest counts, or without any those of the next rows that give way; returns whether any were."""
        connection = transaction.connection
        counts = [row[0] for row in connection.execute(_OLDEST_COUNTS, (_ROWS_THAT_GIVE_WAY,))]
        if counts:
            _delete_counts(counts, connection)
            return True
        if lasts(self._searched_at, _SECONDS_BETWEEN_SEARCHES, monotonic()):
            return False
        self._searched_at, clock = monotonic(), transaction.clock()
        deleted = 0
        for _ in range(2):  # the second time from the beginning, where there are few rows behind the position
            rows = transaction.lock_next(self._position, _ROWS_THAT_GIVE_WAY)
            self._position = rows[-1][0] if len(rows) == _ROWS_THAT_GIVE_WAY else b""
            records = {key: stored.record for key, stored in rows if stored is not None}
            gone = {key for key, _ in rows if key not in records}.union(that_give_way(records, clock))
            _delete(gone, transaction)
            deleted += len(gone)
            if self._position:
                break
        return deleted > 0


def _delete(keys: Collection[bytes], transaction: Transaction) -> None:
    """Delete rows, and commit."""
    if keys:
        remove = f"DELETE FROM limits_app_state WHERE scope IN ({marks(len(keys))})"  # noqa: S608 - marks only
        transaction.connection.execute(remove, [*keys])
    transaction.commit()


def _delete_counts(keys: Sequence[int], connection: StoreConnection) -> None:
    if keys:
        connection.execute(f"DELETE FROM limits_app_count WHERE id IN ({marks(len(keys))})", keys)  # noqa: S608 - marks only


def _is_unused(record: Record, now: int) -> bool:
    """Whether a row is idle, and has no usage that will still be collected."""
    until = record.counted_until
    return is_idle(record, now) and (not until or until + KEPT_HOURS * HOUR_US + GRACE_US <= now)
