"""What a record has counted, once it leaves the record: by hour, under a label that names the scope."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from limits_app.core.counting import hour_ends, hour_of, in_time, label_of

if TYPE_CHECKING:
    from limits_app.core.parts import Amounts, Part
    from limits_app.stores.database.records import Record

__all__ = ["Mark", "Tallied", "begun", "closed", "collected", "settled_in"]

_FULL: Final = 2**61
"""Who has counted so many parts begins anew, long before they do not fit any more; so many at once go by themselves."""


class Tallied(NamedTuple):
    """Amounts of one scope in an hour, which nothing is added to any more."""

    hour: int
    label: bytes
    amounts: bytes


class Mark(NamedTuple):
    """Until when a row counts, None when it does not, and of whom; by this those who collect find it."""

    counted_until: int | None
    label: bytes


def begun(record: Record, part: Part, now: int) -> Record:
    """A record of a part that counts in the hour of this moment; another one, whose counts may be changed."""
    after = record.copy()
    until = after.counts[-1]
    if now < until and max(after.counts) < _FULL:
        return after
    label, until = label_of(part.scoped.scope), hour_ends(now)
    after.counts[:] = [*record.codec.uncounted[1:], until]
    return after._replace(mark=Mark(until, label), tallied=closed(record, label))


def closed(record: Record, label: bytes) -> tuple[Tallied, ...]:
    """What goes out of a record that is to be replaced by one that begins to count anew."""
    if not record.counts or not record.counts[-1]:
        return record.tallied
    amounts = record.codec.layout.counted([*record.states, *record.counts])
    return record.tallied + _tallied(record.counts[-1] - 1, label, amounts)


def collected(record: Record, label: bytes) -> Record:
    """A record that counts nothing until somebody takes from it, and has left what it counted."""
    return record._replace(counts=record.codec.uncounted, mark=Mark(None, label), tallied=closed(record, label))


def settled_in(record: Record, part: Part, changes: Amounts, taken_at: int) -> Record:
    """A record that may be changed, with what is settled of a part counted in the hour in which it was taken."""
    fits = record.codec.layout is part.layout and max(*record.counts, *changes) < _FULL
    if fits and in_time(record.counts[-1], taken_at):
        for index, place in part.asked.items():
            if place not in part.permits:
                record.counts[index] += changes[place]
        return record
    return record._replace(
        tallied=record.tallied + _tallied(taken_at, label_of(part.scoped.scope), part.counted(changes))
    )


def _tallied(moment: int, label: bytes, amounts: Mapping[str, int]) -> tuple[Tallied, ...]:
    return (Tallied(hour_of(moment), label, json.dumps(amounts).encode()),) if amounts else ()
