"""Periods of a calendar: from which moment to which one clocks show the same hour, day, week or month.

A day, week or month begins when the clocks of its zone first reach its midnight, or skip it; or the time of another
start. A time that comes twice counts once, and a day that no clock shows has no length.
An hour is sixty minutes from one full hour of the clock to the next, also where clocks are set back by an hour;
where they are set by less, one hour ends with the old time and the next begins with the new one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Final

from limits_app.engine.clock import EPOCH, MICROSECOND
from limits_app.engine.period_starts import AS_THE_CALENDAR, PeriodStart
from limits_app.engine.periods import HOUR_US, QuotaPeriod

CalendarPeriod = tuple[int, int]
"""From when until when, in microseconds since 1970; the end is the start of the next one."""

_END_OF_TIME_US: Final = 2**62
"""Later than any time of a calendar."""


class Calendar:
    """Periods of one kind in one zone; remembers the one that was found last, and reckons when that one is over."""

    __slots__ = ("_found", "_kind", "_start", "_zone")

    def __init__(self, kind: QuotaPeriod, zone: tzinfo, start: PeriodStart = AS_THE_CALENDAR) -> None:
        self._kind = kind
        self._zone = zone
        self._start = start
        self._found: CalendarPeriod = (0, 0)

    def period_at(self, now: int) -> CalendarPeriod:
        """The period in which a moment lies."""
        period = self._found  # read once, since other threads may find another one meanwhile
        if not period[0] <= now < period[1]:
            period = self._found = self._reckoned(now)
        return period

    def boundaries(self, now: int, count: int) -> tuple[int, ...]:
        """The last `count` boundaries up to a moment, and as many after it, in their order."""
        start, end = self._reckoned(now)
        boundaries = [start, end]
        for _ in range(count - 1):
            boundaries.insert(0, self._reckoned(boundaries[0] - 1)[0])
            boundaries.append(self._reckoned(boundaries[-1])[1])
        return tuple(boundaries)

    def _reckoned(self, now: int) -> CalendarPeriod:
        try:
            return _hour_at(self._zone, now) if self._kind is QuotaPeriod.HOUR else self._days_at(now)
        except OverflowError:  # Python's calendar ends with the year 9999, and begins with the year 1
            return min(now, 0), max(now + 1, _END_OF_TIME_US)

    def _days_at(self, now: int) -> CalendarPeriod:
        begins = self._start.last_before(self._kind, _shown(self._zone, now))
        start, end = now, now
        while end <= now:
            # More than once where clocks were set back behind the time, or skipped a day.
            start = _reached(self._zone, begins)
            begins = self._start.next_after(self._kind, begins)
            end = _reached(self._zone, begins)
        return start, end


def _hour_at(zone: tzinfo, now: int) -> CalendarPeriod:
    offset = _offset_us(zone, now)
    start = (now + offset) // HOUR_US * HOUR_US - offset
    end = start + HOUR_US

    def is_set(moment: int) -> bool:
        """Whether full hours come at other moments than now."""
        return (_offset_us(zone, moment) - offset) % HOUR_US != 0

    if is_set(start):
        start = _first(start, now, lambda moment: not is_set(moment))
    if is_set(end - 1):
        end = _first(now, end, is_set)
    return start, end


def _reached(zone: tzinfo, time: datetime) -> int:
    """The first moment at which clocks show a time, or a later one if they skip it."""
    by_old_time, by_new_time = ((time.replace(tzinfo=zone, fold=fold) - EPOCH) // MICROSECOND for fold in (0, 1))
    if by_old_time <= by_new_time:  # it exists, perhaps twice
        return by_old_time
    return _first(by_new_time, by_old_time, lambda moment: _shown(zone, moment) >= time)


def _first(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """The first moment from `start` to `end` from which on something holds that does at the end."""
    return start + bisect_left(range(start, end), True, key=holds)


def _shown(zone: tzinfo, moment: int) -> datetime:
    """What clocks show."""
    return (EPOCH + moment * MICROSECOND).astimezone(zone).replace(tzinfo=None)


def _offset_us(zone: tzinfo, moment: int) -> int:
    """How far clocks are ahead of UTC."""
    return (_shown(zone, moment) - EPOCH.replace(tzinfo=None)) // MICROSECOND - moment
