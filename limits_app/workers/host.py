"""The host of a worker: makes the worker in its thread or process, and makes calls on it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from limits_app.acquiring import Retrier, RetryPolicy
from limits_app.workers.futures import Call
from limits_app.workers.limits import WorkerLimits

if TYPE_CHECKING:
    from limits_app.workers.worker import Worker


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """Everything that is needed to make one worker, in this process or in another."""

    kind: type[Worker]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    limits: WorkerLimits
    retry: RetryPolicy
    worker_index: int
    actor_options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the threads and processes of the worker."""
        return f"{self.kind.__name__}-{self.worker_index}"

    def build(self) -> Worker:
        """Make the worker; its limits are set before its `__init__` runs."""
        worker = self.kind.__new__(self.kind, *self.args, **dict(self.kwargs))
        worker.limits = self.limits.for_worker(self.worker_index)
        self.kind.__init__(worker, *self.args, **dict(self.kwargs))
        return worker

    def pickled(self, mode: str) -> bytes:
        """Return the pickled specification; raises ValueError when it cannot be pickled.

        Local classes and functions are pickled by the package `cloudpickle` where it is installed.
        """
        try:
            return pickle.dumps(self)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            try:
                return cast("bytes", import_module("cloudpickle").dumps(self))
            except ImportError:
                advice = "; pip install cloudpickle, which sends local classes and functions"
            except (pickle.PicklingError, TypeError, AttributeError):
                advice = ""
            raise ValueError(f"mode {mode!r} cannot send the worker to another process: {error}{advice}") from error


class Host:
    """A worker that is made on first use, and made again on the next use if that failed.

    A call that raises is repeated under the retry policy; `interrupt` ends its pauses.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self.retrier = Retrier(spec.retry)

    @cached_property
    def worker(self) -> Worker:
        """The worker; raises what its `__init__` raises."""
        return self._spec.build()

    def perform(self, call: Call) -> object:
        """Make a call in this thread; a coroutine runs in a new event loop, and blocks this thread."""
        worker = self.worker
        return self.retrier.call(lambda: _finished(call.on(worker)), self._context(call))

    async def aperform(self, call: Call) -> object:
        """Make a call of a coroutine function in this event loop."""
        worker = self.worker
        return await self.retrier.acall(lambda: call.on(worker), self._context(call))

    def interrupt(self) -> None:
        """End the pauses between attempts, and those that are still to come."""
        self.retrier.pauses.end()

    def _context(self, call: Call) -> dict[str, object]:
        return {"worker_class": self._spec.kind, "method": call.method, "args": call.args, "kwargs": call.kwargs}


def _finished(result: Any) -> object:
    """Return a result, or the result of a coroutine."""
    if not inspect.iscoroutine(result):
        return result
    with closing(result):  # also where it never begins
        if not _is_in_event_loop():
            return asyncio.run(result)
        with ThreadPoolExecutor(1) as thread:  # another thread, since this one cannot run a second event loop
            return thread.submit(copy_context().run, asyncio.run, result).result()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def picklable(error: BaseException) -> BaseException:
    """Return an exception, or a RuntimeError with its text where another process could not unpickle it."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - written by this line
    except Exception:  # noqa: BLE001 - any exception of the class's own code
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close database connections that are too old or unusable before and after, as Django does for a request.

    Does nothing, and imports nothing, where Django's databases are not in use.
    """
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    if "django.db" in sys.modules:
        from django.conf import settings
        from django.db import close_old_connections

        if settings.configured:
            close_old_connections()
