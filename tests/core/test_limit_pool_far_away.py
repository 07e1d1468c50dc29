"""Pools over stores on another machine: one question for all sets, and no blocked event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from limits_app.core.errors import LimitTimeout, NeverAdmissible
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.core.plan import Claim
from limits_app.stores.memory import MemoryStore
from tests.core.sets import used
from tests.core.test_remote_stores import FarStore
from tests.core.watched import Caller, in_a_loop

C = TypeVar("C", bound=Claim)

CALLS = CallLimit(1, 3600)
TPM = RateLimit("tpm", 10, 3600)
DB = ResourceLimit("db", 1)


class Counting(FarStore):
    """A store far away that knows what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        self.asked.append(f"first of {len(claims)}")
        return super().acquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    async def aacquire_first(
        self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True
    ) -> C | None:
        return await asyncio.to_thread(self.acquire_first, claims, emptiest_first=emptiest_first, failover=failover)

    async def aacquire(self, claim: Claim) -> bool:
        self.asked.append("one")
        return await super().aacquire(claim)

    async def apeek(self, claim: Claim) -> None:
        self.asked.append("look")
        await super().apeek(claim)


@pytest.fixture
def far() -> Counting:
    return Counting()


def pool_on(stores: Sequence[MemoryStore], *limits: Any, **options: Any) -> LimitPool:
    return LimitPool([LimitSet(limits, store=store, config={"index": i}) for i, store in enumerate(stores)], **options)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
def test_choice_and_charge_are_one_question(name: str, far: Counting) -> None:
    pool = pool_on([far] * 3, CALLS, load_balancing=name)
    assert [pool.try_acquire().config["index"] for _ in range(3)] == [0, 1, 2]
    assert not pool.try_acquire()
    assert far.asked == ["first of 3"] * 4


@in_a_loop
async def test_tasks_ask_one_question_too(far: Counting) -> None:
    pool = pool_on([far] * 3, CALLS)
    assert [(await pool.atry_acquire()).config["index"] for _ in range(2)] == [0, 1]
    assert (await pool.aacquire(timeout=0)).config["index"] == 2
    assert not await pool.atry_acquire()
    with pytest.raises(LimitTimeout):
        await pool.aacquire(timeout=0)
    assert far.asked == ["first of 3"] * 5


@in_a_loop
async def test_where_only_one_set_can_serve_it_is_asked_alone(far: Counting) -> None:
    pool = LimitPool([LimitSet([TPM], store=far), LimitSet([CALLS], store=far)])
    assert await pool.atry_acquire({"tpm": 1})
    with pytest.raises(NeverAdmissible):
        await pool.atry_acquire({"tpm": 11})
    assert far.asked == ["one", "look"]


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
@in_a_loop
async def test_sets_in_several_places_are_asked_one_after_the_other(name: str) -> None:
    pool = pool_on([Counting(), MemoryStore(), Counting()], CALLS, load_balancing=name)
    assert [(await pool.atry_acquire()).config["index"] for _ in range(3)] == [0, 1, 2]
    assert not await pool.atry_acquire()


@pytest.mark.parametrize("near", [True, False])
@in_a_loop
async def test_a_task_waits_until_one_is_given_back(near: bool, far: Counting) -> None:
    pool = pool_on([far, MemoryStore() if near else far], DB)
    held = [await pool.aacquire({"db": 1}) for _ in range(2)]
    waiter = asyncio.create_task(pool.aacquire({"db": 1}, timeout=60))
    await asyncio.to_thread(far.line.came.wait, 20)
    await held[1].arelease()
    async with await waiter as served:
        assert served.config == {"index": 1}
    await held[0].arelease()
    assert [await asyncio.to_thread(used, one) for one in pool] == [{"db": 0}] * 2
    assert not any(one.store.line.busy for one in pool)


@pytest.mark.parametrize("near", [True, False])
@in_a_loop
async def test_a_task_takes_the_least_loaded_behind_others_without_failover(near: bool, far: Counting) -> None:
    pool = pool_on(
        [far, MemoryStore() if near else far], ResourceLimit("db", 2), load_balancing="least_loaded", failover=False
    )
    full = await pool[0].aacquire({"db": 2})
    waiter = asyncio.create_task(pool[0].aacquire({"db": 1}))
    await asyncio.to_thread(far.line.came.wait, 20)
    for _ in range(2):
        assert (await pool.aacquire({"db": 1}, timeout=1)).config == {"index": 1}
    await full.arelease()
    await (await waiter).arelease()


@in_a_loop
async def test_a_task_whose_time_is_up_or_that_is_cancelled_leaves_nothing_behind(far: Counting) -> None:
    pool = pool_on([far] * 2, DB)
    held = [await pool.aacquire({"db": 1}) for _ in range(2)]
    with pytest.raises(LimitTimeout):
        await pool.aacquire({"db": 1}, timeout=0.01)
    far.line.came.clear()
    waiter = asyncio.create_task(pool.aacquire({"db": 1}))
    await asyncio.to_thread(far.line.came.wait, 20)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    for one in held:
        await one.arelease()
    assert [await asyncio.to_thread(used, one) for one in pool] == [{"db": 0}] * 2
    assert not far.line.busy


def test_threads_wait_for_it_as_for_any_other(far: Counting) -> None:
    pool = pool_on([far] * 2, DB)
    held = [pool.acquire({"db": 1}) for _ in range(2)]
    waiter = Caller(pool.acquire, {"db": 1}, timeout=60)
    assert far.line.came.wait(20)
    held[0].release()
    waiter.result().release()
