"""Soft limits: they refuse nothing, and say by how much they are overdrawn."""

from __future__ import annotations

import dataclasses
from dataclasses import fields, replace

import pytest

from limits_app.core.algorithms import compile_rule
from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.outcome import LimitStatus
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import LEASE_US, schema_of
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.core.algorithms.driven import NOW, SECOND, Driven
from tests.core.sets import limit_set, reported, used

SOFT = [RateLimit("k", 10, 60, algorithm, soft=True) for algorithm in RateLimitAlgorithm] + [
    QuotaLimit.per_day("k", 10, soft=True),
    QuotaLimit.per_session("k", 10, 60, soft=True),
]
every_soft_limit = pytest.mark.parametrize(
    "limit", SOFT, ids=lambda limit: str(getattr(limit, "algorithm", None) or limit.period or "session")
)


@every_soft_limit
def test_what_does_not_fit_is_admitted_and_counted(limit: RateLimit, store: MemoryStore) -> None:
    limits = limit_set(store, limit)
    first, second = limits.try_acquire({"k": 10}), limits.try_acquire({"k": 25})
    assert first
    assert second
    assert used(limits) == {"k": 35}
    assert limits.get_stats()["k"]["available"] == 0
    assert limits.get_stats()["k"]["utilization"] == 3.5


@every_soft_limit
def test_the_outcome_says_by_how_much_it_is_overdrawn(limit: RateLimit, store: MemoryStore) -> None:
    limits = limit_set(store, limit)
    within = limits.try_acquire({"k": 10}).outcome
    assert not within.overdrawn
    assert within.passed[0].overdrawn == 0
    beyond = limits.try_acquire({"k": 3}).outcome
    assert beyond.allowed
    assert not beyond.violations
    assert [(status.key, status.overdrawn, status.remaining) for status in beyond.overdrawn] == [("k", 3, 0)]
    assert beyond.as_dict()["overdrawn"] == [dataclasses.asdict(beyond.overdrawn[0])]
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
def test_peeking_tells_what_would_be_overdrawn_and_charges_nothing(limit: RateLimit, store: MemoryStore) -> None:
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


def test_usage_that_is_reported_is_counted_beyond_what_debt_remembers(store: MemoryStore) -> None:
    scope = scope_of("llm", "someone")
    schema = schema_of((RateLimit("k", 1, 366 * 86_400, soft=True),), store.lease_us, counts_usage=True)
    limits = LimitSet.composed([ScopedLimits(scope, schema)], store)
    reported(limits.try_acquire({"k": 1000}), {"k": 999})
    batch = store.collect_counts()
    assert batch is not None
    assert [count.amounts for count in batch.counts] == [{"k": 999_000}]


@every_soft_limit
def test_a_limit_that_hardens_remembers_its_debt_and_refuses(limit: RateLimit, store: MemoryStore) -> None:
    soft, hard = (compile_rule(one, LEASE_US) for one in (limit, replace(limit, soft=False)))
    now = store.clock()
    state = soft.charged(soft.start, now, 15 * soft.parts_per_unit)
    assert state is not None
    carried = hard.carry(soft, state, now)
    assert hard.used(carried, now) == 15 * hard.parts_per_unit
    assert hard.take(carried, now, 0) is None
    again = soft.carry(hard, carried, now)
    assert soft.used(again, now) == 15 * soft.parts_per_unit
    assert soft.charged(again, now, 0) is not None


def test_hard_limits_are_never_overdrawn(store: MemoryStore) -> None:
    limits = limit_set(store, RateLimit("k", 10, 60))
    reported(limits.try_acquire({"k": 5}), {"k": 20})
    outcome = limits.try_acquire({"k": 1}).outcome
    assert not outcome.overdrawn
    assert {status.overdrawn for status in (*outcome.passed, *outcome.violations)} == {0}


def test_permits_and_blocks_are_hard() -> None:
    assert not ResourceLimit("db", 1).soft
    assert not Blocked().soft
    assert "soft" not in {field.name for field in fields(ResourceLimit)}
    assert "overdrawn" in {field.name for field in fields(LimitStatus)}


LIMITS = [
    *[RateLimit("k", 10, 10, algorithm, soft=True) for algorithm in RateLimitAlgorithm],
    QuotaLimit.per_session("k", 10, 10, soft=True),
]
every_limit = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", "quota")))


def hardened(limit: RateLimit | QuotaLimit) -> Driven:
    """The same limit, which refuses."""
    return Driven(replace(limit, soft=False))


@every_limit
def test_what_does_not_fit_becomes_debt(limit: RateLimit | QuotaLimit) -> None:
    soft, hard = Driven(limit), hardened(limit)
    assert soft.take(NOW, 8)
    assert soft.take(NOW, 25)
    hard.settle(NOW, 33)
    assert soft.used(NOW) == 33
    assert soft.take(NOW, 0), "also in debt"
    assert [soft.used(NOW + second * SECOND) for second in range(40)] == [
        hard.used(NOW + second * SECOND) for second in range(40)
    ]
