"""Modes `sync`, `thread` and `asyncio`: workers in this process."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from threading import Thread

from limits_app.workers.futures import Call, Task
from limits_app.workers.host import Host, WorkerSpec, fresh_connections


class InCaller:
    """A worker in the thread of its caller; the future is done when the call returns."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._host = Host(spec)

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        _ = self._host.worker

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        interruption = task.perform(self._host.perform)
        if interruption is not None:
            raise interruption

    def close(self, *, wait: bool) -> None:
        """Nothing to do: calls end before they return."""

    def interrupt(self) -> None:
        """See `BackEnd.interrupt`."""
        self._host.interrupt()


class InThread:
    """A worker in a thread, which also makes it, and makes one call after the other."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._host = Host(spec)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=spec.name)
        self._ready = self._executor.submit(lambda: self._host.worker)

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        self._ready.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        self._executor.submit(task.perform, self._perform)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """End pauses between attempts; a thread cannot be stopped."""
        self._host.interrupt()

    def _perform(self, call: Call) -> object:
        with fresh_connections():
            return self._host.perform(call)


class InEventLoop:
    """A worker whose coroutines run at the same time in one event loop, beginning in the order of their calls.

    Other methods run one after the other in a second thread, so that they do not block the event loop.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._kind = spec.kind
        self._host = Host(spec)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=spec.name)
        self._performing: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._ready: Future[None] = Future()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = Thread(target=asyncio.run, args=(self._live(started),), name=spec.name, daemon=True)
        self._thread.start()
        self._loop = started.result()

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        self._ready.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if inspect.iscoroutinefunction(getattr(self._kind, task.call.method)):
            self._loop.call_soon_threadsafe(self._begin, task)
        else:
            self._executor.submit(task.perform, self._perform_in_thread)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        self._executor.shutdown(wait=wait)
        self._loop.call_soon_threadsafe(self._closing.set)
        if wait:
            self._thread.join()

    def interrupt(self) -> None:
        """End pauses between attempts and cancel coroutines; a thread cannot be stopped."""
        self._host.interrupt()
        self._loop.call_soon_threadsafe(self._cancel)

    async def _live(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        started.set_result(asyncio.get_running_loop())
        try:
            _ = self._host.worker
        except BaseException as error:  # noqa: BLE001 - `wait_until_ready` raises it
            self._ready.set_exception(error)
        else:
            self._ready.set_result(None)
        await self._closing.wait()

    def _begin(self, task: Task) -> None:
        if task.begin():
            performing = asyncio.create_task(self._perform(task))
            self._performing.add(performing)
            performing.add_done_callback(self._performing.discard)

    async def _perform(self, task: Task) -> None:
        try:
            result = await self._host.aperform(task.call)
        except asyncio.CancelledError:
            task.fail(CancelledError())
        except BaseException as error:  # noqa: BLE001 - the future raises it
            task.fail(error)
        else:
            task.succeed(result)

    def _perform_in_thread(self, call: Call) -> object:
        self.wait_until_ready()
        with fresh_connections():
            return self._host.perform(call)

    def _cancel(self) -> None:
        for performing in self._performing:
            performing.cancel()
