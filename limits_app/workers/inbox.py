"""The inbox of a thread or an event loop, which is woken once for all that comes, and not for each task."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from limits_app.workers.task import Task

__all__ = ["Inbox"]


class Inbox:
    """Has `empty` called elsewhere by `wake`, where it gives all tasks to `take` in their order."""

    def __init__(self, wake: Callable[[Callable[[], None]], object], take: Callable[[Task], object]) -> None:
        self._wake = wake
        self._take = take
        self._lock = Lock()
        self._tasks: deque[Task] = deque()
        self._woken = False

    def put(self, task: Task) -> None:
        """Leave a task; raises what `wake` raises, and then has not taken it."""
        with self._lock:
            self._tasks.append(task)
            if self._woken:
                return
            self._woken = True
            try:
                self._wake(self.empty)
            except BaseException:
                self._woken = False
                self._tasks.remove(task)
                raise

    def empty(self) -> None:
        """Take what has come, and what comes meanwhile."""
        while (task := self._next()) is not None:
            self._take(task)

    def _next(self) -> Task | None:
        with self._lock:
            if self._tasks:
                return self._tasks.popleft()
            self._woken = False
            return None
