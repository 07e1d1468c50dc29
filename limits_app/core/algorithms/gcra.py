"""GCRA: a theoretical arrival time that each unit moves on by window / capacity; the smoothest rate.

A request of n is allowed when max(tat, now) + n/r - now <= burst/r, with r = capacity / window
(ITU-T I.371, the virtual scheduling form).
Unused amounts move the time back, never before now; over-use moves it further out.
Weakness: with the default burst it allows the same bursts as a token bucket; set `burst` low to space requests.

State: (tick, parts, last): the arrival time, exact to the part of a tick, and when it was set.
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import DEBT_PARTS, LuaRule, Rule, State, carried_parts
from limits_app.core.algorithms.units import exact_units
from limits_app.core.limits import CallLimit, RateLimit


class Gcra(Rule):
    """The arrival time of the next request that conforms; most rates are exact in ticks of one microsecond."""

    def __init__(self, limit: RateLimit | CallLimit) -> None:
        units = exact_units(limit)
        super().__init__(limit, (0, 0, 0), units.parts_per_unit, units.full_parts)
        self._algorithm = str(limit.algorithm)
        self._rate = units.parts_per_tick
        self._tick_us = units.tick_us

    def take(self, state: State, now: int, amount: int) -> State | None:
        """See Rule."""
        before = self.used(state, now)
        if before + amount > self.ceiling_parts:
            return None
        return self._moved(state, now, before, amount) if amount else state

    def wait(self, state: State, now: int, amount: int) -> int:
        """See Rule."""
        excess = self.used(state, now) + amount - self.ceiling_parts
        if excess <= 0:
            return 0
        last: int = max(now // self._tick_us, state[2])
        return (last - (-excess // self._rate)) * self._tick_us - now

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        """See Rule."""
        if change <= 0:
            now = state[2] * self._tick_us
        before = self.used(state, now)
        return self._moved(state, now, before, min(max(change, -before), DEBT_PARTS - before))

    def credit(self, state: State, now: int, parts: int) -> State:
        """See Rule."""
        return self.settle(state, now, -parts)

    def used(self, state: State, now: int) -> int:
        """Return how far the arrival time is ahead of now, in parts."""
        arrival: int = state[0]
        tick = max(now // self._tick_us, state[2])
        return (arrival - tick) * self._rate + state[1] if arrival >= tick else 0

    def restored_at(self, state: State) -> int:
        """See Rule."""
        arrival: int = state[0]
        parts: int = state[1]
        return (arrival + (parts > 0)) * self._tick_us

    def carry(self, old: Rule, state: State, now: int) -> State:
        """See Rule."""
        used = carried_parts(old, state, now, self.parts_per_unit)
        return self._moved((0, 0, self._next_tick(now)), now, 0, used) if used else (0, 0, 0)

    @property
    def lua(self) -> LuaRule:
        """See Rule."""
        return self._algorithm, self._rate, self._tick_us, self.ceiling_parts

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

    def _next_tick(self, now: int) -> int:
        """Return the first whole tick that is not before now: late by less than one tick, never early."""
        return -(-now // self._tick_us)
