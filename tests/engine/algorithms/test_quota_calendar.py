"""Calendar periods: boundaries where clocks say they are, on every day there is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from limits_app.engine import AS_THE_CALENDAR, PeriodStart
from limits_app.engine.algorithms.calendar import Calendar
from limits_app.engine.periods import QuotaPeriod
from tests.engine.algorithms.definitions import examples

HOUR, DAY, WEEK, MONTH = QuotaPeriod
HOUR_US = 3_600_000_000

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MOST_DAYS = {DAY: 3, WEEK: 9, MONTH: 33}
"""Days within which a period begins and ends: two more than it lasts, since a zone may be a day ahead or skip one."""


def us(moment: datetime) -> int:
    """A moment in microseconds since 1970."""
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment_of(microseconds: int) -> datetime:
    """Microseconds since 1970 as a moment."""
    return EPOCH + timedelta(microseconds=microseconds)


def period_of(kind: QuotaPeriod, zone: str, now: int, start: PeriodStart = AS_THE_CALENDAR) -> tuple[int, int]:
    """From when until when the period lasts in which a moment lies."""
    boundaries = [us(boundary) for boundary in _boundaries(kind, zone, moment_of(now), start)]
    return (
        max(boundary for boundary in boundaries if boundary <= now),
        min(boundary for boundary in boundaries if boundary > now),
    )


def _boundaries(kind: QuotaPeriod, zone: str, now: datetime, start: PeriodStart) -> list[datetime]:
    if kind is QuotaPeriod.HOUR:
        return list(_full_hours(zone, now.replace(second=0, microsecond=0)))
    today, most = now.date(), MOST_DAYS[kind]
    days = [today + timedelta(days=number) for number in range(-most, most + 1)]
    return [_reached(zone, day, start.minutes) for day in days if _begins(kind, day, start.days)]


def _begins(kind: QuotaPeriod, day: date, days: int) -> bool:
    match kind:
        case QuotaPeriod.MONTH:
            is_last = (day + timedelta(days=1)).day == 1
            return day.day == days + 1 or (is_last and day.day <= days)
        case QuotaPeriod.WEEK:
            return day.isoweekday() == days + 1
        case _:
            return True


@cache
def _reached(zone: str, day: date, minutes: int) -> datetime:
    """The first minute at which a wall clock shows a day and a time, or a later one."""
    time = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 - as a wall clock shows it
    minute = time.replace(tzinfo=UTC) - timedelta(hours=26)
    while _shown(zone, minute) < time:
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


UNUSUAL = {
    "UTC": ["2024-02-29T12:00", "2026-02-28T23:59", "2100-02-28T23:59", "2026-12-31T23:59", "1970-01-01T00:00"],
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00", "2024-02-29T23:00"],
    "America/St_Johns": ["2006-04-02T03:31", "2006-10-29T02:31", "2026-03-08T05:30", "2026-11-01T04:30"],
    "Australia/Lord_Howe": ["2026-04-04T15:00", "2026-10-03T15:30"],
    "Pacific/Apia": ["2011-12-30T10:00", "2011-09-24T14:00", "2012-03-31T14:00"],
    "America/Havana": ["2026-03-08T05:00", "2026-11-01T05:00"],
    "America/Sao_Paulo": ["2017-10-15T03:00", "2018-02-18T02:00"],
    "America/Caracas": ["2016-05-01T07:00", "2007-12-09T07:00"],
    "Asia/Kathmandu": ["2026-01-01T00:00", "1985-12-31T18:30"],
}
"""Moments, in UTC, at which something happens to the clocks or the calendar of a zone."""

MOMENTS = [(zone, us(datetime.fromisoformat(f"{text}+00:00"))) for zone, texts in UNUSUAL.items() for text in texts]


@st.composite
def moments(draw: st.DrawFn) -> tuple[str, int]:
    """A zone, and a moment in it that is often near an unusual one."""
    zone, moment = draw(st.sampled_from(MOMENTS))
    near = st.integers(-2 * HOUR_US, 2 * HOUR_US) | st.integers(-40, 40).map(lambda days: days * 24 * HOUR_US)
    minutes = st.integers(-180, 180).map(lambda minutes: minutes * 60_000_000)
    return zone, moment + draw(st.sampled_from([-1, 0, 1]) | near | minutes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", QuotaPeriod)
@examples(150)
@given(where=moments())
@example(("Pacific/Apia", us(datetime.fromisoformat("2011-12-30T09:59+00:00"))))
@example(("America/St_Johns", us(datetime.fromisoformat("2006-10-29T02:35+00:00"))))
def test_a_period_is_the_one_that_a_wall_clock_shows(kind: QuotaPeriod, where: tuple[str, int]) -> None:
    zone, now = where
    assert Calendar(kind, ZoneInfo(zone)).period_at(now) == period_of(kind, zone, now)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DAY, WEEK, MONTH])
@examples(150)
@given(where=moments(), day=st.integers(0, 30), minutes=st.sampled_from([0, 90, 150, 180, 1439]))
def test_a_period_with_another_start_is_the_one_that_a_wall_clock_shows(
    kind: QuotaPeriod, where: tuple[str, int], day: int, minutes: int
) -> None:
    zone, now = where
    start = PeriodStart({WEEK: day % 7, MONTH: day}.get(kind, 0), minutes)
    assert Calendar(kind, ZoneInfo(zone), start).period_at(now) == period_of(kind, zone, now, start)


@pytest.mark.parametrize("kind", QuotaPeriod)
@pytest.mark.parametrize("zone", UNUSUAL)
def test_each_period_begins_where_the_one_before_ends(kind: QuotaPeriod, zone: str) -> None:
    for _, moment in [one for one in MOMENTS if one[0] == zone]:
        calendar = Calendar(kind, ZoneInfo(zone))
        boundaries = calendar.boundaries(moment, 4)
        assert len(boundaries) == 8
        assert boundaries[3] <= moment < boundaries[4]
        for start, end in pairwise(boundaries):
            assert start < end
            for inside in (start, (start + end) // 2, end - 1):
                assert calendar.period_at(inside) == (start, end)


def spans(kind: QuotaPeriod, zone: str, start: str, count: int, starts: PeriodStart = AS_THE_CALENDAR) -> str:
    """How the periods from a moment on are shown, in local time, and how many hours each lasts."""
    calendar, now = Calendar(kind, ZoneInfo(zone), starts), us(datetime.fromisoformat(start))
    said = []
    for _ in range(count):
        begins, ends = calendar.period_at(now)
        said.append(f"{moment_of(begins).astimezone(ZoneInfo(zone)):%m-%d %H:%M} {(ends - begins) / HOUR_US:g}")
        now = ends
    return ", ".join(said)


DAYS = {
    "spring": (DAY, "Europe/Berlin", "2026-03-28T12:00Z", "03-28 00:00 24, 03-29 00:00 23, 03-30 00:00 24"),
    "autumn": (DAY, "Europe/Berlin", "2026-10-24T12:00Z", "10-24 00:00 24, 10-25 00:00 25, 10-26 00:00 24"),
    "an_hour_that_comes_twice_counts_twice": (
        HOUR,
        "Europe/Berlin",
        "2026-10-24T23:30Z",
        "10-25 01:00 1, 10-25 02:00 1, 10-25 02:00 1, 10-25 03:00 1",
    ),
    "an_hour_that_is_skipped": (HOUR, "Europe/Berlin", "2026-03-29T00:30Z", "03-29 01:00 1, 03-29 03:00 1"),
    "half_an_hour_that_comes_twice": (
        HOUR,
        "Australia/Lord_Howe",
        "2026-04-04T14:30Z",
        "04-05 01:00 1, 04-05 01:30 0.5, 04-05 02:00 1",
    ),
    "half_an_hour_that_is_skipped": (
        HOUR,
        "Australia/Lord_Howe",
        "2026-10-03T15:00Z",
        "10-04 01:00 1, 10-04 02:30 0.5, 10-04 03:00 1",
    ),
    "half_an_hour_that_is_cut_off": (HOUR, "America/Caracas", "2016-05-01T06:45Z", "05-01 02:00 0.5, 05-01 03:00 1"),
    "a_midnight_that_comes_twice_counts_once": (
        DAY,
        "America/St_Johns",
        "2006-10-28T12:00Z",
        "10-28 00:00 24, 10-29 00:00 25, 10-30 00:00 24",
    ),
    "a_day_that_is_skipped": (DAY, "Pacific/Apia", "2011-12-29T12:00Z", "12-29 00:00 24, 12-31 00:00 24"),
    "no_midnight": (DAY, "America/Sao_Paulo", "2017-10-14T12:00Z", "10-14 00:00 24, 10-15 01:00 23"),
    "a_skip_across_midnight": (DAY, "America/Toronto", "1919-03-30T12:00Z", "03-30 00:00 23.5, 03-31 00:30 23.5"),
    "weeks_start_on_monday": (WEEK, "Europe/Berlin", "2026-03-25T00:00Z", "03-23 00:00 167, 03-30 00:00 168"),
    "a_leap_year": (MONTH, "UTC", "2024-02-10T00:00Z", "02-01 00:00 696, 03-01 00:00 744, 04-01 00:00 720"),
    "a_century_that_is_none": (MONTH, "UTC", "2100-02-10T00:00Z", "02-01 00:00 672"),
    "the_end_of_a_year": (MONTH, "UTC", "2025-12-31T23:59Z", "12-01 00:00 744, 01-01 00:00 744"),
    "a_month_without_a_day": (MONTH, "Pacific/Apia", "2011-12-15T00:00Z", "12-01 00:00 720"),
    "a_zone_of_quarter_hours": (HOUR, "Asia/Kathmandu", "2026-01-01T00:00Z", "01-01 05:00 1"),
}
"""Periods, and how those from a moment on are shown: the local time of their start, and their hours."""


@pytest.mark.parametrize(("kind", "zone", "start", "said"), DAYS.values(), ids=DAYS)
def test_periods_on_unusual_days(kind: QuotaPeriod, zone: str, start: str, said: str) -> None:
    assert spans(kind, zone, start, said.count(",") + 1) == said


STARTED = {
    "the_last_day_and_back": (
        MONTH,
        "31",
        "UTC",
        "2026-01-31T12:00Z",
        "01-31 00:00 672, 02-28 00:00 744, 03-31 00:00 720, 04-30 00:00 744",
    ),
    "a_leap_day": (MONTH, "30", "UTC", "2024-01-30T12:00Z", "01-30 00:00 720, 02-29 00:00 720, 03-30 00:00 744"),
    "the_end_of_a_year": (MONTH, "15", "UTC", "2025-12-20T00:00Z", "12-15 00:00 744, 01-15 00:00 744"),
    "a_day_and_a_time": (MONTH, "15+6h", "UTC", "2026-03-15T05:59Z", "02-15 06:00 672, 03-15 06:00 744"),
    "a_weekday": (WEEK, "sun", "Europe/Berlin", "2026-03-25T00:00Z", "03-22 00:00 168, 03-29 00:00 167"),
    "a_weekday_and_a_time": (WEEK, "sun+6h", "UTC", "2026-03-29T05:00Z", "03-22 06:00 168, 03-29 06:00 168"),
    "a_time": (DAY, "6h", "Europe/Berlin", "2026-03-29T03:59Z", "03-28 06:00 23, 03-29 06:00 24"),
    "a_time_that_is_skipped": (
        DAY,
        "150min",
        "Europe/Berlin",
        "2026-03-28T12:00Z",
        "03-28 02:30 23.5, 03-29 03:00 23.5, 03-30 02:30 24",
    ),
    "a_time_that_comes_twice_counts_once": (
        DAY,
        "150min",
        "Europe/Berlin",
        "2026-10-24T12:00Z",
        "10-24 02:30 24, 10-25 02:30 25, 10-26 02:30 24",
    ),
    "between_both": (DAY, "150min", "Europe/Berlin", "2026-10-25T01:15Z", "10-25 02:30 25"),
}
"""As `DAYS`, for periods with another start."""


@pytest.mark.parametrize(("kind", "starts", "zone", "start", "said"), STARTED.values(), ids=STARTED)
def test_periods_with_another_start(kind: QuotaPeriod, starts: str, zone: str, start: str, said: str) -> None:
    assert spans(kind, zone, start, said.count(",") + 1, PeriodStart.parse(kind, starts)) == said


def test_boundaries_surround_a_moment() -> None:
    calendar = Calendar(MONTH, ZoneInfo("UTC"))
    now = us(datetime.fromisoformat("2026-03-01T00:00+00:00"))
    months = [f"{moment_of(boundary):%Y-%m-%d}" for boundary in calendar.boundaries(now, 3)]
    assert months == ["2026-01-01", "2026-02-01", "2026-03-01", "2026-04-01", "2026-05-01", "2026-06-01"]
    assert calendar.boundaries(now - 1, 1) == calendar.period_at(now - timedelta(days=1) // timedelta(microseconds=1))
