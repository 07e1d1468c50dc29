"""Token bucket, GCRA and leaky bucket: recorded use that drains at the rate of the limit.

Three descriptions of one rule: with r = capacity / window, a request of n is allowed when the use that has not drained
yet, plus n, is at most `burst`.

- Token bucket: a bucket of `burst` tokens refills at r, and n of them are taken out. What is missing is the use.
- GCRA (ITU-T I.371, the virtual scheduling form): a theoretical arrival time that each unit moves on by 1/r is at most
  burst/r ahead after the request. How far it is ahead, times r, is the use.
- Leaky bucket as a meter: the admitted amount drains at r and may reach `burst`. The level is the use.

Over-use is debt that drains first. Unused amounts are refunded, down to no use. Only in a leaky bucket they stay spent,
so that an over-estimate costs throughput.
Weakness: right after idling, `burst` and what drains within a window are allowed within one window.
Set `burst` low to space requests evenly, or choose a sliding window.

State: (level, tick). The level is the use that had not drained at the tick, so that a changed capacity applies
immediately and forgets nothing.
"""

from __future__ import annotations

from limits_app.engine.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.engine.algorithms.units import exact_units, window_us
from limits_app.engine.limits import CallLimit, RateLimit


class BucketRule(Rule):
    """A level of use that drains at the exact rate of its limit; its algorithm says whether it refunds.

    Most rates are exact in ticks of one microsecond. With longer ticks, an amount that is charged to a level that may
    run dry within the current tick drains from the next whole tick on.
    """

    lua_format = "QQ"

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        units = exact_units(limit)
        super().__init__(limit, (0, 0), units.parts_per_unit, units.full_parts)
        self._refunds = limit.algorithm.refunds
        self._rate = units.parts_per_tick
        self._tick_us = units.tick_us
        self._is_coarse = units.tick_us > 1
        self._window_us = window_us(limit)
        name = "token_bucket" if self._refunds else "leaky_bucket"
        self.lua = (name, self.ceiling_parts, self._rate, self._tick_us, self._window_us)

    def current(self, state: State, now: int) -> State:
        ahead_us: int = state[1] * self._tick_us - now
        return state if ahead_us <= self._window_us else (state[0], self._next_tick(now))

    def take(self, state: State, now: int, amount: int) -> State | None:
        level: int
        last: int
        level, last = state
        tick = now // self._tick_us if self._is_coarse else now
        if tick > last:
            drained = (tick - last) * self._rate
            level = level - drained if level > drained else 0
            last = tick
        elif tick < last:  # the clock was set back
            state = self.current(state, now)
            last = state[1]
        charged = level + amount
        if charged > self.ceiling_parts:
            return None
        if not amount:
            return state
        if self._is_coarse and level < self._rate:
            last = max(last, self._next_tick(now))
        return charged, last

    def wait(self, state: State, now: int, amount: int) -> int:
        excess = self.used(state, now) + amount - self.ceiling_parts
        if excess <= 0:
            return 0
        last = max(now // self._tick_us, state[1])
        return (last - (-excess // self._rate)) * self._tick_us - now

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        tick = now // self._tick_us if self._is_coarse else now
        level: int
        last: int
        level, last = state
        if last > tick:  # the clock was set back
            state = self.current(state, now)
            last = state[1]
        if change <= 0:
            if not self._refunds:
                return state
            level += change
            return (level, last) if level > 0 else (0, last)
        level = self.used(state, now)
        last = max(tick, last)
        if self._is_coarse and level < self._rate:
            last = max(last, self._next_tick(now))
        return min(level + change, DEBT_PARTS), last

    def undo(self, state: State, now: int, parts: int, *, taken_at: int, before: int, window: int) -> State:
        """The amount in use before the charge drains first; what has drained of the charge itself is not returned."""
        passed = now // self._tick_us - taken_at // self._tick_us
        left = parts - max(passed * self._rate - before, 0)
        if left <= 0:
            return state
        level, last = self.current(state, now)
        return max(level - left, 0), last

    def credit(self, state: State, now: int, parts: int) -> State:
        return max(state[0] - parts, 0), state[1]

    def used(self, state: State, now: int) -> int:
        level: int
        last: int
        level, last = state
        tick = now // self._tick_us if self._is_coarse else now
        if tick > last:
            level -= (tick - last) * self._rate
            if level < 0:
                return 0
        return level

    def restored_at(self, state: State) -> int:
        level: int = state[0]
        last: int = state[1]
        return (last - (-level // self._rate)) * self._tick_us

    def recovers_since(self, state: State) -> int:
        last: int = state[1]
        return last * self._tick_us

    def carry(self, old: Rule, state: State, now: int) -> State:
        if isinstance(old, BucketRule) and old._drains_as(self):
            return state
        level = carried_parts(old, state, now, self)
        return (level, self._next_tick(now)) if level else (0, 0)

    def _drains_as(self, other: BucketRule) -> bool:
        """Return whether another rule reads a state of this one as the same use at any time."""
        mine, others = [(rule.is_money, rule.parts_per_unit, rule._rate, rule._tick_us) for rule in (self, other)]
        return mine == others

    def _next_tick(self, now: int) -> int:
        """Return the first whole tick that is not before now."""
        return -(-now // self._tick_us)
