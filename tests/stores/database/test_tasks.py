"""The database store and asyncio: threads do the waiting, and who is cancelled is charged nothing."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import RateLimit, ResourceLimit
from limits_app.stores.database import DatabaseStore
from limits_app.testing.conformance.contract import claim_of
from tests.stores.database.conftest import Open
from tests.stores.support import holders, limits_of

DAY = 86_400


@pytest.fixture
def store(open_store: Open) -> DatabaseStore:
    return open_store()


def test_a_task_acquires_looks_and_settles(store: DatabaseStore) -> None:
    limits = limits_of(store, RateLimit("units", 10, 366 * DAY), ResourceLimit("db", 1))

    async def scenario() -> None:
        async with await limits.aacquire({"units": 8}, timeout=0) as acquired:
            assert not await limits.atry_acquire({"units": 8, "db": 1})
            acquired.update({"units": 5})
        await store.apeek(claim_of(limits, {"units": 0}))

    asyncio.run(scenario())
    assert holders(limits) == 0


def test_a_task_chooses(store: DatabaseStore) -> None:
    sets = [limits_of(store, ResourceLimit("db", 1), entity=who) for who in ("one", "two")]
    pool = LimitPool(sets, "failover")

    async def scenario() -> None:
        held = [await pool.atry_acquire({"db": 1}) for _ in range(3)]
        assert [bool(acquisition) for acquisition in held] == [True, True, False]
        assert [holders(limits) for limits in sets] == [1, 1]

    asyncio.run(scenario())


def test_nothing_can_be_chosen_of_nothing(store: DatabaseStore) -> None:
    assert store.acquire_first([]) is None


@pytest.mark.parametrize("verb", ["one", "first"])
def test_a_task_that_is_cancelled_while_the_database_decides_is_charged_nothing(
    store: DatabaseStore, verb: str
) -> None:
    limits: LimitSet = limits_of(store, ResourceLimit("db", 1))

    async def scenario() -> None:
        claim = claim_of(limits)
        asked = store.aacquire(claim) if verb == "one" else store.aacquire_first([claim])
        task = asyncio.create_task(asked)  # type: ignore[arg-type]  # of either verb
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert holders(limits) == 0
    assert limits.try_acquire()


def test_a_task_that_is_cancelled_is_not_given_back_what_it_never_had(store: DatabaseStore) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    held = limits.try_acquire()

    async def scenario() -> None:
        for asked in (store.aacquire(claim_of(limits)), store.aacquire_first([claim_of(limits)])):
            task = asyncio.create_task(asked)  # type: ignore[arg-type]  # of either verb
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert holders(limits) == 1
    held.release()
