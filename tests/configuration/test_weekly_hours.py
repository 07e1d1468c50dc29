"""Weekly hours: what can be written, and when they hold, on the days on which clocks are changed too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.models.weekly_hours import WeeklyHours

MINUTE = timedelta(minutes=1)
DAY = 24 * 60


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("mon", [(0, DAY)]),
        ("mond", [(0, DAY)]),
        ("mon-", [(0, DAY)]),
        ("MON 09:00-17:00", [(540, 1020)]),
        ("Mo-Fr 9-17", [(day * DAY + 540, day * DAY + 1020) for day in range(5)]),
        ("monday 9:00 - 17", [(540, 1020)]),
        ("tue,thu 00:00-24:00", [(DAY, 2 * DAY), (3 * DAY, 4 * DAY)]),
        ("mon-wed", [(0, 3 * DAY)]),
        ("sat-mon", [(0, DAY), (5 * DAY, 7 * DAY)]),
        ("mon-sun", [(0, 7 * DAY)]),
        ("mon 22:00-06:00", [(1320, DAY + 360)]),
        ("sun 22:00-06:00", [(0, 360), (6 * DAY + 1320, 7 * DAY)]),
        ("mon 09:00-12:00; mon 11:00-13:00", [(540, 780)]),
        ("mon 09:00-12:00;mon 12:00-13:00 ", [(540, 780)]),
        ("mon 09:00-17:00; mon 10:00-11:00", [(540, 1020)]),
        ("mon 10:00-10:00", [(600, DAY + 600)]),
    ],
)
def test_hours_are_spans_of_the_week(text: str, spans: list[tuple[int, int]]) -> None:
    assert list(WeeklyHours.parse(text, "UTC").spans) == spans


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("", "UTC", "'' is not a valid schedule"),
        ("mon;", "UTC", "'' is not a valid schedule"),
        ("m", "UTC", "'m' is not a day"),
        ("mondays", "UTC", "'mondays' is not a day"),
        ("mon,,tue", "UTC", "'' is not a day"),
        ("mon 9:0-17:00", "UTC", "is not a valid schedule"),
        ("mon 09:00", "UTC", "is not a valid schedule"),
        ("mon 09:60-17:00", "UTC", "'09:60' is not a time of day"),
        ("mon 09:00-24:01", "UTC", "'24:01' is not a time of day"),
        ("mon 24:00-06:00", "UTC", "begin at 23:59"),
        ("mon", "Mars/Olympus", "'Mars/Olympus' is not a time zone"),
        ("mon", "", "'' is not a time zone"),
        ("mon", "Europe", "'Europe' is not a time zone"),
        ("mon", "../etc/passwd", "is not a time zone"),
    ],
)
def test_invalid_weekly_hours_are_rejected_with_an_example(text: str, zone: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeeklyHours.parse(text, zone)


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ("mon", "tue", False),
        ("mon 09:00-12:00", "mon 12:00-13:00", False),
        ("mon 09:00-12:00", "mon 11:59-13:00", True),
        ("sun 22:00-06:00", "mon 05:00-07:00", True),
    ],
)
def test_hours_of_one_zone_overlap_where_they_do(one: str, other: str, overlap: bool) -> None:
    assert WeeklyHours.parse(one, "UTC").overlaps(WeeklyHours.parse(other, "UTC")) is overlap


def test_hours_of_two_zones_are_taken_to_overlap() -> None:
    assert WeeklyHours.parse("mon", "UTC").overlaps(WeeklyHours.parse("fri", "Europe/Berlin"))


def test_hours_go_by_the_clock_on_the_wall() -> None:
    hours = WeeklyHours.parse("mon-fri 09:00-17:00", "Europe/Berlin")
    winter, summer = (datetime(2026, month, 2, 7, 30, tzinfo=UTC) for month in (3, 6))
    assert not hours.holds(winter)
    assert hours.holds(summer)
    assert hours.next_change(winter) == datetime(2026, 3, 2, 8, tzinfo=UTC)
    assert hours.next_change(summer) == datetime(2026, 6, 2, 15, tzinfo=UTC)


@pytest.mark.parametrize("text", ["mon-sun", "mon-thu; fri-sun"])
def test_hours_that_always_hold_never_change(text: str) -> None:
    hours = WeeklyHours.parse(text, "Europe/Berlin")
    moment = datetime(2026, 3, 29, tzinfo=UTC)
    assert hours.holds(moment)
    assert hours.next_change(moment) is None
    assert WeeklyHours.NEVER.next_change(moment) is None
    assert not WeeklyHours.NEVER.holds(moment)


CHANGED = [
    # Clocks go forward, so that half past two does not exist; clocks go back, so that it comes twice.
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/St_Johns", datetime(2026, 3, 8, 5, 30, tzinfo=UTC)),
    ("America/St_Johns", datetime(2026, 11, 1, 4, 30, tzinfo=UTC)),
    # By half an hour only.
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    # A whole day that never was.
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("UTC", datetime(2026, 1, 1, tzinfo=UTC)),
]
times = st.integers(0, 23).flatmap(lambda hour: st.sampled_from(["00", "15", "30", "45"]).map(f"{hour:02}:{{}}".format))


@given(
    st.sampled_from(CHANGED),
    st.lists(st.tuples(st.sampled_from(["sat", "sun", "mon", "fri", "thu-sat"]), times, times), min_size=1, max_size=3),
    st.integers(-3 * 24 * 12, 24 * 12),
)
def test_the_next_change(changed: tuple[str, datetime], entries: list[tuple[str, str, str]], steps: int) -> None:
    zone, moment = changed
    hours = WeeklyHours.parse("; ".join(f"{day} {start}-{end}" for day, start, end in entries), zone)
    now = moment + steps * 5 * MINUTE
    expected, holds = None, hours.holds(now)
    local = now.astimezone(ZoneInfo(zone))
    assert holds == any(
        start <= local.weekday() * DAY + local.hour * 60 + local.minute < end for start, end in hours.spans
    )
    quarter = now + (15 - now.minute % 15) * MINUTE
    for ahead in range(15 * 24 * 4):  # all changes here are at whole quarters of an hour
        if hours.holds(quarter + ahead * 15 * MINUTE) != holds:
            expected = quarter + ahead * 15 * MINUTE
            break
    assert hours.next_change(now) == expected
