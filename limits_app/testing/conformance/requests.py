"""Requests: all or nothing over limits and scopes, refusals and peeks write nothing, and the choice between claims."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import HOUR, SECOND_US, Claim
from limits_app.engine.errors import NeverAdmissible, StaleConfiguration
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    available,
    claim_of,
    give_back,
    holders,
    limits_in,
    limits_of,
    reset,
    scoped,
    snapshot,
    taken,
)


class Atomicity(Contract):
    """Several limits and several scopes in one request."""

    @pytest.mark.parametrize("refusing", range(3))
    def test_no_limit_is_charged_when_one_refuses(self, store: Store, clock: FakeClock, refusing: int) -> None:
        keys = ["first", "second", "third"]
        limits = limits_of(store, *[RateLimit(key, 10, HOUR) for key in keys])
        assert limits.try_acquire({keys[refusing]: 8})
        clock.move(1)
        before = snapshot(limits)
        refused = limits.try_acquire(dict.fromkeys(keys, 5))
        assert not refused
        assert [status.key for status in refused.outcome.violations] == [keys[refusing]]
        assert {status.key for status in refused.outcome.passed} == set(keys) - {keys[refusing]}
        with pytest.raises(NeverAdmissible):
            limits.try_acquire({"first": 1, "second": 11})
        assert snapshot(limits) == before

    def test_a_refusal_writes_nothing_for_any_pair_of_algorithms(self, store: Store, clock: FakeClock) -> None:
        for first, second in permutations(ALGORITHMS, 2):
            pair = RateLimit("first", 10, HOUR, first), RateLimit("second", 10, HOUR, second)
            limits = limits_of(store, *pair, entity=f"{first} {second}")
            assert limits.try_acquire({"first": 3, "second": 10})
            before = snapshot(limits)
            for _ in range(20):
                clock.move(10)
                assert not limits.try_acquire({"first": 3, "second": 10})
            clock.move(-200)
            assert snapshot(limits) == before

    @pytest.mark.parametrize("refusing", range(3))
    def test_no_scope_is_charged_when_one_refuses(self, store: Store, refusing: int) -> None:
        names = ["child", "parent", "grandparent"]
        parts = [scoped(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 2), entity=name) for name in names]
        single = [limits_in(store, part) for part in parts]
        assert single[refusing].try_acquire({KEY: 8})
        before = [snapshot(limits) for limits in single]
        refused = limits_in(store, *parts).try_acquire({KEY: 5})
        assert [status.entity for status in refused.outcome.violations] == [names[refusing]]
        assert [snapshot(limits) for limits in single] == before

    def test_scopes_may_have_different_limits(self, store: Store, clock: FakeClock) -> None:
        child = scoped(store, CallLimit(5, HOUR), RateLimit(KEY, 10, HOUR), entity="child")
        parent = scoped(store, CallLimit(3, HOUR, RateLimitAlgorithm.FIXED_WINDOW), entity="parent")
        family = limits_in(store, child, parent)
        assert [bool(family.try_acquire({KEY: 1})) for _ in range(4)] == [True, True, True, False]
        assert available(limits_in(store, child)) == 7
        assert available(limits_in(store, child), "call_count") == 2
        clock.advance(HOUR)
        assert family.try_acquire({KEY: 10})

    def test_a_permit_is_not_taken_when_a_rate_refuses_nor_a_rate_charged_without_a_permit(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1))
        assert limits.try_acquire({KEY: 10, "db": 0})
        assert not limits.try_acquire({KEY: 1})
        assert holders(limits) == 0
        reset(limits)
        assert taken(limits, {KEY: 1, "db": 1}).admitted
        assert not limits.try_acquire({KEY: 1})
        assert available(limits) == 9

    def test_a_refusal_names_the_latest_time(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit("quick", 1, 1), RateLimit("slow", 1, 60))
        assert limits.try_acquire({"quick": 1, "slow": 1})
        outcome = limits.try_acquire({"quick": 1, "slow": 1}).outcome
        assert outcome.retry_after == 60
        assert outcome.binding is not None
        assert outcome.binding.key == "slow"
        clock.advance(60)
        assert limits.try_acquire({"quick": 1, "slow": 1})

    def test_similar_names_are_different_scopes(self, store: Store) -> None:
        names = ["a", "A", "a ", "a:b", "a/b", "a\0b", "é", "e\u0301", "😀", "-", "x" * 255, "x" * 254, "\ud800"]
        for admitted in (True, False):
            for name in names:
                assert bool(limits_of(store, CallLimit(1, HOUR), entity=name).try_acquire()) is admitted, name

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_peek_changes_nothing(self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, HOUR, algorithm), ResourceLimit("db", 2))
        assert taken(limits, {KEY: 10, "db": 2}).admitted
        before = snapshot(limits)
        for moved in (1, 1000, -500):
            clock.move(moved)
            limits.get_stats()
            limits.peek({KEY: 1})
        clock.move(-501)
        assert snapshot(limits) == before

    def test_peek_returns_the_decision_of_a_request(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 2, 1), ResourceLimit("db", 1))
        assert limits.peek({KEY: 2}).allowed
        assert taken(limits, {KEY: 2, "db": 1}).admitted
        assert {status.key for status in limits.peek({KEY: 1, "db": 1}).violations} == {KEY, "db"}
        clock.advance(0.5)
        assert [status.key for status in limits.peek({KEY: 1, "db": 1}).violations] == ["db"]

    def test_statistics_are_of_one_time_over_all_limits(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit("first", 4, 8), RateLimit("second", 4, 8, burst=7), ResourceLimit("db", 4))
        stats = limits.get_stats()
        assert {key: stats[key]["available"] for key in stats} == {"first": 4, "second": 7, "db": 4}
        assert {stats[key]["used"] for key in stats} == {stats[key]["utilization"] for key in stats} == {0}
        assert taken(limits, {"first": 4, "second": 4, "db": 3}).admitted
        clock.advance(2)
        stats = limits.get_stats()
        assert (stats["first"]["used"], stats["first"]["utilization"]) == (3, 0.75)
        assert stats["second"]["used"] == 3
        assert (stats["db"]["used"], stats["db"]["available"], stats["db"]["holders"]) == (3, 1, 1)


class Choosing(Contract):
    """`acquire_first` charges the first of several claims that fits."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_the_first_that_fits_is_charged_and_no_other(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR, algorithm), number=4)
        assert taken(sets[0], {KEY: 8}).admitted
        assert taken(sets[1], {KEY: 10}).admitted
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[2]
        assert [claim.admitted for claim in claims] == [False, False, True, None]
        assert [available(limits) for limits in sets] == [2, 0, 5, 10]
        store.settle(claims[2], [-claims[2].amounts[0]])
        assert available(sets[2]) in {5, 10}

    def test_refused_claims_have_their_reason(self, store: Store, clock: FakeClock) -> None:
        sets = members(store, RateLimit(KEY, 10, 10), number=2)
        assert taken(sets[0], {KEY: 10}).admitted
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[1]
        assert claims[0].refusal() == ([(sets[0].scoped[0].scope.key, KEY)], 5 * SECOND_US)
        assert [claim.decided_at for claim in claims] == [clock.now_us] * 2

    @pytest.mark.parametrize("emptiest_first", [False, True])
    def test_nothing_is_written_when_none_fits_or_one_is_stale(
        self, store: Store, clock: FakeClock, *, emptiest_first: bool
    ) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1), number=3)
        old = limits_of(store, RateLimit(KEY, 10, HOUR), entity="old", version=store.version())
        for limits in sets:
            assert taken(limits, {KEY: 8}, left_out=["db"]).admitted
        before = [snapshot(limits) for limits in sets]
        clock.move(1)
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims, emptiest_first=emptiest_first) is None
        assert [claim.admitted for claim in claims] == [False] * 3
        assert all(claim.refusal()[0] for claim in claims)
        store.advance_version()
        with pytest.raises(StaleConfiguration):
            store.acquire_first(claims_of([sets[0], old], 5), emptiest_first=emptiest_first)
        clock.move(-1)
        assert [snapshot(limits) for limits in sets] == before

    def test_the_emptiest_has_the_largest_free_share(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR), entity=str(size)) for size in (100, 1000, 10)]
        for limits, amount in zip(sets, (50, 600, 4), strict=True):
            assert taken(limits, {KEY: amount}).admitted
        assert [chosen(store, sets, amount) for amount in (1, 1, 1, 5)] == [2, 0, 2, 0]
        assert [available(limits) for limits in sets] == [44, 400, 4]
        assert chosen(store, sets, 500) is None
        assert chosen(store, sets, 300) == 1, "the others do not fit"

    def test_the_load_of_a_set_is_that_of_its_fullest_requested_limit(self, store: Store) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), CallLimit(10, HOUR), RateLimit("other", 10, HOUR), number=2)
        assert taken(sets[0], {KEY: 3}).admitted
        assert taken(sets[1], {"other": 9}).admitted
        assert chosen(store, sets, 1) == 1
        for _ in range(4):
            assert taken(sets[1]).admitted
        assert chosen(store, sets, 1) == 0

    def test_restored_amounts_and_expired_leases_count_as_free(self, store: Store, clock: FakeClock) -> None:
        rates = members(store, RateLimit(KEY, 10, 10), number=2)
        assert taken(rates[0], {KEY: 6}).admitted
        clock.advance(4)
        assert taken(rates[1], {KEY: 3}).admitted
        assert chosen(store, rates, 1) == 0
        permits = [limits_of(store, ResourceLimit("db", 10), entity=name) for name in ("left", "right")]
        lost = taken(permits[0], {"db": 8})
        clock.move(store.lease_us)
        assert taken(permits[1]).admitted
        claims = [claim_of(limits) for limits in permits]
        assert store.acquire_first(claims, emptiest_first=True) is claims[0]
        assert store.renew([lost, claims[0]]) == [lost]

    def test_late_return_after_a_choice_by_use_returns_only_its_own_permits(
        self, store: Store, clock: FakeClock
    ) -> None:
        sets = members(store, ResourceLimit("db", 3), number=2)
        late = taken(sets[1], {"db": 2})
        clock.move(store.lease_us)
        claims = [claim_of(limits, {"db": 2}) for limits in sets]
        assert taken(sets[0], {"db": 3}).admitted
        assert store.acquire_first(claims, emptiest_first=True) is claims[1]
        give_back(sets[1], late)
        assert sets[1].get_stats()["db"]["used"] == 2
        assert not taken(sets[1], {"db": 2}).admitted

    @pytest.mark.parametrize(("emptiest_first", "tried"), [(False, 0), (True, 1)])
    def test_without_failover_only_the_first_is_tried(self, store: Store, *, emptiest_first: bool, tried: int) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR), entity=str(size)) for size in (12, 10, 100)]
        assert taken(sets[0], {KEY: 3}).admitted
        assert taken(sets[2], {KEY: 50}).admitted
        claims = claims_of(sets, 11)
        assert store.acquire_first(claims, emptiest_first=emptiest_first, failover=False) is None
        assert [claim.admitted for claim in claims] == [False if index == tried else None for index in range(3)]
        claims = claims_of(sets, 9)
        assert store.acquire_first(claims, emptiest_first=emptiest_first, failover=False) is claims[tried]

    def test_permits_of_the_chosen_claim_are_leased_and_returned(self, store: Store) -> None:
        sets = members(store, ResourceLimit("db", 1), number=2)
        first = taken(sets[0])
        claims = [claim_of(limits) for limits in sets]
        second = store.acquire_first(claims)
        assert second is claims[1]
        assert store.renew([first, second]) == []
        assert store.acquire_first([claim_of(limits) for limits in sets]) is None
        give_back(sets[1], second)
        again = [claim_of(limits) for limits in sets]
        assert store.acquire_first(again) is again[1]

    def test_a_changed_definition_is_used_from_its_first_request(self, store: Store, clock: FakeClock) -> None:
        before = members(store, RateLimit(KEY, 100, 100), number=2)
        for claim in before:
            assert taken(claim, {KEY: 100}).admitted
        after = members(store, RateLimit(KEY, 10, 100), number=2)
        assert store.acquire_first(claims_of(after, 5)) is None
        clock.advance(50)
        assert store.acquire_first(claims_of(after, 5)) is None
        assert [available(limits) for limits in after] == [0, 0]
        clock.advance(950)
        assert chosen(store, after, 5) == 0

    def test_two_definitions_of_one_scope_may_be_tried_together(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR)) for size in (10, 20)]
        assert taken(sets[1], {KEY: 18}).admitted
        for _ in range(3):
            assert store.acquire_first(claims_of(sets, 5)) is None
        reset(sets[0])
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[0]


def members(store: Store, *limits: RateLimit | CallLimit | ResourceLimit, number: int) -> list[LimitSet]:
    """Return sets of the same limits, each for another entity."""
    return [limits_of(store, *limits, entity=f"member {index}") for index in range(number)]


def claims_of(sets: Sequence[LimitSet], amount: int) -> list[Claim]:
    """A claim of an amount on each of the sets."""
    return [claim_of(limits, {KEY: amount}) for limits in sets]


def chosen(store: Store, sets: Sequence[LimitSet], amount: int) -> int | None:
    """Which of the sets is charged when the emptiest is wanted."""
    claims = claims_of(sets, amount)
    admitted = store.acquire_first(claims, emptiest_first=True)
    return None if admitted is None else claims.index(admitted)
