"""Counting: what was admitted is counted in the step that admits it, by scope, limit and hour, and collected once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.core.claim import Claim
from limits_app.core.counting import KEPT_HOURS, hour_of
from limits_app.core.keys import Scope, scope_of, shared_scope
from limits_app.core.layout import layout_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import CountingStore, Store, is_counting
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, Contract, limits_in, settle, taken

__all__ = ["Counting"]

HOUR = 3600
Counts = Mapping[tuple[str | None, str | None, bool, int, str], int]
"""Thousandths by resource, entity, shared, hour and key."""


class Counting(Contract):
    """Counts are those of what was admitted, whatever happens in between."""

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[Store]:
        """The store under test."""
        store = self.make_store(clock)
        assert is_counting(store)
        yield store
        self.close_store(store)

    def test_what_was_admitted_is_counted_by_scope_and_limit(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(10, HOUR), RateLimit("tokens", 1000, 60))
        taken(limits, {"tokens": 7})
        taken(limits, {"tokens": 5})
        taken(counting(store, CallLimit(10, HOUR), entity="another"))
        hour = hour_of(clock())
        assert collected(store) == {
            ("conformance", "someone", False, hour, "call_count"): 2_000,
            ("conformance", "someone", False, hour, "tokens"): 12_000,
            ("conformance", "another", False, hour, "call_count"): 1_000,
        }

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_every_algorithm_is_counted_in_units(self, store: CountingStore, algorithm: RateLimitAlgorithm) -> None:
        limits = counting(store, RateLimit("tokens", 70, 7, algorithm))
        taken(limits, {"tokens": 3})
        assert total(store) == 3_000

    @pytest.mark.parametrize("algorithm", [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA])
    def test_thousandths_are_counted(self, store: CountingStore, algorithm: RateLimitAlgorithm) -> None:
        limits = counting(store, RateLimit("tokens", 7.5, 7, algorithm))
        taken(limits, {"tokens": 0.125})
        assert total(store) == 125

    def test_a_refusal_is_not_counted(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(2, HOUR))
        for _ in range(5):
            taken(limits)
        assert total(store) == 2_000

    def test_a_refusal_by_another_scope_is_not_counted(self, store: CountingStore) -> None:
        both = limits_in(
            store,
            in_scope(store, scope_of("conformance", "wide"), CallLimit(9, HOUR)),
            in_scope(store, scope_of("conformance", "tight"), CallLimit(1, HOUR)),
        )
        taken(both)
        taken(both)
        assert total(store) == 2_000

    def test_what_is_settled_is_counted_as_it_was_used(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("in", 100, 60), RateLimit("out", 100, 60, RateLimitAlgorithm.FIXED_WINDOW))
        claim = taken(limits, {"in": 30, "out": 30})
        settle(limits, claim, {"in": -10, "out": 5})
        settle(limits, claim, {"in": -10, "out": 5})
        counts = collected(store)
        assert sorted(counts.values()) == [20_000, 35_000]

    def test_permits_are_counted_when_they_are_lent(self, store: CountingStore) -> None:
        limits = counting(store, ResourceLimit("db", 3))
        claim = taken(limits)
        settle(limits, claim, {"db": -1})
        taken(limits)
        assert total(store) == 2_000

    def test_a_quota_is_counted(self, store: CountingStore) -> None:
        limits = counting(store, QuotaLimit("budget", 100, "month"))
        taken(limits, {"budget": 40})
        assert total(store) == 40_000

    def test_each_hour_is_counted_by_itself(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        hours = []
        for calls in (1, 2, 3):
            clock.advance(HOUR)
            hours.append(hour_of(clock()))
            for _ in range(calls):
                taken(limits)
        counts = collected(store)
        assert [counts["conformance", "someone", False, hour, "call_count"] for hour in hours] == [1_000, 2_000, 3_000]

    def test_what_is_settled_late_is_counted_when_it_was_taken(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        claim = taken(limits, {"tokens": 30})
        hour = hour_of(clock())
        clock.advance(HOUR)
        taken(limits, {"tokens": 4})
        settle(limits, claim, {"tokens": -10})
        counts = collected(store)
        assert counts["conformance", "someone", False, hour, "tokens"] == 20_000
        assert counts["conformance", "someone", False, hour + 1, "tokens"] == 4_000

    def test_what_is_settled_after_a_collection_comes_with_the_next(self, store: CountingStore) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        claim = taken(limits, {"tokens": 30})
        assert total(store) == 30_000
        settle(limits, claim, {"tokens": -10})
        assert total(store) == -10_000

    def test_nothing_is_counted_twice(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        assert store.collect_counts() is None
        taken(limits)
        assert total(store) == 1_000
        assert store.collect_counts() is None
        taken(limits)
        assert total(store) == 1_000

    def test_a_batch_comes_again_until_it_is_forgotten(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        taken(limits)
        first = store.collect_counts()
        taken(limits)
        assert first is not None
        assert store.collect_counts() == first
        store.forget_counts("another")
        assert store.collect_counts() == first
        store.forget_counts(first.name)
        store.forget_counts(first.name)
        second = store.collect_counts()
        assert second is not None
        assert second.name != first.name
        assert [dict(count.amounts) for count in second.counts] == [{"call_count": 1_000}]

    def test_a_changed_limit_loses_nothing(self, store: CountingStore) -> None:
        rates = RateLimit("tokens", 100, 60), RateLimit("other", 100, 60)
        old = counting(store, *rates)
        claim = taken(old, {"tokens": 30, "other": 10})
        new = counting(store, RateLimit("tokens", 70, 7, RateLimitAlgorithm.GCRA))
        taken(new, {"tokens": 5})
        settle(old, claim, {"tokens": -10, "other": 1})
        assert sorted(collected(store).values()) == [11_000, 25_000]

    def test_a_limit_that_changes_while_it_refuses_loses_nothing(self, store: CountingStore) -> None:
        taken(counting(store, CallLimit(3, HOUR)))
        tighter = counting(store, CallLimit(1, HOUR))
        taken(tighter)
        taken(tighter)
        assert total(store) == 1_000

    def test_who_stops_counting_loses_nothing(self, store: CountingStore) -> None:
        taken(counting(store, CallLimit(3, HOUR)))
        silent = limits_in(store, in_scope(store, scope_of("conformance", "someone"), CallLimit(3, HOUR), counts=False))
        taken(silent)
        taken(counting(store, CallLimit(3, HOUR)))
        assert total(store) == 2_000

    def test_a_reset_forgets_no_count(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(3, HOUR))
        taken(limits)
        store.reset([one.scope.key for one in limits.scoped])
        taken(limits)
        assert total(store) == 2_000

    def test_an_idle_scope_is_forgotten_and_its_counts_are_not(self, store: CountingStore, clock: FakeClock) -> None:
        for number in range(40):
            taken(counting(store, CallLimit(3, 1), entity=f"idle {number}"))
        clock.advance(2 * HOUR)
        for number in range(80):
            taken(counting(store, CallLimit(3, 1), entity=f"new {number}"))
        assert total(store) == 120_000

    def test_scopes_are_named_as_they_are(self, store: CountingStore) -> None:
        odd = "käse:*~\0\n\U0001f9c0"
        scopes = [scope_of("a/b.c", odd), scope_of("a/b.c", None), shared_scope("a/b.c", "call_count")]
        for scope in scopes:
            taken(limits_in(store, in_scope(store, scope, CallLimit(3, HOUR))))
        names = {key[:3] for key in collected(store)}
        assert names == {("a/b.c", odd, False), ("a/b.c", None, False), ("a/b.c", None, True)}

    def test_what_should_not_be_counted_is_not(self, store: CountingStore) -> None:
        scope = scope_of("conformance", "silent")
        limits = limits_in(store, in_scope(store, scope, RateLimit("tokens", 10, HOUR), counts=False))
        claim = taken(limits, {"tokens": 2})
        settle(limits, claim, {"tokens": -1})
        assert store.collect_counts() is None

    def test_many_scopes_come_in_as_many_batches_as_it_takes(self, store: CountingStore) -> None:
        for number in range(1_100):
            taken(counting(store, CallLimit(3, HOUR), entity=f"number {number}"))
        counts = collected(store)
        assert len(counts) == 1_100
        assert sum(counts.values()) == 1_100_000

    def test_scopes_that_go_on_counting_do_not_keep_others_from_their_turn(
        self, store: CountingStore, clock: FakeClock
    ) -> None:
        sets = [counting(store, CallLimit(1_000, HOUR), entity=f"number {number}") for number in range(600)]
        for limits in sets:
            taken(limits)
        found: set[str | None] = set()
        batches = 0
        while len(found) < len(sets):
            batch = store.collect_counts()
            assert batch is not None
            store.forget_counts(batch.name)
            found |= {count.entity for count in batch.counts}
            batches += 1
            assert batches <= len(sets)
            clock.advance(1)
            for count in batch.counts:
                taken(counting(store, CallLimit(1_000, HOUR), entity=str(count.entity)))

    def test_what_nobody_collects_is_forgotten_in_the_end(self, store: CountingStore, clock: FakeClock) -> None:
        limits = counting(store, CallLimit(100, HOUR))
        for _ in range(KEPT_HOURS + 20):
            taken(limits)
            clock.advance(HOUR)
        counts = collected(store)
        assert KEPT_HOURS <= len(counts) <= KEPT_HOURS + 3

    def test_counts_are_the_sum_of_what_was_admitted(self) -> None:
        @settings(deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.data())
        def counts(data: st.DataObject) -> None:
            clock = FakeClock()
            store = self.make_store(clock)
            try:
                assert is_counting(store)
                timeline = Timeline(store, clock, data.draw)
                for _ in range(data.draw(st.integers(1, 12))):
                    data.draw(st.sampled_from([timeline.take, timeline.settle, timeline.wait, timeline.collect]))()
                timeline.collect()
            finally:
                self.close_store(store)
            assert timeline.difference() == {}

        counts()

    def test_what_is_settled_late_and_was_all_used_changes_nothing(
        self, store: CountingStore, clock: FakeClock
    ) -> None:
        limits = counting(store, RateLimit("tokens", 100, 60))
        claim = taken(limits, {"tokens": 30})
        assert total(store) == 30_000
        clock.advance(HOUR)
        settle(limits, claim, {})
        assert store.collect_counts() is None

    def test_threads_that_take_while_others_collect_lose_nothing(self, store: CountingStore) -> None:
        limits = counting(store, CallLimit(10_000, HOUR))
        with ThreadPoolExecutor(4) as threads:
            takers = [threads.submit(lambda: [taken(limits) for _ in range(150)]) for _ in range(3)]
            found = threads.submit(lambda: sum(total(store) for _ in range(20)))
            for taker in takers:
                taker.result()
        assert found.result() + total(store) == 450_000

    def test_processes_that_take_while_others_collect_lose_nothing(self) -> None:
        opener = self.open_store()
        if opener is None:
            pytest.skip("open_store() is not given, so no other process can open the store")
        with get_context("spawn").Pool(3) as processes:
            takers = [processes.apply_async(_take, (opener, 100)) for _ in range(2)]
            found = processes.apply_async(_collect, (opener, 20))
            for taker in takers:
                taker.get(60)
            assert found.get(60) + processes.apply(_collect, (opener, 1)) == 200_000


class Timeline:
    """Sets whose limits differ in one scope, what was admitted of them, and what was counted."""

    sizes = (20, RateLimitAlgorithm.TOKEN_BUCKET), (7, RateLimitAlgorithm.SLIDING_WINDOW), (30, RateLimitAlgorithm.GCRA)

    def __init__(self, store: CountingStore, clock: FakeClock, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self.store, self.clock, self.draw = store, clock, draw
        limits = [RateLimit("tokens", size, 60, algorithm) for size, algorithm in self.sizes]
        self.sets = [counting(store, limit, ResourceLimit("db", 2)) for limit in limits]
        self.open: list[tuple[LimitSet, Claim]] = []
        self.expected: Counter[tuple[int, str]] = Counter()
        self.found: Counter[tuple[int, str]] = Counter()

    def take(self) -> None:
        """Ask for some."""
        limits, amount = self.sets[self.draw(st.integers(0, 2))], self.draw(st.integers(0, 12))
        claim = taken(limits, {"tokens": amount})
        if claim.admitted:
            hour = hour_of(claim.decided_at)
            self.expected.update({(hour, "tokens"): amount * 1000, (hour, "db"): 1000})
            self.open.append((limits, claim))

    def settle(self) -> None:
        """Settle what was taken last."""
        if self.open:
            limits, claim = self.open.pop()
            layout = limits.scoped[0].layout
            scale = layout.rules[layout.index["tokens"]].parts_per_unit
            change = self.draw(st.integers(-claim.amounts[0] // scale, 3))
            settle(limits, claim, {"tokens": change, "db": -1})
            self.expected[hour_of(claim.decided_at), "tokens"] += change * 1000

    def wait(self) -> None:
        """Let time pass."""
        self.clock.advance(self.draw(st.sampled_from([1, 600, HOUR])))

    def collect(self) -> None:
        """Collect, and forget what was used of the limits."""
        for key, amount in collected(self.store).items():
            self.found[key[3:]] += amount
        self.store.reset([one.scope.key for one in self.sets[0].scoped])

    def difference(self) -> Mapping[tuple[int, str], int]:
        """What was found and not expected, or the other way round."""
        keys = self.found.keys() | self.expected.keys()
        return {key: n for key in keys if (n := self.found[key] - self.expected[key])}


def in_scope(store: Store, scope: Scope, *limits: Limit, counts: bool = True) -> ScopedLimits:
    """Limits in a scope."""
    return ScopedLimits(scope, layout_of(limits, store.lease_us, counts))


def counting(store: Store, *limits: Limit, entity: str = "someone") -> LimitSet:
    """A set over one scope that counts."""
    return limits_in(store, in_scope(store, scope_of("conformance", entity), *limits))


def collected(store: CountingStore) -> Counts:
    """Everything that was counted."""
    counts: Counter[tuple[str | None, str | None, bool, int, str]] = Counter()
    while (batch := store.collect_counts()) is not None:
        for count in batch.counts:
            for key, amount in count.amounts.items():
                counts[count.resource, count.entity, count.shared, count.hour, key] += amount
        store.forget_counts(batch.name)
    return counts


def total(store: CountingStore) -> int:
    """The sum of everything that was counted, in thousandths."""
    return sum(collected(store).values())


def _take(opener: Callable[[], Store], times: int) -> None:
    limits = counting(opener(), CallLimit(10_000, HOUR))
    for _ in range(times):
        taken(limits)


def _collect(opener: Callable[[], Store], times: int) -> int:
    store = opener()
    assert is_counting(store)
    return sum(total(store) for _ in range(times))
