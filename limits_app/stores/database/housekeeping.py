"""Housekeeping: scopes that cannot be told from unused ones are forgotten while new ones come."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from limits_app.core.counting import HOUR_US, KEPT_HOURS, hour_of
from limits_app.stores.database.statements import FORGET_OLD
from limits_app.stores.idleness import GRACE_US, LOOKS_PER_NEWCOMER

if TYPE_CHECKING:
    from limits_app.stores.database.links import Link, Row
    from limits_app.stores.database.reading import Reading

__all__ = ["Housekeeping"]

_NEWCOMERS_PER_LOOK: Final = 16


class Housekeeping:
    """Goes round the table, some rows at a time, for every few scopes that are new."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._newcomers = 0
        self._hand = os.urandom(16)  # so that processes do not go round together
        self._tallied_hour = self._swept_hour = 0

    def entered(self) -> None:
        """A scope is new."""
        self._newcomers += 1

    def tallied(self, now: int) -> None:
        """Counts were added to those that are to be collected."""
        self._tallied_hour = hour_of(now)

    def is_due(self) -> bool:
        """Whether so many scopes are new that it is time to look, or an hour has begun since counts were swept."""
        return self._newcomers >= _NEWCOMERS_PER_LOOK or self._tallied_hour > self._swept_hour

    def look(self, link: Link, now: int) -> None:
        """Look at the next rows, and forget those that have been idle for a minute, and counts nobody has collected."""
        if self._tallied_hour > self._swept_hour:
            self._swept_hour = self._tallied_hour
            link.run(FORGET_OLD, (hour_of(now) - KEPT_HOURS,))
        if self._newcomers:
            self._go_on(link, now)

    def _go_on(self, link: Link, now: int) -> None:
        looks = self._newcomers * LOOKS_PER_NEWCOMER
        self._newcomers = 0
        rows = link.scopes_after(self._hand, looks)
        self._hand = rows[-1].scope if len(rows) == looks else b""
        link.remove([(row.scope, row.stamp) for row in rows if self._restored_at(link, row, now) + GRACE_US <= now])

    def _restored_at(self, link: Link, row: Row, now: int) -> int:
        record = self._reading.as_stored(link, row)
        if record is None:
            return 0
        counted_until = record.counts[-1] if record.counts else 0
        kept_until = counted_until + KEPT_HOURS * HOUR_US if counted_until else 0
        return max(kept_until, record.codec.layout.restored_at(record.without_expired(now).states))
