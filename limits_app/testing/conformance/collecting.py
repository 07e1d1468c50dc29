"""Collecting: counts are returned once, and none is lost, whichever process collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from limits_app.core.counting import KEPT_HOURS
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.core.store import CountingStore, Store, is_counting
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import Contract, settle, taken
from limits_app.testing.conformance.counts import HOUR, Timeline, collected, counting, total

__all__ = ["Collecting"]


class Collecting(Contract):
    """Counts are returned in batches, each of them once, while other threads and processes count."""

    @pytest.fixture
    def store(self, clock: FakeClock) -> Iterator[Store]:
        """The store under test."""
        store = self.make_store(clock)
        assert is_counting(store)
        yield store
        self.close_store(store)

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

    def test_an_idle_scope_is_forgotten_and_its_counts_are_not(self, store: CountingStore, clock: FakeClock) -> None:
        for number in range(40):
            taken(counting(store, CallLimit(3, 1), entity=f"idle {number}"))
        clock.advance(2 * HOUR)
        for number in range(80):
            taken(counting(store, CallLimit(3, 1), entity=f"new {number}"))
        assert total(store) == 120_000

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


def _take(opener: Callable[[], Store], times: int) -> None:
    limits = counting(opener(), CallLimit(10_000, HOUR))
    for _ in range(times):
        taken(limits)


def _collect(opener: Callable[[], Store], times: int) -> int:
    store = opener()
    assert is_counting(store)
    return sum(total(store) for _ in range(times))
