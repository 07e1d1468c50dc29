"""The pool: takes calls for one or more workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypedDict, TypeVar, overload

from limits_app.acquiring import CALL_OBSERVERS, CallObserver, on_fork
from limits_app.workers.futures import Call, TaskFuture
from limits_app.workers.modes import BackEnd, mode_named
from limits_app.workers.queue import SubmissionQueue, balancer_named

if TYPE_CHECKING:
    from limits_app.workers.worker import Worker, WorkerOptions

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Worker")

_GRACE_SECONDS: Final = 1.0


class QueueStats(TypedDict):
    """The queue of one worker: at most `capacity` of its calls are `in_flight`, the others are `waiting`.

    `worker_idx` is `index`, as Concurry names it.
    """

    index: int
    worker_idx: int
    capacity: int | None
    waiting: int
    in_flight: int


class PoolStats(TypedDict):
    """All workers of a pool."""

    total_workers: int
    max_queued_tasks: int | None
    submission_queues: list[QueueStats]


class _Life:
    """Whether a pool takes no more calls, and why. In a forked child it does not: threads do not survive a fork."""

    def __init__(self) -> None:
        self.is_over = False
        self.why = "are stopped"

    def after_fork(self) -> None:
        """Leave the workers to the parent process."""
        if not self.is_over:
            self.is_over, self.why = True, "belong to the process that forked this one"


class WorkerPool(Generic[W]):
    """One or more workers. The pool has the public methods of their class, which call one of them and return a future.

    With `blocking=True` they return the result. Thread safe.
    The end of a `with` block stops the workers and waits for the calls that were submitted; when the block raises,
    calls that have not begun are cancelled.
    """

    def __init__(
        self, options: WorkerOptions[..., W], back_ends: Sequence[BackEnd], queues: Sequence[SubmissionQueue]
    ) -> None:
        self._options = options
        self._kind = options.worker_class
        self._back_ends = back_ends
        self._queues = queues
        self._balancer = balancer_named(options.load_balancing)
        self._life = _Life()
        if not mode_named(options.mode).in_caller:
            on_fork(self._life)
        for name in options.method_names():
            setattr(self, name, self._method(name))

    def __repr__(self) -> str:
        return f"<WorkerPool of {len(self._queues)} {self._kind.__name__}>"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """The methods of the worker class."""

    @overload
    def submit(
        self, method: Callable[Concatenate[W, P], Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> TaskFuture[T]: ...
    @overload
    def submit(self, method: Callable[Concatenate[W, P], T], /, *args: P.args, **kwargs: P.kwargs) -> TaskFuture[T]: ...
    def submit(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> TaskFuture[Any]:
        """Call a method, with types that checkers know: `submit(Summer.add, 1)`; always returns a future."""
        return self._submit(Call(method.__name__, args, kwargs))

    def get_pool_stats(self) -> PoolStats:
        """Return the number of workers and the state of their queues; workers on demand share one queue."""
        queues: list[QueueStats] = [
            {
                "index": index,
                "worker_idx": index,
                "capacity": queue.capacity,
                "waiting": queue.waiting,
                "in_flight": queue.in_flight,
            }
            for index, queue in enumerate(self._queues)
        ]
        if self._options.on_demand:
            return {"total_workers": queues[0]["in_flight"], "max_queued_tasks": None, "submission_queues": queues}
        return {"total_workers": len(queues), "max_queued_tasks": self._options.capacity, "submission_queues": queues}

    def stop(self, timeout: float | None = None, *, cancel: bool = False) -> None:
        """Take no more calls, and wait until those that were submitted are done; `cancel` those that have not begun.

        After `timeout` seconds calls that have not begun are cancelled, and running ones interrupted: processes are
        terminated, coroutines cancelled, and pauses between attempts ended.
        Raises TimeoutError when calls still run after that, which is possible in threads. Stopping again does nothing.
        """
        if self._life.is_over:
            return
        self._life.is_over = True
        if cancel:
            self._cancel()
        if not (finished := self._wait_until_finished(timeout)):
            self._cancel()
            for back_end in self._back_ends:
                back_end.interrupt()
            finished = self._wait_until_finished(_GRACE_SECONDS)
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

    def _method(self, name: str) -> Callable[..., Any]:
        def method(*args: Any, **kwargs: Any) -> Any:
            future = self._submit(Call(name, args, kwargs))
            return future.result() if self._options.blocking else future

        return method

    def _submit(self, call: Call) -> TaskFuture[Any]:
        if self._life.is_over:
            raise RuntimeError(f"the workers {self._life.why}: {call.method!r} cannot be called")
        started = monotonic()
        future = self._balancer(self._queues).submit(call).future
        for observer in CALL_OBSERVERS:
            future.add_done_callback(partial(self._report, observer, started))
        return future

    def _report(self, observer: CallObserver, started: float, future: TaskFuture[Any]) -> None:
        result = "cancelled" if future.cancelled() else "failed" if future.exception() is not None else "done"
        observer(self._kind.__name__, result, monotonic() - started)

    def _cancel(self) -> None:
        for queue in self._queues:
            queue.cancel()

    def _wait_until_finished(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else monotonic() + timeout
        return all(
            queue.wait_until_finished(None if deadline is None else deadline - monotonic()) for queue in self._queues
        )
