"""Counting: admitted amounts are counted by scope, limit and hour, and each count is collected once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_all_start_methods, get_context

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.acquiring import CountingStore, LimitSet, Store, is_counting
from limits_app.engine import (
    HOUR,
    KEPT_HOURS,
    SECOND_US,
    Claim,
    EntityScopes,
    hour_ends,
    hour_of,
    scope_of,
    shared_scope,
)
from limits_app.engine.limits import CallLimit, CountedUnit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    YEAR,
    available,
    collected,
    collected_by_plan,
    counting,
    credit,
    in_scope,
    limits_in,
    reset,
    settle,
    taken,
    total,
)
from limits_app.testing.conformance.counted_rejections import CountedRejections


class Counting(CountedRejections):
    """The counts are the admitted amounts, whatever happens meanwhile."""

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[Store]:
        """The store under test."""
        store = self.make_store(clock)
        assert is_counting(store)
        yield store
        self.close_store(store)

    def test_admitted_amounts_are_counted_by_scope_and_limit(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(10, HOUR), RateLimit("tokens", 20, 60))
        for amount in (7, 5, 20):
            taken(limits, {"tokens": amount})
        taken(counting(store, CallLimit(10, HOUR), entity="another"))
        hour = hour_of(clock())
        assert collected(store) == {
            ("conformance", "someone", False, hour, "call_count"): 2_000,
            ("conformance", "someone", False, hour, "tokens"): 12_000,
            ("conformance", "another", False, hour, "call_count"): 1_000,
        }

    def test_units_without_a_limit_are_counted(self, store: CountingStore, clock: FakeClock) -> None:
        units = CountedUnit("tokens", "tokens"), CountedUnit("usd+", "usd", is_money=True)
        limits = counting(store, CallLimit(10, HOUR), *units)
        acquired = limits.try_acquire({"tokens": 12.5, "usd": "0.25"})
        taken(limits, {"tokens": 7})
        acquired.update({"tokens": 2.125, "usd": "0.2"})
        acquired.release()
        use = "conformance", "someone", False, hour_of(clock())
        assert collected(store) == {
            (*use, "call_count"): 2_000,
            (*use, "tokens"): 9_125,
            (*use, "usd+"): 200_000_000,
        }

    def test_clients_with_the_same_compiled_limits_are_counted_apart(self, store: CountingStore) -> None:
        mine, team = counting(store, CallLimit(9, HOUR), entity="a"), counting(store, RateLimit("tokens", 90, HOUR))
        shared = replace(team.scoped[0], scope=shared_scope("conformance", "tokens"))
        first = LimitSet.composed([*mine.scoped, shared], store)
        scopes = EntityScopes(first.scopes, "a")
        clients = [first, *[first.bound(scopes.of(name), version=None) for name in ("a much longer name", "b")]]
        for number, client in enumerate(clients, 1):
            for _ in range(number):
                client.try_acquire({"tokens": 3}).update({"tokens": number})
        counted = {(key[1], key[2], key[4]): milli for key, milli in collected(store).items()}
        assert counted == {
            ("a", False, "call_count"): 1_000,
            ("a much longer name", False, "call_count"): 2_000,
            ("b", False, "call_count"): 3_000,
            (None, True, "tokens"): 18_000,
        }

    def test_amounts_are_counted_for_the_plan_of_their_request(self, store: CountingStore, clock: FakeClock) -> None:
        tokens, hour = RateLimit("tokens", 10_000, HOUR), hour_of(clock())
        free, pro = [counting(store, tokens, plan=plan) for plan in ("free", "pro")]
        early = free.try_acquire({"tokens": 500})
        for amount in (100, 20):
            taken(pro, {"tokens": amount})
        taken(counting(store, tokens, CallLimit(9, HOUR), plan="pro"), {"tokens": 3})
        taken(free, {"tokens": 1})
        early.update({"tokens": 200})
        early.release()  # refunded to the plan that was charged
        assert collected_by_plan(store) == {
            (hour, "free", "tokens"): 201_000,
            (hour, "pro", "tokens"): 123_000,
            (hour, "pro", "call_count"): 1_000,
        }
        assert available(pro, "tokens") == 10_000 - 324  # the plan changes nothing about what is left

    def test_late_usage_is_counted_for_its_plan_and_hour(self, store: CountingStore, clock: FakeClock) -> None:
        tokens, hour = QuotaLimit.per_day("tokens", 10_000), hour_of(clock())
        free, pro = [counting(store, tokens, plan=plan) for plan in ("free", "")]
        late = free.try_acquire({"tokens": 100})
        clock.advance(HOUR)
        taken(pro, {"tokens": 7})
        late.update({"tokens": 140})
        late.release()
        assert collected_by_plan(store) == {(hour, "free", "tokens"): 140_000, (hour + 1, "", "tokens"): 7_000}

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_algorithm_is_counted_in_thousandths(
        self, store: CountingStore, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        decimal = algorithm.takes_decimals
        limits = counting(store, RateLimit("tokens", 7.5 if decimal else 7, HOUR, algorithm))
        taken(limits, {"tokens": 3.125 if decimal else 3})
        assert total(store) == (3_125 if decimal else 3_000)
        taken(limits, {"tokens": 4})
        credit(limits, "tokens", 5)
        clock.advance(HOUR)
        credit(limits, "tokens", 1)
        assert total(store) == 4_000, "credit changes no count"

    @pytest.mark.parametrize("back", [HOUR, 10 * YEAR])
    def test_after_a_step_back_of_the_clock_the_present_hour_is_counted(
        self, store: CountingStore, clock: FakeClock, back: float
    ) -> None:
        limits = counting(store, CallLimit(10, 60))
        taken(limits)
        later = hour_of(clock())
        clock.advance(-back)
        taken(limits)
        taken(limits)
        assert collected(store) == {
            ("conformance", "someone", False, later, "call_count"): 1_000,
            ("conformance", "someone", False, hour_of(clock()), "call_count"): 2_000,
        }

    def test_a_refusal_by_another_scope_is_not_counted(self, store: CountingStore) -> None:
        sizes = {"wide": 9, "tight": 1}
        parts = [
            in_scope(store, scope_of("conformance", name), CallLimit(size, HOUR), counts=True)
            for name, size in sizes.items()
        ]
        for _ in range(2):
            taken(limits_in(store, *parts))
        assert total(store) == 2_000

    def test_settled_amounts_are_counted_as_they_were_used(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("in", 100, 60), RateLimit("out", 100, 60, RateLimitAlgorithm.FIXED_WINDOW))
        claim = taken(limits, {"in": 30, "out": 30})
        for _ in range(2):
            settle(limits, claim, {"in": -10, "out": 5})
        assert sorted(collected(store).values()) == [20_000, 35_000]
        after = taken(limits, {"in": 30})
        assert total(store) == 30_000
        settle(limits, after, {"in": -10})
        assert total(store) == -10_000, "it was collected already"

    def test_use_beyond_the_largest_debt_is_counted(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("tokens", 1, YEAR))
        settle(limits, taken(limits, {"tokens": 1}), {"tokens": 200_000})
        assert available(limits, "tokens") == 0
        assert total(store) == 200_001_000

    def test_permits_and_quotas_are_counted(self, store: CountingStore) -> None:
        limits = counting(store, ResourceLimit("db", 3), QuotaLimit("budget", 100, "month"))
        claim = taken(limits, {"budget": 40})
        settle(limits, claim, {"db": -1})
        taken(limits)
        assert sorted(collected(store).values()) == [2_000, 40_000]

    def test_money_is_counted_in_millionths(self, store: CountingStore) -> None:
        limits = counting(store, QuotaLimit("usd", 5, "month"))
        settle(limits, taken(limits, {"usd": 0.1}), {"usd": -0.000002})
        taken(limits, {"usd": 0.000003})
        assert total(store) == 100_001_000

    def test_each_hour_is_counted_separately(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        hours, claims = [], []
        for calls in (1, 2, 3):
            clock.advance(HOUR)
            hours.append(hour_of(clock()))
            claims += [taken(limits, {"tokens": 10}) for _ in range(calls)]
        settle(limits, claims[0], {"tokens": -4})
        counts = collected(store)
        assert [counts["conformance", "someone", False, hour, "tokens"] for hour in hours] == [6_000, 20_000, 30_000]
        clock.advance(HOUR)
        settle(limits, claims[1], {})
        assert store.collect_counts() is None, "all of it was used"

    def test_an_hour_begins_exactly_at_its_start(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        start = hour_ends(clock())
        hour = hour_of(start)
        clock.advance((start - clock() - 1) / SECOND_US)
        taken(limits, {"tokens": 1})
        clock.advance(0.000001)
        at_start = taken(limits, {"tokens": 10})
        clock.advance(HOUR - 0.000001)
        settle(limits, at_start, {"tokens": -3})
        clock.advance(0.000001)
        taken(limits, {"tokens": 20})
        counts = collected(store)
        hours = [counts["conformance", "someone", False, hour + later, "tokens"] for later in (-1, 0, 1)]
        assert hours == [1_000, 7_000, 20_000]

    def test_changes_and_resets_lose_no_count(self, store: CountingStore) -> None:
        old = counting(store, RateLimit("tokens", 100, 60), RateLimit("other", 100, 60))
        claim = taken(old, {"tokens": 30, "other": 10})
        tighter = counting(store, RateLimit("tokens", 35, 7, RateLimitAlgorithm.GCRA))
        for _ in range(2):
            taken(tighter, {"tokens": 5})
        settle(old, claim, {"tokens": -10, "other": 1})
        reset(tighter)
        silent = in_scope(store, scope_of("conformance", "someone"), RateLimit("tokens", 100, 60))
        claim = taken(limits_in(store, silent), {"tokens": 50})
        settle(limits_in(store, silent), claim, {"tokens": -1})
        taken(old, {"tokens": 1})
        assert sorted(collected(store).values()) == [11_000, 26_000]

    def test_names_are_counted_as_they_are(self, store: CountingStore) -> None:
        odd = "käse:*~\0\n\U0001f9c0"
        scopes = [scope_of("a/b.c", odd), scope_of("a/b.c", None), shared_scope("a/b.c", "call_count")]
        for scope in scopes:
            taken(limits_in(store, in_scope(store, scope, CallLimit(3, HOUR), counts=True)))
        names = {key[:3] for key in collected(store)}
        assert names == {("a/b.c", odd, False), ("a/b.c", None, False), ("a/b.c", None, True)}

    def test_a_batch_is_returned_until_it_is_forgotten(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        assert store.collect_counts() is None
        taken(limits)
        first = store.collect_counts()
        taken(limits)
        assert first is not None
        assert store.collect_counts() == first
        store.forget_counts("another")
        assert store.collect_counts() == first
        for _ in range(2):
            store.forget_counts(first.name)
        second = store.collect_counts()
        assert second is not None
        assert second.name != first.name
        assert [dict(count.amounts) for count in second.counts] == [{"call_count": 1_000}]

    def test_a_scope_that_is_forgotten_keeps_its_counts(self, store: CountingStore, clock: FakeClock) -> None:
        for name, count in (("idle", 40), ("new", 80)):
            for number in range(count):
                taken(counting(store, CallLimit(3, 1), entity=f"{name} {number}"))
            clock.advance(2 * HOUR)
        assert total(store) == 120_000

    def test_many_scopes_are_collected_in_several_batches(self, store: CountingStore) -> None:
        for number in range(1_100):
            taken(counting(store, CallLimit(3, HOUR), entity=f"number {number}"))
        counts = collected(store)
        assert len(counts) == 1_100
        assert sum(counts.values()) == 1_100_000

    def test_busy_scopes_do_not_keep_others_from_being_collected(self, store: CountingStore, clock: FakeClock) -> None:
        sets = [counting(store, CallLimit(1_000, HOUR), entity=f"number {number}") for number in range(600)]
        for limits in sets:
            taken(limits)
        entities: set[str | None] = set()
        for _ in sets:
            batch = store.collect_counts()
            assert batch is not None
            store.forget_counts(batch.name)
            entities |= {count.entity for count in batch.counts}
            clock.advance(1)
            for count in batch.counts:
                taken(counting(store, CallLimit(1_000, HOUR), entity=str(count.entity)))
            if len(entities) == len(sets):
                break
        assert len(entities) == len(sets)

    def test_counts_that_are_not_collected_are_forgotten_in_the_end(
        self, store: CountingStore, clock: FakeClock
    ) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        for _ in range(KEPT_HOURS + 20):
            taken(limits)
            clock.advance(HOUR)
        assert KEPT_HOURS <= len(collected(store)) <= KEPT_HOURS + 3

    def test_counts_are_the_sum_of_the_admitted_amounts(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.data())
        def check(data: st.DataObject) -> None:
            clock = FakeClock()
            store = self.make_store(clock)
            try:
                assert is_counting(store)
                actions = CountedActions(store, clock, data.draw)
                for _ in range(data.draw(st.integers(1, 12))):
                    data.draw(st.sampled_from([actions.take, actions.settle, actions.wait, actions.collect]))()
                actions.collect()
            finally:
                self.close_store(store)
            assert {key: count for key, count in actions.missing.items() if count} == {}

        check()

    def test_threads_that_take_while_others_collect_lose_nothing(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(10_000, HOUR))
        with ThreadPoolExecutor(4) as threads:
            takers = [threads.submit(lambda: [taken(limits) for _ in range(150)]) for _ in range(3)]
            in_threads = threads.submit(lambda: sum(total(store) for _ in range(20)))
            for taker in takers:
                taker.result()
        assert in_threads.result() + total(store) == 450_000

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_processes_that_take_while_others_collect_lose_nothing(self, store: CountingStore) -> None:
        total(store)  # what another test has left
        opener = self.open_store()
        if opener is None:
            pytest.skip("open_store() is not defined, so no other process can open the store")
        # Forked where possible, since others take seconds to start.
        with get_context(min({"fork", "spawn"} & {*get_all_start_methods()})).Pool(3) as processes:
            takers = [processes.apply_async(_take, (opener, 100)) for _ in range(2)]
            in_processes = processes.apply_async(_collect, (opener, 20))
            for taker in takers:
                taker.get(60)
            assert in_processes.get(60) + processes.apply(_collect, (opener, 1)) == 200_000


class CountedActions:
    """Random requests under three definitions of one scope; `missing` is what was admitted and not yet collected."""

    sizes = (20, RateLimitAlgorithm.TOKEN_BUCKET), (7, RateLimitAlgorithm.SLIDING_WINDOW), (30, RateLimitAlgorithm.GCRA)

    def __init__(self, store: CountingStore, clock: FakeClock, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.store, self.clock, self.draw = store, clock, draw
        limits = [RateLimit("tokens", size, 60, algorithm) for size, algorithm in self.sizes]
        self.sets = [counting(store, limit, ResourceLimit("db", 2)) for limit in limits]
        self.held: list[tuple[LimitSet, Claim, int]] = []
        self.missing: Counter[tuple[int, str]] = Counter()

    def take(self) -> None:
        """Request some tokens and a permit."""
        limits, amount = self.sets[self.draw(st.integers(0, 2))], self.draw(st.integers(0, 12))
        claim = taken(limits, {"tokens": amount})
        if claim.admitted:
            hour = hour_of(claim.decided_at)
            self.missing.update({(hour, "tokens"): amount * 1000, (hour, "db"): 1000})
            self.held.append((limits, claim, amount))

    def settle(self) -> None:
        """Settle the last claim."""
        if self.held:
            limits, claim, amount = self.held.pop()
            change = self.draw(st.integers(-amount, 3))
            settle(limits, claim, {"tokens": change, "db": -1})
            self.missing[hour_of(claim.decided_at), "tokens"] += change * 1000

    def wait(self) -> None:
        """Let time pass."""
        self.clock.advance(self.draw(st.sampled_from([1, 600, HOUR])))

    def collect(self) -> None:
        """Collect, and forget the use of the limits."""
        for key, amount in collected(self.store).items():
            self.missing[key[3:]] -= amount
        reset(self.sets[0])


def _take(opener: Callable[[], Store], times: int) -> None:
    limits = counting(opener(), CallLimit(10_000, HOUR))
    for _ in range(times):
        taken(limits)


def _collect(opener: Callable[[], Store], times: int) -> int:
    store = opener()
    assert is_counting(store)
    return sum(total(store) for _ in range(times))
