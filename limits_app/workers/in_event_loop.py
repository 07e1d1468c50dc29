"""Mode `asyncio`: a worker in an event loop, in a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import CancelledError, Future
from threading import Thread

from limits_app.workers.inbox import Inbox
from limits_app.workers.lane import Lane
from limits_app.workers.resident import Recipe, Resident
from limits_app.workers.task import Call, Task

__all__ = ["InEventLoop"]


class InEventLoop:
    """A worker whose coroutines run at the same time in one event loop, beginning in the order of their calls.

    Methods that are no coroutine functions run one after the other in a second thread, so that they hold nobody up.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._kind = recipe.kind
        self._resident = Resident(recipe)
        self._lane = Lane(recipe.name, self._perform_apart)
        self._performing: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._standing: Future[None] = Future()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=asyncio.run, args=(self._live(started),), name=recipe.name, daemon=True)
        self._thread.start()
        self._loop = started.result()
        self._inbox = Inbox(self._loop.call_soon_threadsafe, self._begin)

    def stand(self) -> None:
        """See `BackEnd.stand`."""
        self._standing.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if inspect.iscoroutinefunction(getattr(self._kind, task.call.method)):
            self._inbox.put(task)
        else:
            self._lane.run(task)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._lane.close(wait=wait)
        self._loop.call_soon_threadsafe(self._closing.set)
        if wait:
            self._thread.join()

    def interrupt(self) -> None:
        """End pauses and cancel coroutines; a thread cannot be stopped."""
        self._resident.pauses.end()
        self._loop.call_soon_threadsafe(self._cancel)

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        try:
            _ = self._resident.worker
        except BaseException as error:  # noqa: BLE001 - `stand` raises it
            self._standing.set_exception(error)
        else:
            self._standing.set_result(None)
        await self._closing.wait()

    def _begin(self, task: Task) -> None:
        if task.begin():
            performing = asyncio.create_task(self._perform(task))
            self._performing.add(performing)
            performing.add_done_callback(self._performing.discard)

    async def _perform(self, task: Task) -> None:
        try:
            result = await self._resident.perform_async(task.call)
        except asyncio.CancelledError:
            task.fail(CancelledError())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            task.fail(error)
        else:
            task.succeed(result)

    def _perform_apart(self, call: Call) -> object:
        self.stand()
        return self._resident.perform(call)

    def _cancel(self) -> None:
        for performing in self._performing:
            performing.cancel()
