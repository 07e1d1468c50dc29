"""A bounded queue whose items an executor processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Generic, TypeVar

from limits_app.acquiring import Retrier, RetryPolicy
from limits_app.outbound.client import Closable
from limits_app.outbound.errors import Closed, check_counts
from limits_app.outbound.events import ItemFailed, Observer, silent
from limits_app.outbound.executor import Executor

logger = logging.getLogger("limits_app.outbound")

T = TypeVar("T")


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
    """`workers` items at a time are passed to `handle`, in their order; `put` waits while `capacity` items wait.

    An item that fails is retried under the policy `retry`. After the last attempt `on_failure` decides: a
    FailurePolicy, or a coroutine function that takes the FailedItem over.
    Each item that was taken is done, in `failures`, in `left` (or was dropped by the policy). An item that was begun
    and left may have had its effect.
    The end of an `async with` block closes the queue with `grace_seconds`.
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
        self.name = name
        self.done = 0
        self.failures: list[FailedItem[T]] = []
        self.left: list[LeftItem[T]] = []
        self._handle = handle
        self._executor = Executor(workers, grace_seconds=grace_seconds, name=name, observer=observer)
        self._retrier = Retrier(retry or RetryPolicy())
        self._on_failure = on_failure if callable(on_failure) else _policy_of(on_failure)
        self._observer = observer
        self._open: dict[object, LeftItem[T]] = {}
        """The items that are not done yet."""
        self._room = asyncio.Semaphore(capacity)
        self._closed = False
        self._stopped = False

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return self._executor.waiting

    @property
    def running(self) -> int:
        """How many items are processed now."""
        return self._executor.running

    async def put(self, item: T) -> None:
        """Add an item, and wait for room; raises Closed, without taking the item, when the queue is closed."""
        await self._room.acquire()
        if self._closed:
            self._room.release()  # wakes the next caller that waits for room
            raise Closed(f"{self.name} was closed and takes no more items")
        key = object()
        self._open[key] = LeftItem(item, begun=False)
        self._executor.submit(partial(self._process, key, item))

    async def offer(self, item: T) -> bool:
        """Add an item if there is room now; returns whether it was taken."""
        if self._closed or self._room.locked():
            return False
        await self.put(item)
        return True

    async def join(self) -> None:
        """Wait until no item waits or is processed; after a failure that stopped the queue, until none is processed."""
        await self._executor.join()

    async def aclose(self, *, grace_seconds: float | None = None) -> list[LeftItem[T]]:
        """Take no more items, process those that wait, and cancel those that are not done in time; returns `left`."""
        self._refuse_more()
        try:
            if await self._executor.aclose(grace_seconds=grace_seconds):
                logger.warning("%s: some items were not done in time, and are left", self.name)
        finally:
            self.left += self._open.values()
            self._open.clear()
        return self.left

    def _refuse_more(self) -> None:
        self._closed = True
        self._room.release()  # wakes the callers that wait for room, one after the other

    async def _process(self, key: object, item: T) -> None:
        if self._stopped:
            return
        self._open[key] = LeftItem(item, begun=True)
        self._room.release()
        try:
            await self._retrier.acall(partial(self._handle, item), {"item": item})
            self.done += 1
        except Exception as error:  # noqa: BLE001 - the policy is for every exception
            await self._failed(FailedItem(item, error))
        del self._open[key]

    async def _failed(self, failed: FailedItem[T]) -> None:
        self._observer.note(ItemFailed(self.name, f"{type(failed.error).__name__}: {failed.error}"))
        if callable(self._on_failure):
            try:
                await self._on_failure(failed)
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


def _policy_of(name: str) -> FailurePolicy:
    if name not in [*FailurePolicy]:
        raise ValueError(f"on_failure must be a coroutine function or one of {', '.join(FailurePolicy)}, not {name!r}")
    return FailurePolicy(name)
