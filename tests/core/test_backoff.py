"""Back-off: how delays grow, and how they are spread."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from limits_app.core.backoff import RetryAlgorithm, delay, jittered


@pytest.mark.parametrize(
    ("algorithm", "delays"),
    [
        ("fixed", [2, 2, 2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8, 10, 12]),
        ("exponential", [2, 4, 8, 16, 32, 64]),
        ("fibonacci", [2, 2, 4, 6, 10, 16]),
    ],
)
def test_delays_grow_as_the_algorithm_says(algorithm: str, delays: Sequence[float]) -> None:
    assert [delay(attempt, first=2, algorithm=algorithm) for attempt in range(1, 7)] == delays


@pytest.mark.parametrize("algorithm", RetryAlgorithm)
def test_no_delay_is_longer_than_the_cap(algorithm: RetryAlgorithm) -> None:
    assert delay(1_000_000, first=5, algorithm=algorithm, cap=5) == 5
    assert delay(1, first=7, algorithm=algorithm, cap=5) == 5
    assert delay(1_000_000, first=0, algorithm=algorithm, cap=5) == 0


def test_an_unknown_algorithm_is_an_error() -> None:
    with pytest.raises(ValueError, match="quadratic"):
        delay(1, first=1, algorithm="quadratic")


@pytest.mark.parametrize(("drawn", "value"), [(0.0, 7.0), (0.25, 8.5), (0.5, 10.0), (0.75, 11.5)])
def test_jitter_is_even_between_both_ends(drawn: float, value: float) -> None:
    assert jittered(10, below=3, above=3, random=lambda: drawn) == pytest.approx(value)


def test_jitter_differs_each_time_and_stays_within_its_ends() -> None:
    values = [jittered(10, above=1) for _ in range(100)]
    assert len(set(values)) > 50
    assert all(10 <= value <= 11 for value in values)


def test_without_jitter_the_value_is_unchanged() -> None:
    assert jittered(10) == 10
