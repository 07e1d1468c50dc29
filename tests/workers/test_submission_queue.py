"""The submission queue: order, bounds, and what happens when handing on fails."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from threading import Condition

import pytest

from limits_app.workers.futures import Call, Task
from limits_app.workers.queue import SubmissionQueue
from tests.acquiring.watched import Caller


def call(number: int) -> Call:
    return Call("work", (number,), {})


def numbers(tasks: list[Task]) -> list[int]:
    return [task.call.args[0] for task in tasks]


class Desk:
    """A back end on which tasks lie until a test ends them."""

    def __init__(self, capacity: int | None) -> None:
        self.queue = SubmissionQueue(self.hand_on, capacity)
        self.handed: list[Task] = []

    def hand_on(self, task: Task) -> None:
        self.run(task)

    def run(self, task: Task) -> None:
        self.handed.append(task)
        assert task.begin()

    def counts(self) -> tuple[int, int]:
        return self.queue.waiting, self.queue.in_flight


def test_as_many_are_handed_on_as_may_be_in_flight_and_the_rest_follows_as_they_end() -> None:
    desk = Desk(2)
    tasks = [desk.queue.submit(call(number)) for number in range(5)]
    timeline = [(numbers(desk.handed), *desk.counts())]
    for task in tasks:
        task.succeed("done")
        timeline.append((numbers(desk.handed), *desk.counts()))
    assert timeline == [
        ([0, 1], 3, 2),
        ([0, 1, 2], 2, 2),
        ([0, 1, 2, 3], 1, 2),
        ([0, 1, 2, 3, 4], 0, 2),
        ([0, 1, 2, 3, 4], 0, 1),
        ([0, 1, 2, 3, 4], 0, 0),
    ]
    assert {task.future.result() for task in tasks} == {"done"}


def test_without_a_bound_all_are_handed_on() -> None:
    desk = Desk(None)
    for number in range(1_000):
        desk.queue.submit(call(number))
    assert desk.counts() == (0, 1_000)
    desk.handed[0].fail(LookupError())
    assert desk.counts() == (0, 999)


@pytest.mark.parametrize("capacity", [1, 2, None])
def test_a_hand_over_that_fails_drops_neither_its_task_nor_its_slot(capacity: int | None) -> None:
    handed = []

    def run(task: Task) -> None:
        if task.call.args[0] % 2:
            raise OSError("no way")
        handed.append(task)
        task.perform(lambda call: call.args[0])

    queue = SubmissionQueue(run, capacity)
    tasks = [queue.submit(call(number)) for number in range(6)]
    assert numbers(handed) == [0, 2, 4]
    assert [task.future.exception() is None for task in tasks] == [True, False] * 3
    assert (queue.waiting, queue.in_flight, queue.unfinished) == (0, 0, 0)
    with pytest.raises(OSError, match="no way"):
        tasks[1].future.result()


@pytest.mark.parametrize("capacity", [1, None])
def test_an_interruption_while_handing_on_is_raised_when_all_is_in_order(capacity: int | None) -> None:
    def run(task: Task) -> None:
        if task.call.args[0] == 1:
            raise KeyboardInterrupt
        held.append(task)

    held: list[Task] = []
    queue = SubmissionQueue(run, capacity)
    queue.submit(call(0))
    if capacity is None:
        with pytest.raises(KeyboardInterrupt):
            queue.submit(call(1))
        queue.submit(call(2))
    else:
        queue.submit(call(1))
        queue.submit(call(2))
        held[0].begin()
        with pytest.raises(KeyboardInterrupt):
            held[0].succeed(None)
    assert numbers(held) == [0, 2]


def test_tasks_that_end_while_they_are_handed_on_are_no_recursion() -> None:
    desk = Desk(1)
    first = desk.queue.submit(call(0))
    performed = []
    desk.run = lambda task: task.perform(performed.append)  # type: ignore[method-assign]
    for number in range(1, 2_000):
        desk.queue.submit(call(number))
    first.succeed(None)
    assert len(performed) == 1_999
    assert desk.counts() == (0, 0)


def test_call_cancelled_while_waiting_is_skipped() -> None:
    desk = Desk(1)
    tasks = [desk.queue.submit(call(number)) for number in range(4)]
    assert not tasks[0].future.cancel()
    assert tasks[1].future.cancel()
    desk.queue.cancel()
    tasks[0].succeed(None)
    assert numbers(desk.handed) == [0]
    assert desk.counts() == (0, 0)
    assert desk.queue.wait_until_finished(0)


def test_a_task_ends_once() -> None:
    desk = Desk(1)
    task = desk.queue.submit(call(0))
    task.succeed(1)
    task.fail(LookupError())
    assert task.future.result() == 1
    assert desk.counts() == (0, 0)


def test_a_cancelled_task_that_fails_stays_cancelled() -> None:
    ended = []
    task = Task(call(0), lambda: None, ended.append)
    task.future.cancel()
    task.fail(LookupError())
    assert task.future.cancelled()
    assert ended == [task]


def test_finishing_respects_its_timeout() -> None:
    desk = Desk(1)
    task = desk.queue.submit(call(0))
    assert not desk.queue.wait_until_finished(0)
    waiting = Caller(desk.queue.wait_until_finished, 20)
    task.succeed(None)
    assert waiting.result()


@pytest.fixture
def _switching() -> Iterator[None]:
    """Threads take turns every microsecond."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_switching")
def test_many_threads_lose_no_task_keep_their_order_and_never_exceed_the_bound() -> None:
    capacity, threads, each = 3, 4, 500
    handed: deque[Task] = deque()
    order: list[tuple[int, int]] = []
    most: list[int] = []
    came = Condition()

    def run(task: Task) -> None:
        assert task.begin()
        with came:
            order.append(task.call.args[0])
            handed.append(task)
            most.append(queue.in_flight)
            came.notify()

    def submit(thread: int) -> None:
        for number in range(each):
            queue.submit(Call("work", ((thread, number),), {}))

    def end() -> None:
        for _ in range(threads * each // 2):
            with came:
                assert came.wait_for(lambda: handed, 20)
                task = handed.popleft()
            task.succeed(None)

    queue = SubmissionQueue(run, capacity)
    callers = [Caller(end), Caller(end), *[Caller(submit, thread) for thread in range(threads)]]
    for caller in callers:
        caller.result()
    assert queue.wait_until_finished(20)
    assert max(most) <= capacity
    assert len(order) == threads * each
    for thread in range(threads):
        assert [number for who, number in order if who == thread] == list(range(each))
