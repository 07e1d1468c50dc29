"""Settling in a scope whose limits have changed since the claim was admitted."""

from __future__ import annotations

from limits_app.core.algorithms import State
from limits_app.core.layout import Layout
from limits_app.core.parts import Amounts, Part
from limits_app.core.unrolled import Record

__all__ = ["settle_under", "settled_under"]


def settled_under(layout: Layout, record: Record, part: Part, *, changes: Amounts, now: int, taken_at: int) -> Record:
    """A record of `layout` changed by what a claim settles in a part that was made under another one.

    A limit that is gone, or has become another kind, has nothing to settle.
    """
    after = list(record)
    for index, place in part.asked.items():
        if changes[place]:
            key = part.layout.rules[index].key
            settle_under(layout, after, part, key, change=changes[place], now=now, taken_at=taken_at)
    return after


def settle_under(
    layout: Layout, states: list[State], part: Part, key: str, *, change: int, now: int, taken_at: int
) -> None:
    """Change `states`, which are those of `layout`, by what is settled of one limit of a part made under an old one."""
    index, old = layout.index.get(key), part.layout
    if index is not None and layout.rules[index].is_permit == old.rules[old.index[key]].is_permit:
        converted = layout.converted(key, change, old)
        states[index] = layout.rules[index].settled(states[index], now, converted, taken_at, is_credit=part.is_credit)
