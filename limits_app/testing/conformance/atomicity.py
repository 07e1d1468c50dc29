"""Atomicity: all or nothing over limits and scopes; a refusal costs nothing; a look changes nothing."""

from __future__ import annotations

from itertools import permutations

import pytest

from limits_app.core.errors import NeverAdmissible
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    available,
    limits_in,
    limits_of,
    scoped,
    snapshot,
    taken,
)

__all__ = ["Atomicity"]

HOUR = 3600


class Atomicity(Contract):
    """Several limits and several scopes in one step."""

    @pytest.mark.parametrize("refusing", range(3))
    def test_no_limit_is_charged_when_any_of_them_refuses(self, store: Store, clock: FakeClock, refusing: int) -> None:
        keys = ["first", "second", "third"]
        limits = limits_of(store, *[RateLimit(key, 10, HOUR) for key in keys])
        assert limits.try_acquire({keys[refusing]: 8})
        clock.move(1)
        before = snapshot(limits)
        refused = limits.try_acquire(dict.fromkeys(keys, 5))
        assert not refused
        assert [status.key for status in refused.outcome.violations] == [keys[refusing]]
        assert {status.key for status in refused.outcome.passed} == set(keys) - {keys[refusing]}
        assert snapshot(limits) == before

    @pytest.mark.parametrize("algorithms", list(permutations(RateLimitAlgorithm, 2)), ids="-then-".join)
    def test_a_refusal_writes_nothing_whatever_the_algorithms(
        self, store: Store, clock: FakeClock, algorithms: tuple[RateLimitAlgorithm, RateLimitAlgorithm]
    ) -> None:
        first, second = algorithms
        limits = limits_of(store, RateLimit("first", 10, HOUR, first), RateLimit("second", 10, HOUR, second))
        assert limits.try_acquire({"first": 3, "second": 10})
        before = snapshot(limits)
        for _ in range(20):
            clock.move(10)
            assert not limits.try_acquire({"first": 3, "second": 10})
        clock.move(-200)
        assert snapshot(limits) == before

    @pytest.mark.parametrize("refusing", range(3))
    def test_no_scope_is_charged_when_any_of_them_refuses(self, store: Store, refusing: int) -> None:
        people = ["child", "parent", "grandparent"]
        parts = [scoped(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 2), entity=who) for who in people]
        family = limits_in(store, *parts)
        single = [limits_in(store, part) for part in parts]
        assert single[refusing].try_acquire({KEY: 8})
        before = [snapshot(one) for one in single]
        refused = family.try_acquire({KEY: 5})
        assert [status.entity for status in refused.outcome.violations] == [people[refusing]]
        assert [snapshot(one) for one in single] == before

    def test_all_scopes_are_charged_when_all_of_them_admit(self, store: Store) -> None:
        parts = [scoped(store, RateLimit(KEY, 10, HOUR), entity=who) for who in ("child", "parent")]
        assert limits_in(store, *parts).try_acquire({KEY: 4})
        assert limits_in(store, parts[1]).try_acquire({KEY: 1})
        assert [available(limits_in(store, part)) for part in parts] == [6, 5]

    def test_scopes_may_have_different_limits(self, store: Store, clock: FakeClock) -> None:
        child = scoped(store, CallLimit(5, HOUR), RateLimit(KEY, 10, HOUR), entity="child")
        parent = scoped(store, CallLimit(3, HOUR, RateLimitAlgorithm.FIXED_WINDOW), entity="parent")
        family = limits_in(store, child, parent)
        assert [bool(family.try_acquire({KEY: 1})) for _ in range(4)] == [True, True, True, False]
        assert available(limits_in(store, child)) == 7
        assert available(limits_in(store, child), "call_count") == 2
        clock.advance(HOUR)
        assert family.try_acquire({KEY: 10})

    def test_a_permit_is_not_taken_when_a_rate_refuses_and_the_other_way_round(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1))
        rate_only = limits_of(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1))
        assert rate_only.try_acquire({KEY: 10, "db": 0})
        assert not limits.try_acquire({KEY: 1})
        assert limits.get_stats()["db"]["holders"] == 0
        store.reset([limits.scoped[0].scope.key])
        held = taken(limits, {KEY: 1, "db": 1})
        assert held.admitted
        assert not rate_only.try_acquire({KEY: 1})
        assert available(limits) == 9

    def test_a_refusal_names_the_latest_of_the_moments(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit("quick", 1, 1), RateLimit("slow", 1, 60))
        assert limits.try_acquire({"quick": 1, "slow": 1})
        refused = limits.try_acquire({"quick": 1, "slow": 1})
        assert refused.outcome.retry_after == 60
        assert refused.outcome.binding is not None
        assert refused.outcome.binding.key == "slow"
        clock.advance(60)
        assert limits.try_acquire({"quick": 1, "slow": 1})

    def test_scopes_do_not_meet(self, store: Store) -> None:
        people = ["a", "A", "a ", "a:b", "a/b", "a\0b", "é", "e\u0301", "😀", "-", "x" * 255, "x" * 254, "\ud800"]
        for who in people:
            assert limits_of(store, CallLimit(1, HOUR), entity=who).try_acquire(), who
        for who in people:
            assert not limits_of(store, CallLimit(1, HOUR), entity=who).try_acquire(), who

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_looking_changes_nothing(self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, HOUR, algorithm), ResourceLimit("db", 2))
        assert taken(limits, {KEY: 10, "db": 2}).admitted
        before = snapshot(limits)
        for moved in (1, 1000, -500):
            clock.move(moved)
            limits.get_stats()
            limits.peek({KEY: 1})
        clock.move(-501)
        assert snapshot(limits) == before

    def test_looking_at_what_nobody_used_finds_it_unused(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, HOUR), CallLimit(5, 60, burst=7), ResourceLimit("db", 2))
        stats = limits.get_stats()
        assert {key: stats[key]["available"] for key in stats} == {KEY: 10, "call_count": 7, "db": 2}
        assert {stats[key]["used"] for key in stats} == {0}
        assert {stats[key]["utilization"] for key in stats} == {0}

    def test_a_look_says_what_an_acquire_would_decide(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 2, 1), ResourceLimit("db", 1))
        assert limits.peek({KEY: 2}).allowed
        held = taken(limits, {KEY: 2, "db": 1})
        seen = limits.peek({KEY: 1, "db": 1})
        assert not seen.allowed
        assert {status.key for status in seen.violations} == {KEY, "db"}
        assert held.admitted
        clock.advance(0.5)
        assert [status.key for status in limits.peek({KEY: 1, "db": 1}).violations] == ["db"]

    def test_statistics_are_of_one_moment_over_all_limits_and_scopes(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit("first", 4, 8), RateLimit("second", 4, 8), ResourceLimit("db", 4))
        assert taken(limits, {"first": 4, "second": 4, "db": 3}).admitted
        clock.advance(2)
        stats = limits.get_stats()
        assert (stats["first"]["used"], stats["first"]["utilization"]) == (3, 0.75)
        assert stats["first"] == stats["second"]
        assert (stats["db"]["used"], stats["db"]["available"], stats["db"]["holders"]) == (3, 1, 1)

    def test_more_than_can_ever_be_admitted_charges_nothing(self, store: Store) -> None:
        limits = limits_of(store, RateLimit("first", 10, HOUR), RateLimit("second", 10, HOUR))
        before = snapshot(limits)
        with pytest.raises(NeverAdmissible):
            limits.try_acquire({"first": 1, "second": 11})
        assert snapshot(limits) == before
