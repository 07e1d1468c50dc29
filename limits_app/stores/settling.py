"""Settling in a scope whose limits have changed since the claim was admitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from limits_app.core.algorithms import State
from limits_app.core.layout import Layout
from limits_app.core.plan import Ask

__all__ = ["settled"]


def settled(
    layout: Layout, states: Sequence[State], row: Iterable[tuple[Ask, int]], claimed: Layout, now: int
) -> list[State]:
    """The states of `layout` after the changes of a claim that was made under the layout `claimed`.

    Limits that are gone, or have become another kind, have nothing to settle.
    """
    after = list(states)
    for ask, change in row:
        index = layout.index.get(ask.key)
        if index is not None and layout.rules[index].is_permit == (ask.lease_key is not None):
            converted = change if layout is claimed else layout.converted(ask.key, change, claimed)
            after[index] = layout.rules[index].settle(after[index], now, converted)
    return after
