"""Housekeeping: idle rows are deleted while new ones are created, and old counts and commits once an hour."""

from __future__ import annotations

import os
from typing import Final

from limits_app.core.counting import HOUR_US, KEPT_HOURS, hour_of
from limits_app.core.record import Record
from limits_app.stores.database import commit_log
from limits_app.stores.database.connections import marks
from limits_app.stores.database.transaction import Transaction
from limits_app.stores.steps import GRACE_US, LOOKS_PER_NEWCOMER, is_idle

_FORGET_COUNTS: Final = "DELETE FROM limits_app_count WHERE hour < %s"
_NEW_ROWS_PER_ROUND: Final = 16


class Housekeeping:
    """Goes through the table in the order of keys, two rows for each that is created, so that few rows are idle."""

    def __init__(self) -> None:
        self._new_rows = 0
        self._position = os.urandom(16)
        """Random, so that processes do not look at the same rows."""
        self._counted_hour = self._cleaned_hour = 0

    def note(self, transaction: Transaction) -> None:
        """Note the rows and counts that a transaction has added."""
        self._new_rows += transaction.added
        if transaction.counted:
            self._counted_hour = hour_of(transaction.now)

    def is_due(self) -> bool:
        """Whether there are enough new rows for a round, or counts of another hour than at the last one."""
        return self._new_rows >= _NEW_ROWS_PER_ROUND or self._counted_hour > self._cleaned_hour

    def clean(self, transaction: Transaction) -> None:
        """Delete the next rows that have been unused for a minute, and once an hour old counts and commits."""
        connection = transaction.connection
        now, clock = connection.moment()[0], transaction.clock()
        if self._counted_hour > self._cleaned_hour:
            self._cleaned_hour = self._counted_hour
            connection.execute(_FORGET_COUNTS, (hour_of(clock) - KEPT_HOURS,))
            connection.execute(commit_log.FORGET_COMMITS, (now - commit_log.KEPT_US,))
        if self._new_rows:
            number, self._new_rows = self._new_rows * LOOKS_PER_NEWCOMER, 0
            rows = transaction.lock_next(self._position, number)
            self._position = rows[-1][0] if len(rows) == number else b""
            idle = [key for key, stored in rows if stored is None or _is_unused(stored.record, clock)]
            remove = f"DELETE FROM limits_app_state WHERE scope IN ({marks(len(idle))})"  # noqa: S608 - marks only
            connection.commit([(remove, idle)] if idle else [])


def _is_unused(record: Record, now: int) -> bool:
    """Whether a row is idle, and has no usage that will still be collected."""
    until = 0 if record.usage is None else record.usage.until
    return is_idle(record, now) and (not until or until + KEPT_HOURS * HOUR_US + GRACE_US <= now)
