"""Housekeeping: scopes that cannot be told from unused ones are forgotten while new ones come."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from limits_app.stores.database.links import Link, Row
    from limits_app.stores.database.reading import Reading

__all__ = ["Housekeeping"]

_GRACE_US: Final = 60_000_000
_NEWCOMERS_PER_LOOK: Final = 16
_LOOKS_PER_NEWCOMER: Final = 2


class Housekeeping:
    """Goes round the table, some rows at a time, for every few scopes that are new."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._newcomers = 0
        self._hand = os.urandom(16)  # so that processes do not go round together

    def entered(self) -> None:
        """A scope is new."""
        self._newcomers += 1

    def is_due(self) -> bool:
        """Whether so many scopes are new that it is time to look."""
        return self._newcomers >= _NEWCOMERS_PER_LOOK

    def look(self, link: Link, now: int) -> None:
        """Look at the next rows, and forget those that have been idle for a minute."""
        looks = self._newcomers * _LOOKS_PER_NEWCOMER
        self._newcomers = 0
        rows = link.scopes_after(self._hand, looks)
        self._hand = rows[-1].scope if len(rows) == looks else b""
        link.remove([(row.scope, row.stamp) for row in rows if self._restored_at(link, row, now) + _GRACE_US <= now])

    def _restored_at(self, link: Link, row: Row, now: int) -> int:
        record = self._reading.as_stored(link, row)
        if record is None:
            return 0
        return record.codec.layout.restored_at(record.without_expired(now).states)
