"""The submission queue of one worker, and the load balancing between the queues of a pool."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Condition
from time import monotonic
from typing import Final

from limits_app.workers.futures import Call, Task


class SubmissionQueue:
    """Passes tasks to `run` in their order, at most `capacity` of them unfinished (None: all of them, immediately).

    `run` is called without the lock. One thread at a time passes tasks on, for all threads, and checks the queue again
    before it stops. So the order is kept, no task is left behind, and a task that ends in `run` causes no recursion.
    A task whose `run` raises ends with that exception, and makes room for the next one.
    """

    def __init__(self, run: Callable[[Task], None], capacity: int | None) -> None:
        self.capacity = capacity
        self._run = run
        self._lock = Condition()
        self._waiting: deque[Task] = deque()
        self._unfinished: dict[Task, None] = {}
        self._in_flight = 0
        self._passing_on = False

    @property
    def waiting(self) -> int:
        """How many tasks were not passed on yet."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many were passed on and have not ended."""
        return self._in_flight

    @property
    def unfinished(self) -> int:
        """How many have no result yet."""
        return len(self._unfinished)

    def submit(self, call: Call) -> Task:
        """Take a call; returns immediately, unless the worker runs in the thread of the caller."""
        task = Task(call, self._ended, self._done)
        with self._lock:
            self._unfinished[task] = None
            if self.capacity is None:
                self._in_flight += 1
            else:
                self._waiting.append(task)
        if self.capacity is None:
            _raise(self._start(task))
        else:
            self._pass_on()
        return task

    def cancel(self) -> None:
        """Cancel the tasks that have not begun."""
        with self._lock:
            unfinished = list(self._unfinished)
        for task in unfinished:
            task.future.cancel()

    def wait_until_finished(self, timeout: float | None) -> bool:
        """Wait until every task has its result; returns False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            while self._unfinished:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    return False
                self._lock.wait(left)
        return True

    def _pass_on(self) -> None:
        with self._lock:
            if self._passing_on:
                return
            self._passing_on = True
        interruption = None
        while (task := self._next()) is not None:
            interruption = self._start(task) or interruption
        _raise(interruption)

    def _next(self) -> Task | None:
        with self._lock:
            if not self._waiting or self._in_flight == self.capacity:
                self._passing_on = False
                return None
            self._in_flight += 1
            return self._waiting.popleft()

    def _start(self, task: Task) -> BaseException | None:
        """Return an exception such as KeyboardInterrupt, for the caller to raise when the queue is consistent."""
        try:
            if not task.future.cancelled() or task.begin():
                self._run(task)
        except BaseException as error:  # noqa: BLE001 - the future raises it
            task.fail(error)
            return None if isinstance(error, Exception) else error
        return None

    def _ended(self) -> None:
        with self._lock:
            self._in_flight -= 1
        self._pass_on()

    def _done(self, task: Task) -> None:
        with self._lock:
            del self._unfinished[task]
            if not self._unfinished:
                self._lock.notify_all()


def _raise(interruption: BaseException | None) -> None:
    if interruption is not None:
        raise interruption


ChooseQueue = Callable[[Sequence[SubmissionQueue]], SubmissionQueue]


def _round_robin() -> ChooseQueue:
    turns = count()
    return lambda queues: queues[next(turns) % len(queues)]


# A new balancer is one entry.
BALANCERS: Final[Mapping[str, Callable[[], ChooseQueue]]] = {
    "round_robin": _round_robin,
    "random": lambda: random.choice,
    "least_loaded": lambda: lambda queues: min(queues, key=lambda queue: queue.unfinished),
}


def balancer_named(name: str) -> ChooseQueue:
    """Return a new balancer; raises ValueError with the allowed names."""
    if not isinstance(name, str) or name not in BALANCERS:
        raise ValueError(f"load_balancing must be one of {', '.join(BALANCERS)}, not {name!r}")
    return BALANCERS[name]()
