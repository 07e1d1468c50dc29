"""Choosing: of several claims the first that fits is charged, in one step with the choice."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.core.errors import StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import Claim
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    SECOND,
    Contract,
    available,
    claim_of,
    give_back,
    limits_of,
    snapshot,
    taken,
)

__all__ = ["Choosing"]

HOUR = 3600
THREADS = 8
PATIENCE = 60
"""Seconds after which a race counts as stuck."""

Requests = list[tuple[bool, int]]
"""For each request whether the emptiest is wanted, and the amount."""


class Choosing(Contract):
    """`acquire_first` in all its ways."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_the_first_that_fits_is_charged_and_no_other(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR, algorithm), number=4)
        assert taken(sets[0], {KEY: 8}).admitted
        assert taken(sets[1], {KEY: 10}).admitted
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[2]
        assert [claim.admitted for claim in claims] == [False, False, True, None]
        assert [available(one) for one in sets] == [2, 0, 5, 10]

    def test_what_was_refused_on_the_way_says_why(self, store: Store, clock: FakeClock) -> None:
        sets = members(store, RateLimit(KEY, 10, 10), number=2)
        assert taken(sets[0], {KEY: 10}).admitted
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[1]
        assert claims[0].refusal() == ([(sets[0].scoped[0].scope.key, KEY)], 5 * SECOND)
        assert [claim.decided_at for claim in claims] == [clock.now_us] * 2

    @pytest.mark.parametrize("emptiest_first", [False, True])
    def test_nothing_is_written_when_none_fits(self, store: Store, clock: FakeClock, emptiest_first: bool) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1), number=3)
        for one in sets:
            assert taken(one, {KEY: 8}, left_out=["db"]).admitted
        before = [snapshot(one) for one in sets]
        clock.move(1)
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims, emptiest_first=emptiest_first) is None
        assert [claim.admitted for claim in claims] == [False] * 3
        assert all(claim.refusal()[0] for claim in claims)
        clock.move(-1)
        assert [snapshot(one) for one in sets] == before

    def test_the_emptiest_is_that_of_which_the_largest_share_is_free(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR), entity=str(size)) for size in (100, 1000, 10)]
        used = {100: 50, 1000: 600, 10: 4}
        for one, amount in zip(sets, used.values(), strict=True):
            assert taken(one, {KEY: amount}).admitted
        assert chosen(store, sets, 1) == 2
        assert chosen(store, sets, 1) == 0, "half of it is free as of the last one now, and among equals it comes first"
        assert chosen(store, sets, 1) == 2
        assert chosen(store, sets, 5) == 0
        assert [available(one) for one in sets] == [44, 400, 4]

    def test_how_full_a_set_is_says_the_fullest_of_the_limits_that_are_asked(self, store: Store) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), CallLimit(10, HOUR), RateLimit("other", 10, HOUR), number=2)
        assert taken(sets[0], {KEY: 3}).admitted
        assert taken(sets[1], {"other": 9}).admitted
        assert chosen(store, sets, 1) == 1
        for _ in range(4):
            assert taken(sets[1]).admitted
        assert chosen(store, sets, 1) == 0

    def test_the_emptiest_comes_first_and_the_others_follow(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR), entity=str(size)) for size in (100, 10, 1)]
        assert taken(sets[0], {KEY: 20}).admitted
        assert taken(sets[1], {KEY: 1}).admitted
        claims = claims_of(sets, 10)
        assert store.acquire_first(claims, emptiest_first=True) is claims[0]
        assert [claim.admitted for claim in claims] == [True, False, False]
        assert store.acquire_first(claims_of(sets[:2], 1), emptiest_first=True) is not None
        assert [available(one) for one in sets] == [70, 8, 1]

    def test_what_comes_back_with_time_counts_as_free(self, store: Store, clock: FakeClock) -> None:
        sets = members(store, RateLimit(KEY, 10, 10), number=2)
        assert taken(sets[0], {KEY: 6}).admitted
        clock.advance(4)
        assert taken(sets[1], {KEY: 3}).admitted
        assert chosen(store, sets, 1) == 0

    def test_permits_whose_lease_has_run_out_count_as_free(self, store: Store, clock: FakeClock) -> None:
        sets = members(store, ResourceLimit("db", 10), number=2)
        lost = [taken(sets[0], {"db": 8}) for _ in range(1)]
        clock.move(store.lease_us)
        held = taken(sets[1])
        claims = [claim_of(one) for one in sets]
        assert store.acquire_first(claims, emptiest_first=True) is claims[0]
        assert lost
        assert held.admitted

    @pytest.mark.parametrize(("emptiest_first", "asked"), [(False, 0), (True, 1)])
    def test_without_failover_only_the_first_is_asked(self, store: Store, emptiest_first: bool, asked: int) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR), entity=str(size)) for size in (12, 10, 100)]
        assert taken(sets[0], {KEY: 3}).admitted
        assert taken(sets[2], {KEY: 50}).admitted
        claims = claims_of(sets, 11)
        assert store.acquire_first(claims, emptiest_first=emptiest_first, failover=False) is None
        assert [claim.admitted for claim in claims] == [False if place == asked else None for place in range(3)]
        claims = claims_of(sets, 9)
        assert store.acquire_first(claims, emptiest_first=emptiest_first, failover=False) is claims[asked]

    def test_the_permits_of_the_chosen_one_are_lent_and_come_back(self, store: Store) -> None:
        sets = members(store, ResourceLimit("db", 1), number=2)
        first = taken(sets[0])
        claims = [claim_of(one) for one in sets]
        second = store.acquire_first(claims)
        assert second is claims[1]
        assert store.renew([first, second]) == []
        assert store.acquire_first([claim_of(one) for one in sets]) is None
        give_back(sets[1], second)
        again = [claim_of(one) for one in sets]
        assert store.acquire_first(again) is again[1]

    def test_permits_that_ran_out_are_taken_back_on_the_way(self, store: Store, clock: FakeClock) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), ResourceLimit("db", 1), number=3)
        lost = [taken(one, {KEY: 1}) for one in sets]
        assert taken(sets[0], {KEY: 9}, left_out=["db"]).admitted
        clock.move(store.lease_us)
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[1]
        assert [claim.admitted for claim in claims] == [False, True, None]
        assert store.renew(lost) == lost

    @pytest.mark.parametrize("emptiest_first", [False, True])
    def test_nothing_is_charged_when_one_that_is_asked_is_stale(self, store: Store, emptiest_first: bool) -> None:
        old = limits_of(store, RateLimit(KEY, 10, HOUR), entity="old", version=store.version())
        new = limits_of(store, RateLimit(KEY, 10, HOUR), entity="new")
        assert taken(new, {KEY: 8}).admitted
        store.advance_version()
        with pytest.raises(StaleConfiguration):
            store.acquire_first(claims_of([new, old], 5), emptiest_first=emptiest_first)
        assert available(new) == 2

    def test_a_changed_definition_counts_from_when_it_is_seen_first(self, store: Store, clock: FakeClock) -> None:
        before = members(store, RateLimit(KEY, 100, 100), number=2)
        for one in before:
            assert taken(one, {KEY: 100}).admitted
        after = members(store, RateLimit(KEY, 10, 100), number=2)
        assert store.acquire_first(claims_of(after, 5)) is None
        clock.advance(50)
        assert store.acquire_first(claims_of(after, 5)) is None
        assert [available(one) for one in after] == [0, 0]
        clock.advance(950)
        assert chosen(store, after, 5) == 0

    def test_two_definitions_of_one_scope_may_be_asked_together(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, size, HOUR)) for size in (10, 20)]
        assert taken(sets[1], {KEY: 18}).admitted
        for _ in range(3):
            assert store.acquire_first(claims_of(sets, 5)) is None
        store.reset([sets[0].scoped[0].scope.key])
        claims = claims_of(sets, 5)
        assert store.acquire_first(claims) is claims[0]

    def test_what_is_given_back_settles_where_it_was_charged(self, store: Store) -> None:
        sets = members(store, RateLimit(KEY, 10, HOUR), number=3)
        assert taken(sets[0], {KEY: 10}).admitted
        claims = claims_of(sets, 6)
        admitted = store.acquire_first(claims)
        assert admitted is claims[1]
        store.settle(admitted, [-admitted.amounts[0]])
        assert [available(one) for one in sets] == [0, 10, 10]

    def test_it_chooses_as_somebody_would_who_knows_all(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(requests=st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=30))
        def check(requests: Requests) -> None:
            store = self.make_store(FakeClock())
            try:
                choose_as_expected(store, requests)
            finally:
                self.close_store(store)

        check()

    @pytest.mark.parametrize("emptiest_first", [False, True])
    def test_threads_together_get_exactly_what_all_sets_have(self, store: Store, emptiest_first: bool) -> None:
        sets = members(store, CallLimit(100, 366 * 86_400), number=4)
        assert sum(in_threads(store, sets, each=100, emptiest_first=emptiest_first)) == 400
        assert [available(one, CallLimit.key) for one in sets] == [0] * 4

    def test_threads_that_want_the_emptiest_do_not_all_choose_the_same(self, store: Store) -> None:
        sets = members(store, CallLimit(1000, 366 * 86_400), number=4)
        assert sum(in_threads(store, sets, each=25, emptiest_first=True)) == THREADS * 25
        assert [available(one, CallLimit.key) for one in sets] == [1000 - THREADS * 25 // 4] * 4


def members(store: Store, *limits: RateLimit | CallLimit | ResourceLimit, number: int) -> list[LimitSet]:
    """Return sets of the same limits, each for another entity."""
    return [limits_of(store, *limits, entity=f"member {index}") for index in range(number)]


def claims_of(sets: Sequence[LimitSet], amount: int) -> list[Claim]:
    """A claim of an amount on each of the sets."""
    return [claim_of(one, {KEY: amount}) for one in sets]


def chosen(store: Store, sets: Sequence[LimitSet], amount: int) -> int | None:
    """Which of the sets is charged when the emptiest is wanted."""
    claims = claims_of(sets, amount)
    admitted = store.acquire_first(claims, emptiest_first=True)
    return None if admitted is None else claims.index(admitted)


def choose_as_expected(store: Store, requests: Requests) -> None:
    """Compare each choice with an independent count."""
    capacities = (10, 30, 20)
    sets = [limits_of(store, RateLimit(KEY, size, 366 * 86_400), entity=str(size)) for size in capacities]
    free = list(capacities)
    for emptiest_first, amount in requests:
        order = sorted(range(len(sets)), key=lambda one: -free[one] / capacities[one] if emptiest_first else 0)
        expected = next((one for one in order if free[one] >= amount), None)
        claims = claims_of(sets, amount)
        admitted = store.acquire_first(claims, emptiest_first=emptiest_first)
        assert (None if admitted is None else claims.index(admitted)) == expected
        if expected is not None:
            free[expected] -= amount
        assert [available(one) for one in sets] == free


def in_threads(store: Store, sets: Sequence[LimitSet], *, each: int, emptiest_first: bool) -> list[int]:
    """How often each of several threads is admitted that try at once, `each` times."""
    barrier = Barrier(THREADS)

    def work(_: int) -> int:
        barrier.wait(PATIENCE)
        tries = [
            store.acquire_first([claim_of(one) for one in sets], emptiest_first=emptiest_first) for _ in range(each)
        ]
        return sum(claim is not None for claim in tries)

    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(work, range(THREADS)))
