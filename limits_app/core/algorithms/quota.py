"""Quota: at most `capacity` until the period ends, and then all of it again.

Periods are those of a calendar, or sessions that start with the first use.
What was not used is given back only within the period in which it was taken;
over-use counts against the period in which it is reported.
Weakness: nothing comes back before the period ends, so what is used up early is missing for the rest of it,
and up to twice the capacity can pass within a short time across a boundary.
Add a rate where either hurts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from limits_app.core.algorithms.calendar import Calendar, Period
from limits_app.core.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.core.amounts import to_milli
from limits_app.core.limits import QuotaLimit
from limits_app.core.quota import QuotaPeriod
from limits_app.core.time_zones import zone_of

__all__ = ["compile_quota"]


def compile_quota(limit: QuotaLimit) -> Rule:
    """Compile a quota; state: (since when is counted, end of the period, amount in it)."""
    capacity = int(limit.capacity)
    calendar = _calendar(limit)
    period_at = _sessions(limit) if calendar is None else calendar.period_at

    def take(state: State, now: int, amount: int) -> State | None:
        start, end, count = state
        if now >= end or not count:
            start, end = period_at(now)
            count = 0
        # While the clock is back, the period goes on: what is taken in it now comes back in it too.
        start = min(start, now)
        count += amount
        return (start, end, count) if count <= capacity else None

    def wait(state: State, now: int, amount: int) -> int:
        return state[1] - now if used(state, now) + amount > capacity else 0

    def settle(state: State, now: int, change: int, taken_at: int) -> State:
        start, end, count = state
        if change <= 0:
            return (start, end, max(count + change, 0)) if taken_at >= start else state
        if now >= end or not count:
            start, end = period_at(now)
            count = 0
        return min(start, now), end, min(count + change, DEBT_PARTS)

    def used(state: State, now: int) -> int:
        return state[2] if now < state[1] else 0

    def restored_at(state: State) -> int:
        return state[1] if state[2] else 0

    def carry(old: Rule, state: State, now: int) -> State:
        count = carried_parts(old, state, now, 1)
        if not count:
            return 0, 0, 0
        if not isinstance(old.limit, QuotaLimit):
            return now, period_at(now)[1], count
        if replace(old.limit, capacity=capacity, soft=limit.soft) == limit:
            return state
        # The start may have been taken back by a clock that went back; the end never is.
        began = max(state[0], _start_of_period(old.limit, state[1]))
        now = max(now, began)
        end = period_at(now)[1]
        if calendar is None and old.limit.period is None:
            # A session goes on with its new length, unless it would have ended by now: no use is forgotten.
            ends = period_at(began)[1]
            end = ends if ends > now else end
        return state[0], end, count

    return Rule(
        limit=limit,
        start=(0, 0, 0),
        parts_per_unit=1,
        ceiling_parts=capacity,
        take=take,
        wait=wait,
        settle=lambda state, now, change: settle(state, now, change, now),
        settle_dated=settle,
        credit=lambda state, now, parts: (state[0], state[1], max(state[2] - parts, 0)),
        used=used,
        restored_at=restored_at,
        carry=carry,
        boundaries=None if calendar is None else calendar.boundaries,
        twin=("quota", capacity, 0 if calendar else _session_us(limit)),
    )


def _calendar(limit: QuotaLimit) -> Calendar | None:
    zone = zone_of(limit.time_zone)
    return None if limit.period is None or zone is None else Calendar(QuotaPeriod(limit.period), zone)


def _start_of_period(limit: QuotaLimit, end: int) -> int:
    calendar = _calendar(limit)
    return end - _session_us(limit) if calendar is None else calendar.period_at(end - 1)[0]


def _session_us(limit: QuotaLimit) -> int:
    return to_milli(limit.session_seconds, decimals=True) * 1000


def _sessions(limit: QuotaLimit) -> Callable[[int], Period]:
    length = _session_us(limit)
    return lambda now: (now, now + length)
