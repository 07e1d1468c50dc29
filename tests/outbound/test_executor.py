"""Executors: so much at the same time, in order, and an end that is in order."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import Closed, Executor, Pace, QueueTimeout, Quota
from limits_app.outbound.events import Depth
from tests.outbound.timelines import Recorder, on_a_fake_clock, started, steps


class Work:
    """Calls that take a second, and remember when they began and whether they ended."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, float]] = []
        self.ended: list[int] = []
        self.most = self.now = 0
        self._start = asyncio.get_running_loop().time()

    def call(self, number: int, *, takes: float = 1.0) -> object:
        async def work() -> int:
            self.begun.append((number, round(asyncio.get_running_loop().time() - self._start, 3)))
            self.now += 1
            self.most = max(self.most, self.now)
            try:
                await asyncio.sleep(takes)
                self.ended.append(number)
            finally:
                self.now -= 1
            return number

        return work


@on_a_fake_clock
async def test_at_most_so_many_run_at_the_same_time_and_the_others_in_order() -> None:
    work = Work()
    async with Executor(3) as executor:
        tasks = [executor.submit(work.call(number)) for number in range(8)]
        await steps()
        assert (executor.running, executor.waiting) == (3, 5)
        assert await asyncio.gather(*tasks) == list(range(8))
    assert work.most == 3
    assert work.begun == [(number, float(number // 3)) for number in range(8)]


@on_a_fake_clock
async def test_closing_waits_for_everything_that_was_taken_and_takes_nothing_more() -> None:
    work, executor = Work(), Executor(2)
    tasks = [executor.submit(work.call(number)) for number in range(6)]
    assert await executor.aclose() == 0
    assert [task.result() for task in tasks] == list(range(6))
    with pytest.raises(Closed, match="executor was closed"):
        executor.submit(work.call(7))
    assert await executor.aclose() == 0


@on_a_fake_clock
async def test_late_calls_are_cancelled_and_their_waiters_notified() -> None:
    work, executor = Work(), Executor(2)
    tasks = [executor.submit(work.call(number)) for number in range(6)]
    assert await executor.aclose(grace_seconds=1.5) == 4
    assert [task.cancelled() for task in tasks] == [False] * 2 + [True] * 4
    assert (work.ended, work.now, executor.running, executor.waiting) == ([0, 1], 0, 0, 0)


@on_a_fake_clock
async def test_closing_that_is_itself_cancelled_leaves_nothing_running() -> None:
    work, executor = Work(), Executor(2)
    tasks = [executor.submit(work.call(number)) for number in range(4)]
    closing = started(executor.aclose())
    await steps()
    closing.cancel()
    await asyncio.gather(closing, *tasks, return_exceptions=True)
    assert closing.cancelled()
    assert all(task.cancelled() for task in tasks)


@on_a_fake_clock
async def test_a_caller_that_goes_away_takes_its_call_along() -> None:
    work = Work()
    async with Executor(1) as executor:
        callers = [started(executor.run(work.call(number))) for number in range(3)]
        await steps()
        callers[0].cancel()
        callers[1].cancel()
        assert await callers[2] == 2
        assert work.ended == [2]


@on_a_fake_clock
async def test_an_error_is_that_of_its_caller_alone() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    work = Work()
    async with Executor(1) as executor:
        failing = executor.submit(fails)
        assert await executor.run(work.call(1)) == 1
        with pytest.raises(ValueError, match="mine"):
            await failing


@on_a_fake_clock
async def test_its_depth_is_reported() -> None:
    watch, work = Recorder(), Work()
    async with Executor(1, name="calls", observer=watch) as executor:
        await asyncio.gather(*[executor.run(work.call(number)) for number in range(2)])
    assert Depth("calls", 1, 1) in watch.events
    assert watch.events[-1] == Depth("calls", 0, 0)


@on_a_fake_clock
async def test_a_function_is_mapped_over_items_with_results_in_their_order() -> None:
    work = Work()

    async def double(number: int) -> int:
        await work.call(number, takes=3 - number)()
        return 2 * number

    async with Executor(2) as executor:
        assert await executor.map(double, range(3)) == [0, 2, 4]
        assert await executor.map(double, []) == []
    assert work.most == 2


@on_a_fake_clock
async def test_an_error_in_a_map_cancels_the_other_calls() -> None:
    work = Work()

    async def only_even(number: int) -> None:
        await work.call(number)()
        if number % 2:
            raise ValueError(number)

    async with Executor(2) as executor:
        with pytest.raises(ValueError, match="1"):
            await executor.map(only_even, range(100))
        await steps()
        assert (executor.running, executor.waiting) == (0, 0)
    assert work.ended == [0, 1]


@on_a_fake_clock
async def test_calls_reserve_their_places_and_begin_one_by_one() -> None:
    work = Work()
    pace = Pace(Quota("rps", 4, 1.0), max_gap=0.25)
    async with Executor(100, pace=pace) as executor:
        await asyncio.gather(*[executor.run(work.call(number, takes=0)) for number in range(10)])
    assert [number for number, _ in work.begun] == list(range(10))
    assert all(later - earlier >= 0.999 for (_, earlier), (_, later) in zip(work.begun, work.begun[4:], strict=False))
    assert work.begun[-1][1] < 2.6


@on_a_fake_clock
async def test_a_call_that_cannot_start_in_time_is_rejected() -> None:
    work = Work()
    async with Executor(100, pace=Pace(Quota("rps", 1, 10.0)), wait_seconds=12) as executor:
        calls = [executor.run(work.call(number, takes=0)) for number in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert results[:2] == [0, 1]
    assert isinstance(results[2], QueueTimeout)
    assert work.begun == [(0, 0.0), (1, 10.001)]


@on_a_fake_clock
async def test_closing_releases_calls_that_did_not_start() -> None:
    work, pace = Work(), Pace(Quota("rps", 1, 10.0))
    executor = Executor(100, pace=pace)
    for number in range(5):
        executor.submit(work.call(number, takes=0))
    assert await executor.aclose(grace_seconds=11) == 3
    assert (pace.waiting, pace.in_flight, work.ended) == (0, 0, [0, 1])


@on_a_fake_clock
async def test_without_a_bound_all_calls_run_at_the_same_time() -> None:
    work = Work()
    async with Executor(None) as executor:
        await asyncio.gather(*[executor.run(work.call(number, takes=5)) for number in range(300)])
    assert {when for _, when in work.begun} == {0.0}
