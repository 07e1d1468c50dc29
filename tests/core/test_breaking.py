"""What circuit breakers have in common: when recent calls fail too often, and states as numbers."""

from __future__ import annotations

import pytest

from limits_app.core.breaking import SLICES, BreakerState, RecentCalls


@pytest.fixture
def recent() -> RecentCalls:
    """Half of at least four calls may not fail."""
    return RecentCalls(0.5, 4)


def too_often(recent: RecentCalls, number: int, outcomes: str) -> list[bool]:
    """Calls in one slice, `x` for one that failed."""
    return [recent.fail_too_often(number, failed=outcome == "x") for outcome in outcomes]


@pytest.mark.parametrize(
    ("outcomes", "opens"),
    [
        pytest.param("xxx", False, id="too_few_calls"),
        pytest.param("..x", False, id="fewer_failures"),
        pytest.param("..xx", True, id="just_so_many"),
        pytest.param("xxx.", False, id="a_success_is_never_one_too_many"),
        pytest.param("....x", False, id="one_of_five"),
    ],
)
def test_calls_fail_too_often(recent: RecentCalls, outcomes: str, opens: bool) -> None:
    assert too_often(recent, 7, outcomes)[-1] is opens


def test_what_is_older_than_the_interval_does_not_count(recent: RecentCalls) -> None:
    too_often(recent, 0, "xxx")
    assert recent.any_failed(SLICES - 1)
    assert too_often(recent, SLICES, "x...x") == [False] * 5
    assert not recent.any_failed(2 * SLICES)


def test_what_was_forgotten_does_not_count(recent: RecentCalls) -> None:
    too_often(recent, 0, "xxx")
    recent.clear()
    assert too_often(recent, 0, "x") == [False]


def test_metrics_have_states_as_numbers() -> None:
    assert {state.value: state.level for state in BreakerState} == {"closed": 0, "half_open": 1, "open": 2}
