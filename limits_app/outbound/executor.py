"""Executors: run a bounded number of coroutines at the same time, and close in an orderly way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import TypeVar

from limits_app.outbound.client import Closable
from limits_app.outbound.errors import Closed, check_counts, check_durations
from limits_app.outbound.events import Depth, Observer, silent
from limits_app.outbound.pace import Pace

T = TypeVar("T")
A = TypeVar("A")


class Executor(Closable):
    """Runs at most `concurrency` calls (None: any number) at the same time, in the order in which they were submitted.

    With a `pace`, each call also waits for its turn there, for at most `wait_seconds`: then it raises QueueTimeout.
    The end of an `async with` block closes the executor with `grace_seconds`.
    """

    def __init__(
        self,
        concurrency: int | None,
        *,
        pace: Pace | None = None,
        wait_seconds: float | None = None,
        grace_seconds: float = 30.0,
        name: str | None = None,
        observer: Observer = silent,
    ) -> None:
        if concurrency is not None:
            check_counts(concurrency=concurrency)
        check_durations(grace_seconds=grace_seconds, wait_seconds=0.0 if wait_seconds is None else wait_seconds)
        self.name = name or ("executor" if pace is None else pace.name)
        self._pace = pace
        self._wait_seconds = wait_seconds
        self._grace_seconds = grace_seconds
        self._observer = observer
        self._room: AbstractAsyncContextManager[object] = (
            nullcontext() if concurrency is None else asyncio.Semaphore(concurrency)
        )
        self._tasks: set[asyncio.Task[object]] = set()
        self._running = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many calls run."""
        return self._running

    @property
    def waiting(self) -> int:
        """How many calls have not begun."""
        return len(self._tasks) - self._running

    def submit(self, call: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        """Run `call` when there is room, and return its task; raises Closed after `aclose`."""
        if self._closed:
            raise Closed(f"{self.name} was closed and runs no more calls")
        task = asyncio.create_task(self._run(call))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        self._report()
        return task

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run `call` when there is room, and return its result; it is cancelled together with the caller."""
        return await self.submit(call)

    async def map(self, function: Callable[[A], Awaitable[T]], items: Iterable[A]) -> list[T]:
        """Call a coroutine function for each item; returns the results in the order of the items.

        When a call raises, the others are cancelled, and the exception is raised.
        """
        tasks = [self.submit(partial(function, item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def join(self) -> None:
        """Wait until no call waits or runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def aclose(self, *, grace_seconds: float | None = None) -> int:
        """Take no more calls, wait, and cancel calls that are not done in time; returns their number.

        The tasks of cancelled calls raise CancelledError.
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

    async def _run(self, call: Callable[[], Awaitable[T]]) -> T:
        async with self._room:
            self._running += 1
            self._report()
            try:
                if self._pace is None:
                    return await call()
                async with self._pace.turn(timeout=self._wait_seconds):
                    return await call()
            finally:
                self._running -= 1

    def _done(self, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        self._report()

    def _report(self) -> None:
        self._observer.note(Depth(self.name, self.waiting, self._running))
