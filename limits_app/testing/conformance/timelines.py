"""Timelines: what each algorithm admits, step by step, on a clock that is moved by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import KEY, Contract, limits_of

__all__ = ["Timelines"]

Timeline = Sequence[tuple[int, int, bool]]
"""Steps: milliseconds since the start, amount asked for, admitted or not."""


def limit(algorithm: RateLimitAlgorithm, burst: int | None = None) -> RateLimit:
    """Three per 1.5 seconds, which is one every half second."""
    return RateLimit(KEY, 3, 1.5, algorithm, burst)


TOKEN_BUCKET = limit(RateLimitAlgorithm.TOKEN_BUCKET)
TOKENS_IN_BURSTS = limit(RateLimitAlgorithm.TOKEN_BUCKET, 6)
LEAKY_BUCKET = limit(RateLimitAlgorithm.LEAKY_BUCKET)
LEAKY_SPACED = limit(RateLimitAlgorithm.LEAKY_BUCKET, 1)
GCRA = limit(RateLimitAlgorithm.GCRA)
GCRA_SPACED = limit(RateLimitAlgorithm.GCRA, 1)
FIXED_WINDOW = limit(RateLimitAlgorithm.FIXED_WINDOW)
SLIDING_WINDOW = limit(RateLimitAlgorithm.SLIDING_WINDOW)

NOT_A_MOMENT_EARLY = [(0, 3, True), (499, 1, False), (500, 1, True), (999, 1, False), (1000, 1, True)]
FAST_POLLING = [(0, 3, True), *[(at, 1, False) for at in range(50, 500, 50)], (500, 1, True), (501, 1, False)]
PARTLY_REFILLED = [(0, 2, True), (250, 1, True), (250, 1, False), (499, 1, False), (500, 1, True)]
AFTER_A_LONG_TIME = [(0, 3, True), (3_600_000, 4, False), (3_600_000, 3, True), (3_600_000, 1, False)]
CLOCK_GOING_BACK = [(9, 3, True), (0, 1, False), (508, 1, False), (509, 1, True)]
SPACED = [(0, 1, True), (0, 1, False), (499, 1, False), (500, 1, True), (999, 1, False), (1000, 1, True)]
WHOLE_WINDOW_LATER = [(0, 3, True), (1499, 1, False), (1500, 3, True), (1500, 1, False)]
REFUSALS_KEEP_NOTHING_ALIVE = [(0, 3, True), *[(at, 1, False) for at in range(100, 1500, 100)], (1500, 3, True)]
WINDOW_CLOCK_GOING_BACK = [(1000, 3, True), (0, 1, False), (2499, 1, False), (2500, 3, True)]

TABLE = {
    "token_bucket_not_a_moment_early": (TOKEN_BUCKET, NOT_A_MOMENT_EARLY),
    "token_bucket_fast_polling_neither_mints_nor_starves": (TOKEN_BUCKET, FAST_POLLING),
    "token_bucket_keeps_fractions": (TOKEN_BUCKET, PARTLY_REFILLED),
    "token_bucket_never_fuller_than_full": (TOKEN_BUCKET, AFTER_A_LONG_TIME),
    "token_bucket_clock_going_back_is_harmless": (TOKEN_BUCKET, CLOCK_GOING_BACK),
    "token_bucket_keeps_its_level_when_the_clock_goes_back": (
        TOKEN_BUCKET,
        [(500, 1, True), (0, 2, True), (500, 1, False), (999, 1, False), (1000, 1, True)],
    ),
    "token_bucket_bursts_above_capacity": (
        TOKENS_IN_BURSTS,
        [(0, 7, False), (0, 6, True), (0, 1, False), (1500, 4, False), (1500, 3, True), (4500, 6, True)],
    ),
    "token_bucket_spaced_by_a_small_burst": (limit(RateLimitAlgorithm.TOKEN_BUCKET, 1), SPACED),
    "leaky_bucket_not_a_moment_early": (LEAKY_BUCKET, NOT_A_MOMENT_EARLY),
    "leaky_bucket_fast_polling_neither_mints_nor_starves": (LEAKY_BUCKET, FAST_POLLING),
    "leaky_bucket_keeps_fractions": (LEAKY_BUCKET, PARTLY_REFILLED),
    "leaky_bucket_never_emptier_than_empty": (LEAKY_BUCKET, AFTER_A_LONG_TIME),
    "leaky_bucket_clock_going_back_is_harmless": (LEAKY_BUCKET, CLOCK_GOING_BACK),
    "leaky_bucket_spaces_evenly": (LEAKY_SPACED, SPACED),
    "leaky_bucket_spaces_evenly_however_irregular_the_requests": (
        LEAKY_SPACED,
        [(0, 1, True), (700, 1, True), (1199, 1, False), (1200, 1, True), (5000, 1, True), (5499, 1, False)],
    ),
    "gcra_not_a_moment_early": (GCRA, NOT_A_MOMENT_EARLY),
    "gcra_fast_polling_neither_mints_nor_starves": (GCRA, FAST_POLLING),
    "gcra_keeps_fractions": (GCRA, PARTLY_REFILLED),
    "gcra_saves_up_no_more_than_its_burst": (GCRA, AFTER_A_LONG_TIME),
    "gcra_clock_going_back_is_harmless": (GCRA, CLOCK_GOING_BACK),
    "gcra_spaces_evenly": (GCRA_SPACED, SPACED),
    "fixed_window_opens_again_when_it_ends": (FIXED_WINDOW, WHOLE_WINDOW_LATER),
    "fixed_window_is_not_kept_alive_by_refusals": (FIXED_WINDOW, REFUSALS_KEEP_NOTHING_ALIVE),
    "fixed_window_clock_going_back_is_harmless": (FIXED_WINDOW, WINDOW_CLOCK_GOING_BACK),
    "fixed_window_starts_with_its_first_admission": (
        FIXED_WINDOW,
        [(700, 1, True), (1500, 2, True), (2199, 1, False), (2200, 3, True), (3699, 1, False), (3700, 1, True)],
    ),
    "fixed_window_starts_again_with_the_first_admission_after_a_gap": (
        FIXED_WINDOW,
        [(0, 3, True), (2000, 2, True), (3499, 1, True), (3499, 1, False), (3500, 3, True)],
    ),
    "fixed_window_lets_twice_its_capacity_pass_across_a_boundary": (
        FIXED_WINDOW,
        [(0, 1, True), (1499, 2, True), (1500, 3, True), (1501, 1, False)],
    ),
    "fixed_window_is_not_started_by_asking_for_nothing": (
        FIXED_WINDOW,
        [(0, 0, True), (1000, 3, True), (1500, 1, False), (2499, 1, False), (2500, 3, True)],
    ),
    "sliding_window_gives_back_a_window_later": (SLIDING_WINDOW, WHOLE_WINDOW_LATER),
    "sliding_window_is_not_kept_alive_by_refusals": (SLIDING_WINDOW, REFUSALS_KEEP_NOTHING_ALIVE),
    "sliding_window_clock_going_back_is_harmless": (SLIDING_WINDOW, WINDOW_CLOCK_GOING_BACK),
    "sliding_window_gives_back_one_by_one": (
        SLIDING_WINDOW,
        [
            *[(0, 1, True), (500, 1, True), (1000, 1, True), (1499, 1, False), (1500, 1, True)],
            *[(1999, 1, False), (2000, 1, True), (2499, 1, False), (2500, 1, True)],
        ],
    ),
    "sliding_window_never_lets_twice_its_capacity_pass": (
        SLIDING_WINDOW,
        [(0, 1, True), (1490, 2, True), (1500, 2, False), (1500, 1, True), (2989, 1, False), (2990, 2, True)],
    ),
    "sliding_window_merges_what_is_close_and_never_gives_it_back_early": (
        SLIDING_WINDOW,
        [(0, 2, True), (1, 1, True), (1499, 1, False), (1500, 3, False), (1502, 3, True)],
    ),
}


class Timelines(Contract):
    """One table, and a test for each line of it."""

    @pytest.mark.parametrize(("definition", "timeline"), TABLE.values(), ids=TABLE)
    def test_a_timeline_comes_out_as_written(
        self, store: Store, clock: FakeClock, definition: RateLimit, timeline: Timeline
    ) -> None:
        limits, start = limits_of(store, definition), clock.now_us
        for at, amount, admitted in timeline:
            clock.move(start + at * 1000 - clock.now_us)
            if amount > definition.ceiling:
                assert not admitted
                continue
            assert limits.try_acquire({KEY: amount}).successful is admitted, f"{amount} at {at} ms"

    @pytest.mark.parametrize(("definition", "timeline"), TABLE.values(), ids=TABLE)
    def test_calls_are_limited_as_amounts_are(
        self, store: Store, clock: FakeClock, definition: RateLimit, timeline: Timeline
    ) -> None:
        calls = CallLimit(definition.capacity, definition.window_seconds, definition.algorithm, definition.burst)
        limits, start = limits_of(store, calls), clock.now_us
        for at, amount, admitted in timeline:
            if amount <= calls.ceiling:
                clock.move(start + at * 1000 - clock.now_us)
                assert limits.try_acquire({calls.key: amount}).successful is admitted, f"{amount} at {at} ms"
