"""Stores on another machine: tasks use the verbs for asyncio, and the event loop is never blocked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from limits_app.core.errors import LimitTimeout, NeverAdmissible, StoreUnavailable, UsageNotReported
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.core.plan import Amounts, Claim
from limits_app.core.waiting import Waiter, WaitingLine
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.memory import MemoryStore
from tests.core.sets import limit_set
from tests.core.sets import used as exactly_used
from tests.core.watched import PATIENCE_SECONDS, in_a_loop

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


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in an event loop."""
    asyncio.run(scenario)


@in_a_loop
async def test_a_task_acquires_reports_and_releases(far: FarStore) -> None:
    limits = limit_set(far, CallLimit(5, 3600), TPM, DB)
    async with await limits.atry_acquire({"tpm": 8}) as acquisition:
        assert acquisition
        acquisition.update({"tpm": 5})
    async with await limits.aacquire({"tpm": 2}, timeout=0) as acquisition:
        acquisition.update({"tpm": 2})
    assert await asyncio.to_thread(used, limits) == {"call_count": 2, "tpm": 7, "db": 0}


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
async def test_a_refusal_says_why(far: FarStore) -> None:
    limits = limit_set(far, TPM)
    assert await limits.atry_acquire({"tpm": 10})
    refused = await limits.atry_acquire({"tpm": 1})
    assert refused.outcome.violations[0].key == "tpm"
    async with refused:
        pass
    with pytest.raises(LimitTimeout):
        await limits.aacquire({"tpm": 1}, timeout=0)
    with pytest.raises(LimitTimeout):
        await limits.aacquire({"tpm": 1}, timeout=0.01)


@in_a_loop
async def test_more_than_can_ever_be_admitted_is_an_error_at_once(far: FarStore) -> None:
    limits = limit_set(far, TPM)
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
        run(scenario(steps))
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
async def test_what_is_not_reported_is_an_error_after_everything_was_released(far: FarStore) -> None:
    limits = limit_set(far, TPM, DB)
    with pytest.raises(UsageNotReported, match="tpm"):
        async with await limits.atry_acquire({"tpm": 3}):
            pass
    assert await asyncio.to_thread(used, limits) == {"tpm": 3, "db": 0}


@in_a_loop
async def test_what_was_used_up_has_nothing_to_settle(far: FarStore) -> None:
    limits = limit_set(far, TPM)
    far.down = True
    async with await limits.atry_acquire({"tpm": 3}) as acquisition:
        acquisition.update({"tpm": 3})
    far.down = False
    async with await limits.atry_acquire({"tpm": 3}) as acquisition:
        acquisition.update({"tpm": 1})
    assert await asyncio.to_thread(used, limits) == {"tpm": 4}


@in_a_loop
async def test_a_block_that_raises_gives_back(far: FarStore) -> None:
    limits = limit_set(far, TPM, DB)
    with pytest.raises(KeyError):
        async with await limits.atry_acquire({"tpm": 3}):
            raise KeyError
    assert await asyncio.to_thread(used, limits) == {"tpm": 0, "db": 0}


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
