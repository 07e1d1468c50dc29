"""The pool: what stands for workers where they are called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, overload

from limits_app.workers.back_ends import BackEnd
from limits_app.workers.balancing import balancer_of
from limits_app.workers.futures import TaskFuture
from limits_app.workers.submission_queue import SubmissionQueue
from limits_app.workers.task import Call

if TYPE_CHECKING:
    from limits_app.workers.options import WorkerOptions
    from limits_app.workers.worker import Worker

__all__ = ["PoolStats", "QueueStats", "WorkerPool"]

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Worker")

_GRACE_SECONDS: Final = 1.0


class QueueStats(TypedDict):
    """One worker: `capacity` is how many of its calls may be `in_flight`; the others are `waiting`."""

    index: int
    capacity: int | None
    waiting: int
    in_flight: int


class PoolStats(TypedDict):
    """All workers of a pool."""

    total_workers: int
    max_queued_tasks: int | None
    submission_queues: list[QueueStats]


class WorkerPool(Generic[W]):
    """One or more workers: a call of any of their public methods goes to one of them, and returns a future at once.

    With `blocking=True` it returns the result. Thread safe.
    A block that ends stops the workers, and waits for what was submitted; when it raises, what has not begun is
    cancelled.
    """

    def __init__(
        self, options: WorkerOptions[..., W], back_ends: Sequence[BackEnd], queues: Sequence[SubmissionQueue]
    ) -> None:
        self._options = options
        self._kind = options.worker_class
        self._back_ends = back_ends
        self._queues = queues
        self._balancer = balancer_of(options.load_balancing)
        self._stopped = False

    def __repr__(self) -> str:
        return f"<WorkerPool of {len(self._queues)} {self._kind.__name__}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        # Private names are never calls: pickling, copying and debuggers ask for them.
        if name.startswith("_") or name == "options" or not callable(getattr(self._kind, name, None)):
            raise AttributeError(f"{self._kind.__name__} has no public method {name!r}")

        def method(*args: Any, **kwargs: Any) -> Any:
            future = self._submit(Call(name, args, kwargs))
            return future.result() if self._options.blocking else future

        return method

    @overload
    def submit(
        self, method: Callable[Concatenate[W, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...
    @overload
    def submit(self, method: Callable[Concatenate[W, P], T], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]: ...
    def submit(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """The same for type checkers: `submit(Summer.add, 1)` is `add(1)`, and always returns a future."""
        return self._submit(Call(method.__name__, args, kwargs))

    def get_pool_stats(self) -> PoolStats:
        """How many workers there are, and what waits for them; those on demand share one queue."""
        queues: list[QueueStats] = [
            {"index": index, "capacity": queue.capacity, "waiting": queue.waiting, "in_flight": queue.in_flight}
            for index, queue in enumerate(self._queues)
        ]
        if self._options.on_demand:
            return {"total_workers": queues[0]["in_flight"], "max_queued_tasks": None, "submission_queues": queues}
        return {"total_workers": len(queues), "max_queued_tasks": self._options.capacity, "submission_queues": queues}

    def stop(self, timeout: float | None = None, *, cancel: bool = False) -> None:
        """Take no more calls, and wait until those that were submitted are done; `cancel` those that have not begun.

        After `timeout` seconds those are cancelled anyway, and running ones interrupted: processes are terminated,
        coroutines cancelled, and pauses between retries ended.
        Raises TimeoutError when calls run on even so, which threads may do. Stopping again does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        if cancel:
            self._cancel()
        if not (finished := self._until_finished(timeout)):
            self._cancel()
            for back_end in self._back_ends:
                back_end.interrupt()
            finished = self._until_finished(_GRACE_SECONDS)
        for back_end in self._back_ends:
            back_end.close(wait=finished)
        if not finished:
            raise TimeoutError("calls are still running, and cannot be interrupted")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(cancel=kind is not None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _submit(self, call: Call) -> TaskFuture[Any]:
        if self._stopped:
            raise RuntimeError(f"the workers were stopped, so {call.method!r} cannot be called")
        return self._balancer(self._queues).submit(call).future

    def _cancel(self) -> None:
        for queue in self._queues:
            queue.cancel()

    def _until_finished(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout
        return all(queue.until_finished(None if deadline is None else deadline - monotonic()) for queue in self._queues)
