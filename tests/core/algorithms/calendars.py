"""Calendars to compare with: every minute is looked at on a wall clock, slow and obvious."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from limits_app.core.limits import QuotaPeriod

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def us(moment: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(microseconds: int) -> datetime:
    """Microseconds since 1970 as a moment."""
    return EPOCH + timedelta(microseconds=microseconds)


def period_of(kind: QuotaPeriod, zone: str, now: int) -> tuple[int, int]:
    """From when until when the period lasts in which a moment lies."""
    boundaries = [us(boundary) for boundary in _boundaries(kind, zone, moment_of(now))]
    return (
        max(boundary for boundary in boundaries if boundary <= now),
        min(boundary for boundary in boundaries if boundary > now),
    )


def _boundaries(kind: QuotaPeriod, zone: str, now: datetime) -> list[datetime]:
    if kind is QuotaPeriod.HOUR:
        return list(_full_hours(zone, now.replace(second=0, microsecond=0)))
    today = now.date()
    days = [today + timedelta(days=number) for number in range(-33, 34)]
    return [_reached(zone, day) for day in days if _begins(kind, day)]


def _begins(kind: QuotaPeriod, day: date) -> bool:
    match kind:
        case QuotaPeriod.MONTH:
            return day.day == 1
        case QuotaPeriod.WEEK:
            return day.strftime("%A") == "Monday"
        case _:
            return True


@cache
def _reached(zone: str, day: date) -> datetime:
    """The first minute at which a wall clock shows a day, or a later one."""
    minute = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=26)
    while _shown(zone, minute).date() < day:
        minute += MINUTE
    return minute


def _full_hours(zone: str, now: datetime) -> Iterator[datetime]:
    """The minutes around a moment at which a wall clock shows a full hour, or turns to other full hours."""
    for number in range(-125, 126):
        minute = now + number * MINUTE
        before = minute - MINUTE
        shown = _shown(zone, minute)
        turned = (shown.minute - minute.minute - _shown(zone, before).minute + before.minute) % 60
        if shown.minute == 0 or turned:
            yield minute


def _shown(zone: str, moment: datetime) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)
