"""The queue: bounded, in order, and nothing is lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from limits_app.outbound import Closed, FailedItem, FailurePolicy, LeftItem, RetryPolicy, WorkQueue
from limits_app.outbound.breaker import loop_us
from limits_app.outbound.events import Depth, ItemFailed
from tests.outbound.timelines import Recorder, on_a_fake_clock, started, steps


class Bench:
    """Work on items: each takes a second; some fail."""

    def __init__(self, *bad: int) -> None:
        self.bad = bad
        self.done: list[int] = []
        self.tried: list[tuple[int, float]] = []

    async def work(self, item: int) -> None:
        self.tried.append((item, asyncio.get_running_loop().time() - 1_000.0))
        await asyncio.sleep(1)
        if item in self.bad:
            raise ValueError(f"item {item}")
        self.done.append(item)


@on_a_fake_clock
async def test_items_are_worked_on_in_order_by_so_many_workers_until_the_queue_is_closed() -> None:
    bench = Bench()
    async with WorkQueue(bench.work, workers=2) as queue:
        for item in range(6):
            await queue.put(item)
        await steps()
        assert (queue.waiting, queue.running) == (4, 2)
        await queue.join()
        await queue.put(6)
        assert await queue.aclose() == []
    assert bench.tried == [(item, float(item // 2)) for item in range(7)]
    assert (queue.done, queue.left, queue.failures) == (7, [], [])
    with pytest.raises(Closed, match="queue was closed"):
        await queue.put(7)
    assert not await queue.offer(7)


@on_a_fake_clock
async def test_a_producer_waits_while_the_queue_is_full() -> None:
    bench = Bench()
    async with WorkQueue(bench.work, workers=1, capacity=2) as queue:
        assert [await queue.offer(item) for item in range(3)] == [True, True, False]
        await steps()  # the worker takes the first
        assert await queue.offer(3)
        bringing = [started(queue.put(item)) for item in (4, 5)]
        await steps()
        assert [one.done() for one in bringing] == [False, False]
        assert not await queue.offer(6)
        await asyncio.sleep(1)
        await steps()
        assert [one.done() for one in bringing] == [True, False]
    assert bench.done == [0, 1, 3, 4]
    with pytest.raises(Closed):
        await bringing[1]


@on_a_fake_clock
async def test_a_cancelled_producer_adds_nothing() -> None:
    bench = Bench()
    async with WorkQueue(bench.work, workers=1, capacity=1) as queue:
        await queue.put(0)
        bringing = [started(queue.put(item)) for item in (1, 2, 3)]
        await steps()
        bringing[1].cancel()
        await asyncio.gather(*bringing, return_exceptions=True)
    assert bench.done == [0, 1, 3]


@on_a_fake_clock
async def test_unfinished_items_are_left_in_order_after_the_grace_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    queue = WorkQueue(bench.work, workers=2, grace_seconds=1.5)
    async with queue:
        for item in range(6):
            await queue.put(item)
    assert bench.done == [0, 1]
    assert queue.left == [LeftItem(2, begun=True), LeftItem(3, begun=True), LeftItem(4, False), LeftItem(5, False)]
    assert "some items were not done in time" in caplog.text
    assert await queue.aclose() == queue.left


@on_a_fake_clock
async def test_closing_that_is_cancelled_gives_everything_back_all_the_same() -> None:
    bench = Bench()
    queue = WorkQueue(bench.work, workers=1)
    async with queue:
        await queue.put(0)
        await queue.put(1)
        closing = started(queue.aclose())
        await steps()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
    assert queue.left == [LeftItem(0, begun=True), LeftItem(1, begun=False)]


@on_a_fake_clock
async def test_failed_calls_are_repeated_with_doubling_pauses_and_then_kept() -> None:
    watch, bench = Recorder(), Bench(1)
    async with WorkQueue(
        bench.work, workers=1, retry=RetryPolicy(num_retries=2, wait=2, jitter=0, clock=loop_us), observer=watch
    ) as queue:
        for item in range(3):
            await queue.put(item)
    assert bench.tried == [(0, 0.0), (1, 1.0), (1, 4.0), (1, 9.0), (2, 10.0)]
    assert [(failed.item, str(failed.error)) for failed in queue.failures] == [(1, "item 1")]
    assert watch.of(ItemFailed) == [ItemFailed("queue", "ValueError: item 1")]
    assert watch.of(Depth)[-1] == Depth("queue", 0, 0)


@pytest.mark.parametrize("policy", [FailurePolicy.DROP, "drop"], ids=["value", "text"])
@on_a_fake_clock
async def test_failed_calls_can_be_dropped(policy: str) -> None:
    bench = Bench(1)
    async with WorkQueue(bench.work, on_failure=policy) as queue:
        for item in range(3):
            await queue.put(item)
    assert (queue.done, queue.failures, queue.left) == (2, [], [])


@on_a_fake_clock
async def test_failed_call_can_stop_the_queue_and_leave_the_rest() -> None:
    bench = Bench(1)
    async with WorkQueue(bench.work, workers=2, capacity=4, on_failure=FailurePolicy.STOP) as queue:
        for item in range(4):
            await queue.put(item)
        await steps()
        await queue.put(4)
        await queue.put(5)
        bringing = started(queue.put(6))
        await queue.join()
        with pytest.raises(Closed):
            await bringing
    assert [failed.item for failed in queue.failures] == [1]
    assert sorted([*bench.done, *(left.item for left in queue.left)]) == [0, 2, 3, 4, 5]


@on_a_fake_clock
async def test_failed_calls_can_be_handed_over() -> None:
    taken: list[FailedItem[int]] = []

    async def take(failed: FailedItem[int]) -> None:
        taken.append(failed)

    async with WorkQueue(Bench(0, 2).work, workers=1, on_failure=take) as queue:
        for item in range(3):
            await queue.put(item)
    assert [failed.item for failed in taken] == [0, 2]
    assert queue.failures == []


@on_a_fake_clock
async def test_calls_that_could_not_be_handed_over_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def full(failed: FailedItem[int]) -> None:
        raise OSError("no space left")

    async with WorkQueue(Bench(0).work, on_failure=full) as queue:
        await queue.put(0)
    assert [failed.item for failed in queue.failures] == [0]
    assert "on_failure has failed" in caplog.text


@on_a_fake_clock
async def test_closing_in_the_middle_of_a_hand_over_leaves_the_item() -> None:
    async def never(failed: FailedItem[int]) -> None:
        await asyncio.Event().wait()

    async with WorkQueue(Bench(0).work, on_failure=never, grace_seconds=5) as queue:
        await queue.put(0)
    assert queue.left == [LeftItem(0, begun=True)]
    assert queue.failures == []


@on_a_fake_clock
async def test_work_that_cancels_itself_is_left_and_the_queue_goes_on() -> None:
    async def work(item: int) -> None:
        if item == 0:
            raise asyncio.CancelledError

    async with WorkQueue(work, workers=1) as queue:
        await queue.put(0)
        await queue.put(1)
    assert (queue.done, queue.left, queue.failures) == (1, [LeftItem(0, begun=True)], [])


@pytest.mark.parametrize("grace", [0.0, 3.0, 7.5, 100.0])
@pytest.mark.parametrize("seed", range(5))
@on_a_fake_clock
async def test_every_item_that_was_taken_is_somewhere_at_the_end(seed: int, grace: float) -> None:
    """Items of any length, some of which fail; bringers of which some go away; an end at any time."""
    dice = random.Random(seed)

    taken, done = [], []

    async def work(item: int) -> None:
        await asyncio.sleep(dice.random())
        if dice.random() < 0.2:
            raise ValueError(item)
        done.append(item)

    queue = WorkQueue(work, workers=3, capacity=5, retry=RetryPolicy(num_retries=1, wait=0.1, clock=loop_us))

    async def bring(first: int) -> None:
        for item in range(first, first + 20):
            await asyncio.sleep(dice.random() / 10)
            await queue.put(item)
            taken.append(item)

    async with queue:
        bringers = [started(bring(first)) for first in (0, 100, 200)]
        await asyncio.sleep(4)
        bringers[1].cancel()
        await queue.aclose(grace_seconds=grace)
    await asyncio.gather(*bringers, return_exceptions=True)
    found = [*done, *(one.item for one in queue.failures), *(one.item for one in queue.left)]
    assert sorted(found) == sorted(taken)
    assert (queue.waiting, queue.running) == (0, 0)


@pytest.mark.parametrize("policy", ["zzz", "STOP", "", None])
def test_unknown_policy_is_rejected(policy: object) -> None:
    with pytest.raises(ValueError, match="on_failure must be a coroutine function or one of keep, drop, stop, not "):
        WorkQueue(Bench().work, on_failure=policy)  # type: ignore[arg-type]  # as those without types would
