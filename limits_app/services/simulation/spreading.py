"""Spreading: what was recorded by the hour is taken to have come evenly within it."""

from __future__ import annotations

__all__ = ["share_of"]


def share_of(amount: int, step: int, steps: int) -> int:
    """The part of an amount that comes in one of so many equal steps, from 0 on; together they are all of it."""
    return amount * (step + 1) // steps - amount * step // steps
