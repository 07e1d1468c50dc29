"""The database store and asyncio: threads do the waiting, and who is cancelled is charged nothing."""

from __future__ import annotations

import asyncio
from threading import Event

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import RateLimit, ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.stores.database import DatabaseStore
from limits_app.testing.conformance.contract import claim_of
from tests.stores.database.conftest import Open
from tests.stores.support import PATIENCE, holders, limits_of

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
        assert [await asyncio.to_thread(holders, limits) for limits in sets] == [1, 1]

    asyncio.run(scenario())


def test_nothing_can_be_chosen_of_nothing(store: DatabaseStore) -> None:
    assert store.acquire_first([]) is None


@pytest.mark.parametrize("others", [0, 1], ids=["admitted", "rejected"])
@pytest.mark.parametrize("verb", ["one", "first"])
def test_a_task_that_is_cancelled_while_the_database_decides_is_charged_and_refunded_nothing(
    store: DatabaseStore, verb: str, others: int
) -> None:
    limits: LimitSet = limits_of(store, ResourceLimit("db", 1))
    held = [limits.try_acquire() for _ in range(others)]

    async def scenario() -> None:
        claim = claim_of(limits)
        asked = store.aacquire(claim) if verb == "one" else store.aacquire_first([claim])
        task = asyncio.create_task(asked)  # type: ignore[arg-type]  # of either verb
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scenario())
    assert holders(limits) == len(held) == others


@pytest.mark.parametrize("verb", ["acquire", "settle"])
@pytest.mark.parametrize("watched", [True, False])
def test_refund_of_a_cancelled_task_that_failed_is_settled_later(
    store: DatabaseStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str, *, watched: bool
) -> None:
    limits = limits_of(store, RateLimit("units", 10, 366 * DAY))
    claim, acquire = claim_of(limits, {"units": 8}), store.acquire
    kept: list[tuple[Claim, Amounts]] = []
    begun, left = Event(), Event()

    def keep(claim: Claim, changes: Amounts) -> None:
        kept.append((claim, changes))

    def slowly(claim: Claim) -> bool:
        begun.set()
        assert left.wait(PATIENCE)
        return acquire(claim)

    def locked(claim: Claim, changes: Amounts) -> None:
        begun.set()
        assert left.wait(PATIENCE)
        raise StoreUnavailable("the database is locked")

    async def scenario() -> None:
        if verb == "settle":
            assert await asyncio.to_thread(acquire, claim)
        asked = store.aacquire(claim) if verb == "acquire" else store.asettle(claim, [-claim.amounts[0]])
        task = asyncio.create_task(asked)  # type: ignore[arg-type]  # of either verb
        await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left.set()

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store, "acquire", slowly)
        meanwhile.setattr(store, "settle", locked)
        meanwhile.setattr(store, "settle_later", keep if watched else None)
        asyncio.run(scenario())  # which waits for threads
    assert len(kept) == watched
    assert ("could not be released" in caplog.text) is not watched
    for one in kept:
        store.settle(*one)
    assert limits.try_acquire({"units": 10}).successful is watched
