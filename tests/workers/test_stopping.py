"""Stopping: orderly, in a hurry, and from blocks."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from threading import Event

import pytest

from limits_app.workers import WorkerPool, gather
from limits_app.workers import pool as pools
from tests.acquiring.watched import Caller
from tests.workers.people import Clerk, Gatekeeper

SECONDS = 20


def test_submitted_calls_are_done_when_a_block_ends(mode: str) -> None:
    with Clerk.options(mode=mode, max_queued_tasks=2, max_workers=2).init() as clerks:
        futures = [clerks.tell(number) for number in range(50)]
    assert all(future.done() for future in futures)
    assert gather(futures)[-1] == list(range(1, 50, 2))


def test_an_asynchronous_block_does_the_same(mode: str) -> None:
    async def work() -> list[object]:
        async with Clerk.options(mode=mode).init() as clerk:
            return [await clerk.tell(1), clerk.tell(2)]

    first, second = asyncio.run(work())
    assert first == [1]
    assert second.result(0) == [1, 2]  # type: ignore[attr-defined]


def test_stopped_workers_take_no_calls_and_can_be_stopped_again(clerk: WorkerPool[Clerk]) -> None:
    clerk.stop()
    clerk.stop()
    with pytest.raises(RuntimeError, match="the workers are stopped: 'tell' cannot be called"):
        clerk.tell(1)


def blocked(gate: Event, mode: str = "thread") -> tuple[WorkerPool[Gatekeeper], list[object]]:
    """Workers that are in the middle of one call, with one in their hands and one that waits."""
    entered = Event()
    keeper = Gatekeeper.options(mode=mode, max_queued_tasks=2).init(gate, entered)
    futures = [keeper.pass_through(number) for number in range(3)]
    assert entered.wait(SECONDS)
    return keeper, futures


@pytest.mark.parametrize("mode", ["thread", "asyncio"])
def test_calls_that_have_not_begun_can_be_cancelled(gate: Event, mode: str) -> None:
    keeper, futures = blocked(gate, mode)
    stopping = Caller(keeper.stop, cancel=True)
    with pytest.raises(CancelledError):
        futures[2].result(SECONDS)  # type: ignore[attr-defined]
    gate.set()
    stopping.result()
    assert [future.cancelled() for future in futures] == [False, True, True]  # type: ignore[attr-defined]


def test_block_that_raises_cancels_waiting_calls(gate: Event) -> None:
    keeper, futures = blocked(gate)
    futures[2].add_done_callback(lambda _: gate.set())  # type: ignore[attr-defined]
    with pytest.raises(LookupError), keeper:
        raise LookupError
    assert [future.cancelled() for future in futures] == [False, True, True]  # type: ignore[attr-defined]


def test_a_thread_that_does_not_end_is_reported(gate: Event) -> None:
    keeper, futures = blocked(gate)
    with pytest.raises(TimeoutError, match="calls are still running"):
        keeper.stop(timeout=0)
    gate.set()
    assert futures[0].result(SECONDS) == 0  # type: ignore[attr-defined]


def test_a_coroutine_that_has_not_begun_can_be_cancelled(gate: Event) -> None:
    entered = Event()
    with Gatekeeper.options(mode="asyncio").init(gate, entered) as keeper:
        holding = keeper.hold_the_loop()
        assert entered.wait(SECONDS)
        assert keeper.wait_for_ever().cancel()
        gate.set()
        assert holding.result(SECONDS)


@pytest.mark.parametrize("on_demand", [False, True])
def test_coroutines_are_cancelled_in_a_hurry(gate: Event, on_demand: bool) -> None:
    entered = Event()
    keeper = Gatekeeper.options(mode="asyncio", on_demand=on_demand).init(gate, entered)
    future = keeper.wait_for_ever()
    assert entered.wait(SECONDS)
    keeper.stop(timeout=0)
    with pytest.raises(CancelledError):
        future.result(SECONDS)


def test_call_after_the_end_of_its_thread_fails() -> None:
    clerk = Clerk.options(mode="thread").init()
    clerk.stop()
    task = clerk._queues[0].submit(pools.Call("say_name", (), {}))
    with pytest.raises(RuntimeError, match="shutdown"):
        task.future.result(SECONDS)
