"""Nested requests: a thread or task does not wait for permits that it holds in a block around the request."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import gc
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.blocks import enter_block
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import CALLS, TPM, limit_set, used
from tests.acquiring.watched import in_a_loop
from tests.forking import exit_code_of_child

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


def test_a_lost_permit_does_not_count_as_held(limits: LimitSet, store: MemoryStore, clock: FakeClock) -> None:
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


@pytest.mark.parametrize("back", [0, 3600])
def test_a_permit_is_not_held_longer_than_max_hold(store: MemoryStore, clock: FakeClock, back: float) -> None:
    limits = limit_set(store, ResourceLimit("db", 1, max_hold_seconds=5), ResourceLimit("gpu", 2))
    with limits.acquire():
        clock.advance(-back)
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
        @property
        def nesting_key(self) -> str:
            return "same"

    with Same.composed([one], store).acquire(), Same.composed([one, two], store).acquire():
        assert [used(LimitSet.composed([part], store)) for part in (one, two)] == [{"db": 1}, {"db": 1}]
        with Same.composed([two], store).acquire({"db": 2}):
            assert used(LimitSet.composed([two], store)) == {"db": 3}


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


def test_another_thread_holds_nothing_of_it_not_even_in_a_copied_context(limits: LimitSet) -> None:
    with limits.acquire():
        context = contextvars.copy_context()
        assert not in_a_thread(limits.try_acquire)
        assert not in_a_thread(lambda: context.run(limits.try_acquire))
        assert context.run(limits.try_acquire).acquisitions == {}
    assert in_a_thread(limits.try_acquire)


def test_copied_contexts_keep_no_blocks_that_have_ended(store: MemoryStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 10))
    context = contextvars.copy_context()

    def entered() -> int:
        with limits.acquire({"db": 1}) as acquisition:
            return len(enter_block(acquisition, limits))

    with limits.acquire({"db": 1}):
        context = contextvars.copy_context()
        assert in_a_thread(partial(context.run, entered)) == 2
    assert in_a_thread(partial(context.run, entered)) == 1


@in_a_loop
async def test_the_same_task_takes_no_implicit_permit_again(limits: LimitSet) -> None:
    async with await limits.aacquire():
        async with await limits.aacquire(), await limits.atry_acquire():
            assert used(limits) == {"db": 1}
        assert used(limits) == {"db": 1}
    assert used(limits) == {"db": 0}


@in_a_loop
async def test_child_tasks_threads_and_callbacks_of_a_task_are_other_holders(limits: LimitSet) -> None:
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[bool] = loop.create_future()
    with limits.acquire():
        async with await limits.aacquire():
            assert limits.try_acquire().acquisitions == {}
        assert not await asyncio.create_task(limits.atry_acquire())
        async with asyncio.TaskGroup() as group:
            child = group.create_task(limits.atry_acquire())
        assert not child.result()
        assert not await asyncio.to_thread(limits.try_acquire)
        loop.call_soon(lambda: seen.set_result(bool(limits.try_acquire())))
        assert not await seen


def test_a_task_holds_nothing_of_its_thread(limits: LimitSet) -> None:
    with limits.acquire():
        assert not asyncio.run(limits.atry_acquire())


def test_a_loop_that_is_not_one_of_asyncio_counts_as_its_thread(limits: LimitSet) -> None:
    before = sys.get_asyncgen_hooks()
    try:
        sys.set_asyncgen_hooks(firstiter=lambda generator: None)
        with limits.acquire():
            assert limits.try_acquire().acquisitions == {}
    finally:
        sys.set_asyncgen_hooks(*before)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_holds_no_permits_of_its_parent(limits: LimitSet) -> None:
    with limits.acquire():
        # The copy of the state still counts the permit of the parent.
        assert exit_code_of_child(lambda: int(bool(limits.try_acquire()))) == 0


def test_the_first_thread_that_asks_runs_a_block_of_elsewhere_and_its_end_counts_in_every_context(
    limits: LimitSet,
) -> None:
    held = limits.acquire()
    held.enter_block(elsewhere=True)
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(context.run, limits.try_acquire).result().acquisitions == {}
        assert not limits.try_acquire()
        held.leave_block()
        assert not pool.submit(context.run, limits.try_acquire).result()
    held.release()


def test_blocks_belong_to_threads_while_asyncio_is_being_imported(
    limits: LimitSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "asyncio", ModuleType("asyncio"))
    with limits.acquire(), limits.acquire() as nested:
        assert nested.successful
