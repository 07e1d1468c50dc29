"""Limits that code computes from others: they are valid for windows of every length, and every capacity."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest
from django.utils import timezone
from pytest_django import Settings

from limits_app import CallLimit, InvalidLimit, RateLimit, RateLimitAlgorithm, limits
from limits_app.engine.amounts import MAX_AMOUNT
from limits_app.engine.keys import scope_of
from limits_app.engine.limit_checks import MAX_WINDOW_MILLI
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.integrations.drf.rates import SimpleRateThrottle
from limits_app.integrations.ratelimit import limits_and_window
from limits_app.policies import ResolvedSet, VersionedStore
from limits_app.services.simulation.forecast import STEP_SECONDS, in_steps
from limits_app.services.unavailable import fallback_of
from limits_app.stores.memory import MemoryStore
from limits_app.stores.slices import sliced

WINDOWS = [
    *[milli / 1000 for milli in (*range(1, 300), 7_301, 59_999, 300_001, 86_399_999, MAX_WINDOW_MILLI - 1)],
    *range(2, 130),
    *[900, 1201, 3600, 7200, 43_200, 86_400, 604_800, MAX_WINDOW_MILLI // 1000],
]
CAPACITIES = [0.001, 0.7, 1, 2.5, 1000, 123_456.789, MAX_AMOUNT]


def rates() -> list[RateLimit]:
    """Rates with all windows and capacities, with bursts where the algorithm has one."""
    token_buckets = [
        RateLimit("tokens", capacity, window, burst=burst)
        for capacity, window in product(CAPACITIES, WINDOWS)
        for burst in (None, capacity)
    ]
    return [*token_buckets, *[RateLimit("tokens", 7, window, RateLimitAlgorithm.FIXED_WINDOW) for window in WINDOWS]]


def test_steps_of_forecasts_are_whole_windows() -> None:
    for limit in rates():
        stretched = in_steps(limit)
        assert stretched.window_seconds >= min(limit.window_seconds, STEP_SECONDS)
        windows = round(stretched.window_seconds / limit.window_seconds)
        assert stretched.capacity == pytest.approx(min(limit.capacity * windows, MAX_AMOUNT))


def test_slices_reduce_bursts() -> None:
    for limit in rates():
        [applied], _ = sliced([(limit, 2)])
        assert 0.99 * limit.ceiling <= applied.ceiling <= limit.ceiling


@pytest.mark.slow
def test_process_shares_of_local_limits(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "EXPECTED_PROCESSES": 7, "ON_UNAVAILABLE": "local"}
    for limit in rates():
        schema = schema_of((limit,))
        place = VersionedStore("default", MemoryStore(), 0)
        resolved = ResolvedSet.of([ScopedLimits(scope_of("api", None), schema)], place, resource="api", identity=None)
        [share] = fallback_of(resolved)
        assert share.window_seconds == limit.window_seconds
        assert 0 < share.capacity <= limit.capacity


@pytest.mark.django_db
@pytest.mark.parametrize("window", WINDOWS[::30])
def test_boosts_of_any_window(window: float) -> None:
    kept = [RateLimit("tokens", 123.457, window, burst=0.003), CallLimit(7, window)]
    limits.set_resource_limits("api", kept)
    limits.boost("user:1", "api", 1.37, timezone.now() + timedelta(hours=1), "a reason")
    boosted = limits.limit_set("api", "user:1")
    assert boosted["tokens"] == RateLimit("tokens", 169.136, window, burst=0.004)
    assert boosted["call_count"] == CallLimit(9, window)


class Computed(SimpleRateThrottle):
    """A throttle of 3 requests in a window that a site computes."""

    rate = "3/min"

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.duration = seconds  # type: ignore[assignment]


def test_windows_that_a_site_computes() -> None:
    for seconds in (*WINDOWS, *[window * 0.95 for window in WINDOWS], 1 / 3, 0.1 + 0.2, 2e-6, 1e12):
        [of_throttle], ([of_decorator], _) = Computed(seconds).default_limits, limits_and_window((3, seconds))  # type: ignore[arg-type]
        expected = min(seconds, MAX_WINDOW_MILLI / 1000)
        assert expected - 1e-6 <= of_throttle.window_seconds <= expected + 0.001
        assert of_decorator.window_seconds == of_throttle.window_seconds


@pytest.mark.parametrize("seconds", [0, -1])
def test_windows_that_a_site_computes_are_longer_than_nothing(seconds: float) -> None:
    with pytest.raises(InvalidLimit):
        assert Computed(seconds).default_limits
