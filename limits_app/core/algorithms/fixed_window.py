"""Fixed window: at most `capacity` in a window that starts with the first admission after the last one ended.

Unused amounts stay spent; over-use counts against the window in which it is reported.
Weakness: up to twice the capacity can pass within a short time across a boundary.
Choose a sliding window where that hurts.
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.core.algorithms.units import window_us
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm

__all__ = ["compile_fixed_window"]


def compile_fixed_window(limit: RateLimit | CallLimit) -> Rule:
    """Compile a fixed window; state: (start of the window, amount in it)."""
    capacity, window = int(limit.capacity), window_us(limit)

    def take(state: State, now: int, amount: int) -> State | None:
        start, count = state
        if count == 0 or now - start >= window:
            start, count = now, 0
        count += amount
        return (start, count) if count <= capacity else None

    def wait(state: State, now: int, amount: int) -> int:
        return max(state[0] + window - now, 0) if used(state, now) + amount > capacity else 0

    def settle(state: State, now: int, change: int) -> State:
        if change <= 0:
            return state
        start, count = state
        if count == 0 or now - start >= window:
            start, count = now, 0
        return start, min(count + change, DEBT_PARTS)

    def used(state: State, now: int) -> int:
        start, count = state
        return count if now - start < window else 0

    def restored_at(state: State) -> int:
        return state[0] + window if state[1] else 0

    def carry(old: Rule, state: State, now: int) -> State:
        if not old.is_permit and getattr(old.limit, "algorithm", None) is RateLimitAlgorithm.FIXED_WINDOW:
            return state
        count = carried_parts(old, state, now, 1)
        return (now, count) if count else (0, 0)

    return Rule(
        limit=limit,
        start=(0, 0),
        parts_per_unit=1,
        ceiling_parts=capacity,
        take=take,
        wait=wait,
        settle=settle,
        credit=lambda state, now, parts: (state[0], max(state[1] - parts, 0)),
        used=used,
        restored_at=restored_at,
        carry=carry,
        twin=(limit.algorithm, capacity, window),
    )
