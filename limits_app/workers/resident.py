"""The resident: the worker object in its place, and how calls are made on it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from limits_app.workers.granting import Grant
from limits_app.workers.retrying import Attempts, Pauses, Retry
from limits_app.workers.task import Call

if TYPE_CHECKING:
    from limits_app.workers.worker import Worker

__all__ = ["Recipe", "Resident", "travelling"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that it takes to make one worker, wherever that will be."""

    kind: type[Worker]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grant: Grant
    retry: Retry
    worker_index: int

    @property
    def name(self) -> str:
        """What threads and processes of the worker are called."""
        return f"{self.kind.__name__}-{self.worker_index}"

    def build(self) -> Worker:
        """Make the worker; its limits are there before its `__init__` runs."""
        worker = self.kind.__new__(self.kind, *self.args, **dict(self.kwargs))
        worker.limits = self.grant.limits_for(self.worker_index)
        self.kind.__init__(worker, *self.args, **dict(self.kwargs))
        return worker


class Resident:
    """A worker that is made when it is first needed, and made again if that failed.

    A call that raises is made again as the recipe's retries say; during the pauses nothing is held.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self.pauses = Pauses(recipe.retry.clock)

    @cached_property
    def worker(self) -> Worker:
        """The worker; raises what its `__init__` raises."""
        return self._recipe.build()

    def perform(self, call: Call) -> object:
        """Make a call in this thread; a coroutine runs in an event loop of its own, and waiting for it blocks."""
        worker, attempts = self.worker, Attempts(self._recipe.retry)
        while True:
            try:
                return _finished(call.on(worker))
            except Exception as error:
                pause = attempts.pause(error)
                if pause is None or not self.pauses.take(pause):
                    raise

    async def perform_async(self, call: Call) -> object:
        """Make a call of a coroutine function in this event loop."""
        worker, attempts = self.worker, Attempts(self._recipe.retry)
        while True:
            try:
                return await call.on(worker)
            except Exception as error:
                pause = attempts.pause(error)
                if pause is None or not await self.pauses.take_async(pause):
                    raise


def _finished(result: Any) -> object:
    if not inspect.iscoroutine(result):
        return result
    with closing(result):  # also where it never begins
        if not _is_in_event_loop():
            return asyncio.run(result)
        with ThreadPoolExecutor(1) as thread:  # which can have an event loop of its own, as this one cannot
            return thread.submit(copy_context().run, asyncio.run, result).result()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def travelling(error: Exception) -> Exception:
    """An error as it is, or what it says where it cannot be read in another process."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - what was written just now
    except Exception:  # noqa: BLE001 - whatever its class does
        return RuntimeError("".join(traceback.format_exception_only(error)).strip())
    return error
