"""Changes: a limit that is changed under load keeps its recorded use."""

from __future__ import annotations

from itertools import permutations

import pytest

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    Contract,
    available,
    give_back,
    limits_in,
    limits_of,
    scoped,
    settle,
    taken,
    wait_us,
)

__all__ = ["Changes"]

NEW = [
    RateLimit(KEY, capacity, window, algorithm)
    for algorithm in ALGORITHMS
    for capacity, window in ((10, 60), (5, 86_400))
]


class Changes(Contract):
    """Two definitions of the same limit, one after the other or side by side."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_raising_a_capacity_helps_at_once(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 10})
        raised = limits_of(store, RateLimit(KEY, 15, 60, algorithm))
        assert available(raised) == 5
        assert raised.try_acquire({KEY: 5})
        assert not raised.try_acquire({KEY: 1})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_lowering_a_capacity_never_refills(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 8})
        lowered = limits_of(store, RateLimit(KEY, 6, 60, algorithm))
        assert lowered.get_stats()[KEY]["used"] == 8
        assert not lowered.try_acquire({KEY: 0})
        clock.advance(6)
        assert not lowered.try_acquire({KEY: 0})
        clock.advance(14)
        assert bool(lowered.try_acquire({KEY: 0})) is (algorithm in DRAINING)
        clock.advance(40)
        assert lowered.try_acquire({KEY: 2})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_going_to_and_fro_mints_nothing(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        wide = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        narrow = limits_of(store, RateLimit(KEY, 7, 33.333, algorithm))
        admitted = 0
        for _ in range(20):
            admitted += bool(wide.try_acquire({KEY: 1})) + bool(narrow.try_acquire({KEY: 1}))
        assert admitted == 10

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_longer_window_keeps_what_was_used(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 6})
        longer = limits_of(store, RateLimit(KEY, 10, 600, algorithm))
        assert available(longer) == 4
        assert longer.try_acquire({KEY: 4})
        clock.advance(59.9)
        assert available(longer) < 1
        clock.advance(540.1)
        assert longer.try_acquire({KEY: 10})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_shorter_window_helps_at_once(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 86_400, algorithm)).try_acquire({KEY: 10})
        shorter = limits_of(store, RateLimit(KEY, 10, 1, algorithm))
        assert not shorter.try_acquire({KEY: 10})
        clock.advance(1)
        assert shorter.try_acquire({KEY: 10})

    @pytest.mark.parametrize("old", ALGORITHMS)
    @pytest.mark.parametrize("new", NEW, ids=lambda new: f"{new.algorithm}-{new.capacity}-per-{new.window_seconds}s")
    def test_the_moment_named_after_a_change_is_kept(
        self, store: Store, clock: FakeClock, old: RateLimitAlgorithm, new: RateLimit
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 86_400, old)).try_acquire({KEY: 10})
        changed = limits_of(store, new)
        clock.advance(1)
        wait = wait_us(changed.try_acquire({KEY: 2}))
        clock.move(wait - 1)
        assert not changed.try_acquire({KEY: 2})
        clock.move(1)
        assert changed.try_acquire({KEY: 2})

    @pytest.mark.parametrize(("old", "new"), list(permutations(ALGORITHMS, 2)))
    def test_another_algorithm_keeps_what_was_used(
        self, store: Store, clock: FakeClock, old: RateLimitAlgorithm, new: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, old)).try_acquire({KEY: 7})
        changed = limits_of(store, RateLimit(KEY, 10, 60, new))
        assert available(changed) == 3
        assert not changed.try_acquire({KEY: 4})
        assert changed.try_acquire({KEY: 3})
        assert not changed.try_acquire({KEY: 1})
        clock.advance(60)
        assert changed.try_acquire({KEY: 10})

    @pytest.mark.parametrize(("old", "new"), list(permutations(ALGORITHMS, 2)))
    def test_debt_stays_debt_under_another_algorithm(
        self, store: Store, old: RateLimitAlgorithm, new: RateLimitAlgorithm
    ) -> None:
        before = limits_of(store, RateLimit(KEY, 10, 60, old))
        settle(before, taken(before, {KEY: 5}), {KEY: 12})
        changed = limits_of(store, RateLimit(KEY, 10, 60, new))
        assert changed.get_stats()[KEY]["used"] == 17
        assert not changed.try_acquire({KEY: 0})

    def test_a_changed_burst_helps_at_once_and_refills_nothing(self, store: Store) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60)).try_acquire({KEY: 10})
        assert available(limits_of(store, RateLimit(KEY, 10, 60, burst=14))) == 4
        assert available(limits_of(store, RateLimit(KEY, 10, 60, burst=4))) == 0

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_new_limit_starts_unused_and_leaves_the_others_alone(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60, algorithm)).try_acquire({KEY: 10})
        more = limits_of(store, CallLimit(5, 60), RateLimit(KEY, 10, 60, algorithm), RateLimit("new", 3, 60, algorithm))
        assert {key: stats["available"] for key, stats in more.get_stats().items()} == {
            "call_count": 5,
            KEY: 0,
            "new": 3,
        }
        assert more.try_acquire({"new": 3})
        assert not more.try_acquire({"new": 1})

    def test_the_order_of_limits_does_not_matter(self, store: Store) -> None:
        first, second = RateLimit("first", 10, 60), RateLimit("second", 20, 60, RateLimitAlgorithm.SLIDING_WINDOW)
        assert limits_of(store, first, second).try_acquire({"first": 4, "second": 5})
        turned = limits_of(store, second, first)
        assert (available(turned, "first"), available(turned, "second")) == (6, 15)

    def test_dropping_a_limit_leaves_the_others_alone(self, store: Store) -> None:
        first, second = RateLimit("first", 10, 60), RateLimit("second", 10, 60)
        assert limits_of(store, first, second).try_acquire({"first": 5, "second": 10})
        alone = limits_of(store, first)
        assert alone.try_acquire({"first": 5})
        assert not alone.try_acquire({"first": 1})
        assert not limits_of(store, first, second).try_acquire({"first": 1})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_what_was_admitted_before_a_change_is_settled_after_it(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        before = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        claim = taken(before, {KEY: 4})
        changed = limits_of(store, RateLimit(KEY, 20, 30, algorithm))
        assert changed.try_acquire({KEY: 1})
        settle(before, claim, {KEY: 3})
        assert changed.get_stats()[KEY]["used"] == 8

    def test_a_claim_whose_limit_is_gone_settles_what_is_left(self, store: Store) -> None:
        before = limits_of(store, RateLimit("gone", 10, 60), RateLimit(KEY, 10, 60), ResourceLimit("db", 1))
        claim = taken(before, {"gone": 5, KEY: 5, "db": 1})
        after = limits_of(store, RateLimit(KEY, 10, 60))
        assert after.try_acquire({KEY: 1})
        settle(before, claim, {"gone": -5, KEY: -5, "db": -1})
        assert available(after) == 9

    def test_a_limit_of_another_kind_under_the_same_key_starts_unused(self, store: Store) -> None:
        permits = limits_of(store, ResourceLimit("x", 2))
        claim = taken(permits)
        rate = limits_of(store, RateLimit("x", 5, 60))
        assert rate.try_acquire({"x": 5})
        give_back(permits, claim)
        assert not rate.try_acquire({"x": 1})
        assert [taken(permits).admitted for _ in range(3)] == [True, True, False]

    def test_a_rate_may_become_permits_while_others_are_held_beside_it(self, store: Store) -> None:
        before = limits_of(store, RateLimit("jobs", 10, 60), ResourceLimit("db", 2))
        claim = taken(before, {"jobs": 3})
        after = limits_of(store, ResourceLimit("jobs", 1), ResourceLimit("db", 2))
        assert [after.get_stats()[key]["used"] for key in ("jobs", "db")] == [0, 1]
        assert [taken(after).admitted for _ in range(2)] == [True, False]
        give_back(before, claim)
        assert after.get_stats()["db"]["used"] == 1

    def test_a_changed_limit_counts_from_the_first_request_that_sees_it_whoever_refuses_that(
        self, store: Store, clock: FakeClock
    ) -> None:
        assert limits_of(store, RateLimit(KEY, 10, 60), entity="changed").try_acquire({KEY: 10})
        calls = scoped(store, CallLimit(1, 86_400, RateLimitAlgorithm.FIXED_WINDOW), entity="used up")
        assert limits_in(store, calls).try_acquire()
        slower = scoped(store, RateLimit(KEY, 10, 86_400), entity="changed")
        assert not limits_in(store, calls, slower).try_acquire({KEY: 0})
        clock.advance(60)
        assert isinstance(used := limits_in(store, slower).get_stats()[KEY]["used"], int | float)
        assert used > 9

    def test_raising_and_lowering_permits_counts_who_holds_them(self, store: Store) -> None:
        two, three, one = (limits_of(store, ResourceLimit("db", capacity)) for capacity in (2, 3, 1))
        claims = [taken(two), taken(two)]
        assert not taken(two).admitted
        claims.append(taken(three))
        assert claims[-1].admitted
        assert not taken(one).admitted
        for claim in claims[:2]:
            give_back(two, claim)
            assert not taken(one).admitted
        give_back(two, claims[2])
        assert taken(one).admitted

    def test_a_resource_limit_that_is_dropped_and_comes_back_keeps_its_leases(
        self, store: Store, clock: FakeClock
    ) -> None:
        calls = CallLimit(100, 60)
        held = limits_of(store, ResourceLimit("db", 1), calls)
        claim = taken(held)
        assert limits_of(store, calls).try_acquire()
        clock.move(store.lease_us // 2)
        assert store.renew([claim]) == []
        back = limits_of(store, ResourceLimit("db", 1), calls)
        assert back.get_stats()["db"]["holders"] == 1
        assert not taken(back).admitted
        give_back(held, claim)
        assert [taken(back).admitted for _ in range(2)] == [True, False]

    def test_what_was_held_while_its_limit_was_dropped_comes_back_when_its_lease_ends(
        self, store: Store, clock: FakeClock
    ) -> None:
        calls = CallLimit(100, 60)
        assert taken(limits_of(store, ResourceLimit("db", 1), calls)).admitted
        assert limits_of(store, calls).try_acquire()
        clock.move(store.lease_us)
        assert taken(limits_of(store, ResourceLimit("db", 1), calls)).admitted
