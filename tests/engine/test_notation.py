"""Limits as people write them."""

from __future__ import annotations

from decimal import localcontext

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limit_checks import parse_amount, parse_seconds
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.notation import Noted, amount_text, limit_text, parse_limit, parse_limits, seconds_text

GCRA = RateLimitAlgorithm.GCRA
WRITTEN = {
    "rpm=1000/min": RateLimit("rpm", 1000, 60),
    "tpm=400k/min": RateLimit("tpm", 400_000, 60),
    "bytes=1.5/250ms": RateLimit("bytes", 1.5, 0.25),
    "tpd=2G/2d:sliding_window": RateLimit("tpd", 2 * 10**9, 172_800, RateLimitAlgorithm.SLIDING_WINDOW),
    "tpm=90k/min:gcra:burst=100:soft": RateLimit("tpm", 90_000, 60, GCRA, 100, soft=True),
    "calls=30/10s:gcra": CallLimit(30, 10, GCRA),
    "calls=5/h:fixed_window:soft": CallLimit(5, 3600, RateLimitAlgorithm.FIXED_WINDOW, soft=True),
    "calls=5/h:rate": RateLimit("calls", 5, 3600),
    "connections=10": ResourceLimit("connections", 10),
    "connections=10:hold=90s": ResourceLimit("connections", 10, 90),
    "calls=10:permits": ResourceLimit("calls", 10),
    "budget=5M/month@Europe/Berlin": QuotaLimit.per_month("budget", 5_000_000, "Europe/Berlin"),
    "budget=20/day@UTC:soft": QuotaLimit.per_day("budget", 20, soft=True),
    "budget=200/5h:session": QuotaLimit.per_session("budget", 200, 18_000),
}


@pytest.mark.parametrize(("text", "limit"), WRITTEN.items(), ids=WRITTEN)
def test_a_limit_is_read_as_it_is_written(text: str, limit: LimitDefinition) -> None:
    assert parse_limit(text) == Noted(limit)
    assert limit_text(limit) == text
    assert parse_limit(f"{text}:shared") == Noted(limit, shared=True)
    assert limit_text(limit, shared=True) == f"{text}:shared"


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("call_count = 60 / Minute", "calls=60/min"),
        ("rpm=0.5k/60s : token-bucket", "rpm=500/min"),
        ("budget=1/week", "budget=1/week@UTC"),
        ("budget=1/month", "budget=1/month@UTC"),
        ("budget=1/DAY@Asia/Tokyo", "budget=1/day@Asia/Tokyo"),
        ("rpm=24/1.5h", "rpm=24/90min"),
        ("rpm=1.500/s", "rpm=1.5/s"),
        ("tpm=1,000,000/1 min", "tpm=1M/min"),
        ("5/min:keep=normal:20%,low:60%", "calls=5/min:keep=low:60%,normal:20%"),
        ("rpm=5/min : keep = low : 60.50 % , normal : 20 % : gcra", "rpm=5/min:gcra:keep=low:60.5%,normal:20%"),
        ("db=5:keep=low:60%:hold=90s", "db=5:hold=90s:keep=low:60%"),
    ],
)
def test_equivalent_notations_are_equal(said: str, text: str) -> None:
    assert limit_text(parse_limit(said).limit) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must look like '5/min'"),
        ("rpm", "must look like"),
        ("rpm=", "must look like"),
        ("=5/min", "must look like"),
        ("rpm=5/", "must look like"),
        ("rpm=/min", "must look like"),
        ("x" * 257, "at most 256 characters"),
        (None, "limit None must be text"),
        ("rpm=five/min", "amount 'five' must be a number"),
        ("rpm=5m/min", "400k, 5M or 1G"),
        ("rpm=0/min", "capacity must be more than 0"),
        ("rpm=5/min:keep", "write keep=... with a value"),
        ("rpm=5/min:keep=low", "keep 'low' must look like low:60%,normal:20%"),
        ("rpm=5/min:keep=low:60%,", "must look like low:60%,normal:20%"),
        ("rpm=5/min:keep=low:100%", "above 0 and below 100, not 100"),
        ("rpm=5/min:keep=low:60%,low:20%", "keep has 'low' more than once"),
        ("rpm=5/min:soft:keep=low:60%", "a soft limit rejects nothing"),
        ("rpm=5/fortnight", "time 'fortnight' must look like 10s"),
        ("5pm=5/min", "limit key '5pm'"),
        ("calls=30", "missing time window: write calls=30/10s, or calls=10:permits"),
        ("connections=10@UTC", "a time zone goes with a period"),
        ("connections=10:soft", "soft does not go with permits, which have no window; there are hold, shared"),
        ("budget=5/month:gcra", "gcra does not go with a quota per period"),
        ("budget=5/5h:session:burst=9", "burst does not go with a quota per session"),
        ("budget=5/min@UTC", "period must be one of hour, day, week, month"),
        ("budget=5/month@Mars/Olympus", "time_zone 'Mars/Olympus' is not known"),
        ("calls=5/min:rates", "did you mean rate?"),
        ("calls=5/min:xyz", "there are hold, shared, permits"),
        ("calls=5/min:", "'' is not an option"),
        ("calls=5/min:burst", "write burst=... with a value"),
        ("calls=5/min:soft=yes", "soft takes no value"),
        ("calls=5/min:soft=", "soft takes no value"),
        ("calls=5/min:soft:soft", "option 'soft' is given more than once"),
        ("calls=5/min:gcra:leaky_bucket", "gcra and leaky_bucket are two algorithms"),
        ("calls=5/min:fixed_window:burst=5", "has no burst"),
        ("connections=5:hold=long", "time 'long' must look like"),
    ],
)
def test_invalid_limits_are_errors_in_words(text: str, message: str) -> None:
    with pytest.raises(InvalidLimit, match=message):
        parse_limit(text)


KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,8}", fullmatch=True) | st.sampled_from(["calls", "call_count"])
WHOLE = st.integers(1, 10**12)
MILLI = st.integers(1, 10**15).map(lambda milli: milli // 1000 if milli % 1000 == 0 else milli / 1000)
SECONDS = st.integers(1, 366 * 86_400_000).map(lambda milli: milli / 1000) | st.sampled_from([1, 60, 3600, 86_400])
DECIMALS = {
    "algorithm": st.sampled_from([RateLimitAlgorithm.TOKEN_BUCKET, GCRA]),
    "capacity": MILLI,
    "burst": st.none() | MILLI,
}
NUMBERS = {
    "algorithm": st.sampled_from([RateLimitAlgorithm.FIXED_WINDOW, RateLimitAlgorithm.SLIDING_WINDOW]),
    "capacity": WHOLE,
}
RATES = [fields | {"window_seconds": SECONDS, "soft": st.booleans()} for fields in (DECIMALS, NUMBERS)]
LIMITS = st.one_of(
    *(st.builds(RateLimit, key=KEYS, **rate) for rate in RATES),
    *(st.builds(CallLimit, **rate) for rate in RATES),
    st.builds(ResourceLimit, KEYS, WHOLE, st.none() | SECONDS),
    st.builds(
        QuotaLimit,
        KEYS,
        WHOLE,
        st.sampled_from(["hour", "day", "week", "month"]),
        st.sampled_from(["UTC", "Europe/Berlin", "Etc/GMT+5", "America/Argentina/Buenos_Aires"]),
        soft=st.booleans(),
    ),
    st.builds(QuotaLimit, KEYS, WHOLE, session_seconds=SECONDS, soft=st.booleans()),
)


@hypothesis_settings(max_examples=4 * hypothesis_settings.default.max_examples)
@given(LIMITS, st.booleans())
def test_every_limit_is_read_back_from_its_text(limit: LimitDefinition, shared: bool) -> None:
    assert parse_limit(limit_text(limit, shared=shared)) == Noted(limit, shared=shared)


@hypothesis_settings(max_examples=4 * hypothesis_settings.default.max_examples)
@given(st.text(st.sampled_from("rpmcalls=10/:@kMG.shdinUTC -+\0é"), max_size=40) | st.text(max_size=20))
def test_any_text_is_a_limit_or_is_refused_as_none(text: str) -> None:
    try:
        noted = parse_limit(text)
    except InvalidLimit:
        return
    assert parse_limit(limit_text(*noted[:1], shared=noted.shared)) == noted


def test_amounts_and_times_are_read_and_written_by_themselves() -> None:
    assert [parse_amount(text) for text in ("5", "2.5", "400k")] == [5, 2.5, 400_000]
    assert [amount_text(amount) for amount in (5, 2.5, 400_000, 1001)] == ["5", "2.5", "400k", "1001"]
    assert [parse_seconds(text) for text in ("30s", "min", "1.5h")] == [30, 60, 5400]
    assert [seconds_text(seconds) for seconds in (30, 60, 5400, 0.001)] == ["30s", "1min", "90min", "1ms"]


@pytest.mark.parametrize("text", ["124498186077.865", "987654321098.765", "999999999999.999"])
def test_large_amounts_with_decimals_are_read_exactly(text: str) -> None:
    assert parse_amount(text) == float(text)


def test_the_precision_that_a_program_sets_for_decimals_changes_nothing() -> None:
    with localcontext(prec=2):
        assert parse_limit("rpm=123456789.123/1.234s").limit == RateLimit("rpm", 123456789.123, 1.234)


def test_shares_of_several_limits_are_kept_apart() -> None:
    text = "calls=1000/min:keep=low:60%, normal:20%, tokens=5k/h:keep=low:1%:shared day=5/week:keep=low:2%; 5/s"
    assert [limit_text(noted.limit, shared=noted.shared) for noted in parse_limits(text.replace("5/s", "x=5/s"))] == [
        "calls=1000/min:keep=low:60%,normal:20%",
        "tokens=5000/h:shared:keep=low:1%",
        "day=5/week@UTC:keep=low:2%",
        "x=5/s",
    ]
