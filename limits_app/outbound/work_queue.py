"""A queue of work that is bounded, and loses nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Generic, Self, TypeVar

from limits_app.outbound.bounds import check_counts, check_durations
from limits_app.outbound.errors import Closed
from limits_app.outbound.events import Depth, ItemFailed, Observer, silent

__all__ = ["FailedItem", "FailurePolicy", "LeftItem", "WorkQueue"]

logger = logging.getLogger("limits_app.outbound")

T = TypeVar("T")
U = TypeVar("U")


class FailurePolicy(StrEnum):
    """What becomes of an item that failed as often as it was tried."""

    KEEP = "keep"
    """It is kept among the failures."""
    DROP = "drop"
    """It is forgotten; the observer is told."""
    STOP = "stop"
    """It is kept, and the queue takes and works on nothing more: what waits is left."""


@dataclass(frozen=True, slots=True)
class FailedItem(Generic[T]):
    """An item that failed for good, and how."""

    item: T
    error: Exception


@dataclass(frozen=True, slots=True)
class LeftItem(Generic[T]):
    """An item that was not done when the queue closed; `begun` says whether somebody was at it."""

    item: T
    begun: bool


class WorkQueue(Generic[T]):
    """`workers` take items in order and hand each to `handle`; up to `capacity` wait, and then whoever brings more.

    An item that fails is tried again by the same worker, `tries` times in all, after a pause of `pause_seconds` that
    doubles; then `on_failure` is for it: a policy, or a coroutine function that takes it off the queue's hands.
    Each item that was taken is done, or among `failures`, or among what is `left` at the end (or was dropped, where
    that is the policy). An item that was begun and left may have had its effect.
    As a context manager it starts, and ends as `aclose` does with `grace_seconds`.
    """

    def __init__(
        self,
        handle: Callable[[T], Awaitable[None]],
        *,
        workers: int = 4,
        capacity: int = 100,
        tries: int = 1,
        pause_seconds: float = 1.0,
        on_failure: str | Callable[[FailedItem[T]], Awaitable[None]] = FailurePolicy.KEEP,
        grace_seconds: float = 30.0,
        name: str = "queue",
        observer: Observer = silent,
    ) -> None:
        check_counts(workers=workers, capacity=capacity, tries=tries)
        check_durations(pause_seconds=pause_seconds, grace_seconds=grace_seconds)
        self.name = name
        self.done = 0
        self.failures: list[FailedItem[T]] = []
        self.left: list[LeftItem[T]] = []
        self._handle = handle
        self._workers = workers
        self._tries = tries
        self._pause_seconds = pause_seconds
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
        """How many items are being worked on."""

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._line)

    async def put(self, item: T) -> None:
        """Bring an item, waiting for room; Closed when the queue closes first, and then the item was not taken."""
        await self._room.acquire()
        if self._closed:
            self._room.release()  # so that whoever else waits for room finds out
            raise Closed(f"{self.name} was closed and takes nothing more")
        self._line.append(item)
        self._items.release()
        self._tell()

    async def offer(self, item: T) -> bool:
        """Bring an item if there is room now, without giving way to anybody; says whether it was taken."""
        if self._closed or self._room.locked():
            return False
        await self.put(item)
        return True

    async def join(self) -> None:
        """Wait until nothing waits and nobody works, or until nobody works when a failure stopped the queue."""
        await self._idle.wait()

    async def aclose(self, *, grace_seconds: float | None = None) -> list[LeftItem[T]]:
        """Take nothing more, work off what is there, and stop what is not done in time; returns what is left."""
        self._refuse_more()
        try:
            if self._tasks:
                await asyncio.wait_for(self.join(), self._grace_seconds if grace_seconds is None else grace_seconds)
        except TimeoutError:
            logger.warning("%s: not everything was done in time, and is left", self.name)
        finally:
            tasks, self._tasks = self._tasks, []
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.left += [LeftItem(item, begun=False) for item in self._line]
            self._line.clear()
            self._tell()
        return self.left

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _refuse_more(self) -> None:
        self._closed = True
        self._room.release()  # whoever waits for room finds out, one after the other

    async def _work(self) -> None:
        while True:
            await self._items.acquire()
            if self._stopped:
                return
            item = self._line.popleft()
            self._room.release()
            self.running += 1
            self._tell()
            try:
                await self._do(item)
            except asyncio.CancelledError:
                self.left.append(LeftItem(item, begun=True))
                raise
            finally:
                self.running -= 1
                self._tell()

    async def _do(self, item: T) -> None:
        error, pause = await _failure_of(self._handle, item), self._pause_seconds
        for _ in range(self._tries - 1):
            if error is None or self._stopped:
                break
            await asyncio.sleep(pause)
            pause *= 2.0
            error = await _failure_of(self._handle, item)
        if error is None:
            self.done += 1
        else:
            await self._failed(FailedItem(item, error))

    async def _failed(self, failed: FailedItem[T]) -> None:
        self._observer.note(ItemFailed(self.name, f"{type(failed.error).__name__}: {failed.error}"))
        if callable(self._on_failure):
            failure = await _failure_of(self._on_failure, failed)
            if failure is not None:
                logger.error("%s: a failed item could not be handed over, and is kept", self.name, exc_info=failure)
                self.failures.append(failed)
            return
        if self._on_failure is not FailurePolicy.DROP:
            self.failures.append(failed)
        if self._on_failure is FailurePolicy.STOP:
            self._stopped = True
            self._refuse_more()

    def _tell(self) -> None:
        if not self.running and (self._stopped or not self._line):
            self._idle.set()
        else:
            self._idle.clear()
        self._observer.note(Depth(self.name, self.waiting, self.running))


async def _failure_of(work: Callable[[U], Awaitable[None]], item: U) -> Exception | None:
    """What came up; only the worker's own cancellation ends the worker."""
    try:
        await work(item)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        failure = RuntimeError("the work was cancelled from within")
        failure.__cause__ = error
        return failure
    except Exception as error:  # noqa: BLE001 - whatever it is, the policy is for it
        return error
    return None


def _policy_of(name: str) -> FailurePolicy:
    if name not in [*FailurePolicy]:
        raise ValueError(f"on_failure must be a coroutine function or one of {', '.join(FailurePolicy)}, not {name!r}")
    return FailurePolicy(name)
