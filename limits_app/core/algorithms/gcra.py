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
    """Compile GCRA; state: (tick, parts) of the theoretical arrival time, exact to the part of a tick."""
    units = exact_units(limit)
    rate, tick_us, full = units.parts_per_tick, units.tick_us, units.full_parts

    def ahead(state: State, now: int) -> int:
        """How far the arrival time lies ahead of now, in parts."""
        tat, parts = state
        tick = now // tick_us
        return (tat - tick) * rate + parts if tat >= tick else 0

    def moved(state: State, now: int, change: int) -> State:
        """The arrival time moved by `change` parts from itself or from now, whichever is later."""
        tat, parts = state
        arrival = -(-now // tick_us)
        if tat < arrival:
            tat, parts = arrival, 0
        ticks, parts = divmod(parts + change, rate)
        tat += ticks
        return (tat, parts) if tat >= arrival else (arrival, 0)

    def take(state: State, now: int, amount: int) -> State | None:
        if ahead(state, now) + amount > full:
            return None
        return moved(state, now, amount) if amount else state

    def wait(state: State, now: int, amount: int) -> int:
        excess = ahead(state, now) + amount - full
        return (now // tick_us - (-excess // rate)) * tick_us - now if excess > 0 else 0

    def settle(state: State, now: int, change: int) -> State:
        return moved(state, now, min(change, DEBT_PARTS - ahead(state, now)))

    def restored_at(state: State) -> int:
        tat, parts = state
        return (tat + (parts > 0)) * tick_us

    def carry(old: Rule, state: State, now: int) -> State:
        parts = carried_parts(old, state, now, units.parts_per_unit)
        return moved((0, 0), now, parts) if parts else (0, 0)

    return Rule(
        limit=limit,
        start=(0, 0),
        parts_per_unit=units.parts_per_unit,
        ceiling_parts=full,
        take=take,
        wait=wait,
        settle=settle,
        used=ahead,
        restored_at=restored_at,
        carry=carry,
    )
