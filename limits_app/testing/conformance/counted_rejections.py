"""Counted rejections: they are added up by minute and limit, and each is collected once."""

from __future__ import annotations

from limits_app.acquiring import CountingStore
from limits_app.engine import (
    HOUR,
    IDS_LENGTH,
    Rejected,
    Times,
)
from limits_app.engine.limits import CallLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    counting,
    rejections_in,
    taken,
)
from limits_app.testing.conformance.namespaces import CountingNamespaces


class CountedRejections(CountingNamespaces):
    """Rejections that processes add to a store."""

    def test_rejections_of_several_processes_are_added_up(self, store: CountingStore, clock: FakeClock) -> None:
        minute = clock() // 60_000_000
        odd = Rejected(minute, "a/b.c", "entity", "käse:*~\0\n\U0001f9c0", "tokens")
        shared, later = odd._replace(bucket="shared", entity=""), odd._replace(minute=minute + 1)
        store.add_rejections({odd: Times(2, 10.5, 20.0, "a b"), shared: Times(1, 1.0, 1.0)})
        store.add_rejections({odd: Times(3, 7.25, 12.0, "ü"), later: Times(10**9, 61.0, 62.0, "d")})
        store.add_rejections({odd: Times(1, 13.0, 13.0, "ü")})
        store.add_rejections({odd: Times(1, 14.0, 14.0)})
        assert rejections_in(store) == {
            odd: Times(7, 7.25, 20.0, "ü a b"),
            shared: Times(1, 1.0, 1.0),
            later: Times(10**9, 61.0, 62.0, "d"),
        }

    def test_ids_of_rejected_requests_are_bounded(self, store: CountingStore, clock: FakeClock) -> None:
        rejected = Rejected(clock() // 60_000_000, "api", "entity", "user:1", "call_count")
        for number in range(50):
            store.add_rejections({rejected: Times(1, 0.0, 0.0, f"{number:064}")})
        [times] = rejections_in(store).values()
        assert times.number == 50
        assert len(times.ids) <= IDS_LENGTH
        assert times.ids.startswith(f"{49:064} {48:064} ")

    def test_rejections_are_in_one_batch_until_it_is_forgotten(self, store: CountingStore, clock: FakeClock) -> None:
        rejected, times = Rejected(clock() // 60_000_000, "api", "entity", "user:1", "call_count"), Times(1, 0.0, 0.0)
        store.add_rejections({rejected: times})
        first = store.collect_counts()
        store.add_rejections({rejected: Times(2, 3.0, 4.0)})
        assert first is not None
        assert {**first.rejections} == {rejected: times}
        assert store.collect_counts() == first
        store.forget_counts(first.name)
        assert rejections_in(store) == {rejected: Times(2, 3.0, 4.0)}

    def test_many_rejections_are_collected_in_several_batches(self, store: CountingStore, clock: FakeClock) -> None:
        minute = clock() // 60_000_000
        for start in (0, 1_200):
            some = [
                Rejected(minute, "api", "entity", f"ip:{number}", "tokens") for number in range(start, start + 1_200)
            ]
            store.add_rejections(dict.fromkeys(some, Times(1, 0.0, 0.0)))
        taken(counting(store, CallLimit(100, HOUR)))
        rejections = rejections_in(store)
        assert {rejected.entity for rejected in rejections} == {f"ip:{number}" for number in range(2_400)}
        assert sum(times.number for times in rejections.values()) == 2_400

    def test_rejections_of_a_namespace_are_its_own(self, store: CountingStore, clock: FakeClock) -> None:
        rejected = Rejected(clock() // 60_000_000, "api", "entity", "user:1", "call_count")
        store.add_rejections({rejected: Times(1, 0.0, 0.0)}, "a")
        store.add_rejections({rejected: Times(2, 0.0, 0.0)})
        assert rejections_in(store, "a") == {rejected: Times(1, 0.0, 0.0)}
        assert rejections_in(store) == {rejected: Times(2, 0.0, 0.0)}
