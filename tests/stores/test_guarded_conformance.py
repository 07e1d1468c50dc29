"""A store behind its guard keeps the promises of every store."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from limits_app.core.errors import NeverAdmissible
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import ResourceLimit
from limits_app.core.store import Store
from limits_app.stores.breaker import BreakerState
from limits_app.stores.guarded import GuardedStore
from limits_app.stores.guards import Guard
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock, StoreConformance
from tests.core.test_remote_stores import FarStore
from tests.stores.support import limits_of


class TestGuardedStore(StoreConformance):
    # No other process can open it.
    test_processes_together_are_admitted_exactly_the_capacity = None  # type: ignore[assignment]

    def make_store(self, clock: FakeClock) -> GuardedStore:
        return GuardedStore(MemoryStore(clock=clock), Guard("default", clock=clock))

    def count_entries(self, store: Store) -> int:
        assert isinstance(store, GuardedStore)
        assert isinstance(store.store, MemoryStore)
        return len(store.store) + len(store.store._shelf.waits)


def test_renewing_goes_through_it() -> None:
    assert GuardedStore(MemoryStore(), Guard("default")).renew([]) == []


def test_a_store_in_memory_cannot_be_sent_away_with_its_guard() -> None:
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pickle.dumps(GuardedStore(MemoryStore(), Guard("default")))


class TestAStoreFarAway:
    def test_tasks_reach_it_through_its_guard(self) -> None:
        store, limits = guarded(FarStore())

        async def scenario() -> None:
            async with await limits.atry_acquire():
                pool = LimitPool([limits, limits_of(store, ResourceLimit("db", 2), entity="user:2")])
                async with await pool.atry_acquire({"db": 1}) as acquisition:
                    assert acquisition

        asyncio.run(scenario())
        assert store.remote
        assert limits.get_stats()["db"]["holders"] == 0

    def test_what_it_cannot_settle_now_is_settled_later(self) -> None:
        far = FarStore()
        store, limits = guarded(far)

        async def scenario() -> None:
            first, second = await limits.atry_acquire(), await limits.atry_acquire({"db": 1})
            far.down = True
            await first.arelease()
            assert store._guard.unsettled == 1
            far.down = False
            await second.arelease()

        asyncio.run(scenario())
        assert store._guard.unsettled == 1

    def test_a_store_that_was_given_up_is_not_asked(self) -> None:
        far = FarStore()
        store, limits = guarded(far)

        async def scenario() -> None:
            held = [await limits.atry_acquire({"db": 1}) for _ in range(40)]
            far.down = True
            for acquisition in held:
                await acquisition.arelease()

        asyncio.run(scenario())
        assert store._guard.unsettled == 40
        assert store._guard.breaker.state is BreakerState.OPEN

    def test_looking_and_choosing_go_through_it(self) -> None:
        _, limits = guarded(FarStore())

        async def scenario() -> None:
            with pytest.raises(NeverAdmissible):
                await limits.atry_acquire({"db": 41})

        asyncio.run(scenario())


def guarded(store: FarStore) -> tuple[GuardedStore, LimitSet]:
    """A store far away behind a guard whose clock stands, and a set of forty permits there."""
    behind = GuardedStore(store, Guard("default", clock=FakeClock()))
    return behind, limits_of(behind, ResourceLimit("db", 40))
