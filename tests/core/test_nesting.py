"""Nested requests: a thread or task does not wait for permits that it holds in a block around the request."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import multiprocessing
import sys
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitTimeout
from limits_app.core.keys import scope_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import ResourceLimit
from limits_app.core.plan import ScopedLimits
from limits_app.core.record import schema_of
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.core.sets import CALLS, TPM, limit_set, used

ONE = ResourceLimit("db", 1)


@pytest.fixture
def limits(store: MemoryStore) -> LimitSet:
    return limit_set(store, ONE)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Call a function in a new thread and return its result."""
    results = []
    thread = Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


VERBS = [
    pytest.param(lambda limits, requested=None: limits.try_acquire(requested), id="try"),
    pytest.param(lambda limits, requested=None: limits.acquire(requested, timeout=None), id="acquire"),
]


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_thread_takes_no_implicit_permit_again(verb: Callable[..., Acquisition], limits: LimitSet) -> None:
    with verb(limits) as outer:
        with verb(limits) as inner, verb(limits) as innermost:
            assert outer
            assert inner
            assert innermost
            assert inner.acquisitions == {}
            assert used(limits) == {"db": 1}
        assert used(limits) == {"db": 1}, "inner blocks give back nothing of the outer one"
    assert used(limits) == {"db": 0}


def test_a_permit_whose_lease_was_lost_does_not_count_for_nested_requests(
    limits: LimitSet, store: MemoryStore, clock: FakeClock
) -> None:
    with limits.acquire():
        # As if the process had been stopped for a minute: the clock went on without renewals.
        clock.now_us += 60_000_000
        other = in_a_thread(limits.try_acquire)
        clock.advance(1)
        assert other
        assert not limits.try_acquire()
    other.release()


def test_calls_and_rates_of_a_nested_acquire_are_charged(store: MemoryStore) -> None:
    limits = limit_set(store, TPM, CALLS, ONE)
    with limits.acquire({"tpm": 5}) as outer:
        with limits.acquire({"tpm": 3}) as inner:
            inner.update({"tpm": 3})
        outer.update({"tpm": 5})
        assert used(limits) == {"tpm": 8, "call_count": 2, "db": 1}


def test_naming_the_key_takes_permits_again(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 3))
    with limits.acquire(), limits.acquire({"db": 1}), limits.acquire({"db": 1}):
        assert used(limits) == {"db": 3}
        assert not limits.try_acquire({"db": 1})
        assert limits.try_acquire()
    assert used(limits) == {"db": 0}


def test_naming_the_key_waits_for_a_permit_that_is_not_released(limits: LimitSet) -> None:
    with limits.acquire(), pytest.raises(LimitTimeout):
        limits.acquire({"db": 1}, timeout=0)


def test_an_explicit_zero_leaves_a_limit_out(limits: LimitSet) -> None:
    with limits.acquire({"db": 0}):
        assert used(limits) == {"db": 0}
        with limits.acquire():
            assert used(limits) == {"db": 1}
            with limits.acquire({"db": 0}):
                assert used(limits) == {"db": 1}


def test_only_permits_that_are_held_are_left_out(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2), ResourceLimit("gpu", 2))
    with limits.acquire({"db": 0}):
        assert used(limits) == {"db": 0, "gpu": 1}
        with limits.acquire():
            assert used(limits) == {"db": 1, "gpu": 1}
            with limits.acquire():
                assert used(limits) == {"db": 1, "gpu": 1}


def test_another_set_on_the_same_store_is_another_set(store: MemoryStore) -> None:
    one, other = limit_set(store, ONE), limit_set(store, ONE)
    with one.acquire(), other.acquire():
        assert used(one) == used(other) == {"db": 1}


def test_a_copy_of_a_set_is_the_same_set(limits: LimitSet) -> None:
    copied = copy.copy(limits)
    assert copied is not limits
    with limits.acquire():
        assert copied.acquire(timeout=0).acquisitions == {}
        assert used(limits) == {"db": 1}
    with copied.acquire():
        assert limits.acquire(timeout=0).acquisitions == {}


