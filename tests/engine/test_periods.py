"""Periods: one table of the units of time and of the periods of calendars."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from limits_app.engine.algorithms.calendar import Calendar
from limits_app.engine.limit_checks import parse_seconds
from limits_app.engine.notation import seconds_text
from limits_app.engine.periods import NAMES, UNITS, QuotaPeriod, TimeUnit

SECOND_US = 1_000_000


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_each_spelling_of_a_unit_is_read_and_its_symbol_is_written(unit: TimeUnit) -> None:
    seconds = unit.milliseconds / 1000
    for spelling in (unit.symbol, unit.name, *unit.spellings):
        assert parse_seconds(f"7{spelling}") == parse_seconds(f"7 {spelling.upper()}" if spelling != "m" else "7m")
        assert parse_seconds(f"7{spelling}") == pytest.approx(7 * seconds)
    assert seconds_text(7 * seconds) == f"7{unit.symbol}"
    assert NAMES[seconds] == unit.name


def test_no_spelling_stands_for_two_units() -> None:
    spellings = [spelling for unit in UNITS for spelling in (unit.symbol, unit.name, *unit.spellings)]
    assert len(set(spellings)) == len(spellings)


@pytest.mark.parametrize("period", QuotaPeriod)
def test_the_lengths_of_a_period_are_those_of_the_calendar(period: QuotaPeriod) -> None:
    calendar = Calendar(period, UTC)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    lengths = set()
    for days in range(0, 730, 5):
        begins, ends = calendar.period_at(int((start + timedelta(days=days)).timestamp()) * SECOND_US)
        lengths.add((ends - begins) // SECOND_US)
    assert (min(lengths), max(lengths)) == (period.shortest_seconds, period.longest_seconds)
    assert period.seconds == (None if period is QuotaPeriod.MONTH else lengths.pop())
