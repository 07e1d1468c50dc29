"""GCRA: a theoretical arrival time that each unit moves on by window / capacity; the smoothest rate.

A request of n is allowed when max(tat, now) + n/r - now <= burst/r, with r = capacity / window
(ITU-T I.371, the virtual scheduling form).
Unused amounts move the time back, at most to when it was last set; over-use moves it further out.
Weakness: with the default burst it allows the same bursts as a token bucket; set `burst` low to space requests.

State: (tick, parts, last): the arrival time, exact to the part of a tick, and when it was set.
"""

from __future__ import annotations

from limits_app.engine.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.engine.algorithms.units import DrainingRule
from limits_app.engine.limits import CallLimit, RateLimit


class Gcra(DrainingRule):
    """The arrival time of the next request that conforms; most rates are exact in ticks of one microsecond."""

    lua_format = "QQQ"

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        super().__init__(limit, (0, 0, 0))

    def take(self, state: State, now: int, amount: int) -> State | None:
        if now < state[2] * self._tick_us:  # the clock was set back
            state = self.current(state, now)
        before = self.used(state, now)
        if before + amount > self.ceiling_parts:
            return None
        return self._moved(state, now, before, amount) if amount else state

    def _written_at(self, state: State, tick: int) -> State:
        arrival, parts, last = state
        return arrival - last + tick, parts, tick

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        if change <= 0:
            now = state[2] * self._tick_us
        before = self.used(state, now)
        return self._moved(state, now, before, min(max(change, -before), DEBT_PARTS - before))

    def credit(self, state: State, now: int, parts: int) -> State:
        return self.settle(state, now, -parts)

    def used(self, state: State, now: int) -> int:
        """Return how far the arrival time is ahead of now, in parts."""
        arrival, parts, last = state
        tick = max(now // self._tick_us, last)
        return (arrival - tick) * self._rate + parts if arrival >= tick else 0

    def restored_at(self, state: State) -> int:
        arrival, parts, _ = state
        return (arrival + (parts > 0)) * self._tick_us

    def carry(self, old: Rule, state: State, now: int) -> State:
        used = carried_parts(old, state, now, self.parts_per_unit)
        return self._moved((0, 0, self._next_tick(now)), now, 0, used) if used else (0, 0, 0)

    def _moved(self, state: State, now: int, before: int, change: int) -> State:
        """Move the arrival time, which is `before` parts ahead, by `change` parts."""
        tick = now // self._tick_us
        if tick < state[2]:
            tick = state[2]
        elif self._tick_us > 1 and before < self._rate:
            # The arrival time may have been reached within the current tick.
            tick = self._next_tick(now)
        ahead = before + change
        return tick + ahead // self._rate, ahead % self._rate, tick
