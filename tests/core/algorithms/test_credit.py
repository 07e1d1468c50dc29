"""Credit: each algorithm forgets as much of what was used as is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.core.limits import Blocked, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from tests.core.algorithms.driven import MS, NOW, SECOND, Driven

TEN_SECONDS = [RateLimit("units", 10, 10, algorithm) for algorithm in RateLimitAlgorithm]
LIMITS = [*TEN_SECONDS, QuotaLimit.per_session("units", 10, 10)]


def credit(driven: Driven, now: int, units: float) -> None:
    """Give credit."""
    driven.state = driven.rule.credit(driven.state, now, driven.parts(units))


@pytest.mark.parametrize("limit", [ResourceLimit("db", 3), Blocked()])
def test_what_is_held_and_what_is_blocked_takes_none(limit: ResourceLimit | Blocked) -> None:
    driven = Driven(limit)  # type: ignore[arg-type]  # whatever can be compiled
    state = driven.rule.take(driven.state, NOW, 1) or driven.state
    assert driven.rule.credit(state, NOW, 1) is state


def test_a_sliding_window_forgets_what_is_oldest() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    for second in range(5):
        assert window.take(NOW + second * SECOND, 2)
    now = NOW + 5 * SECOND
    credit(window, now, 3)
    assert window.used(now) == 7
    assert window.wait(now, 4) == 6 * SECOND, "the rest of what was second comes back next"
    assert window.used(NOW + 11 * SECOND) == 6
    credit(window, now, 7)
    assert window.used(now) == 0


def test_a_sliding_window_of_which_all_was_forgotten_begins_anew() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    assert window.take(NOW, 1)
    credit(window, NOW, 1)
    assert window.take(NOW + 5 * MS, 1)
    assert window.take(NOW + 14 * MS, 1)
    assert window.used(NOW + 10 * SECOND + 13 * MS) == 2, "merged with what was taken less than a step before it"
    assert window.used(NOW + 10 * SECOND + 14 * MS) == 0


def test_a_sliding_window_goes_on_with_what_is_left_of_its_log() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    for second in range(5):
        assert window.take(NOW + second * SECOND, 1)
    credit(window, NOW + 5 * SECOND, 2)
    assert window.take(NOW + 6 * SECOND, 7)
    assert not window.take(NOW + 12 * SECOND - 20 * MS, 1)
    assert window.take(NOW + 12 * SECOND + 10 * MS, 1)


def test_credit_that_ends_within_an_entry_stays_when_older_ones_expire() -> None:
    window = Driven(RateLimit("units", 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
    assert window.take(NOW, 4)
    assert window.take(NOW + SECOND, 4)
    credit(window, NOW + 2 * SECOND, 5)
    assert window.used(NOW + 10 * SECOND) == 3
    assert window.used(NOW + 11 * SECOND) == 0


@given(
    limit=st.sampled_from(LIMITS),
    steps=st.lists(
        st.tuples(
            st.sampled_from([0, 1, MS, 9 * MS, SECOND, 9_999_999, 10_000_000]), st.integers(0, 10), st.integers(1, 15)
        ),
        max_size=15,
    ),
    back=st.booleans(),
)
def test_credit_reduces_use_exactly(limit: Limit, steps: list[tuple[int, int, int]], *, back: bool) -> None:
    driven, now = Driven(limit), NOW
    for moved, asked, given_units in steps:
        now += -moved // 2 if back and asked % 3 == 0 else moved
        driven.take(now, asked)
        used, state = driven.used(now), driven.state
        credit(driven, now, given_units)
        assert driven.used(now) == max(used - given_units, 0)
        assert driven.rule.restored_at(driven.state) <= max(driven.rule.restored_at(state), now), "idle no later"
        assert not driven.fits(now, 11)
