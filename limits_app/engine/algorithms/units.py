"""Units in which a rate is exact.

A rate of `C` units per `W` microseconds is kept in parts: `u` parts to a unit, `p` parts per tick of `T`
microseconds, with `p = C * u * T / W` whole.
Then no refill rounds, and any split of the same time gives the same level.
`T` is one microsecond wherever a full bucket stays within 2^50 parts, else the smallest tick that does it.
That is never more than a thousandth of the window where `C` is whole or bursts are up to 10^9;
a capacity with decimals below an enormous burst may come back in steps as long as the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd, lcm

from limits_app.engine.algorithms.rule import FULL_PARTS
from limits_app.engine.amounts import MILLI, to_milli
from limits_app.engine.limit_kinds import counted_milli, counts_money
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


def exact_units(limit: RateLimit | CallLimit) -> Units:
    """Choose the smallest tick in which the rate is exact and a full bucket fits.

    Thousandths of a unit are whole parts; where no amount has decimals, only if they fit into the same tick.
    """
    decimals = limit.algorithm.takes_decimals and not counts_money(limit)
    capacity_milli = counted_milli(limit, limit.capacity)
    burst_milli = counted_milli(limit, limit.ceiling)
    window = window_us(limit)
    divisions = (MILLI,) if decimals else (MILLI, 1)
    # With ticks of T microseconds the rate is whole exactly when parts_per_unit is a multiple of this, divided by T.
    ticks = window * MILLI // gcd(window * MILLI, capacity_milli)
    most_parts = FULL_PARTS * MILLI // burst_milli
    tick_us, parts_per_unit = next(
        (tick, parts)
        for tick in _divisors(ticks)
        for parts in [lcm(division, ticks // tick) for division in divisions]
        if parts <= most_parts
    )
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
