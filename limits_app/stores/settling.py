"""Settling in a scope whose limits have changed since the claim was admitted."""

from __future__ import annotations

from limits_app.core.algorithms import State
from limits_app.core.layout import Layout
from limits_app.core.plan import Ask

__all__ = ["settle_under"]


def settle_under(layout: Layout, states: list[State], ask: Ask, *, change: int, now: int) -> None:
    """Change `states`, which are those of `layout`, by what a claim settles that was made under another one.

    A limit that is gone, or has become another kind, has nothing to settle.
    """
    index = layout.index.get(ask.key)
    if index is not None and layout.rules[index].is_permit == ask.rule.is_permit:
        converted = layout.converted(ask.key, change, ask.part.layout)
        states[index] = layout.rules[index].settle(states[index], now, converted)
