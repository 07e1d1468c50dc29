"""Weekly hours in which a policy is in force, in local time of a time zone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import ClassVar, Final, Self

from limits_app.engine import zone_of
from limits_app.engine.errors import UnknownTimeZone

_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY_MINUTES: Final = 24 * 60
_WEEK_MINUTES: Final = 7 * _DAY_MINUTES
_TIME: Final = r"([0-9]{1,2})(?::([0-9]{2}))?"
_ENTRY: Final = re.compile(rf"([a-z,-]+)(?: +{_TIME} *- *{_TIME})?")
_LOOK_AHEAD: Final = range(-1, 16)
"""Days around a time in which the next change must be, if there is one; a time zone can skip a day of a week."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WeeklyHours:
    """Spans of minutes since Monday 00:00, each with its first minute and the minute after its last."""

    spans: tuple[Span, ...]
    zone: tzinfo

    NEVER: ClassVar[WeeklyHours]

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, text: str, zone: str) -> Self:
        """Read `mon-fri 09:00-17:00; sat,sun`, or `Mo-Fr 9-17`, in an IANA time zone; ValueError names the error.

        Hours that end before they begin continue on the next day; days without hours are whole days.
        """
        spans = sorted(span for entry in text.lower().split(";") for span in _spans(entry.strip()))
        return cls(tuple(_merged(spans)), zone_named(zone))

    @classmethod
    def stored(cls, text: str, zone: str) -> WeeklyHours:
        """Read hours of a row; invalid ones, which were written without the validation of the model, never hold."""
        try:
            return cls.parse(text, zone)
        except ValueError:
            return cls.NEVER

    def holds(self, moment: datetime) -> bool:
        """Whether the local time is inside the hours."""
        local = moment.astimezone(self.zone)
        minute = local.weekday() * _DAY_MINUTES + local.hour * 60 + local.minute
        return any(start <= minute < end for start, end in self.spans)

    def overlaps(self, other: WeeklyHours) -> bool:
        """Whether both can be in force at the same time; assumed for different time zones, whose offsets change."""
        if self.zone is not other.zone:
            return True
        return any(
            start < others_end and others < end for start, end in self.spans for others, others_end in other.spans
        )

    def next_change(self, moment: datetime) -> datetime | None:
        """The next start or end of hours; None without one."""
        holds = self.holds(moment)
        changes = [other for other in self._candidates(moment) if other > moment and self.holds(other) != holds]
        return min(changes, default=None)

    def _candidates(self, moment: datetime) -> Iterator[datetime]:
        """Times at which the result can change: starts and ends of spans, and clock changes."""
        today = moment.astimezone(self.zone).date()
        minutes = {edge % _WEEK_MINUTES for span in self.spans for edge in span}
        for ahead in _LOOK_AHEAD:
            midnight = datetime.combine(today + timedelta(days=ahead), time())
            yield from self._jumps(midnight)
            for minute in minutes:
                day, rest = divmod(minute, _DAY_MINUTES)
                if day == midnight.weekday():
                    local = midnight + timedelta(minutes=rest)
                    yield self._moment(local)
                    yield self._moment(local.replace(fold=1))  # the repeated local time after the clock is set back

    def _jumps(self, midnight: datetime) -> Iterator[datetime]:
        """The time of a clock change on a day, if there is one."""
        before, after = self._moment(midnight), self._moment(midnight + timedelta(days=1))
        offset = self._offset(before)
        if self._offset(after) == offset:
            return
        while after - before > timedelta(seconds=1):
            middle = before + (after - before) // 2
            before, after = (middle, after) if self._offset(middle) == offset else (before, middle)
        yield after.replace(microsecond=0)

    def _moment(self, local: datetime) -> datetime:
        return local.replace(tzinfo=self.zone).astimezone(UTC)

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self.zone).utcoffset()


WeeklyHours.NEVER = WeeklyHours((), UTC)


def _spans(entry: str) -> Iterator[Span]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(
            f"{entry!r} is not a valid schedule: use days and times, such as 'mon-fri 09:00-17:00; sat,sun'"
        )
    start, end = 0, _DAY_MINUTES
    if match[2]:
        start, end = _minute(match[2], match[3]), _minute(match[4], match[5])
    if start == _DAY_MINUTES:
        raise ValueError(f"{entry!r}: hours must begin at 23:59 or earlier")
    if end <= start:
        end += _DAY_MINUTES
    for day in _days(match[1]):
        first, last = day * _DAY_MINUTES + start, day * _DAY_MINUTES + end
        yield first, min(last, _WEEK_MINUTES)
        if last > _WEEK_MINUTES:
            yield 0, last - _WEEK_MINUTES


def _days(text: str) -> Iterator[int]:
    for item in text.split(","):
        first, _, last = item.partition("-")
        start, end = _day(first), _day(last or first)
        for ahead in range((end - start) % 7 + 1):
            yield (start + ahead) % 7


def _day(name: str) -> int:
    """The number of a day, from two or more letters."""
    numbers = [number for number, day in enumerate(_DAYS) if len(name) >= 2 and day.startswith(name)]
    if not numbers:
        days = ", ".join(day[:3] for day in _DAYS)
        raise ValueError(f"{name!r} is not a day: use {days}, or a range of them")
    return numbers[0]


def _minute(hour: str, minute: str | None) -> int:
    minute = minute or "00"
    total = int(hour) * 60 + int(minute)
    if int(minute) >= 60 or total > _DAY_MINUTES:
        raise ValueError(f"'{hour}:{minute}' is not a time of day: use 00:00 to 24:00")
    return total


def _merged(spans: list[Span]) -> Iterator[Span]:
    """Sorted spans, with adjacent ones merged."""
    start, end = spans[0]
    for first, last in spans[1:]:
        if first > end:
            yield start, end
            start = first
        end = max(end, last) if first <= end else last
    yield start, end


def zone_named(name: str) -> tzinfo:
    """Return the time zone of a name; UnknownTimeZone, a ValueError, if it does not exist here."""
    zone = zone_of(name)
    if zone is None:
        raise UnknownTimeZone(f"{name!r} is not a time zone: use its IANA name, such as 'Europe/Berlin'")
    return zone
