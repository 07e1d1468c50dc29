"""Definitions of limits: what is allowed, and what a refusal says."""

from __future__ import annotations

import copy
import decimal
import pickle
import re
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import (
    Blocked,
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.periods import QuotaPeriod
from limits_app.engine.record import schema_of

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
FIXED_WINDOW = RateLimitAlgorithm.FIXED_WINDOW
GCRA = RateLimitAlgorithm.GCRA

YEAR = 366 * 86_400


class Tenths(float):
    """A float that writes itself in its own way, as those of numeric libraries do."""

    def __repr__(self) -> str:
        return f"Tenths({float(self)})"


class Seven:
    """An integer that is no int, as those of numeric libraries are."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: RateLimit("tpm", 1, 1), id="the_least_that_must_be_said"),
        pytest.param(lambda: RateLimit("tpm", 10**12, YEAR), id="the_largest"),
        pytest.param(lambda: RateLimit("tpm", 0.001, 0.001), id="the_smallest"),
        pytest.param(lambda: RateLimit("tpm", 999_999_999_999.999, 1), id="the_longest"),
        pytest.param(lambda: RateLimit("tpm", 0.5, 1, burst=0.125), id="decimals"),
        pytest.param(lambda: RateLimit("tpm", 0.5, 1, GCRA, 2.5), id="decimals_for_gcra"),
        pytest.param(lambda: RateLimit("tpm", 1e3, 60.0), id="whole_floats"),
        pytest.param(lambda: RateLimit("tpm", Decimal("1.250"), Decimal("0.5")), id="decimal_numbers"),
        pytest.param(lambda: RateLimit("tpm", Tenths(1.5), 60), id="floats_of_other_libraries"),
        pytest.param(lambda: RateLimit("tpm", Seven(), 60, SLIDING_WINDOW), id="integers_of_other_libraries"),
        pytest.param(lambda: RateLimit("tpm", 5, 1, LEAKY_BUCKET, burst=1), id="a_burst_below_the_capacity"),
        pytest.param(lambda: RateLimit("tpm", 5, 1, burst=10**12), id="a_burst_above_the_capacity"),
        pytest.param(lambda: RateLimit("tpm", 5, 1, SLIDING_WINDOW), id="a_sliding_window"),
        pytest.param(lambda: RateLimit("tpm", 5, 1, FIXED_WINDOW), id="a_fixed_window"),
        pytest.param(lambda: RateLimit("t" * 64, 5, 1), id="a_long_key"),
        pytest.param(lambda: RateLimit("Gpt-4.1_in", 5, 1), id="a_key_with_everything"),
        pytest.param(lambda: CallLimit(1, 1), id="calls"),
        pytest.param(lambda: CallLimit(5, 1, GCRA, 1), id="calls_with_a_burst"),
        pytest.param(lambda: ResourceLimit("db", 1), id="permits"),
        pytest.param(lambda: ResourceLimit("db", 10**12, 0.001), id="permits_for_a_millisecond"),
        pytest.param(lambda: ResourceLimit("db", 3, YEAR), id="permits_for_a_year"),
    ],
)
def test_allowed_definitions_are_compiled(made: Any) -> None:
    limit = made()
    assert schema_of((limit,)).rules[0].limit == limit


@pytest.mark.parametrize(
    "number", [7, 7.0, Decimal(7), Decimal("7.00"), Seven(), Tenths(7)], ids=lambda one: type(one).__name__
)
def test_a_number_of_any_kind_is_kept_as_a_plain_number(number: Any) -> None:
    def limits(number: Any) -> list[LimitDefinition]:
        return [
            RateLimit("tpm", number, number, burst=number),
            RateLimit("tpm", number, number, SLIDING_WINDOW),
            CallLimit(number, number, GCRA, number),
            ResourceLimit("db", number, number),
            QuotaLimit.per_day("plan", number),
            QuotaLimit.per_session("plan", number, number),
        ]

    assert repr(limits(number)) == repr(limits(7))


def test_decimals_are_kept_as_floats() -> None:
    limit = RateLimit("tpm", Decimal("1.5"), Decimal("0.25"), burst=Decimal("2.125"))  # type: ignore[arg-type]
    assert repr((limit.capacity, limit.window_seconds, limit.burst)) == "(1.5, 0.25, 2.125)"


BAD_NUMBERS: list[Any] = [
    pytest.param(0, "more than 0", id="zero"),
    pytest.param(-1, "more than 0", id="negative"),
    pytest.param(-(10**30), "not be more than 10^12", id="hugely_negative"),
    pytest.param(10**12 + 1, "not be more than 10^12", id="just_too_large"),
    pytest.param(10**5000, "not be more than 10^12", id="too_large_to_be_written"),
    pytest.param(True, "must be a number, not a boolean", id="true"),
    pytest.param(None, "must be a number", id="none"),
    pytest.param("5", "must be a number", id="text"),
    pytest.param("5" * 10_000, "must be a number", id="ten_kilobytes_of_text"),
    pytest.param(5 + 0j, "must be a number", id="a_complex_number"),
    pytest.param(Fraction(1, 2), "must be a number", id="a_fraction"),
    pytest.param(object(), "must be a number", id="an_object"),
]

BAD_FRACTIONS: list[Any] = [
    pytest.param(-0.0, "more than 0", id="minus_zero"),
    pytest.param(0.0005, "at most three decimals", id="half_a_thousandth"),
    pytest.param(0.1 + 0.2, "at most three decimals", id="a_sum_of_floats_that_is_no_tenth"),
    pytest.param(5e-324, "at most three decimals", id="the_smallest_float"),
    pytest.param(1.7e308, "not be more than 10^12", id="a_huge_float"),
    pytest.param(float("inf"), "must be a finite number", id="infinity"),
    pytest.param(float("nan"), "must be a finite number", id="not_a_number"),
    pytest.param(Decimal("NaN"), "must be a finite number", id="a_decimal_that_is_none"),
    pytest.param(Decimal("sNaN"), "must be a finite number", id="a_signalling_decimal"),
    pytest.param(Decimal("Infinity"), "must be a finite number", id="decimal_infinity"),
    pytest.param(Decimal("1e400"), "not be more than 10^12", id="a_huge_decimal"),
    pytest.param(Decimal("1." + "0" * 40 + "1"), "at most three decimals", id="a_long_decimal"),
    pytest.param(Decimal("1E+999999"), "not be more than 10^12", id="the_largest_decimal"),
    pytest.param(Decimal("1E-999999"), "at most three decimals", id="the_smallest_decimal"),
]


def complaint(make: Any) -> str:
    """What making a definition says when it cannot be."""
    with pytest.raises(InvalidLimit) as caught:
        make()
    text = str(caught.value)
    assert len(text) < 250, "short, whatever came in"
    return text


@pytest.mark.parametrize(("value", "rule"), BAD_NUMBERS + BAD_FRACTIONS)
def test_a_bad_amount_is_refused_with_the_limit_the_field_and_the_rule(value: Any, rule: str) -> None:
    for field in ("capacity",) if value is None else ("capacity", "burst"):
        numbers = {"capacity": 5, "window_seconds": 1} | {field: value}
        text = complaint(partial(RateLimit, "tpm", **numbers))
        assert text.startswith(f"limit 'tpm': {field} ")
        assert rule in text
        assert complaint(partial(CallLimit, **numbers)) == text.replace("'tpm'", "'call_count'")


@pytest.mark.parametrize("algorithm", [algorithm for algorithm in RateLimitAlgorithm if not algorithm.takes_decimals])
@pytest.mark.parametrize("value", [0.5, 1.5, float("nan"), float("inf"), Decimal("5.5")])
def test_only_some_algorithms_take_decimals(algorithm: RateLimitAlgorithm, value: float) -> None:
    assert "capacity must be a whole number" in complaint(lambda: RateLimit("tpm", value, 1, algorithm))
    assert repr(RateLimit("tpm", 5.0, 1, algorithm).capacity) == "5"


@pytest.mark.parametrize(
    ("value", "rule"), [*BAD_NUMBERS, *[(number, "a whole number") for number in (0.5, Decimal("2.5"), float("nan"))]]
)
def test_a_bad_number_of_permits_is_refused(value: Any, rule: str) -> None:
    text = complaint(lambda: ResourceLimit("db", value))
    assert text.startswith("limit 'db': capacity ")
    assert ("at least 1" if rule == "more than 0" else rule) in text


@pytest.mark.parametrize(("value", "rule"), BAD_NUMBERS + BAD_FRACTIONS)
def test_a_bad_time_is_refused(value: Any, rule: str) -> None:
    expected = rule if rule != "more than 0" else "between 0.001"
    text = complaint(lambda: RateLimit("tpm", 5, value))
    assert text.startswith("limit 'tpm': window_seconds ")
    assert expected in text
    if value is not None:
        text = complaint(lambda: ResourceLimit("db", 5, value))
        assert text.startswith("limit 'db': max_hold_seconds ")
        assert expected in text


@pytest.mark.parametrize("value", [YEAR + 0.001, YEAR + 1, 10**12])
def test_nothing_takes_longer_than_366_days(value: float) -> None:
    rule = "must be between 0.001 seconds and 366 days (31622400 seconds), not "
    assert f"window_seconds {rule}" in complaint(lambda: RateLimit("tpm", 5, value))
    assert f"max_hold_seconds {rule}" in complaint(lambda: ResourceLimit("db", 5, value))


@pytest.mark.parametrize("algorithm", [algorithm for algorithm in RateLimitAlgorithm if not algorithm.takes_burst])
def test_an_algorithm_without_a_burst_takes_none(algorithm: RateLimitAlgorithm) -> None:
    text = complaint(lambda: RateLimit("tpm", 5, 1, algorithm, burst=5))
    assert text == f"limit 'tpm': a {algorithm} has no burst; leave it out"


@pytest.mark.parametrize("value", [None, "GCRA", 1, SLIDING_WINDOW.name, object(), []])
def test_an_algorithm_that_does_not_exist_is_refused(value: Any) -> None:
    text = complaint(lambda: RateLimit("tpm", 5, 1, value))
    assert text.startswith("limit 'tpm': algorithm must be one of token_bucket, ")


def test_algorithms_have_other_names_and_may_be_text() -> None:
    for algorithm in RateLimitAlgorithm:
        name = algorithm.value.title().replace("_", "") if "_" in algorithm.value else algorithm.value.upper()
        assert RateLimitAlgorithm[name] is algorithm
        for limit in (RateLimit("tpm", 5, 1, str(algorithm)), CallLimit.per_second(5, algorithm=str(algorithm))):
            assert limit.algorithm is algorithm


@pytest.mark.parametrize(
    ("algorithm", "burst", "most"),
    [
        (TOKEN_BUCKET, None, 20),
        (TOKEN_BUCKET, 0.1, 10.1),
        (LEAKY_BUCKET, 1, 11),
        (RateLimitAlgorithm.GCRA, 30, 40),
        (SLIDING_WINDOW, None, 10),
        (FIXED_WINDOW, None, 20),
    ],
)
def test_the_most_in_one_window(algorithm: RateLimitAlgorithm, burst: float | None, most: float) -> None:
    assert algorithm.most_per_window(10, burst) == most


def test_times_may_be_timedeltas() -> None:
    assert RateLimit("tpm", 5, timedelta(minutes=2)) == RateLimit("tpm", 5, 120)
    assert CallLimit(5, timedelta(milliseconds=1)) == CallLimit(5, 0.001)
    assert ResourceLimit("db", 5, timedelta(minutes=1)) == ResourceLimit("db", 5, 60)  # type: ignore[arg-type]
    assert QuotaLimit.per_session("q", 5, timedelta(hours=1)) == QuotaLimit.per_session("q", 5, 3600)  # type: ignore[arg-type]
    assert "window_seconds must be between" in complaint(lambda: RateLimit("tpm", 5, timedelta(0)))


@pytest.mark.parametrize(
    "key",
    ["", "1st", "_private", "a b", "a:b", "a\0b", "a\n", "a" * 65, "äther", "🔑", "a\ud800", "a{b}", None, 5, b"tpm"],
)
def test_a_bad_key_is_refused_with_the_rule(key: Any) -> None:
    rule = "must be a letter followed by at most 63 letters, digits, '_', '.' or '-'"
    for make in (lambda: RateLimit(key, 5, 1), lambda: ResourceLimit(key, 5)):
        text = complaint(make)
        assert text.startswith("limit key ")
        assert text.endswith(rule)


@pytest.mark.parametrize(
    ("method", "seconds"),
    [("per_second", 1), ("per_minute", 60), ("per_hour", 3600), ("per_day", 86_400), ("per_week", 604_800)],
)
def test_a_rate_per_period(method: str, seconds: int) -> None:
    assert getattr(RateLimit, method)("tpm", 5) == RateLimit("tpm", 5, seconds)
    assert getattr(CallLimit, method)(5) == CallLimit(5, seconds)
    options: dict[str, Any] = {"algorithm": GCRA, "burst": 2}
    assert getattr(RateLimit, method)("tpm", 5, **options) == RateLimit("tpm", 5, seconds, GCRA, 2)
    assert getattr(CallLimit, method)(5, **options) == CallLimit(5, seconds, GCRA, 2)
    assert "limit 'tpm': capacity" in complaint(lambda: getattr(RateLimit, method)("tpm", 0))
    assert "limit 'call_count': capacity" in complaint(lambda: getattr(CallLimit, method)(0))


@pytest.mark.parametrize(
    ("text", "capacity", "seconds"),
    [
        ("1000/min", 1000, 60),
        ("30/10s", 30, 10),
        ("5/2h", 5, 7200),
        ("1/250ms", 1, 0.25),
        ("1k/min", 1000, 60),
        ("0.0015 M / MIN", 1500, 60),
        ("1G/d", 10**9, 86_400),
        ("1,000/min", 1000, 60),
        ("7/366d", 7, YEAR),
        ("  7 / 2  Min ", 7, 120),
        ("0.5/s", 0.5, 1),
        ("2.50/1.5s", 2.5, 1.5),
        ("1000000000000/d", 10**12, 86_400),
    ],
)
def test_a_rate_is_read_from_text(text: str, capacity: float, seconds: float) -> None:
    assert repr(RateLimit.parse(text)) == repr(RateLimit("rate", capacity, seconds))
    assert RateLimit.parse(text, "tpm", algorithm=GCRA) == RateLimit("tpm", capacity, seconds, GCRA)
    assert CallLimit.parse(text, burst=1) == CallLimit(capacity, seconds, burst=1)


def test_units_of_time_have_several_names() -> None:
    units = {
        0.001: "ms millisecond milliseconds",
        1: "s sec secs second seconds",
        60: "m min mins minute minutes",
        3600: "h hr hrs hour hours",
        86_400: "d day days",
    }
    for seconds, names in units.items():
        for name in names.split():
            assert RateLimit.parse(f"7/{name}") == RateLimit("rate", 7, seconds)
            assert RateLimit.parse(f"7/30 {name}") == RateLimit("rate", 7, 30 * seconds)


NO_RATES: list[Any] = [
    "",
    "1000",
    "/min",
    "1000 per minute",
    "1000/fortnight",
    "1000/M",
    "1K/min",
    "k/min",
    "٣/min",
    "1000/week",
    "-5/min",
    "1e3/min",
    "1_000/min",
    "1,00/min",
    "5/2/h",
    "5/min;",
    "5\0/min",
    "nan/min",
    "5/\u017f",
    "5/min 🕐",
    "5/" + "0" * 100 + "1s",
    "5" * 10_000 + "/min",
    None,
    b"5/min",
]


def test_text_that_is_not_a_rate_is_rejected_with_examples() -> None:
    for text in NO_RATES:
        for make in (RateLimit.parse, CallLimit.parse):
            said = complaint(partial(make, text))
            assert said.startswith("rate ")
            assert re.search(r"must look like .*10s.*2h|must be a number such as 1000, 2\.5, 400k", said)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0/min", "limit 'tpm': capacity must be more than 0"),
        ("5/0s", "limit 'tpm': window_seconds must be between"),
        ("5/0.1ms", "at most three decimals"),
        ("5.0001/s", "at most three decimals"),
        ("5/367d", "limit 'tpm': window_seconds must be between"),
        ("1000000000001/s", "must not be more than 10^12"),
        ("1." + "0" * 50 + "1/s", "at most six decimals"),
    ],
)
def test_a_rate_that_can_be_read_must_still_be_one_that_can_be(text: str, rule: str) -> None:
    assert rule in complaint(lambda: RateLimit.parse(text, "tpm"))


def test_the_arithmetic_of_the_surrounding_program_changes_no_limit() -> None:
    with decimal.localcontext() as context:
        context.prec = 2
        context.rounding = decimal.ROUND_UP
        assert schema_of((RateLimit("prec", 1234.567, 12_345.678),)).rules[0].ceiling_parts % 1_234_567 == 0
        assert RateLimit.parse("1234.567/12345s") == RateLimit("rate", 1234.567, 12_345)
    with decimal.localcontext() as context:
        context.traps[decimal.Inexact] = True
        assert "at most three decimals" in complaint(lambda: RateLimit("tpm", Decimal("1." + "0" * 40 + "1"), 1))


LIMITS: list[LimitDefinition] = [
    RateLimit("tpm", 1000, 60, burst=10),
    RateLimit("tpm", 0.5, 60, GCRA),
    CallLimit(5, 1, SLIDING_WINDOW),
    ResourceLimit("db", 3, 60),
    Blocked(),
]


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
def test_a_definition_is_a_value_that_cannot_be_changed(limit: LimitDefinition) -> None:
    twin = pickle.loads(pickle.dumps(limit))
    assert twin == limit == copy.deepcopy(limit)
    assert hash(twin) == hash(limit)
    assert not hasattr(limit, "__dict__")
    for field in ("key", "capacity", "window_seconds"):
        with pytest.raises((AttributeError, TypeError)):  # depends on whether the name is a field
            setattr(limit, field, 1)


def test_the_most_that_one_request_can_take() -> None:
    assert RateLimit("tpm", 5, 1).ceiling == 5
    assert RateLimit("tpm", 5, 1, burst=2.5).ceiling == 2.5
    assert CallLimit(5, 1).ceiling == 5
    assert CallLimit(5, 1, burst=9).ceiling == 9
    assert ResourceLimit("db", 3).ceiling == 3
    assert Blocked().ceiling == 0


def test_keys_of_a_set_are_unique() -> None:
    text = complaint(lambda: schema_of((RateLimit("tpm", 5, 1), CallLimit(5, 1), RateLimit("tpm", 6, 1))))
    assert text == "limit 'tpm' appears twice: keys in a set must differ, such as 'tpm_day'"


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
def test_quotas_have_short_constructors(made: QuotaLimit, same: QuotaLimit) -> None:
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
        (
            {"period": None, "session_seconds": 60, "starts": "15"},
            "limit 'k': starts goes with a period; leave it out for a session",
        ),
    ],
    ids=lambda value: f"{value!a:.40}",
)
def test_an_invalid_quota_is_rejected_with_a_reason(fields: dict[str, Any], said: str) -> None:
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
        ("5/day@", "time_zone '' is not known here"),
        (5, "quota 5 must look like"),
        ("5/year", "period must be one of hour, day, week, month, not 'year'"),
        ("1.5/day", "capacity must be a whole number, not 1.5"),
        ("1.0001/day", "limit 'quota': capacity must be a whole number, not 1.0001"),
        ("0/day", "capacity must be more than 0, not 0"),
    ],
)
def test_an_invalid_quota_text_is_rejected_with_a_reason(text: Any, said: str) -> None:
    with pytest.raises(InvalidLimit) as caught:
        QuotaLimit.parse(text)
    assert said in str(caught.value)


@pytest.mark.parametrize("made", [lambda: RateLimit("k", 1, 1, soft="yes"), lambda: CallLimit(1, 1, soft=None)])  # type: ignore[arg-type]  # on purpose
def test_soft_is_yes_or_no(made: Any) -> None:
    with pytest.raises(InvalidLimit, match="soft must be True or False, not"):
        made()
