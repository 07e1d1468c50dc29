"""The ledger: rows are opened as records, and written back with a new stamp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from limits_app.core.clock import Clock
from limits_app.core.parts import Part
from limits_app.stores.database.clock import ServerClock
from limits_app.stores.database.housekeeping import Housekeeping
from limits_app.stores.database.latest import Latest
from limits_app.stores.database.links import Link, new_stamp
from limits_app.stores.database.reading import Reading
from limits_app.stores.database.records import LogElsewhere, Record
from limits_app.stores.database.statements import Change

__all__ = ["Conclude", "Decide", "Ledger", "Page"]

Decide = Callable[[Sequence[Record], int], "list[Record] | None"]
"""(records, now): the records as they are to be, or None when it cannot be."""
Conclude = Callable[[Sequence[Record], int], None]
"""(records, now): note that this was written."""


class Page(NamedTuple):
    """Records that nobody else changes until they are written, and what they are to be decided by."""

    records: list[Record]
    now: int
    version: int
    stamp: int
    carried: list[Record]
    """Those that another layout has written, as the present one sees them."""

    def without_expired(self) -> Page:
        """The same without the leases that have run out."""
        return self._replace(
            records=[record.without_expired(self.now) for record in self.records],
            carried=[record.without_expired(self.now) for record in self.carried],
        )

    def load_logs(self) -> None:
        """Fetch the logs of all records, for those who look at them after the transaction."""
        for record in self.records:
            record.codec.load_logs(record.states)


class Ledger:
    """Opens, writes and remembers records; each call is part of a step with the link that it gets."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reading = Reading()
        self._latest = Latest()
        self.housekeeping = Housekeeping(self._reading)

    def after_fork(self) -> None:
        """A child does not know what its parent goes on to write."""
        self._latest.clear()

    def open(self, link: Link, parts: Sequence[Part], *, as_stored: bool = False) -> Page:
        """Begin a transaction, and see the scopes of `parts` as their layouts do, or those that wrote them."""
        stamp = new_stamp()
        for part in parts:
            self._reading.define(link, part.layout)
        found = link.begin([part.short_key for part in parts])
        now, rows = self._time(found.now), {row.scope: row for row in found.rows}
        records, carried = [], []
        for part in parts:
            row = rows.get(part.short_key)
            record = self._reading.as_stored(link, row) if as_stored and row is not None else None
            if record is None:
                record = self._reading.seen(link, part, row, now)
                if row is not None and not row.is_of(record.codec.name):
                    carried.append(record)
            records.append(record)
        return Page(records, now, found.version, stamp, carried)

    def open_rows(self, link: Link, scopes: Sequence[bytes], *, skips_locked: bool = False) -> Page:
        """Begin a transaction, and see those scopes that have a row as the layouts do that wrote them.

        With `skips_locked`, those that others change just now may be left out.
        """
        stamp = new_stamp()
        found = link.begin(scopes, skips_locked=skips_locked)
        records = [record for row in found.rows if (record := self._reading.as_stored(link, row)) is not None]
        return Page(records, self._time(found.now), found.version, stamp, [])

    def look(self, link: Link, parts: Sequence[Part]) -> Page:
        """See scopes without changing them."""
        found = link.look([part.short_key for part in parts])
        now, rows = self._time(found.now), {row.scope: row for row in found.rows}
        records = [self._reading.seen(link, part, rows.get(part.short_key), now).without_expired(now) for part in parts]
        page = Page(records, now, found.version, 0, [])
        page.load_logs()
        return page

    def write(self, link: Link, page: Page, after: Sequence[Record], conclude: Conclude) -> bool:
        """Commit; False when another has created one of the rows meanwhile, and all has to be decided anew."""
        changed = [record for record in after if record not in page.records or record in page.carried]
        if link.keeps_notes:
            changed = [record.noting(link.number, page.stamp) for record in changed]
        written = partial(self._written, page.stamp, changed, partial(conclude, after, page.now))
        if changed:
            return link.commit([_change(record) for record in changed], page.stamp, written)
        link.rollback()
        written()
        return True

    def swap(
        self, link: Link, parts: Sequence[Part], version: int | None, *, decide: Decide, conclude: Conclude
    ) -> bool:
        """Go by what this process wrote last, if the database says that nothing has changed since; whether it did."""
        if len(parts) != 1:
            return False
        record = self._latest.own(parts[0].short_key)
        if record is None or record.codec.layout is not parts[0].layout:
            return False
        now, stamp = self._clock(), new_stamp()
        if link.keeps_notes:
            record = record.noting(link.number, stamp)
        try:
            after = decide([record], now)
            if after is None or after[0].mark is not None or after[0].tallied:
                return False
            change = _change(after[0])
        except LogElsewhere:
            return False
        written = partial(self._written, stamp, after, partial(conclude, after, now))
        told = link.swap(change, stamp, now=now, version=version, conclude=written)
        if told is None:
            self._latest.forget(record.scope)
            return False
        self._time(told)
        return True

    def _time(self, told: int) -> int:
        """The time of the step: the server's where that is the clock."""
        if isinstance(self._clock, ServerClock):
            self._clock.hear(told)
            return told
        return self._clock()

    def _written(self, stamp: int, changed: Sequence[Record], conclude: Callable[[], None]) -> None:
        for record in changed:
            self._latest.written(record.codec.stored(record, stamp), record.stamp)
            if record.stamp is None:
                self.housekeeping.entered()
            if record.tallied:
                self.housekeeping.tallied(self._clock())
        conclude()


def _change(record: Record) -> Change:
    codec = record.codec
    states, logs = codec.encode(record), codec.encode_logs(record)
    return Change(record.scope, record.stamp, states, logs, record.mark, record.tallied)
