"""A store behind its guard keeps the promises of every store."""

from __future__ import annotations

import pickle

import pytest

from limits_app.core.store import Store
from limits_app.stores.guarded import GuardedStore
from limits_app.stores.guards import Guard
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, StoreConformance


class TestGuardedStore(StoreConformance):
    # No other process can open it.
    test_processes_together_are_admitted_exactly_the_capacity = None  # type: ignore[assignment]

    def make_store(self, clock: FakeClock) -> GuardedStore:
        return GuardedStore(MemoryStore(clock=clock), Guard("default", clock=clock))

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, GuardedStore)
        assert isinstance(store.store, MemoryStore)
        return len(store.store) + len(store.store._hand)


def test_renewing_goes_through_it() -> None:
    assert GuardedStore(MemoryStore(), Guard("default")).renew([]) == []


def test_a_store_in_memory_cannot_be_sent_away_with_its_guard() -> None:
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(GuardedStore(MemoryStore(), Guard("default")))
