"""A bounded queue whose items are processed by a number of workers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Self, TypeVar

from limits_app.core.retry import Retrier, RetryPolicy
from limits_app.outbound.client import Closable
from limits_app.outbound.errors import Closed, check_counts, check_durations
from limits_app.outbound.events import Depth, ItemFailed, Observer, silent

logger = logging.getLogger("limits_app.outbound")

T = TypeVar("T")
U = TypeVar("U")


class FailurePolicy(StrEnum):
    """What happens to an item that has failed in all its attempts."""

    KEEP = "keep"
    """Keep it in `failures`."""
    DROP = "drop"
    """Drop it; the observer receives an event."""
    STOP = "stop"
    """Keep it in `failures`, and stop the queue: waiting items are left."""


@dataclass(frozen=True, slots=True)
class FailedItem(Generic[T]):
    """An item that has failed in all its attempts, and the last exception."""

    item: T
    error: Exception


@dataclass(frozen=True, slots=True)
class LeftItem(Generic[T]):
    """An item that was not done when the queue closed; `begun`: a worker had begun with it."""

    item: T
    begun: bool


class WorkQueue(Closable, Generic[T]):
    """`workers` take items in order and pass each to `handle`; `put` waits while `capacity` items wait.

    A worker retries an item that fails, under the policy `retry`. After the last attempt `on_failure` decides: a
    FailurePolicy, or a coroutine function that takes the FailedItem over.
    Each item that was taken is done, in `failures`, in `left` (or was dropped by the policy). An item that was begun
    and left may have had its effect.
    An `async with` block starts the workers, and closes the queue with `grace_seconds`.
    """

    def __init__(
        self,
        handle: Callable[[T], Awaitable[None]],
        *,
        workers: int = 4,
        capacity: int = 100,
        retry: RetryPolicy | None = None,
        on_failure: str | Callable[[FailedItem[T]], Awaitable[None]] = FailurePolicy.KEEP,
        grace_seconds: float = 30.0,
        name: str = "queue",
        observer: Observer = silent,
    ) -> None:
        check_counts(workers=workers, capacity=capacity)
        check_durations(grace_seconds=grace_seconds)
        self.name = name
        self.done = 0
        self.failures: list[FailedItem[T]] = []
        self.left: list[LeftItem[T]] = []
        self._handle = handle
        self._workers = workers
        self._retrier = Retrier(retry or RetryPolicy())
        self._on_failure = on_failure if callable(on_failure) else _policy_of(on_failure)
        self._grace_seconds = grace_seconds
        self._observer = observer
        self._line: deque[T] = deque()
        self._room = asyncio.Semaphore(capacity)
        self._items = asyncio.Semaphore(0)
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self.running = 0
        """How many items are processed now."""

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._line)

    async def put(self, item: T) -> None:
        """Add an item, and wait for room; raises Closed, without taking the item, when the queue is closed."""
        await self._room.acquire()
        if self._closed:
            self._room.release()  # wakes the next caller that waits for room
            raise Closed(f"{self.name} was closed and takes no more items")
        self._line.append(item)
        self._items.release()
        self._report()

    async def offer(self, item: T) -> bool:
        """Add an item if there is room now; returns whether it was taken."""
        if self._closed or self._room.locked():
            return False
        await self.put(item)
        return True

    async def join(self) -> None:
        """Wait until no item waits or is processed; after a failure that stopped the queue, until none is processed."""
        await self._idle.wait()

    async def aclose(self, *, grace_seconds: float | None = None) -> list[LeftItem[T]]:
        """Take no more items, process those that wait, and cancel those that are not done in time; returns `left`."""
        self._refuse_more()
        try:
            if self._tasks:
                await asyncio.wait_for(self.join(), self._grace_seconds if grace_seconds is None else grace_seconds)
        except TimeoutError:
            logger.warning("%s: some items were not done in time, and are left", self.name)
        finally:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.left += [LeftItem(item, begun=False) for item in self._line]
            self._line.clear()
            self._report()
        return self.left

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    def _refuse_more(self) -> None:
        self._closed = True
        self._room.release()  # wakes the callers that wait for room, one after the other

    async def _work(self) -> None:
        while True:
            await self._items.acquire()
            if self._stopped:
                return
            item = self._line.popleft()
            self._room.release()
            self.running += 1
            self._report()
            try:
                await self._do(item)
            except asyncio.CancelledError:
                self.left.append(LeftItem(item, begun=True))
                raise
            finally:
                self.running -= 1
                self._report()

    async def _do(self, item: T) -> None:
        try:
            await self._retrier.acall(lambda: _call(self._handle, item), {"item": item})
        except Exception as error:  # noqa: BLE001 - the policy is for every exception
            await self._failed(FailedItem(item, error))
        else:
            self.done += 1

    async def _failed(self, failed: FailedItem[T]) -> None:
        self._observer.note(ItemFailed(self.name, f"{type(failed.error).__name__}: {failed.error}"))
        if callable(self._on_failure):
            try:
                await _call(self._on_failure, failed)
            except Exception:
                logger.exception("%s: on_failure has failed, and the item is kept in failures", self.name)
                self.failures.append(failed)
            return
        if self._on_failure is not FailurePolicy.DROP:
            self.failures.append(failed)
        if self._on_failure is FailurePolicy.STOP:
            self._stopped = True
            self._retrier.pauses.end()
            self._refuse_more()

    def _report(self) -> None:
        if not self.running and (self._stopped or not self._line):
            self._idle.set()
        else:
            self._idle.clear()
        self._observer.note(Depth(self.name, self.waiting, self.running))


async def _call(function: Callable[[U], Awaitable[None]], item: U) -> None:
    """Call a function; a CancelledError that is not the cancellation of the worker becomes a RuntimeError."""
    try:
        await function(item)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError("the processing of the item was cancelled") from error


def _policy_of(name: str) -> FailurePolicy:
    if name not in [*FailurePolicy]:
        raise ValueError(f"on_failure must be a coroutine function or one of {', '.join(FailurePolicy)}, not {name!r}")
    return FailurePolicy(name)
