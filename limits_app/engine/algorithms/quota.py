"""Quota: at most `capacity` until the period ends, and then all of it again.

Periods are those of a calendar, which may begin on another day or time, or sessions that start with the first use.
Unused amounts are refunded only within the period in which they were charged;
over-use counts against the period in which it is reported.
Weakness: nothing returns before the period ends, so capacity that is used early is missing for the rest of the period,
and up to twice the capacity is allowed within a short time across a boundary.
Add a rate where either matters.

State: (start of counting, end of the period, amount in it).
"""

from __future__ import annotations

from dataclasses import replace

from limits_app.engine.algorithms.calendar import Calendar, CalendarPeriod
from limits_app.engine.algorithms.rule import DEBT_PARTS, Rule, State, carried_parts
from limits_app.engine.amounts import MILLI, to_milli
from limits_app.engine.clock import zone_of
from limits_app.engine.limit_kinds import counted_milli
from limits_app.engine.limits import QuotaLimit
from limits_app.engine.periods import SECOND_US, QuotaPeriod


class QuotaRule(Rule):
    """A count that starts again with each period."""

    has_fixed_end = True
    lua_format = "QQQ"

    def __init__(self, limit: QuotaLimit) -> None:
        super().__init__(limit, (0, 0, 0), 1, counted_milli(limit, limit.capacity) // MILLI)
        self._quota = limit
        self._calendar = _calendar(limit)
        self._session_us = _session_us(limit)
        # A period that ends within so long is the present one or the next.
        self._usual_us = self._session_us or QuotaPeriod(limit.period or QuotaPeriod.HOUR).longest_seconds * SECOND_US
        self.lua = ("quota", self.ceiling_parts, 0 if self._calendar else self._session_us)

    def current(self, state: State, now: int) -> State:
        """The state was written in its period: one that is neither the present period nor the next is too far ahead."""
        end: int = state[1]
        if end - now <= self._usual_us:
            return state
        start, ends = self._period_at(now)
        return state if end <= self._period_at(ends)[1] else (start, ends, state[2])

    def take(self, state: State, now: int, amount: int) -> State | None:
        start, end, count = state
        if now >= end or not count:
            start, end = self._period_at(now)
            count = 0
        elif end - now > self._usual_us:  # the clock may have been set back
            start, end, count = self.current(state, now)
        count += amount
        # While the clock is set back the period continues, so that amounts charged in it now are refunded in it.
        return (min(now, start), end, count) if count <= self.ceiling_parts else None

    def wait(self, state: State, now: int, amount: int) -> int:
        return state[1] - now if self.used(state, now) + amount > self.ceiling_parts else 0

    def settle(self, state: State, now: int, change: int, taken_at: int | None = None) -> State:
        if state[1] - now > self._usual_us:  # the clock may have been set back
            state = self.current(state, now)
        start, end, count = state
        if change <= 0:
            if (now if taken_at is None else taken_at) < start:
                return state
            count += change
            return start, end, max(0, count)
        if now >= end or not count:
            start, end = self._period_at(now)
            count = 0
        return min(start, now), end, min(count + change, DEBT_PARTS)

    def credit(self, state: State, now: int, parts: int) -> State:
        return state[0], state[1], max(state[2] - parts, 0)

    def used(self, state: State, now: int) -> int:
        return state[2] if now < state[1] else 0

    def restored_at(self, state: State) -> int:
        return state[1] if state[2] else 0

    def carry(self, old: Rule, state: State, now: int) -> State:
        count = carried_parts(old, state, now, self)
        if not count:
            return 0, 0, 0
        former = old.limit
        if not isinstance(former, QuotaLimit):
            return now, self._period_at(now)[1], count
        if old.is_money is self.is_money and (
            replace(former, capacity=self._quota.capacity, soft=self._quota.soft, keep=self._quota.keep) == self._quota
        ):
            return state
        # The start may have moved back with a clock that was set back; the end never moves.
        began = max(state[0], _start_of_period(former, state[1]))
        now = max(now, began)
        end = self._period_at(now)[1]
        if self._calendar is None and former.period is None:
            # A session continues with its new length, unless it would have ended by now: no use is lost.
            session_end = began + self._session_us
            end = session_end if session_end > now else end
        return state[0], end, count

    def boundaries(self, now: int, count: int) -> tuple[int, ...]:
        return () if self._calendar is None else self._calendar.boundaries(now, count)

    def _period_at(self, now: int) -> CalendarPeriod:
        return (now, now + self._session_us) if self._calendar is None else self._calendar.period_at(now)


def _calendar(limit: QuotaLimit) -> Calendar | None:
    zone = zone_of(limit.time_zone)
    return None if limit.period is None or zone is None else Calendar(QuotaPeriod(limit.period), zone, limit.start)


def _session_us(limit: QuotaLimit) -> int:
    """Return the length of a session in microseconds; 0 for calendar periods."""
    return 0 if limit.session_seconds is None else to_milli(limit.session_seconds, decimals=True) * 1000


def _start_of_period(limit: QuotaLimit, end: int) -> int:
    calendar = _calendar(limit)
    return end - _session_us(limit) if calendar is None else calendar.period_at(end - 1)[0]
