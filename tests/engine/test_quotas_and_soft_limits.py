"""Quotas and soft limits in sets: requested and reported like rates, and by how much soft ones are exceeded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import CALLS, DB, limit_set, reported, used

SOFT = [RateLimit("k", 10, 60, algorithm, soft=True) for algorithm in RateLimitAlgorithm] + [
    QuotaLimit.per_day("k", 10, soft=True),
    QuotaLimit.per_session("k", 10, 60, soft=True),
]
every_soft_limit = pytest.mark.parametrize(
    "limit", SOFT, ids=lambda limit: str(getattr(limit, "algorithm", None) or limit.period or "session")
)


@every_soft_limit
def test_the_outcome_has_the_overdrawn_amount(limit: RateLimit, store: MemoryStore) -> None:
    limits = limit_set(store, limit)
    within = limits.try_acquire({"k": 10}).outcome
    assert not within.overdrawn
    assert within.passed[0].overdrawn == 0
    beyond = limits.try_acquire({"k": 3}).outcome
    assert beyond.allowed
    assert not beyond.violations
    assert [(status.key, status.overdrawn, status.remaining) for status in beyond.overdrawn] == [("k", 3, 0)]
    assert beyond.as_dict()["overdrawn"] == [beyond.overdrawn[0].as_dict()]
    assert beyond.retry_after == 0
    assert beyond.summary() == "allowed"


@every_soft_limit
def test_nothing_is_never_admissible_and_nothing_waits(limit: RateLimit, store: MemoryStore) -> None:
    limits = limit_set(store, limit)
    enormous = limits.acquire({"k": 10**12}, timeout=0)
    assert enormous.outcome.overdrawn
    assert not enormous.outcome.never
    assert limits.try_acquire({"k": 0}), "also in debt"
    assert limits.acquire({"k": 1})
    assert limits.try_acquire({"k": 5}).claim.refusal() == ([], 0)


@every_soft_limit
def test_a_hard_one_measures_the_same(limit: RateLimit, store: MemoryStore, clock: FakeClock) -> None:
    soft, hard = limit_set(store, limit), limit_set(store, replace(limit, soft=False))
    for amount in (4, 0, 6):
        assert reported(soft.try_acquire({"k": amount}), {"k": amount // 2})
        assert reported(hard.try_acquire({"k": amount}), {"k": amount // 2})
        clock.advance(7)
        assert soft.get_stats() == hard.get_stats()


@every_soft_limit
def test_peek_returns_the_expected_overdraft_and_charges_nothing(limit: RateLimit, store: MemoryStore) -> None:
    limits = limit_set(store, limit)
    limits.try_acquire({"k": 8})
    assert not limits.peek({"k": 2}).overdrawn
    assert [status.overdrawn for status in limits.peek({"k": 5}).overdrawn] == [3]
    assert used(limits) == {"k": 8}


def test_a_soft_limit_that_is_overdrawn_charges_nothing_when_a_hard_one_refuses(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("soft", 10, 60, soft=True), RateLimit("hard", 10, 60))
    refused = limits.try_acquire({"soft": 50, "hard": 5}) and limits.try_acquire({"soft": 1, "hard": 6})
    assert not refused
    assert [status.key for status in refused.outcome.violations] == ["hard"]
    assert used(limits) == {"soft": 50, "hard": 5}
    assert [status.key for status in refused.outcome.overdrawn] == ["soft"], "as it would be, had the other admitted"


def test_soft_calls_are_counted_without_being_asked(store: MemoryStore) -> None:
    limits = limit_set(store, CallLimit(2, 60, soft=True))
    overdrawn = [bool(limits.try_acquire().outcome.overdrawn) for _ in range(4)]
    assert overdrawn == [False, False, True, True]
    assert used(limits) == {"call_count": 4}


def test_a_call_that_is_more_than_a_soft_limit_ever_has_passes(store: MemoryStore) -> None:
    limits = limit_set(store, CallLimit(0.001, 366 * 86_400, soft=True))
    assert limits.try_acquire()
    assert limits.try_acquire().outcome.overdrawn


def test_what_was_used_of_more_than_debt_remembers_gives_nothing_back_too_much(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("k", 1, 366 * 86_400, soft=True))
    acquired = limits.try_acquire({"k": 1000})
    acquired.update({"k": 999})
    acquired.release()
    assert limits.get_stats()["k"]["used"] > 100  # type: ignore[operator]  # a number
    assert limits.try_acquire({"k": 1}).outcome.overdrawn


def test_hard_limits_are_never_overdrawn(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("k", 10, 60))
    reported(limits.try_acquire({"k": 5}), {"k": 20})
    outcome = limits.try_acquire({"k": 1}).outcome
    assert not outcome.overdrawn
    assert {status.overdrawn for status in (*outcome.passed, *outcome.violations)} == {0}


MONTH = QuotaLimit.per_month("tokens", 100, "Europe/Berlin")
SESSION = QuotaLimit.per_session("session", 50, 18_000)


@pytest.fixture
def clock() -> FakeClock:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    return FakeClock(int(noon.timestamp()) * 1_000_000)


def test_a_quota_that_is_not_named_is_left_alone(store: MemoryStore) -> None:
    limits = limit_set(store, MONTH, SESSION, CALLS, DB)
    with limits.acquire({"session": 5}) as acquired:
        acquired.update({"session": 5})
    assert used(limits) == {"tokens": 0, "session": 5, "call_count": 1, "db": 0}


def test_a_refusal_names_the_boundary(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, MONTH, CallLimit(100, 1))
    limits.try_acquire({"tokens": 95})
    with pytest.raises(LimitTimeout) as caught:
        limits.acquire({"tokens": 6}, timeout=0)
    assert caught.value.outcome.retry_after == 11 * 3600
    assert caught.value.outcome.violations[0].reset_after == 11 * 3600
