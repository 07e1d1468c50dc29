"""The arithmetic that token bucket and leaky bucket share: a level of use that drains at the limit's rate.

State: (level, tick). The level is what was used and has not drained yet, so that a changed capacity
applies at once and forgets nothing; what a token bucket has left is its burst less this level.
"""

from __future__ import annotations

from limits_app.core.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.core.algorithms.units import exact_units
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["compile_draining"]


def compile_draining(limit: RateLimit | CallLimit, *, refunds: bool) -> Rule:
    """Compile a level that drains; `refunds` says whether unused amounts come off the level again."""
    units = exact_units(limit)
    rate, tick_us, full = units.parts_per_tick, units.tick_us, units.full_parts

    # Most rates are exact in microseconds; dividing by one costs as much as all the rest.
    coarse = tick_us > 1

    def ceiling(now: int) -> int:
        """The next whole tick: from there on drains what is charged to a level that may run dry within this one."""
        return -(-now // tick_us)

    def used(state: State, now: int) -> int:
        level, last = state
        tick = now // tick_us if coarse else now
        if tick > last:
            level -= (tick - last) * rate
            if level < 0:  # noqa: PLR1730 - a call would cost as much as all the rest
                level = 0
        return level

    def drained(state: State, now: int) -> State:
        return used(state, now), max(now // tick_us, state[1])

    def take(state: State, now: int, amount: int) -> State | None:
        level, last = state
        if now > last:
            level -= (now - last) * rate
            last = now
            if level < 0:  # noqa: PLR1730 - a call would cost as much as all the rest
                level = 0
        level += amount
        return (level, last) if level <= full else None

    def take_by_ticks(state: State, now: int, amount: int) -> State | None:
        level, last = drained(state, now)
        if level < rate and amount:
            last = max(last, ceiling(now))
        level += amount
        return (level, last) if level <= full else None

    def wait(state: State, now: int, amount: int) -> int:
        level, last = drained(state, now)
        excess = level + amount - full
        return (last - (-excess // rate)) * tick_us - now if excess > 0 else 0

    def change_by(state: State, now: int, change: int) -> State:
        level, last = state
        if change > 0 and now > last:
            level -= (now - last) * rate
            last = now
            if level < 0:  # noqa: PLR1730 - a call would cost as much as all the rest
                level = 0
        level += change
        if level <= 0:
            return 0, last
        return (level, last) if level < DEBT_PARTS else (DEBT_PARTS, last)

    def change_by_ticks(state: State, now: int, change: int) -> State:
        level, last = drained(state, now) if change > 0 else state
        if level < rate and change > 0:
            last = max(last, ceiling(now))
        return min(max(level + change, 0), DEBT_PARTS), last

    changed = change_by_ticks if coarse else change_by

    def keep(state: State, now: int, change: int) -> State:
        return state if change < 0 else changed(state, now, change)

    def restored_at(state: State) -> int:
        level, last = state
        return (last - (-level // rate)) * tick_us

    def carry(old: Rule, state: State, now: int) -> State:
        level = carried_parts(old, state, now, units.parts_per_unit)
        return (level, ceiling(now)) if level else (0, 0)

    return Rule(
        limit=limit,
        start=(0, 0),
        parts_per_unit=units.parts_per_unit,
        ceiling_parts=full,
        take=take_by_ticks if coarse else take,
        wait=wait,
        settle=changed if refunds else keep,
        credit=lambda state, now, parts: changed(state, now, -parts),
        used=used,
        restored_at=restored_at,
        carry=carry,
        twin=(limit.algorithm, rate, tick_us, full),
    )
