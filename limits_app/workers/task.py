"""A task: one call on its way to a worker and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from limits_app.workers.futures import TaskFuture

__all__ = ["Call", "Task"]


@dataclass(frozen=True, slots=True)
class Call:
    """Which method of a worker is called with what."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on(self, worker: object) -> Any:
        """Call it, once."""
        return getattr(worker, self.method)(*self.args, **self.kwargs)


class Task:
    """A call, its future, and what follows when it has ended; it ends once, whoever says so first.

    `before` is told when a task has ended, and `after` when its future is done as well.
    """

    __slots__ = ("_begun", "_ended", "after", "before", "call", "future")

    def __init__(self, call: Call, before: Callable[[], None], after: Callable[[Task], None]) -> None:
        self.call = call
        self.future: TaskFuture[Any] = TaskFuture()
        self.before = before
        self.after = after
        self._begun = False
        self._ended = False

    def begin(self) -> bool:
        """Whether it is to be performed; one that was cancelled has ended with that. From then on it cannot be."""
        if self.future.set_running_or_notify_cancel():
            self._begun = True
            return True
        self._end(lambda: None)
        return False

    def perform(self, perform: Callable[[Call], object]) -> BaseException | None:
        """Begin, and end with the result of `perform` or with its error; returns what is no failure, such as Ctrl-C."""
        if not self.begin():
            return None
        try:
            result = perform(self.call)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            self.fail(error)
            return None if isinstance(error, Exception) else error
        self.succeed(result)
        return None

    def succeed(self, result: object) -> None:
        """End with a result."""
        self._end(lambda: self.future.set_result(result))

    def fail(self, error: BaseException) -> None:
        """End with an error, begun or not."""
        if self._ended or not (self._begun or self.begin()):
            return
        self._end(lambda: self.future.set_exception(error))

    def _end(self, resolve: Callable[[], None]) -> None:
        self._ended = True
        self.before()
        resolve()
        self.after(self)
