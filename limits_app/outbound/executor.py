"""Executors: so much at the same time, and an end that is in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from limits_app.outbound.bounds import check_counts, check_durations
from limits_app.outbound.errors import Closed
from limits_app.outbound.events import Depth, Observer, silent
from limits_app.outbound.pace import Pace

__all__ = ["Executor", "RateLimitedExecutor"]

T = TypeVar("T")


class Executor:
    """Runs at most `concurrency` calls at the same time, the others in the order in which they came.

    As a context manager it ends as `aclose` does, with what `grace_seconds` says.
    """

    def __init__(
        self, concurrency: int, *, grace_seconds: float = 30.0, name: str = "executor", observer: Observer = silent
    ) -> None:
        check_counts(concurrency=concurrency)
        check_durations(grace_seconds=grace_seconds)
        self.name = name
        self._grace_seconds = grace_seconds
        self._observer = observer
        self._room = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[object]] = set()
        self._running = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many calls are under way."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many calls have not begun."""
        return len(self._tasks) - self._running

    def submit(self, call: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run `call` when there is room, and return the task that does; Closed after `aclose`."""
        if self._closed:
            raise Closed(f"{self.name} was closed and runs nothing more")
        task = asyncio.create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._gone)
        self._tell()
        return task

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call` when there is room, and return its result; cancelled together with its caller."""
        return await self.submit(call)

    async def aclose(self, *, grace_seconds: float | None = None) -> int:
        """Take nothing more, wait for what is there, and cancel what is not done in time; returns how many that were.

        Whoever waits for a cancelled call gets CancelledError: nothing ends unheard.
        """
        self._closed = True
        grace = self._grace_seconds if grace_seconds is None else grace_seconds
        late: set[asyncio.Task[object]] = set()
        try:
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=grace)
        finally:
            left = list(self._tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return len(late)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self._room:
            self._running += 1
            self._tell()
            try:
                return await self._call(call)
            finally:
                self._running -= 1

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    def _gone(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        self._tell()

    def _tell(self) -> None:
        self._observer.note(Depth(self.name, self.waiting, self._running))


class RateLimitedExecutor(Executor):
    """An executor whose calls each reserve a place at a pace, and begin at the moment that this gives them.

    A call whose turn does not come within `wait_seconds` is a NoTurnInTime, at once where that is known beforehand.
    """

    def __init__(
        self,
        concurrency: int,
        pace: Pace,
        *,
        wait_seconds: float | None = None,
        grace_seconds: float = 30.0,
        observer: Observer = silent,
    ) -> None:
        if wait_seconds is not None:
            check_durations(wait_seconds=wait_seconds)
        super().__init__(concurrency, grace_seconds=grace_seconds, name=pace.name, observer=observer)
        self._pace = pace
        self._wait_seconds = wait_seconds

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self._pace.turn(timeout=self._wait_seconds):
            return await call()
