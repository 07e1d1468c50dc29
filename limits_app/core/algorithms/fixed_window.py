"""Fixed window: at most `capacity` in a window that starts with the first admission after the last one ended.

Unused amounts stay spent; over-use counts against the window in which it is reported.
Weakness: up to twice the capacity is allowed within a short time across a boundary.
Choose a sliding window where that matters.

State: (start of the window, amount in it).
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import DEBT_PARTS, LuaRule, Rule, State, carried_parts
from limits_app.core.algorithms.units import window_us
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm


class FixedWindow(Rule):
    """A count that starts again with each window."""

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        super().__init__(limit, (0, 0), 1, int(limit.capacity))
        self._window_us = window_us(limit)

    def take(self, state: State, now: int, amount: int) -> State | None:
        """See Rule."""
        start: int = state[0]
        count: int = state[1]
        if count == 0 or now - start >= self._window_us:
            start, count = now, 0
        count += amount
        return (start, count) if count <= self.ceiling_parts else None

    def wait(self, state: State, now: int, amount: int) -> int:
        """See Rule."""
        return max(state[0] + self._window_us - now, 0) if self.used(state, now) + amount > self.ceiling_parts else 0

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        """See Rule."""
        if change <= 0:
            return state
        start: int = state[0]
        count: int = state[1]
        if count == 0 or now - start >= self._window_us:
            start, count = now, 0
        return start, min(count + change, DEBT_PARTS)

    def credit(self, state: State, now: int, parts: int) -> State:
        """See Rule."""
        return state[0], max(state[1] - parts, 0)

    def used(self, state: State, now: int) -> int:
        """See Rule."""
        count: int = state[1]
        return count if now - state[0] < self._window_us else 0

    def restored_at(self, state: State) -> int:
        """See Rule."""
        return state[0] + self._window_us if state[1] else 0

    def carry(self, old: Rule, state: State, now: int) -> State:
        """See Rule."""
        if isinstance(old, FixedWindow):
            return state
        count = carried_parts(old, state, now, 1)
        return (now, count) if count else (0, 0)

    @property
    def lua(self) -> LuaRule:
        """See Rule."""
        return str(RateLimitAlgorithm.FIXED_WINDOW), self.ceiling_parts, self._window_us
