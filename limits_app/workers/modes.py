"""Modes: where workers run. One back end for each mode, and one for workers on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import Final, Protocol

from limits_app.engine.locks import RLock
from limits_app.workers.futures import Task
from limits_app.workers.host import WorkerSpec


class ExecutionMode(StrEnum):
    """Where workers run; each member is its text."""

    SYNC = "sync"
    THREAD = "thread"
    PROCESS = "process"
    ASYNCIO = "asyncio"
    CELERY = "celery"
    RAY = "ray"


class BackEnd(Protocol):
    """Runs one worker: starts to make it when it is constructed, and makes calls in the order of `run`."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Start; raises ValueError when the worker cannot be sent to where it runs."""

    def wait_until_ready(self) -> None:
        """Wait until the worker is made; raises what its `__init__` raises."""

    def run(self, task: Task) -> None:
        """Take a task; returns before it has ended, unless the worker runs in the thread of the caller.

        Every task that was taken ends, also when the worker or its process dies.
        """

    def close(self, *, wait: bool) -> None:
        """Take no more tasks and end when all have ended; `wait` for that."""

    def interrupt(self) -> None:
        """End pauses between attempts, and running calls where the mode can."""


@dataclass(frozen=True, slots=True)
class WorkerMode:
    """A mode. `load` imports its back end on first use, since some need further packages.

    - `max_queued_tasks`: the default of the option of this name; `bounded` is False where the option has no effect.
    - `in_caller`: whether workers run in the thread of their caller, so that a pool also works in forked children.
    - `several_machines`: whether workers may run on several machines.
    - `extra`: the extra of this package that installs what the mode needs.
    """

    load: Callable[[], type[BackEnd]]
    max_queued_tasks: int | None = None
    bounded: bool = True
    in_caller: bool = False
    several_machines: bool = False
    extra: str | None = None

    def back_end(self) -> type[BackEnd]:
        """Return the class of the back end; raises ValueError with the command that installs a missing package."""
        try:
            return self.load()
        except ImportError as error:
            if self.extra is None:
                raise
            raise ValueError(
                f"mode {self.extra!r} requires a package: pip install 'limits-app[{self.extra}]'"
            ) from error


def _in_caller() -> type[BackEnd]:
    from limits_app.workers.in_threads import InCaller

    return InCaller


def _in_thread() -> type[BackEnd]:
    from limits_app.workers.in_threads import InThread

    return InThread


def _in_process() -> type[BackEnd]:
    from limits_app.workers.in_process import InProcess

    return InProcess


def _in_event_loop() -> type[BackEnd]:
    from limits_app.workers.in_threads import InEventLoop

    return InEventLoop


def _in_celery() -> type[BackEnd]:
    from limits_app.workers.in_celery import InCelery

    return InCelery


def _in_ray() -> type[BackEnd]:
    from limits_app.workers.in_ray import InRay

    return InRay


# A new mode is one class, one function, one member and one entry.
MODES: Final[Mapping[str, WorkerMode]] = {
    ExecutionMode.SYNC: WorkerMode(_in_caller, bounded=False, in_caller=True),
    ExecutionMode.THREAD: WorkerMode(_in_thread),
    ExecutionMode.PROCESS: WorkerMode(_in_process, max_queued_tasks=100),
    ExecutionMode.ASYNCIO: WorkerMode(_in_event_loop),
    ExecutionMode.CELERY: WorkerMode(_in_celery, max_queued_tasks=3, several_machines=True, extra="celery"),
    ExecutionMode.RAY: WorkerMode(_in_ray, max_queued_tasks=3, several_machines=True, extra="ray"),
}


def mode_named(name: str) -> WorkerMode:
    """Return the mode of a name; raises ValueError with the allowed names."""
    mode = MODES.get(name) if isinstance(name, str) else None
    if mode is None:
        raise ValueError(f"mode {name!r} must be one of {', '.join(MODES)}")
    return mode


class OnDemand:
    """A back end that makes a new worker for each task, and ends it with the task."""

    def __init__(self, start: Callable[[int], BackEnd]) -> None:
        self._start = start
        self._numbers = count()
        self._lock = RLock()
        self._working: set[BackEnd] = set()

    def wait_until_ready(self) -> None:
        """Nothing to wait for: workers are made when calls arrive."""

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        worker = self._start(next(self._numbers))
        with self._lock:
            self._working.add(worker)
        task.future.add_done_callback(lambda _: self._remove(worker))
        worker.run(task)

    def close(self, *, wait: bool) -> None:
        """Nothing to do: each worker ends with its task."""

    def interrupt(self) -> None:
        """See `BackEnd.interrupt`."""
        with self._lock:
            working = list(self._working)
        for worker in working:
            worker.interrupt()

    def _remove(self, worker: BackEnd) -> None:
        with self._lock:
            self._working.discard(worker)
        worker.close(wait=False)
