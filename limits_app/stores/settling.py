"""Settling in a scope whose limits have changed since the claim was admitted."""

from __future__ import annotations

from limits_app.core.layout import Layout
from limits_app.core.plan import Amounts, Part
from limits_app.core.unrolled import Record

__all__ = ["settled_under"]


def settled_under(layout: Layout, record: Record, part: Part, *, changes: Amounts, now: int, taken_at: int) -> Record:
    """A record of `layout` changed by what a claim settles in a part that was made under another one.

    A limit that is gone, or has become another kind, has nothing to settle.
    """
    after = list(record)
    for old, place in part.asked.items():
        rule = part.layout.rules[old]
        index = layout.index.get(rule.key)
        if changes[place] and index is not None and layout.rules[index].is_permit == rule.is_permit:
            converted = layout.converted(rule.key, changes[place], part.layout)
            after[index] = layout.rules[index].settled(after[index], now, converted, taken_at)
    return after
