"""The memory store passes the conformance suite."""

from __future__ import annotations

from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.counting import Counting


class TestMemoryStore(Counting, StoreConformance):
    # No other process can open it.
    test_processes_together_are_admitted_exactly_the_capacity = None  # type: ignore[assignment]
    test_processes_that_take_while_others_collect_lose_nothing = None  # type: ignore[assignment]

    def make_store(self, clock: FakeClock) -> MemoryStore:
        return MemoryStore(clock=clock)

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, MemoryStore)
        return len(store)