def test_a_copy_on_another_store_is_another_set(limits: LimitSet, clock: FakeClock) -> None:
    other = LimitSet.composed(limits.scoped, MemoryStore(clock=clock))
    with limits.acquire(), other.acquire():
        assert used(limits) == used(other) == {"db": 1}


def test_two_sets_that_are_composed_of_the_same_scopes_are_two(store: MemoryStore) -> None:
    scoped = [ScopedLimits(scope_of("nesting", None), schema_of((ResourceLimit("db", 2),)))]
    one, other = LimitSet.composed(scoped, store), LimitSet.composed(scoped, store)
    with one.acquire(), other.acquire():
        assert used(one) == used(other) == {"db": 2}


def test_a_permit_that_was_held_for_as_long_as_it_may_be_is_not_held_any_more(
    store: MemoryStore, clock: FakeClock
) -> None:
    limits = limit_set(store, ResourceLimit("db", 1, max_hold_seconds=5), ResourceLimit("gpu", 2))
    with limits.acquire():
        clock.now_us += 4_999_999  # between two renewals
        assert limits.try_acquire().acquisitions == {}
        clock.now_us += 1
        other = in_a_thread(lambda: limits.try_acquire({"gpu": 0}))
        assert other
        assert not limits.try_acquire(), "another thread has the permit now"
        other.release()
        inner = limits.try_acquire()
        assert inner.acquisitions.keys() == {"db"}
    assert used(limits) == {"db": 1, "gpu": 0}


def test_of_several_scopes_only_those_whose_permits_are_held_are_left_out(store: MemoryStore) -> None:
    one, two = [ScopedLimits(scope_of("nesting", who), schema_of((ResourceLimit("db", 9),))) for who in "ab"]

    class Same(LimitSet):
        def is_same(self, other: LimitSet) -> bool:
            return isinstance(other, Same)

    with Same.composed([one], store).acquire(), Same.composed([one, two], store).acquire():
        assert [used(LimitSet.composed([part], store)) for part in (one, two)] == [{"db": 1}, {"db": 1}]
        with Same.composed([two], store).acquire({"db": 2}):
            assert used(LimitSet.composed([two], store)) == {"db": 3}


def test_after_the_release_permits_are_taken_again(limits: LimitSet) -> None:
    for _ in range(3):
        with limits.acquire():
            assert used(limits) == {"db": 1}
    first = limits.acquire()
    first.release()
    assert limits.acquire().acquisitions["db"].requested == 1


def test_blocks_need_not_end_in_order(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 3))
    first, second, third = limits.acquire(), limits.acquire({"db": 1}), limits.acquire({"db": 1})
    for acquisition in (first, second, third):
        acquisition.__enter__()
    second.__exit__(None, None, None)
    assert limits.try_acquire().acquisitions == {}
    first.__exit__(None, None, None)
    assert limits.try_acquire().acquisitions == {}
    third.__exit__(None, None, None)
    assert limits.try_acquire().acquisitions["db"].requested == 1


def test_a_release_within_the_block_ends_the_hold(limits: LimitSet) -> None:
    with limits.acquire() as outer:
        outer.release()
        inner = limits.acquire(timeout=0)
        assert inner.acquisitions["db"].requested == 1
        inner.release()


def test_an_acquisition_that_was_not_entered_does_not_count_as_held(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2))
    tried = [limits.try_acquire() for _ in range(10)]
    assert [bool(acquisition) for acquisition in tried] == [True, True] + [False] * 8
    assert used(limits) == {"db": 2}


def test_an_acquisition_that_is_entered_late_is_held_from_then_on(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2))
    first, second = limits.try_acquire(), limits.try_acquire()
    assert not limits.try_acquire()
    with second:
        assert limits.try_acquire().acquisitions == {}
    first.release()
    assert used(limits) == {"db": 0}


