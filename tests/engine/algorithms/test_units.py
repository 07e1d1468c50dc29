"""Units in which a rate is exact, over everything that may be defined."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given

from limits_app.engine.algorithms.rule import DEBT_PARTS, FULL_PARTS
from limits_app.engine.algorithms.units import exact_units, window_us
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from tests.engine.algorithms.definitions import LONGEST_MS, MAX, WITH_BURST, exact, examples, rate_per_us, rates

DOUBLES_ARE_EXACT_TO = 2**53
LEAKY = RateLimitAlgorithm.LEAKY_BUCKET
GCRA = RateLimitAlgorithm.GCRA

# A prime number of milliseconds, near the longest window: nothing of it cancels.
AWKWARD_SECONDS = 31_622_399.999


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param(RateLimit("k", 10, 1), (100_000, 1, 1, 1_000_000), id="ten_per_second"),
        pytest.param(RateLimit("k", 1000, 60), (60_000, 1, 1, 60_000_000), id="a_thousand_per_minute"),
        pytest.param(RateLimit("k", 7, 60, burst=2), (60_000_000, 7, 1, 120_000_000), id="a_burst_of_its_own"),
        pytest.param(RateLimit("k", 0.5, 1), (2_000_000, 1, 1, 1_000_000), id="half_a_unit"),
        pytest.param(RateLimit("k", 1.5, 0.001), (2000, 3, 1, 3000), id="in_a_millisecond"),
        pytest.param(RateLimit("k", 3, 0.001, LEAKY), (1000, 3, 1, 3000), id="whole_units_in_a_millisecond"),
        pytest.param(RateLimit("k", 1000, 0.001, LEAKY), (1000, 1000, 1, 1_000_000), id="split_as_for_a_token_bucket"),
        pytest.param(RateLimit("k", 1000, 0.001, GCRA), (1000, 1000, 1, 1_000_000), id="split_for_the_decimals"),
        pytest.param(RateLimit("k", MAX, 7), (1000, 10**9, 7, 10**15), id="a_tick_of_seven_microseconds"),
        pytest.param(RateLimit("k", MAX, 7, LEAKY), (7, 10**6, 1, 7 * 10**12), id="fits_without_decimals"),
        pytest.param(RateLimit("k", MAX, 1), (1000, 10**9, 1, 10**15), id="the_most_there_is"),
        pytest.param(RateLimit("k", 125, 1.024, LEAKY, burst=2**37), (8192, 1, 1, FULL_PARTS), id="fits_just_so"),
        pytest.param(
            RateLimit("k", 999_999_937, 60), (10**6, 999_999_937, 60, 999_999_937 * 10**6), id="a_prime_capacity"
        ),
    ],
)
def test_units_are_the_smallest_that_are_exact(limit: RateLimit, expected: tuple[int, ...]) -> None:
    units = exact_units(limit)
    assert (units.parts_per_unit, units.parts_per_tick, units.tick_us, units.full_parts) == expected


def test_a_call_limit_counts_as_a_rate_does() -> None:
    assert exact_units(CallLimit(10, 1)) == exact_units(RateLimit("k", 10, 1))


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.001, 1000), (1, 1_000_000), (59.999, 59_999_000), (366 * 86_400, 31_622_400_000_000)]
)
def test_a_window_is_exact_in_microseconds(seconds: float, expected: int) -> None:
    assert window_us(RateLimit("k", 1, seconds)) == expected


@examples(500)
@given(rates(WITH_BURST))
@example(RateLimit("k", 1, AWKWARD_SECONDS, burst=MAX))
@example(RateLimit("k", 0.001, LONGEST_MS / 1000, burst=MAX))
@example(RateLimit("k", 999_999_999_999.999, 60))
@example(RateLimit("k", 999_999_999_999.999, 0.001, burst=0.001))
@example(RateLimit("k", 999_999_999_989, AWKWARD_SECONDS, LEAKY))
def test_no_refill_rounds_and_every_number_is_exact_in_a_double(limit: RateLimit) -> None:
    units = exact_units(limit)
    assert Fraction(units.parts_per_tick, units.parts_per_unit * units.tick_us) == rate_per_us(limit)
    assert Fraction(units.full_parts, units.parts_per_unit) == exact(limit.ceiling)
    assert 1 <= units.full_parts <= FULL_PARTS
    assert 1 <= units.parts_per_tick < DOUBLES_ARE_EXACT_TO
    assert 1 <= units.tick_us <= window_us(limit)
    # The most that is ever added up: the deepest debt, a full request, and what one tick brings.
    assert DEBT_PARTS + units.full_parts < DOUBLES_ARE_EXACT_TO
    # A thousandth of a unit is whole where amounts may have decimals.
    assert not limit.algorithm.takes_decimals or units.parts_per_unit % 1000 == 0


@examples(500)
@given(rates(WITH_BURST))
@example(RateLimit("k", 1, AWKWARD_SECONDS, burst=MAX))
@example(RateLimit("k", MAX, AWKWARD_SECONDS))
@example(RateLimit("k", 999_999_999_989, AWKWARD_SECONDS, LEAKY))
def test_a_tick_is_at_most_a_thousandth_of_the_window(limit: RateLimit) -> None:
    whole = isinstance(limit.capacity, int)
    assert not (whole or limit.ceiling <= 10**9) or exact_units(limit).tick_us * 1000 <= window_us(limit)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (RateLimit("k", 0.001, 60, burst=MAX), 60_000_000),
        (RateLimit("k", 1.001, 60, burst=MAX), 60_000_000),
        (RateLimit("k", 1.001, 60, burst=10**9), 60_000),
    ],
)
def test_fraction_with_a_very_large_burst_refills_in_long_steps(limit: RateLimit, expected: int) -> None:
    assert exact_units(limit).tick_us == expected


@examples(150)
@given(rates((LEAKY,)))
@example(RateLimit("k", MAX, 7, LEAKY))
@example(RateLimit("k", 1000, 0.001, LEAKY))
def test_a_leaky_bucket_counts_as_a_token_bucket_wherever_that_fits(limit: RateLimit) -> None:
    leaky, token = exact_units(limit), exact_units(replace(limit, algorithm=RateLimitAlgorithm.TOKEN_BUCKET))
    assert leaky == token or leaky.tick_us < token.tick_us


@examples(150)
@given(rates(WITH_BURST))
def test_a_tick_is_one_microsecond_wherever_that_fits(limit: RateLimit) -> None:
    units = exact_units(limit)
    if units.tick_us > 1:
        # In microseconds, the smallest unit in which the rate is exact would make a full bucket too large.
        parts_per_unit = rate_per_us(limit).denominator
        assert parts_per_unit * exact(limit.ceiling) * (1000 if limit.algorithm.takes_decimals else 1) > FULL_PARTS
