"""Waiting in tasks: the same rules, without blocking the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Coroutine
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.waiting import TaskWaiter
from limits_app.engine.errors import InvalidRequest, NeverAdmissible
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.testing import FakeClock
from tests.acquiring.sets import DB, limit_set, used, used_up
from tests.acquiring.watched import WatchedStore, in_a_loop, settled

TEN = RateLimit("tpm", 10, 10)
"""One unit per second."""

ONE = ResourceLimit("db", 1)


@pytest.fixture
def store(clock: FakeClock) -> WatchedStore:
    return WatchedStore(clock=clock)


def started(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that runs beside the test."""
    return asyncio.create_task(call)


@in_a_loop
async def test_a_task_is_admitted_in_time(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = started(limits.aacquire({"tpm": 3}))
    await settled()
    clock.move(2_999_999)
    await settled()
    assert not waiter.done()
    clock.move(1)
    assert (await waiter).claim.decided_at == clock.now_us
    assert not store.line.busy


@in_a_loop
async def test_a_request_that_fits_is_admitted_immediately(store: WatchedStore) -> None:
    limits = limit_set(store)
    async with await limits.aacquire({"tpm": 30}) as acquisition:
        acquisition.update({"tpm": 10})
    assert used(limits) == {"tpm": 10, "rpm": 0, "call_count": 1, "db": 0}
    assert await LimitSet().aacquire()
    assert await LimitSet().atry_acquire({"typo": 1})


@in_a_loop
async def test_an_impossible_request_is_rejected_immediately(store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    with pytest.raises(InvalidRequest, match="timeout"):
        await limits.aacquire({"tpm": 1}, timeout=-1)
    with pytest.raises(InvalidRequest, match="amount of 'tpm'"):
        await limits.aacquire({"tpm": -1})
    with pytest.raises(InvalidRequest, match="nothing is requested"):
        await limits.atry_acquire()
    with pytest.raises(NeverAdmissible):
        await limits.aacquire({"tpm": 11})
    assert used(limits) == {"tpm": 0}


@in_a_loop
async def test_waiting_does_not_block_the_loop() -> None:
    limits = LimitSet([CallLimit(1, 0.05)], shared=True, mode="asyncio")
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = started(tick())
    for _ in range(3):
        await limits.aacquire()
    assert turns > 50
    ticking.cancel()


@in_a_loop
async def test_threads_and_tasks_stand_in_one_line(store: WatchedStore) -> None:
    limits = limit_set(store, ONE)
    held = await limits.aacquire()
    thread = store.waiting(limits.acquire)
    task = started(limits.aacquire())
    await settled()
    held.release()
    from_thread = await asyncio.to_thread(thread.result)
    await settled()
    assert not task.done()
    from_thread.release()
    (await task).release()


@in_a_loop
async def test_a_task_that_is_cancelled_leaves_nothing_and_lets_the_next_one_through(store: WatchedStore) -> None:
    limits = limit_set(store, TEN, DB)
    held = await limits.aacquire({"db": 3})
    first = started(limits.aacquire({"tpm": 5, "db": 3}))
    await settled()
    second = started(limits.aacquire({"db": 1}))
    await settled()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    held.release()
    (await second).release()
    assert used(limits) == {"tpm": 0, "db": 0}
    assert not store.line.busy


@in_a_loop
async def test_a_task_that_is_cancelled_when_it_was_just_woken_passes_the_turn_on(store: WatchedStore) -> None:
    limits = limit_set(store, ONE)
    held = await limits.aacquire()
    first, second = started(limits.aacquire()), started(limits.aacquire())
    await settled()
    held.release()
    first.cancel()
    (await second).release()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert used(limits) == {"db": 0}


@in_a_loop
async def test_a_hundred_tasks_half_of_them_cancelled(store: WatchedStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 3))
    most = now = 0

    async def work() -> None:
        nonlocal most, now
        async with await limits.aacquire():
            now += 1
            most = max(most, now)
            await asyncio.sleep(0)
            now -= 1

    tasks = [started(work()) for _ in range(100)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 3
    assert results[1::2] == [None] * 50
    assert used(limits) == {"db": 0}
    assert not store.line.busy


def test_a_closed_loop_does_not_affect_others(store: WatchedStore, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "asyncio")  # it complains of the task that nobody awaited
    limits = limit_set(store, ONE)
    held = limits.acquire()
    loop = asyncio.new_event_loop()
    abandoned = loop.create_task(limits.aacquire())
    loop.run_until_complete(settled())
    behind = store.waiting(limits.acquire, {"db": 1})
    loop.close()
    held.release()
    behind.result().release()
    assert not abandoned.done()
    assert used(limits) == {"db": 0}
    store.watched.waiting.clear()
    del abandoned
    gc.collect()  # so that it complains here


def test_a_waiter_may_be_woken_after_its_loop_was_closed() -> None:
    async def waiter() -> TaskWaiter:
        return TaskWaiter()

    closed = asyncio.run(waiter())
    closed.wake()
    assert not closed.is_waiting()
