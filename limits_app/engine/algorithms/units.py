"""Units in which a rate is exact.

A rate of `C` units per `W` microseconds is kept in parts: `u` parts to a unit, `p` parts per tick of `T`
microseconds, with `p = C * u * T / W` whole.
Then no refill rounds, and any split of the same time gives the same level.
`T` is one microsecond wherever a full bucket stays within 2^50 parts, else the smallest tick that does it.
That is never more than a thousandth of the window where `C` is whole or bursts are up to 10^9;
a capacity with decimals below an enormous burst may come back in steps as long as the window.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from limits_app.engine.algorithms.rule import FULL_PARTS, Rule, State
from limits_app.engine.amounts import MILLI, to_milli
from limits_app.engine.limits import CallLimit, RateLimit


@dataclass(frozen=True, slots=True)
class Units:
    """How a drained rate counts: parts to a unit, parts per tick, microseconds per tick, parts of a full bucket."""

    parts_per_unit: int
    parts_per_tick: int
    tick_us: int
    full_parts: int


def window_us(limit: RateLimit | CallLimit) -> int:
    """The window in microseconds."""
    return to_milli(limit.window_seconds, decimals=True) * 1000


class DrainingRule(Rule):
    """A rule whose recorded use drains at the exact rate of its limit; the last item of its states is a tick."""

    def __init__(self, limit: RateLimit | CallLimit, start: State) -> None:
        units = exact_units(limit)
        super().__init__(limit, start, units.parts_per_unit, units.full_parts)
        self._rate = units.parts_per_tick
        self._tick_us = units.tick_us
        self._window_us = window_us(limit)
        self.lua = (str(limit.algorithm), self._rate, self._tick_us, self.ceiling_parts, self._window_us)

    def current(self, state: State, now: int) -> State:
        ahead_us: int = state[-1] * self._tick_us - now
        return state if ahead_us <= self._window_us else self._written_at(state, self._next_tick(now))

    @abstractmethod
    def _written_at(self, state: State, tick: int) -> State:
        """Return the same use, as if it was written at a tick."""

    def wait(self, state: State, now: int, amount: int) -> int:
        excess = self.used(state, now) + amount - self.ceiling_parts
        if excess <= 0:
            return 0
        last = max(now // self._tick_us, state[-1])
        return (last - (-excess // self._rate)) * self._tick_us - now

    def recovers_since(self, state: State) -> int:
        last: int = state[-1]
        return last * self._tick_us

    def _next_tick(self, now: int) -> int:
        """Return the first whole tick that is not before now."""
        return -(-now // self._tick_us)


def exact_units(limit: RateLimit | CallLimit) -> Units:
    """Choose the smallest tick in which the rate is exact and a full bucket fits."""
    decimals = limit.algorithm.takes_decimals
    capacity_milli = to_milli(limit.capacity, decimals=decimals)
    burst_milli = to_milli(limit.ceiling, decimals=decimals)
    window = window_us(limit)
    smallest = MILLI if decimals else 1
    # With ticks of T microseconds the rate is whole exactly when parts_per_unit is a multiple of this, divided by T.
    ticks = window * MILLI // gcd(window * MILLI, capacity_milli)
    most_parts = FULL_PARTS * MILLI // burst_milli
    tick_us = next(tick for tick in _divisors(ticks) if lcm(smallest, ticks // tick) <= most_parts)
    parts_per_unit = lcm(smallest, ticks // tick_us)
    parts_per_tick = capacity_milli * parts_per_unit * tick_us // (window * MILLI)
    return Units(parts_per_unit, parts_per_tick, tick_us, burst_milli * parts_per_unit // MILLI)


def _divisors(number: int) -> Iterator[int]:
    """Divisors in rising order; 1 first, so that the usual case factors nothing."""
    yield 1
    divisors = [1]
    for prime, power in _factors(number):
        divisors = [divisor * prime**exponent for divisor in divisors for exponent in range(power + 1)]
    yield from sorted(divisors)[1:]


def _factors(number: int) -> Iterator[tuple[int, int]]:
    candidate = 2
    while candidate * candidate <= number:
        power = 0
        while number % candidate == 0:
            number //= candidate
            power += 1
        if power:
            yield candidate, power
        candidate += 1
    if number > 1:
        yield number, 1
