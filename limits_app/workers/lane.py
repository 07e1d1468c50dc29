"""A lane: a thread that performs tasks one after the other."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from limits_app.workers.connections import tidied
from limits_app.workers.inbox import Inbox
from limits_app.workers.task import Call, Task

__all__ = ["Lane"]

T = TypeVar("T")


class Lane:
    """Performs tasks by `perform`, in the order in which they come, with database connections looked after."""

    def __init__(self, name: str, perform: Callable[[Call], object]) -> None:
        self._perform = perform
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._inbox = Inbox(self._executor.submit, lambda task: task.perform(self._tidily))

    def first(self, make: Callable[[], T]) -> Future[T]:
        """Call something before any task."""
        return self._executor.submit(make)

    def run(self, task: Task) -> None:
        """Take a task."""
        self._inbox.put(task)

    def close(self, *, wait: bool) -> None:
        """End after the tasks that were taken."""
        self._executor.shutdown(wait=wait)

    def _tidily(self, call: Call) -> object:
        with tidied():
            return self._perform(call)
