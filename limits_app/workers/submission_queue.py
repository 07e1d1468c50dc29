"""The submission queue: what waits in front of one worker, and what was handed on to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition
from time import monotonic

from limits_app.workers.task import Call, Task

__all__ = ["SubmissionQueue"]


class SubmissionQueue:
    """Hands tasks on to `run` in their order, never more than `capacity` of them unfinished (None: all, at once).

    Nothing is called while the lock is held: whoever comes first hands on for all, and looks again before leaving,
    so that order is kept, no wake-up is lost, and a task that ends while it is handed on is no recursion.
    A hand-over that fails ends its task with that error, and frees its slot for the next one.
    """

    def __init__(self, run: Callable[[Task], None], capacity: int | None) -> None:
        self.capacity = capacity
        self._run = run
        self._lock = Condition()
        self._waiting: deque[Task] = deque()
        self._unfinished: dict[Task, None] = {}
        self._in_flight = 0
        self._handing = False

    @property
    def waiting(self) -> int:
        """How many tasks have not been handed on."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many were handed on and have not ended."""
        return self._in_flight

    @property
    def unfinished(self) -> int:
        """How many have no result yet."""
        return len(self._unfinished)

    def submit(self, call: Call) -> Task:
        """Take a call; returns at once where the worker is somewhere else."""
        task = Task(call, self._free, self._finished)
        with self._lock:
            self._unfinished[task] = None
            if self.capacity is None:
                self._in_flight += 1
            else:
                self._waiting.append(task)
        if self.capacity is None:
            _raise(self._hand_over(task))
        else:
            self._hand_on()
        return task

    def cancel(self) -> None:
        """Cancel what has not begun."""
        with self._lock:
            unfinished = list(self._unfinished)
        for task in unfinished:
            task.future.cancel()

    def until_finished(self, timeout: float | None) -> bool:
        """Wait until every task has its result; False when `timeout` seconds are over."""
        deadline = None if timeout is None else monotonic() + timeout
        with self._lock:
            while self._unfinished:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    return False
                self._lock.wait(left)
        return True

    def _hand_on(self) -> None:
        with self._lock:
            if self._handing:
                return
            self._handing = True
        interruption = None
        while (task := self._next()) is not None:
            interruption = self._hand_over(task) or interruption
        _raise(interruption)

    def _next(self) -> Task | None:
        with self._lock:
            if not self._waiting or self._in_flight == self.capacity:
                self._handing = False
                return None
            self._in_flight += 1
            return self._waiting.popleft()

    def _hand_over(self, task: Task) -> BaseException | None:
        """Returns what is no failure of the task, such as Ctrl-C, for the caller to raise when all is in order."""
        try:
            if not task.future.cancelled() or task.begin():
                self._run(task)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            task.fail(error)
            return None if isinstance(error, Exception) else error
        return None

    def _free(self) -> None:
        with self._lock:
            self._in_flight -= 1
        self._hand_on()

    def _finished(self, task: Task) -> None:
        with self._lock:
            del self._unfinished[task]
            if not self._unfinished:
                self._lock.notify_all()


def _raise(interruption: BaseException | None) -> None:
    if interruption is not None:
        raise interruption
