"""Quotas in limit sets: requested and reported like rates."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from limits_app.core.errors import InvalidRequest, LimitTimeout, NeverAdmissible, UsageNotReported
from limits_app.core.limits import CallLimit, QuotaLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.core.sets import CALLS, DB, limit_set, reported, used

MONTH = QuotaLimit.per_month("tokens", 100, "Europe/Berlin")
SESSION = QuotaLimit.per_session("session", 50, 18_000)


@pytest.fixture
def clock() -> FakeClock:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    return FakeClock(int(noon.timestamp()) * 1_000_000)


def test_the_amount_of_a_quota_has_to_be_requested(store: MemoryStore) -> None:
    limits = limit_set(store, MONTH, CALLS)
    with pytest.raises(InvalidRequest, match="nothing is requested of tokens"):
        limits.try_acquire()
    assert limits.rates == ["tokens"]


def test_a_quota_that_is_not_named_is_left_alone(store: MemoryStore) -> None:
    limits = limit_set(store, MONTH, SESSION, CALLS, DB)
    with limits.acquire({"session": 5}) as acquired:
        acquired.update({"session": 5})
    assert used(limits) == {"tokens": 0, "session": 5, "call_count": 1, "db": 0}


def test_the_use_of_a_quota_has_to_be_reported(store: MemoryStore) -> None:
    limits = limit_set(store, MONTH)
    with pytest.raises(UsageNotReported, match="tokens"), limits.acquire({"tokens": 5}):
        pass
    assert used(limits) == {"tokens": 5}


@pytest.mark.parametrize("amount", [1.5, True, "5", -1])
def test_only_whole_amounts_can_be_requested(amount: float, store: MemoryStore) -> None:
    with pytest.raises(InvalidRequest, match="amount of 'tokens'"):
        limit_set(store, MONTH).try_acquire({"tokens": amount})


def test_more_than_a_quota_has_is_never_admissible(store: MemoryStore) -> None:
    with pytest.raises(NeverAdmissible):
        limit_set(store, MONTH).acquire({"tokens": 101})


def test_a_refusal_names_the_boundary(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, MONTH, CallLimit(100, 1))
    limits.try_acquire({"tokens": 95})
    with pytest.raises(LimitTimeout) as caught:
        limits.acquire({"tokens": 6}, timeout=0)
    assert caught.value.outcome.retry_after == 11 * 3600
    assert caught.value.outcome.violations[0].reset_after == 11 * 3600


def test_statistics_say_what_the_quota_is_per(store: MemoryStore) -> None:
    limits = limit_set(store, MONTH, SESSION)
    reported(limits.try_acquire({"tokens": 25, "session": 10}))
    common = {"algorithm": None}
    assert limits.get_stats() == {
        "tokens": {
            **common,
            "type": "quota",
            "window_seconds": None,
            "capacity": 100,
            "available": 75,
            "used": 25,
            "utilization": 0.25,
            "period": "month",
            "time_zone": "Europe/Berlin",
        },
        "session": {
            **common,
            "type": "quota",
            "window_seconds": 18_000,
            "capacity": 50,
            "available": 40,
            "used": 10,
            "utilization": 0.2,
            "period": None,
            "time_zone": None,
        },
    }
