"""Definitions of quotas: what is allowed, and what a refusal says."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from limits_app.core.errors import InvalidLimit
from limits_app.core.limits import CallLimit, QuotaLimit, QuotaPeriod, RateLimit


@pytest.mark.parametrize(
    ("made", "same"),
    [
        (QuotaLimit.per_hour("k", 5), QuotaLimit("k", 5, "hour")),
        (QuotaLimit.per_day("k", 5, "Europe/Berlin"), QuotaLimit("k", 5, "day", "Europe/Berlin")),
        (QuotaLimit.per_week("k", 5, soft=True), QuotaLimit("k", 5, QuotaPeriod.WEEK, soft=True)),
        (QuotaLimit.per_month("k", 10**12), QuotaLimit("k", 10**12, period="month")),
        (QuotaLimit.per_session("k", 5, 18_000), QuotaLimit("k", 5, session_seconds=18_000)),
        (QuotaLimit.parse("5M/month@Europe/Berlin", "k"), QuotaLimit.per_month("k", 5_000_000, "Europe/Berlin")),
        (QuotaLimit.parse("1000/day"), QuotaLimit.per_day("quota", 1000)),
        (QuotaLimit.parse(" 1.5k / Hour @ UTC ", soft=True), QuotaLimit.per_hour("quota", 1500, soft=True)),
        (QuotaLimit.parse("2 G/week", key="bytes"), QuotaLimit.per_week("bytes", 2 * 10**9)),
    ],
    ids=repr,
)
def test_there_are_shorter_ways_to_write_a_quota(made: QuotaLimit, same: QuotaLimit) -> None:
    assert made == same
    assert hash(made) == hash(same)
    assert pickle.loads(pickle.dumps(made)) == same
    assert made.ceiling == made.capacity


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"key": "7up"}, "limit key '7up' must be a letter"),
        ({"capacity": 0}, "must be more than 0, not 0; to refuse everything, let the policy be blocked"),
        ({"capacity": 1.5}, "limit 'k': capacity must be a whole number, not 1.5"),
        ({"capacity": True}, "limit 'k': capacity must be a number, not a boolean"),
        ({"capacity": "5"}, "limit 'k': capacity must be a number, not '5'"),
        ({"period": None}, "limit 'k': period or session_seconds must be given, and only one of them"),
        ({"session_seconds": 60}, "limit 'k': period or session_seconds must be given, and only one of them"),
        ({"period": "year"}, "limit 'k': period must be one of hour, day, week, month, not 'year'"),
        ({"period": 30}, "limit 'k': period must be one of hour, day, week, month, not 30"),
        ({"time_zone": "Berlin"}, "limit 'k': time_zone 'Berlin' is not known here: use an IANA name such as"),
        ({"time_zone": ""}, "limit 'k': time_zone '' is not known here"),
        ({"time_zone": "America"}, "limit 'k': time_zone 'America' is not known here"),
        ({"time_zone": "../UTC"}, "limit 'k': time_zone '../UTC' is not known here"),
        ({"time_zone": "Z" * 65}, "is not known here"),
        ({"time_zone": None}, "limit 'k': time_zone None is not known here"),
        ({"soft": 1}, "limit 'k': soft must be True or False, not 1"),
        (
            {"period": None, "session_seconds": 0},
            "limit 'k': session_seconds must be between 0.001 seconds and 366 days (31622400 seconds), not 0",
        ),
        ({"period": None, "session_seconds": 367 * 86_400}, "must be between 0.001 seconds and 366 days"),
        ({"period": None, "session_seconds": "60"}, "limit 'k': session_seconds must be a number, not '60'"),
        (
            {"period": None, "session_seconds": 60, "time_zone": "Europe/Berlin"},
            "limit 'k': time_zone goes with a period; leave it out for a session",
        ),
    ],
    ids=lambda value: f"{value!a:.40}",
)
def test_a_quota_that_cannot_be_says_why(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        QuotaLimit(**({"key": "k", "capacity": 5, "period": "day"} | fields))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "quota '' must look like '1000/day' or '5M/month@Europe/Berlin'"),
        ("5", "must look like"),
        ("5/2day", "period must be one of hour, day, week, month, not '2day'"),
        ("5m/day", "quota '5m/day': amount '5m' must be a number such as 1000"),
        ("-5/day", "amount '-5' must be a number"),
        ("5/day@", "time_zone '' is not known here"),
        ("5" * 200 + "/day", "must look like"),
        (5, "quota 5 must look like"),
        ("5/year", "period must be one of hour, day, week, month, not 'year'"),
        ("5/day@Berlin", "time_zone 'Berlin' is not known here"),
        ("1.5/day", "capacity must be a whole number, not 1.5"),
        ("1.0001/day", "quota '1.0001/day': amount '1.0001' must have at most three decimals"),
        ("1001G/day", "amount '1001G' must not be more than 10^12"),
        ("0/day", "capacity must be more than 0, not 0"),
    ],
)
def test_a_text_that_is_no_quota_says_why(text: Any, said: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        QuotaLimit.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("made", [lambda: RateLimit("k", 1, 1, soft="yes"), lambda: CallLimit(1, 1, soft=None)])  # type: ignore[arg-type]  # on purpose
def test_soft_is_yes_or_no(made: Any) -> None:
    with pytest.raises(InvalidLimit, match="soft must be True or False, not"):
        made()
