"""Calls of methods, their futures, and functions that wait for several futures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from enum import StrEnum
from time import monotonic
from typing import Any, TypeVar

T = TypeVar("T")


class ReturnWhen(StrEnum):
    """When `wait` returns, with the names of `concurrent.futures`."""

    ALL_COMPLETED = ALL_COMPLETED
    FIRST_COMPLETED = FIRST_COMPLETED
    FIRST_EXCEPTION = FIRST_EXCEPTION


class TaskFuture(Future[T]):
    """The result of a call: `result()` blocks a thread, `await` does not block an event loop."""

    def __await__(self) -> Generator[object, None, T]:
        """Wait without blocking the event loop."""
        return asyncio.wrap_future(self).__await__()


def gather(futures: Iterable[Future[T]], *, timeout: float | None = None) -> list[T]:
    """Return the results of calls, in the order of the futures.

    Raises the exception of a call as soon as one fails, while the others go on, and TimeoutError when they are not
    done after `timeout` seconds.
    """
    calls = list(futures)
    deadline = None if timeout is None else monotonic() + timeout
    done, pending = wait_for(calls, timeout, FIRST_EXCEPTION)
    for call in calls:
        if call in done and (call.cancelled() or call.exception() is not None):
            call.result()
    # FIRST_EXCEPTION does not return when a call is cancelled, so some may be pending without an exception.
    left = None if deadline is None else max(0.0, deadline - monotonic())
    if pending and wait_for(pending, left).not_done:
        raise TimeoutError(f"{len(pending)} of {len(calls)} calls were not done after {timeout} seconds")
    return [call.result() for call in calls]


def wait(
    futures: Iterable[Future[T]], *, return_when: str = ReturnWhen.ALL_COMPLETED, timeout: float | None = None
) -> tuple[set[Future[T]], set[Future[T]]]:
    """Return the calls that are done and those that are not, after `timeout` seconds at the latest.

    `return_when` is a `ReturnWhen`, or its text.
    """
    done, pending = wait_for(set(futures), timeout, return_when)
    return done, pending


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a worker and its arguments."""

    method: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def on(self, worker: object) -> Any:
        """Call the method of `worker` once."""
        return getattr(worker, self.method)(*self.args, **self.kwargs)


class Task:
    """A call and its future. It ends once, with the first result or exception that is reported.

    `on_end` is called when the task has ended, and `on_done` when its future is done as well.
    """

    __slots__ = ("_begun", "_ended", "call", "future", "on_done", "on_end")

    def __init__(self, call: Call, on_end: Callable[[], None], on_done: Callable[[Task], None]) -> None:
        self.call = call
        self.future: TaskFuture[Any] = TaskFuture()
        self.on_end = on_end
        self.on_done = on_done
        self._begun = False
        self._ended = False

    def begin(self) -> bool:
        """Start the task, which can no longer be cancelled; returns False when it was cancelled before."""
        if self.future.set_running_or_notify_cancel():
            self._begun = True
            return True
        self._end(lambda: None)
        return False

    def perform(self, perform: Callable[[Call], object]) -> BaseException | None:
        """Begin, call `perform`, and end with its result or exception; returns an exception such as KeyboardInterrupt.

        Exceptions that are no Exception end the task as well, and are for the caller to raise.
        """
        if not self.begin():
            return None
        try:
            result = perform(self.call)
        except BaseException as error:  # noqa: BLE001 - the future raises it
            self.fail(error)
            return None if isinstance(error, Exception) else error
        self.succeed(result)
        return None

    def succeed(self, result: object) -> None:
        """End with a result."""
        self._end(lambda: self.future.set_result(result))

    def fail(self, error: BaseException) -> None:
        """End with an exception, whether the task has begun or not."""
        if self._ended or not (self._begun or self.begin()):
            return
        self._end(lambda: self.future.set_exception(error))

    def _end(self, resolve: Callable[[], None]) -> None:
        self._ended = True
        self.on_end()
        resolve()
        self.on_done(self)