def test_a_rejected_acquisition_that_is_entered_holds_nothing(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2))
    other = limits.try_acquire({"db": 2})
    with limits.try_acquire() as rejected:
        assert not rejected
        assert not limits.try_acquire()
    other.release()


def test_a_permit_that_was_dropped_within_its_block_is_not_held_any_more(limits: LimitSet) -> None:
    limits.acquire().__enter__()
    gc.collect()
    assert not limits.try_acquire(), "its lease has not run out yet"
    with limits.acquire({"db": 0}):
        assert not limits.try_acquire()


def test_a_permit_that_was_dropped_is_not_held_any_more(limits: LimitSet) -> None:
    limits.acquire()
    gc.collect()
    assert not limits.try_acquire(), "its lease has not run out yet"


def test_a_refused_try_holds_nothing(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2))
    other = in_a_thread(lambda: limits.acquire({"db": 2}))
    refused = limits.try_acquire()
    assert not refused
    other.release()
    assert limits.try_acquire().acquisitions["db"].requested == 1


def test_another_thread_holds_nothing_of_it(limits: LimitSet) -> None:
    with limits.acquire():
        assert not in_a_thread(limits.try_acquire)
    assert in_a_thread(limits.try_acquire)


def test_what_another_thread_released_is_not_held_any_more(limits: LimitSet) -> None:
    acquisition = limits.acquire()
    in_a_thread(acquisition.release)
    assert limits.try_acquire().acquisitions["db"].requested == 1


def test_a_new_thread_holds_nothing_of_one_that_has_ended(limits: LimitSet) -> None:
    # Threads that have ended leave their identifiers to new ones.
    for _ in range(20):
        handed_over = in_a_thread(limits.acquire)
        assert handed_over
        assert not any(in_a_thread(limits.try_acquire) for _ in range(4))
        handed_over.release()


def test_thousands_of_threads_that_ended_without_releasing_are_forgotten(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 10**6))
    kept = [in_a_thread(limits.try_acquire) for _ in range(1500)]
    assert all(kept)
    with limits.acquire():
        assert limits.try_acquire().acquisitions == {}
    for acquisition in kept:
        acquisition.release()
    assert used(limits) == {"db": 0}


def test_a_worker_thread_that_is_used_again_holds_nothing_of_its_former_work(limits: LimitSet) -> None:
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(limits.acquire).result()
        assert not pool.submit(limits.try_acquire).result()
        held.release()


def test_a_block_of_another_thread_holds_nothing_here(limits: LimitSet) -> None:
    held = limits.acquire()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(held.__enter__).result()
        assert not limits.try_acquire()
        assert pool.submit(limits.try_acquire).result().acquisitions == {}
        held.__exit__(None, None, None)
        again = pool.submit(limits.acquire).result()
        assert again.acquisitions["db"].requested == 1
        again.release()


