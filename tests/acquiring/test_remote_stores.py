"""Stores on another machine: tasks use the verbs for asyncio, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.waiting import Waiter, WaitingLine
from limits_app.engine.claims import Claim
from limits_app.engine.errors import LimitTimeout, NeverAdmissible, StoreUnavailable, UsageNotReported
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.memory import MemoryStore
from tests.acquiring.sets import limit_set
from tests.acquiring.sets import used as exactly_used
from tests.acquiring.watched import PATIENCE_SECONDS, in_a_loop

TPM = RateLimit("tpm", 10, 3600)
DB = ResourceLimit("db", 1)


def not_in_a_loop() -> None:
    """Fail where an event loop would be blocked."""
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


class FarLine(WaitingLine):
    """A line that has to tell another machine who stands in it."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def enqueue(self, waiter: Waiter, buckets: Collection[tuple[str, str]]) -> None:  # type: ignore[override]
        if buckets:  # to leave takes no time
            not_in_a_loop()
        super().enqueue(waiter, buckets)
        self.came.set()


class FarStore(AskedInThread, MemoryStore):
    """A store that must not be asked by what runs in an event loop, but for its verbs for asyncio."""

    remote = True
    counting = False
    down = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.line: FarLine = FarLine()

    def acquire(self, claim: Claim) -> bool:
        not_in_a_loop()
        return super().acquire(claim)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        not_in_a_loop()
        super().settle(claim, changes)

    def peek(self, claim: Claim) -> None:
        not_in_a_loop()
        super().peek(claim)

    async def asettle(self, claim: Claim, changes: Amounts) -> None:
        if self.down:
            raise StoreUnavailable("out of reach")
        await super().asettle(claim, changes)


def used(limits: LimitSet) -> dict[str, int]:
    """What is used, without what drains while a test runs."""
    return {key: round(amount) for key, amount in exactly_used(limits).items()}


@pytest.fixture
def far() -> FarStore:
    """A store far away."""
    return FarStore()


@in_a_loop
async def test_a_task_acquires_reports_and_releases(far: FarStore) -> None:
    limits = limit_set(far, CallLimit(5, 3600), TPM, DB)
    async with await limits.atry_acquire({"tpm": 8}) as acquisition:
        assert acquisition
        acquisition.update({"tpm": 5})
    async with await limits.aacquire({"tpm": 2}, timeout=0) as acquisition:
        acquisition.update({"tpm": 2})
    assert await asyncio.to_thread(used, limits) == {"call_count": 2, "tpm": 7, "db": 0}
    with pytest.raises(KeyError):
        async with await limits.atry_acquire({"tpm": 3}):
            raise KeyError
    assert await asyncio.to_thread(used, limits) == {"call_count": 3, "tpm": 7, "db": 0}
    with pytest.raises(UsageNotReported, match="tpm"):
        async with await limits.atry_acquire({"tpm": 3}):
            pass
    assert await asyncio.to_thread(used, limits) == {"call_count": 4, "tpm": 10, "db": 0}


@in_a_loop
async def test_an_empty_set_touches_nothing(far: FarStore) -> None:
    limits = LimitSet(store=far)
    async with await limits.aacquire() as acquisition, await limits.atry_acquire():
        assert acquisition
    await acquisition.arelease()
    await acquisition.acancel()
    assert await limits.aacquire()
    assert len(far) == 0


@in_a_loop
async def test_a_rejection_names_the_reason(far: FarStore) -> None:
    limits = limit_set(far, TPM)
    assert await limits.atry_acquire({"tpm": 10})
    refused = await limits.atry_acquire({"tpm": 1})
    assert refused.outcome.violations[0].key == "tpm"
    async with refused:
        pass
    for timeout in (0, 0.01):
        with pytest.raises(LimitTimeout):
            await limits.aacquire({"tpm": 1}, timeout=timeout)
    for acquire in (limits.aacquire, limits.atry_acquire):
        with pytest.raises(NeverAdmissible) as raised:
            await acquire({"tpm": 11})
        assert raised.value.outcome.never


@in_a_loop
async def test_a_task_waits_until_another_one_releases(far: FarStore) -> None:
    limits = limit_set(far, DB)
    held = await limits.atry_acquire()
    waiter = asyncio.create_task(limits.aacquire(timeout=60))
    behind = asyncio.create_task(limits.aacquire(timeout=0.05))
    with pytest.raises(LimitTimeout) as raised:
        await behind
    assert raised.value.outcome.violations[0].key == "db"
    await held.arelease()
    await held.arelease()
    assert await waiter
    await (await waiter).acancel()
    assert await asyncio.to_thread(used, limits) == {"db": 0}
    assert not far.line.busy


