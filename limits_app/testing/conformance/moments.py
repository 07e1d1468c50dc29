"""Moments: when a refusal says that it would admit is exact, for definitions of every size."""

from __future__ import annotations

from fractions import Fraction

import pytest

from limits_app.core.amounts import MAX_AMOUNT, Amount
from limits_app.core.errors import NeverAdmissible
from limits_app.core.limits import RateLimit, RateLimitAlgorithm
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    SECOND,
    Contract,
    available,
    limits_of,
    wait_us,
)

__all__ = ["Moments"]

YEAR = 366 * 86_400

WHOLE: list[tuple[Amount, float]] = [
    (1, 1),
    (3, 1.5),
    (7, 1),
    (10, 60),
    (60, 60),
    (97, 0.013),
    (100, 86_400),
    (997, 3600),
    (1000, 0.001),
    (1, YEAR),
    (12_345_678, YEAR),
    (10**9 + 7, 86_400),
    (999_999_999_989, 86_400),
    (10**12, 0.001),
    (10**12, YEAR),
]
DECIMAL: list[tuple[Amount, float]] = [(0.5, 1), (2.5, 0.3), (0.001, YEAR), (99.999, 60)]

DEFINITIONS = [
    pytest.param(RateLimit(KEY, capacity, window, algorithm), id=f"{algorithm}-{capacity}-per-{window}s")
    for algorithm in ALGORITHMS
    for capacity, window in WHOLE + (DECIMAL if algorithm.takes_decimals else [])
]
BURSTS = [
    pytest.param(RateLimit(KEY, capacity, window, algorithm, burst), id=f"{algorithm}-{capacity}-{window}-{burst}")
    for algorithm in DRAINING
    for capacity, window, burst in [(10, 1, 1), (10, 1, 25), (1, YEAR, 100), (10**12, 1, 1), (10**6, 60, 10**12)]
]


def smallest(limit: RateLimit) -> Amount:
    """The least that can be asked for, above nothing."""
    return 0.001 if limit.algorithm.takes_decimals else 1


class Moments(Contract):
    """Exactness, from a thousandth of a unit to a million million."""

    @pytest.mark.parametrize("limit", DEFINITIONS + BURSTS)
    @pytest.mark.parametrize("late_us", [0, 123_456_789])
    def test_a_fresh_limit_admits_exactly_its_most_in_pieces(
        self, store: Store, clock: FakeClock, limit: RateLimit, late_us: int
    ) -> None:
        clock.move(late_us)
        limits, least = limits_of(store, limit), smallest(limit)
        first = min(1, limit.ceiling)
        assert limits.try_acquire({KEY: first})
        if limit.ceiling > first:
            assert limits.try_acquire({KEY: limit.ceiling - first})
        assert available(limits) == 0
        assert not limits.try_acquire({KEY: least})

    @pytest.mark.parametrize("limit", DEFINITIONS + BURSTS)
    def test_the_moment_named_admits_and_a_microsecond_before_does_not(
        self, store: Store, clock: FakeClock, limit: RateLimit
    ) -> None:
        clock.move(4321)
        for amount in {smallest(limit), min(1, limit.ceiling), limit.ceiling}:
            limits = limits_of(store, limit, entity=f"asks for {amount}")
            assert limits.try_acquire({KEY: limit.ceiling})
            wait = wait_us(limits.try_acquire({KEY: amount}))
            assert wait > 0
            clock.move(wait - 1)
            assert wait_us(limits.try_acquire({KEY: amount})) == 1
            clock.move(1)
            assert limits.try_acquire({KEY: amount})

    @pytest.mark.parametrize("limit", DEFINITIONS + BURSTS)
    def test_no_more_comes_back_than_the_rate_allows(self, store: Store, clock: FakeClock, limit: RateLimit) -> None:
        limits = limits_of(store, limit)
        assert limits.try_acquire({KEY: limit.ceiling})
        window_us = round(limit.window_seconds * SECOND)
        for passed in sorted({1, 17, window_us // 3, window_us // 2, window_us - 1}):
            earned = Fraction(str(limit.capacity)) * passed / window_us
            clock.move(passed)
            assert available(limits) <= (earned if limit.algorithm in DRAINING else 0)
            clock.move(-passed)

    @pytest.mark.parametrize("limit", DEFINITIONS)
    def test_all_of_it_is_back_a_window_later(self, store: Store, clock: FakeClock, limit: RateLimit) -> None:
        limits = limits_of(store, limit)
        assert limits.try_acquire({KEY: limit.ceiling})
        refusal = limits.peek({KEY: limit.ceiling}).violations[0]
        window_us, reset_us = round(limit.window_seconds * SECOND), round(refusal.reset_after * SECOND)
        # A large limit counts in steps of at most a thousandth of its window.
        assert window_us <= reset_us <= window_us + window_us // 500
        clock.move(reset_us)
        assert available(limits) == Fraction(str(limit.ceiling))
        assert limits.try_acquire({KEY: limit.ceiling})

    @pytest.mark.parametrize("limit", DEFINITIONS + BURSTS)
    def test_more_than_can_ever_be_admitted_is_an_error_at_once(self, store: Store, limit: RateLimit) -> None:
        limits, too_much = limits_of(store, limit), round(limit.ceiling + smallest(limit), 3)
        if too_much <= MAX_AMOUNT:
            with pytest.raises(NeverAdmissible) as caught:
                limits.try_acquire({KEY: too_much})
            assert caught.value.outcome.never
            assert caught.value.outcome.retry_after is None
        assert available(limits) == Fraction(str(limit.ceiling))

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("slices", [[1] * 37, [499_999, 2, 1, 77_777], [3] * 11 + [600_000] * 3, [1_000_000, 1]])
    def test_any_split_of_the_same_time_gives_the_same_level(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm, slices: list[int]
    ) -> None:
        definition = RateLimit(KEY, 7, 3, algorithm)
        watched = limits_of(store, definition, entity="looked at all the time")
        left_alone = limits_of(store, definition, entity="left alone")
        assert watched.try_acquire({KEY: 7})
        assert left_alone.try_acquire({KEY: 7})
        for passed in slices:
            clock.move(passed)
            watched.get_stats()
            watched.peek({KEY: 1})
            assert watched.try_acquire({KEY: 0})
            assert not watched.try_acquire({KEY: 7})
        assert watched.get_stats() == left_alone.get_stats()
        assert watched.peek({KEY: 7}).retry_after == left_alone.peek({KEY: 7}).retry_after

    @pytest.mark.parametrize("algorithm", DRAINING)
    def test_two_thousand_refills_drift_by_nothing(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 7, 1, algorithm))
        start = clock.now_us
        assert limits.try_acquire({KEY: 7})
        for count in range(1, 2001):
            clock.move(wait_us(limits.try_acquire({KEY: 1})))
            assert limits.try_acquire({KEY: 1})
            assert clock.now_us - start == -(-count * SECOND // 7)