def test_a_thread_that_runs_in_a_copied_context_holds_nothing_of_it(limits: LimitSet) -> None:
    with limits.acquire():
        context = contextvars.copy_context()
        assert not in_a_thread(lambda: context.run(limits.try_acquire))
        assert context.run(limits.try_acquire).acquisitions == {}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in an event loop."""
    asyncio.run(scenario)


def test_the_same_task_takes_no_implicit_permit_again(limits: LimitSet) -> None:
    async def scenario() -> None:
        async with await limits.aacquire():
            async with await limits.aacquire(), await limits.atry_acquire():
                assert used(limits) == {"db": 1}
            assert used(limits) == {"db": 1}
        assert used(limits) == {"db": 0}

    run(scenario())


def test_an_acquisition_that_no_task_has_entered_does_not_count_as_held(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 2))

    async def scenario() -> None:
        tried = [await limits.atry_acquire() for _ in range(10)]
        assert [bool(acquisition) for acquisition in tried] == [True, True] + [False] * 8

    run(scenario())


def test_several_tasks_of_one_thread_are_several_holders(limits: LimitSet) -> None:
    async def scenario() -> None:
        held, done = asyncio.Event(), asyncio.Event()

        async def holder() -> None:
            async with await limits.aacquire():
                held.set()
                await done.wait()

        task = asyncio.create_task(holder())
        await held.wait()
        assert not await limits.atry_acquire()
        done.set()
        await task
        assert await limits.atry_acquire()

    run(scenario())


def test_a_child_task_is_another_holder(limits: LimitSet) -> None:
    async def scenario() -> None:
        async with await limits.aacquire():
            assert not await asyncio.create_task(limits.atry_acquire())
            async with asyncio.TaskGroup() as group:
                child = group.create_task(limits.atry_acquire())
            assert not child.result()

    run(scenario())


def test_a_thread_of_a_task_is_another_holder(limits: LimitSet) -> None:
    async def scenario() -> None:
        async with await limits.aacquire():
            assert not await asyncio.to_thread(limits.try_acquire)

    run(scenario())


def test_a_sync_call_inside_a_task_belongs_to_the_task(limits: LimitSet) -> None:
    async def scenario() -> None:
        with limits.acquire():
            async with await limits.aacquire():
                assert limits.try_acquire().acquisitions == {}
            assert not await asyncio.create_task(limits.atry_acquire())

    run(scenario())


def test_a_task_holds_nothing_of_its_thread(limits: LimitSet) -> None:
    async def scenario() -> None:
        assert not await limits.atry_acquire()

    with limits.acquire():
        run(scenario())


def test_thousands_of_tasks_that_ended_without_releasing_are_forgotten(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 10**6))

    async def scenario() -> None:
        kept = [await asyncio.create_task(limits.atry_acquire()) for _ in range(3000)]
        assert all(kept)
        async with await limits.aacquire():
            assert (await limits.atry_acquire()).acquisitions == {}
        for acquisition in kept:
            acquisition.release()

    run(scenario())
    assert used(limits) == {"db": 0}


def test_a_callback_of_the_loop_is_no_task(limits: LimitSet) -> None:
    async def scenario() -> None:
        seen: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        async with await limits.aacquire():
            asyncio.get_running_loop().call_soon(lambda: seen.set_result(bool(limits.try_acquire())))
            assert not await seen

    run(scenario())


def test_callbacks_of_the_loop_hold_nothing_in_common(limits: LimitSet) -> None:
    async def scenario() -> None:
        loop, kept, seen = asyncio.get_running_loop(), [], asyncio.get_running_loop().create_future()
        loop.call_soon(lambda: kept.append(limits.try_acquire()))
        loop.call_soon(lambda: seen.set_result(limits.try_acquire()))
        assert not await seen
        loop.call_soon(kept[0].release)
        await asyncio.sleep(0)
        assert await limits.atry_acquire()

    run(scenario())


def test_a_loop_that_is_not_one_of_asyncio_counts_as_its_thread(limits: LimitSet) -> None:
    before = sys.get_asyncgen_hooks()
    try:
        sys.set_asyncgen_hooks(firstiter=lambda generator: None)
        with limits.acquire():
            assert limits.try_acquire().acquisitions == {}
    finally:
        sys.set_asyncgen_hooks(*before)


@pytest.fixture
def forked() -> Iterator[Any]:
    """Processes that are forked."""
    return multiprocessing.get_context("fork")  # type: ignore[return-value]  # pytest takes values too


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_holds_nothing_of_what_its_parent_holds(limits: LimitSet, forked: Any) -> None:
    heard, said = forked.Pipe(duplex=False)

    def ask() -> None:
        said.send(bool(limits.try_acquire()))

    with limits.acquire():
        child = forked.Process(target=ask)
        child.start()
        assert heard.recv() is False, "the copy of the state still counts the permit of the parent"
        child.join()
