"""Mode `process`: one process for each worker."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, cast

from limits_app.engine.locks import RLock
from limits_app.workers.futures import Task
from limits_app.workers.host import Host, WorkerSpec, fresh_connections, picklable

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


class InProcess:
    """A worker in a process, which is spawned and not forked, because threads and connections do not survive a fork.

    A call raises BrokenProcessPool when its process dies; the calls behind it go to a new process with a new worker.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec.pickled("process")
        self._lock = RLock()
        self._process: _Process | None = None
        self._interrupted = False
        self._current()

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        self._current().ready.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if task.begin():
            self._hand_over(task)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        if self._process is not None:
            self._process.executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """Terminate the process."""
        self._interrupted = True
        if self._process is not None:
            self._process.terminate()

    def _hand_over(self, task: Task) -> None:
        call = _pickled(task.call)
        process = self._current()
        try:
            handed = process.executor.submit(_perform, call)
        except BrokenProcessPool:
            # The process died when it was idle.
            self._forget(process)
            process = self._current()
            handed = process.executor.submit(_perform, call)
        handed.add_done_callback(partial(self._settle, task, process))

    def _settle(self, task: Task, process: _Process, handed: Future[bytes]) -> None:
        error = handed.exception()
        if error is None:
            _deliver(task, handed.result())
        elif not isinstance(error, BrokenProcessPool):
            task.fail(error)
        else:
            # Results arrive in order, so the first call without one is the call during which the process died.
            was_running, process.has_failed_call = not process.has_failed_call, True
            self._forget(process)
            if was_running or self._interrupted:
                task.fail(error)
                return
            try:
                self._hand_over(task)
            except Exception as failure:  # noqa: BLE001 - the future raises it
                task.fail(failure)

    def _current(self) -> _Process:
        with self._lock:
            if self._process is None:
                self._process = _Process(self._spec)
            return self._process

    def _forget(self, process: _Process) -> None:
        """A process has died, and its executor has shut itself down; the next call starts another one."""
        with self._lock:
            if self._process is process:
                self._process = None


class _Process:
    """One process, from its start to its end."""

    def __init__(self, spec: bytes) -> None:
        self._context = _RecordingContext()
        self.executor = ProcessPoolExecutor(1, self._context, _initialize, (spec, _has_django()))
        self.ready = self.executor.submit(_make_worker)
        self.has_failed_call = False

    def terminate(self) -> None:
        """End the process; executors have a method for this from Python 3.14 on."""
        for process in self._context.processes:
            process.terminate()


class _RecordingContext(SpawnContext):
    """Spawns processes, and keeps them, so that they can be terminated."""

    def __init__(self) -> None:
        self.processes: list[SpawnProcess] = []

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802 - as in SpawnContext
        process = SpawnProcess(*args, **kwargs)
        self.processes.append(process)
        return process


def _deliver(task: Task, pickled: bytes) -> None:
    try:
        result = pickle.loads(pickled)  # noqa: S301 - from our own process
    except BaseException as error:  # noqa: BLE001 - the future raises it
        task.fail(error)
    else:
        task.succeed(result)


def _pickled(value: object) -> bytes:
    """Pickle as an executor does; done here, since an executor takes what it cannot unpickle for a dead process."""
    return ForkingPickler.dumps(value).tobytes()


def _has_django() -> bool:
    """Whether Django was set up here, so that the other process can do the same."""
    apps = sys.modules.get("django.apps")
    return apps is not None and apps.apps.ready and "DJANGO_SETTINGS_MODULE" in os.environ


# ------------------------------------------------------------------------------------ in the process of the worker

_ARGUMENTS: Final[list[tuple[bytes, bool]]] = []


def _initialize(spec: bytes, django: bool) -> None:
    """Keep the arguments; must not raise, since an exception here would end the process without a message."""
    _ARGUMENTS.append((spec, django))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    cast("BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)


@cache
def _host() -> Host:
    spec, django = _ARGUMENTS[0]
    if django:
        from django import setup

        setup()
    return Host(pickle.loads(spec))  # noqa: S301 - from the parent


def _make_worker() -> None:
    try:
        _ = _host().worker
    except Exception as error:
        _check_picklable(error)
        raise


def _perform(call: bytes) -> bytes:
    try:
        with fresh_connections():
            return _pickled(_host().perform(pickle.loads(call)))  # noqa: S301 - from the parent
    except Exception as error:
        _check_picklable(error)
        raise


def _check_picklable(error: Exception) -> None:
    """Raise a RuntimeError in place of an exception that the parent cannot unpickle: it would abandon the process."""
    replacement = picklable(error)
    if replacement is not error:
        raise replacement from error
