"""GCRA: a theoretical arrival time that each unit moves on by window / capacity; the smoothest rate.

A request of n passes when max(tat, now) + n/r - now <= burst/r, with r = capacity / window
(ITU-T I.371, the virtual scheduling form).
Unused amounts move the time back, never before now; over-use moves it further out.
Weakness: with the default burst it lets the same bursts through as a token bucket; set `burst` low to space requests.
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.core.algorithms.units import exact_units
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["compile_gcra"]


def compile_gcra(limit: RateLimit | CallLimit) -> Rule:
    """Compile GCRA; state: (tick, parts, last), the arrival time exact to the part of a tick, and when it was set."""
    units = exact_units(limit)
    rate, tick_us, full = units.parts_per_tick, units.tick_us, units.full_parts

    # Most rates are exact in microseconds; dividing by one costs as much as all the rest.
    coarse = tick_us > 1

    def ceiling(now: int) -> int:
        """The next whole tick: late by less than one, and never a moment early."""
        return -(-now // tick_us)

    def ahead(state: State, now: int) -> int:
        """How far the arrival time lies ahead of now, in parts."""
        tat, parts, last = state
        tick = now // tick_us if coarse else now
        if tick < last:  # noqa: PLR1730 - a call would cost as much as all the rest
            tick = last
        return (tat - tick) * rate + parts if tat >= tick else 0

    def moved(state: State, now: int, before: int, change: int) -> State:
        """The arrival time, `before` parts ahead, moved by `change`."""
        tick = now // tick_us if coarse else now
        if tick < state[2]:
            tick = state[2]
        elif coarse and before < rate:
            # It may have been reached within the tick that runs.
            tick = ceiling(now)
        ticks, parts = divmod(before + change, rate)
        return tick + ticks, parts, tick

    def take(state: State, now: int, amount: int) -> State | None:
        before = ahead(state, now)
        if before + amount > full:
            return None
        return moved(state, now, before, amount) if amount else state

    def wait(state: State, now: int, amount: int) -> int:
        excess = ahead(state, now) + amount - full
        return (max(now // tick_us, state[2]) - (-excess // rate)) * tick_us - now if excess > 0 else 0

    def settle(state: State, now: int, change: int) -> State:
        if change <= 0:
            now = state[2] * tick_us
        before = ahead(state, now)
        return moved(state, now, before, min(max(change, -before), DEBT_PARTS - before))

    def restored_at(state: State) -> int:
        tat, parts, _ = state
        return (tat + (parts > 0)) * tick_us

    def carry(old: Rule, state: State, now: int) -> State:
        used = carried_parts(old, state, now, units.parts_per_unit)
        return moved((0, 0, ceiling(now)), now, 0, used) if used else (0, 0, 0)

    return Rule(
        limit=limit,
        start=(0, 0, 0),
        parts_per_unit=units.parts_per_unit,
        ceiling_parts=full,
        take=take,
        wait=wait,
        settle=settle,
        credit=lambda state, now, parts: settle(state, now, -parts),
        used=ahead,
        restored_at=restored_at,
        carry=carry,
        twin=(limit.algorithm, rate, tick_us, full),
    )
