"""What each algorithm admits: checks that every definition of a rate limit passes, and that nothing drifts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

import pytest

from limits_app.acquiring import Store
from limits_app.engine import DAY, MAX_AMOUNT, SECOND_US, Amount
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    YEAR,
    Contract,
    available,
    limits_of,
    wait_us,
)

TOKEN_BUCKET = RateLimitAlgorithm.TOKEN_BUCKET
LEAKY_BUCKET = RateLimitAlgorithm.LEAKY_BUCKET
SLIDING_WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
FIXED_WINDOW = RateLimitAlgorithm.FIXED_WINDOW
GCRA = RateLimitAlgorithm.GCRA
DEFINITIONS: Final = {
    "decimals": RateLimit(KEY, 2.5, 0.3, TOKEN_BUCKET),
    "large": RateLimit(KEY, 10**12, 0.001, TOKEN_BUCKET),
    "large_burst": RateLimit(KEY, 10, 1, LEAKY_BUCKET, burst=25),
    "short_window": RateLimit(KEY, 97, 0.013, SLIDING_WINDOW),
    "large_prime": RateLimit(KEY, 999_999_999_989, DAY, SLIDING_WINDOW),
    "one_per_year": RateLimit(KEY, 1, YEAR, FIXED_WINDOW),
    "many_per_year": RateLimit(KEY, 12_345_678, YEAR, GCRA),
    "burst_of_1": RateLimit(KEY, 10, 1, GCRA, burst=1),
}
"""One or two definitions for each algorithm; the memory store is tested with a hundred."""


def smallest(limit: RateLimit) -> Amount:
    """Return the smallest amount that can be requested, above 0."""
    return 0.001 if limit.algorithm.takes_decimals else 1


def admits_its_capacity_in_pieces(store: Store, clock: FakeClock, limit: RateLimit) -> None:
    """An unused limit admits exactly its capacity, at any time."""
    for number, passed in enumerate((0, 123_456_789)):
        clock.move(passed)
        limits, least = limits_of(store, limit, entity=f"in pieces {number}"), smallest(limit)
        first = min(1, limit.ceiling)
        assert limits.try_acquire({KEY: first})
        if limit.ceiling > first:
            assert limits.try_acquire({KEY: limit.ceiling - first})
        assert available(limits) == 0
        assert not limits.try_acquire({KEY: least})


def admits_after_the_announced_wait(store: Store, clock: FakeClock, limit: RateLimit) -> None:
    """A rejected amount is admitted after its wait, and not a microsecond earlier."""
    clock.move(4321)
    for amount in {smallest(limit), min(1, limit.ceiling), limit.ceiling}:
        limits = limits_of(store, limit, entity=f"requests {amount}")
        assert limits.try_acquire({KEY: limit.ceiling})
        wait = wait_us(limits.try_acquire({KEY: amount}))
        assert wait > 0
        clock.move(wait - 1)
        assert wait_us(limits.try_acquire({KEY: amount})) == 1
        clock.move(1)
        assert limits.try_acquire({KEY: amount})


def restores_no_more_than_the_rate(store: Store, clock: FakeClock, limit: RateLimit) -> None:
    """Within a window no more returns than the rate allows."""
    limits = limits_of(store, limit, entity="restored")
    assert limits.try_acquire({KEY: limit.ceiling})
    window_us = round(limit.window_seconds * SECOND_US)
    for passed in sorted({1, 17, window_us // 3, window_us // 2, window_us - 1}):
        earned = Fraction(str(limit.capacity)) * passed / window_us
        clock.move(passed)
        assert available(limits) <= (earned if limit.algorithm in DRAINING else 0)
        clock.move(-passed)


def restores_everything_in_time(store: Store, clock: FakeClock, limit: RateLimit) -> None:
    """The whole capacity is available again when the rate has restored it, and that time is announced."""
    limits = limits_of(store, limit, entity="restored in time")
    assert limits.try_acquire({KEY: limit.ceiling})
    refusal = limits.peek({KEY: limit.ceiling}).violations[0]
    window_us, reset_us = round(limit.window_seconds * SECOND_US), round(refusal.reset_after * SECOND_US)
    restored_us = window_us * Fraction(str(limit.ceiling)) / Fraction(str(limit.capacity))
    # A large limit counts in steps of at most a thousandth of its window.
    assert restored_us <= reset_us <= restored_us + window_us // 500 + 1
    clock.move(reset_us)
    assert available(limits) == Fraction(str(limit.ceiling))
    assert limits.try_acquire({KEY: limit.ceiling})


def rejects_more_than_it_can_ever_admit(store: Store, clock: FakeClock, limit: RateLimit) -> None:
    """More than the limit can ever admit is an error, which charges nothing."""
    clock.move(1)
    limits, too_much = limits_of(store, limit, entity="too much"), round(limit.ceiling + smallest(limit), 3)
    if too_much <= MAX_AMOUNT:
        with pytest.raises(NeverAdmissible) as caught:
            limits.try_acquire({KEY: too_much})
        assert caught.value.outcome.never
        assert caught.value.outcome.retry_after is None
    assert available(limits) == Fraction(str(limit.ceiling))


CHECKS: Final[Sequence[Callable[[Store, FakeClock, RateLimit], None]]] = (
    admits_its_capacity_in_pieces,
    admits_after_the_announced_wait,
    restores_no_more_than_the_rate,
    restores_everything_in_time,
    rejects_more_than_it_can_ever_admit,
)
"""Checks that every definition of a rate limit passes."""


class Algorithms(Contract):
    """Exactness from a thousandth of a unit to 10^12 units, and from a millisecond to a year."""

    @pytest.mark.parametrize("limit", DEFINITIONS.values(), ids=DEFINITIONS)
    def test_every_definition_is_exact(self, store: Store, clock: FakeClock, limit: RateLimit) -> None:
        for check in CHECKS:
            check(store, clock, limit)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_any_division_of_the_same_time_gives_the_same_level(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        for slices in ([1] * 37, [499_999, 2, 1, 77_777], [3] * 11 + [600_000] * 3, [1_000_000, 1]):
            read, unread = (limits_of(store, RateLimit(KEY, 7, 3, algorithm), entity=f"{n}{slices}") for n in (1, 2))
            assert read.try_acquire({KEY: 7})
            assert unread.try_acquire({KEY: 7})
            for passed in slices:
                clock.move(passed)
                read.get_stats()
                read.peek({KEY: 1})
                assert read.try_acquire({KEY: 0})
                assert not read.try_acquire({KEY: 7})
            assert read.get_stats() == unread.get_stats()
            assert read.peek({KEY: 7}).retry_after == unread.peek({KEY: 7}).retry_after

    @pytest.mark.parametrize("algorithm", DRAINING)
    def test_two_thousand_refills_do_not_drift(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 7, 1, algorithm))
        start = clock.now_us
        assert limits.try_acquire({KEY: 7})
        for count in range(1, 2001):
            clock.move(wait_us(limits.try_acquire({KEY: 1})))
            assert limits.try_acquire({KEY: 1})
            assert clock.now_us - start == -(-count * SECOND_US // 7)
