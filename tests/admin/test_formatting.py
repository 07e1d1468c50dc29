"""Figures as pages write them: grouped, in the reader's language, and with the zone of a time."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import translation
from pytest_django import Settings

import limits_app
from limits_app import CallLimit, QuotaLimit, ResourceLimit, limits
from limits_app.admin.formatting import bar
from limits_app.services.display import amount, clock, day, duration, moment, percent
from tests.admin.browsing import changelist

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("language", "written"), [("en", "1,234,567.5"), ("de", "1.234.567,5")])
def test_amounts_are_grouped_as_the_language_does(language: str, written: str) -> None:
    with translation.override(language):
        assert amount(1_234_567.5) == written


def test_a_time_is_shown_with_its_time_zone(settings: Settings) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    assert moment(NOON) == "2026-01-31 13:00 (CET)"
    assert clock(NOON) == "13:00"
    assert moment(None) == ""


def test_a_moment_of_a_site_without_time_zones_names_none(settings: Settings) -> None:
    settings.USE_TZ = False
    assert moment(NOON.replace(tzinfo=None)) == "2026-01-31 12:00"
    assert clock(NOON.replace(tzinfo=None)) == "12:00"


@pytest.mark.parametrize("language", ["en", "de", "fa"])
def test_dates_are_the_same_in_every_language(language: str) -> None:
    with translation.override(language):
        assert moment(NOON) == "2026-01-31 12:00 (UTC)"
        assert day(NOON) == "2026-01-31"


def test_dates_at_the_ends_of_the_calendar_are_written(settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    assert moment(datetime.max.replace(tzinfo=UTC)) == "9999-12-31 23:59 (UTC)"
    assert moment(datetime(1, 1, 2, tzinfo=UTC)) == "0001-01-02 09:18 (LMT)"


def test_a_day_is_one_of_utc_as_days_are_counted(settings: Settings) -> None:
    settings.TIME_ZONE = "America/New_York"
    assert day(datetime(2026, 3, 1, tzinfo=UTC)) == "2026-03-01"
    assert day(datetime(2026, 3, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))) == "2026-02-28"
    assert (day(date(2026, 3, 1)), day(None)) == ("2026-03-01", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0.4 s"),
        (1, "1 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172_799, "48 h"),
        (172_800, "2 days"),
        (2_591_999, "30 days"),
    ],
)
def test_a_duration_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_dates_and_numbers_are_formatted_in_one_module_only() -> None:
    package = Path(limits_app.__file__).parent
    formats = re.compile(r"(?:date|number)_format|_FORMAT\"|floatformat|\|date:\"|toLocale(?:Date|Time)")
    files = (file for kind in ("*.py", "*.html", "*.js") for file in package.rglob(kind))
    formatting = [file.name for file in files if file.parent.name != "vendor" and formats.search(file.read_text())]
    assert formatting == ["display.py"]


def test_thousandths_are_reported_where_they_matter() -> None:
    assert (bar("", 1.2345, 5).used, bar("", 1.2345, 5).level) == ("1.234", "ok")
    assert (bar("", 12_345.678, 10_000).used, bar("", 12_345.678, 10_000).level) == ("12,345.7", "full")
    assert bar("", 0, 0).width == 100


def test_calls_are_whole_numbers() -> None:
    drawn = bar("call_count", 119.7, 120, 0.3)
    assert (drawn.used, drawn.remaining, drawn.level) == ("120", "0", "full")
    drawn = bar("call_count", 3.3020000000000005, 60)
    assert (drawn.used, drawn.remaining) == ("4", "56")


def test_a_small_share_is_not_rounded_to_zero() -> None:
    assert [percent(share) for share in (None, 0, 0.0001, 0.1234)] == ["-", "0 %", "< 0.1 %", "12.3 %"]


def test_the_list_of_policies_writes_limits_in_words(admin_client: Client) -> None:
    budget = QuotaLimit("budget", 5_000_000, period="month", time_zone="Europe/Berlin")
    limits.set_resource_limits("api", [CallLimit.per_minute(60), budget, ResourceLimit("slots", 2)], shared=["slots"])
    limits.set_entity_limits("user:1", [], effect="blocked")
    limits.set_entity_limits("tenant:acme", [CallLimit.per_minute(60)], counted="total")
    page = changelist(admin_client, "policy").content.decode()
    assert "<div>5,000,000 budget per month</div><div>60 requests per minute</div>" in page
    assert "<div>2 slots at the same time (shared)</div>" in page
    assert '<td class="field-limits_in_words">blocked</td>' in page
    assert "counted over all resources" in page
    assert "<div>unlimited</div>" not in page
