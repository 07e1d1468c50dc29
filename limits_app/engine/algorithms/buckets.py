"""Token bucket and leaky bucket: a recorded use that drains at the rate of the limit.

Token bucket: a bucket of `burst` tokens refills at capacity / window; a request of n is allowed when it has n tokens.
Unused amounts are refunded, never above `burst`; over-use is debt that refills first.
Weakness: right after idling, `burst` and the refill of a window are allowed within one window.
Choose a sliding window if that matters.

Leaky bucket as a meter: the admitted amount drains at capacity / window and may reach `burst`.
With `burst=1` calls are evenly spaced.
Weakness: unused amounts stay spent, so an over-estimate costs throughput.
Choose a token bucket or GCRA where usage is often less than requested.

State: (level, tick). The level is the use that has not drained yet, so that a changed capacity applies immediately and
forgets nothing; a token bucket has its burst less this level left.
"""

from __future__ import annotations

from limits_app.engine.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.engine.algorithms.units import DrainingRule
from limits_app.engine.limits import CallLimit, RateLimit


class TokenBucket(DrainingRule):
    """A level of use that drains; unused amounts are refunded.

    Most rates are exact in ticks of one microsecond. With longer ticks, an amount that is charged to a level that may
    run dry within the current tick drains from the next whole tick on.
    """

    lua_format = "QQ"

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        super().__init__(limit, (0, 0))

    def take(self, state: State, now: int, amount: int) -> State | None:
        level: int = state[0]
        last: int = state[1]
        tick = now if self._tick_us == 1 else now // self._tick_us
        if tick > last:
            drained = (tick - last) * self._rate
            level = level - drained if level > drained else 0
            last = tick
        elif tick < last:  # the clock was set back
            level, last = self.current(state, now)
        if self._tick_us > 1 and amount and level < self._rate:
            last = max(last, self._next_tick(now))
        level += amount
        return (level, last) if level <= self.ceiling_parts else None

    def _written_at(self, state: State, tick: int) -> State:
        return state[0], tick

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        level: int = state[0]
        last: int = state[1]
        if change > 0:
            level = self.used(state, now)
            last = max(now // self._tick_us, last)
            if self._tick_us > 1 and level < self._rate:
                last = max(last, self._next_tick(now))
        level += change
        if level <= 0:
            return 0, last
        return (level, last) if level < DEBT_PARTS else (DEBT_PARTS, last)

    def credit(self, state: State, now: int, parts: int) -> State:
        return max(state[0] - parts, 0), state[1]

    def used(self, state: State, now: int) -> int:
        level: int = state[0]
        last: int = state[1]
        tick = now // self._tick_us
        if tick > last:
            level -= (tick - last) * self._rate
        return max(level, 0)

    def restored_at(self, state: State) -> int:
        level: int = state[0]
        last: int = state[1]
        return (last - (-level // self._rate)) * self._tick_us

    def carry(self, old: Rule, state: State, now: int) -> State:
        level = carried_parts(old, state, now, self.parts_per_unit)
        return (level, self._next_tick(now)) if level else (0, 0)


class LeakyBucket(TokenBucket):
    """A level of use that drains; unused amounts stay spent."""

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        return state if change < 0 else super().settle(state, now, change, taken_at)