def test_a_waiter_that_is_cancelled_when_it_is_admitted_has_it_or_leaves_nothing(far: FarStore) -> None:
    limits = limit_set(far, TPM, DB)

    async def scenario(steps: int) -> None:
        held = await limits.atry_acquire({"tpm": 0, "db": 1})
        far.line.came.clear()
        waiter = asyncio.create_task(limits.aacquire({"tpm": 5, "db": 1}))
        await asyncio.to_thread(far.line.came.wait, PATIENCE_SECONDS)
        held.update({"tpm": 0})
        await held.arelease()
        for _ in range(steps):
            await asyncio.sleep(0)
        waiter.cancel()
        with suppress(asyncio.CancelledError):
            await (await waiter).acancel()

    for steps in range(40):
        asyncio.run(scenario(steps))
        assert used(limits) == {"tpm": 0, "db": 0}
        assert not far.line.busy


@in_a_loop
async def test_a_waiter_that_is_cancelled_leaves_nothing(far: FarStore) -> None:
    limits = limit_set(far, DB)
    held = await limits.atry_acquire()
    waiter = asyncio.create_task(limits.aacquire())
    await asyncio.to_thread(far.line.came.wait, PATIENCE_SECONDS)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    await held.arelease()
    assert await asyncio.to_thread(used, limits) == {"db": 0}
    assert not far.line.busy


@in_a_loop
async def test_fully_used_acquisition_has_nothing_to_settle(far: FarStore) -> None:
    limits = limit_set(far, TPM)
    far.down = True
    async with await limits.atry_acquire({"tpm": 3}) as acquisition:
        acquisition.update({"tpm": 3})
    far.down = False
    async with await limits.atry_acquire({"tpm": 3}) as acquisition:
        acquisition.update({"tpm": 1})
    assert await asyncio.to_thread(used, limits) == {"tpm": 4}


@in_a_loop
async def test_a_task_waits_for_the_chosen_set_of_a_pool_without_failover(far: FarStore) -> None:
    sets = [limit_set(far, DB), limit_set(far, DB)]
    held = await sets[0].atry_acquire()
    waiter = asyncio.create_task(LimitPool(sets, failover=False).aacquire(timeout=60))
    assert await asyncio.to_thread(far.line.came.wait, PATIENCE_SECONDS)
    await held.arelease()
    admitted = await waiter
    assert [await asyncio.to_thread(used, limits) for limits in sets] == [{"db": 1}, {"db": 0}]
    await admitted.arelease()


@in_a_loop
async def test_an_error_of_a_remote_store_is_raised_by_a_pool_that_holds_nothing(far: FarStore) -> None:
    class Down(FarStore):
        """A store that decides on nothing."""

        async def aacquire(self, claim: Claim) -> bool:
            raise StoreUnavailable("out of reach")

    near = MemoryStore()
    sets = [limit_set(store, TPM, DB) for store in (near, Down(), far)]
    assert await asyncio.to_thread(sets[0].try_acquire, {"tpm": 0, "db": 1})
    with pytest.raises(StoreUnavailable, match="out of reach"):
        await LimitPool(sets).atry_acquire({"tpm": 5, "db": 1})
    for limits, permits in zip((sets[0], sets[2]), (1, 0), strict=True):
        assert await asyncio.to_thread(used, limits) == {"tpm": 0, "db": permits}


def test_a_release_that_is_cancelled_on_its_way_is_settled_once() -> None:
    class Slow(FarStore):
        """A store that settles when it is told to."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = threading.Semaphore(0), threading.Event()
            self.changes: list[list[int]] = []

        def settle(self, claim: Claim, changes: Amounts) -> None:
            self.begun.release()
            assert self.go_on.wait(PATIENCE_SECONDS)
            self.changes.append(list(changes))
            super().settle(claim, changes)

    store = Slow()
    limits = limit_set(store, TPM)

    async def hold() -> None:
        async with await limits.aacquire({"tpm": 10}) as acquisition:
            acquisition.update({"tpm": 4})
            await acquisition.arelease()

    async def course() -> None:
        holder = asyncio.create_task(hold())
        assert await asyncio.to_thread(store.begun.acquire, timeout=PATIENCE_SECONDS)
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        store.go_on.set()

    asyncio.run(course())
    assert len(store.changes) == 1
    assert used(limits) == {"tpm": 4}


@in_a_loop
async def test_a_release_during_a_release_settles_once(far: FarStore) -> None:
    class Releasing(FarStore):
        """A store in which a second release begins while the first one is on its way."""

        settled = 0

        async def asettle(self, claim: Claim, changes: Amounts) -> None:
            self.settled += 1
            acquisition.release()
            await acquisition.arelease()
            await super().asettle(claim, changes)

    store = Releasing()
    limits = limit_set(store, TPM, DB)
    acquisition = await limits.atry_acquire({"tpm": 8})
    await acquisition.acancel()
    assert store.settled == 1
    assert await asyncio.to_thread(used, limits) == {"tpm": 0, "db": 0}


def test_threads_use_the_usual_verbs(far: FarStore) -> None:
    limits: LimitSet = limit_set(far, DB)
    held = limits.acquire()
    waiter = threading.Thread(target=lambda: limits.acquire(timeout=60).release())
    waiter.start()
    assert far.line.came.wait(PATIENCE_SECONDS)
    held.release()
    waiter.join()
    assert used(limits) == {"db": 0}


C = TypeVar("C", bound=Claim)

CALLS = CallLimit(1, 3600)


class Counting(FarStore):
    """A store counting away that knows what it was asked."""

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
def counting() -> Counting:
    return Counting()


def pool_on(stores: Sequence[MemoryStore], *limits: Any, **options: Any) -> LimitPool:
    return LimitPool([LimitSet(limits, store=store, config={"index": i}) for i, store in enumerate(stores)], **options)


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
def test_choice_and_charge_are_one_question(name: str, counting: Counting) -> None:
    pool = pool_on([counting] * 3, CALLS, load_balancing=name)
    assert [pool.try_acquire().config["index"] for _ in range(3)] == [0, 1, 2]
    assert not pool.try_acquire()
    assert counting.asked == ["first of 3"] * 4


@in_a_loop
async def test_tasks_ask_one_question_too(counting: Counting) -> None:
    pool = pool_on([counting] * 3, CALLS)
    assert [(await pool.atry_acquire()).config["index"] for _ in range(2)] == [0, 1]
    assert (await pool.aacquire(timeout=0)).config["index"] == 2
    assert not await pool.atry_acquire()
    with pytest.raises(LimitTimeout):
        await pool.aacquire(timeout=0)
    assert counting.asked == ["first of 3"] * 5


@in_a_loop
async def test_where_only_one_set_can_serve_it_is_asked_alone(counting: Counting) -> None:
    pool = LimitPool([LimitSet([TPM], store=counting), LimitSet([CALLS], store=counting)])
    assert await pool.atry_acquire({"tpm": 1})
    with pytest.raises(NeverAdmissible):
        await pool.atry_acquire({"tpm": 11})
    assert counting.asked == ["one", "look"]


@pytest.mark.parametrize("name", ["round_robin", "least_loaded"])
@in_a_loop
async def test_sets_in_several_places_are_asked_one_after_the_other(name: str) -> None:
    pool = pool_on([Counting(), MemoryStore(), Counting()], CALLS, load_balancing=name)
    assert [(await pool.atry_acquire()).config["index"] for _ in range(3)] == [0, 1, 2]
    assert not await pool.atry_acquire()


@pytest.mark.parametrize("near", [True, False])
@in_a_loop
async def test_a_task_waits_until_one_is_given_back(near: bool, counting: Counting) -> None:
    pool = pool_on([counting, MemoryStore() if near else counting], DB)
    held = [await pool.aacquire({"db": 1}) for _ in range(2)]
    waiter = asyncio.create_task(pool.aacquire({"db": 1}, timeout=60))
    await asyncio.to_thread(counting.line.came.wait, 20)
    await held[1].arelease()
    async with await waiter as served:
        assert served.config == {"index": 1}
    await held[0].arelease()
    assert [await asyncio.to_thread(exactly_used, one) for one in pool] == [{"db": 0}] * 2
    assert not any(one.store.line.busy for one in pool)


@pytest.mark.parametrize("near", [True, False])
@in_a_loop
async def test_a_task_takes_the_least_loaded_behind_others_without_failover(near: bool, counting: Counting) -> None:
    pool = pool_on(
        [counting, MemoryStore() if near else counting],
        ResourceLimit("db", 2),
        load_balancing="least_loaded",
        failover=False,
    )
    full = await pool[0].aacquire({"db": 2})
    waiter = asyncio.create_task(pool[0].aacquire({"db": 1}))
    await asyncio.to_thread(counting.line.came.wait, 20)
    for _ in range(2):
        assert (await pool.aacquire({"db": 1}, timeout=1)).config == {"index": 1}
    await full.arelease()
    await (await waiter).arelease()


@in_a_loop
async def test_a_task_whose_time_is_up_or_that_is_cancelled_leaves_nothing_behind(counting: Counting) -> None:
    pool = pool_on([counting] * 2, DB)
    held = [await pool.aacquire({"db": 1}) for _ in range(2)]
    with pytest.raises(LimitTimeout):
        await pool.aacquire({"db": 1}, timeout=0.01)
    counting.line.came.clear()
    waiter = asyncio.create_task(pool.aacquire({"db": 1}))
    await asyncio.to_thread(counting.line.came.wait, 20)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    for one in held:
        await one.arelease()
    assert [await asyncio.to_thread(exactly_used, one) for one in pool] == [{"db": 0}] * 2
    assert not counting.line.busy
