"""Mode `process`: one process for each worker."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from threading import Thread
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakSet

from limits_app.acquiring import on_fork
from limits_app.engine.locks import RLock
from limits_app.workers.futures import Call, Task
from limits_app.workers.host import Host, WorkerSpec, fresh_connections, picklable

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_CONTEXT: Final = multiprocessing.get_context("spawn")
"""Processes are spawned and not forked, because threads and connections do not survive a fork."""
_END: Final = b""


class InProcess:
    """A worker in a process. A thread here hands it one call after the other, and waits for each result.

    A call raises BrokenProcessPool when its process dies; the calls behind it go to a new process with a new worker.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec.pickled("process")
        self._lock = RLock()
        self._process = _Process(self._spec)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=spec.name)
        self._ready = self._executor.submit(self._process.perform, None)

    def wait_until_ready(self) -> None:
        """See `BackEnd.wait_until_ready`."""
        self._ready.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        self._executor.submit(task.perform, self._perform)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        with suppress(RuntimeError):  # the program ends, and its processes with it
            self._executor.submit(self._end)
        self._executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """Terminate the process."""
        with self._lock:
            self._process.terminate()

    def _perform(self, call: Call) -> object:
        with self._lock:
            if not self._process.is_alive():
                self._process = _Process(self._spec)
        return self._process.perform(call)

    def _end(self) -> None:
        self._process.end()


class _Process:
    """One process, from its start to its end. It is asked by one thread at a time.

    Only this process and that one have its connection open, so that each notices the end of the other: children that
    either of them forks close it.
    """

    def __init__(self, spec: bytes) -> None:
        self._connection, self._other_end = _CONTEXT.Pipe()
        on_fork(self)
        self._process = _CONTEXT.Process(target=_serve, args=(self._other_end, spec, _has_django()))
        try:
            self._process.start()
        finally:
            self._other_end.close()
        _RUNNING.add(self)

    def after_fork(self) -> None:
        """Leave the process to the parent of this one."""
        _RUNNING.discard(self)
        self._connection.close()
        self._other_end.close()

    def is_alive(self) -> bool:
        """Whether it can take a call."""
        # Where the program ignores SIGCHLD, a process that has died seems to be alive.
        return not self._connection.closed and self._process.is_alive()

    def perform(self, call: Call | None) -> object:
        """Make a call in the process, or make the worker (None); return the result, or raise the exception.

        Raises BrokenProcessPool when the process dies meanwhile.
        """
        request = _pickled(call)
        try:
            self._connection.send_bytes(request)
            answer = self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            self._connection.close()
            self._process.join()
            code = self._process.exitcode
            raise BrokenProcessPool(f"The process of the worker ended with exit code {code}.") from error
        failure, trace, result = pickle.loads(answer)  # noqa: S301 - from our own process
        if failure is not None:
            failure.add_note(trace)
            raise failure
        return result

    def end(self) -> None:
        """End after the call that is running, and wait for that."""
        with suppress(OSError):  # it has died
            self._connection.send_bytes(_END)
        self._process.join()
        self._connection.close()

    def terminate(self) -> None:
        """End now."""
        self._process.terminate()


_RUNNING: Final[WeakSet[_Process]] = WeakSet()


@atexit.register
def _end_all() -> None:
    """End the processes of pools that nobody has stopped: Python waits for them."""
    for process in list(_RUNNING):
        process.end()


def _pickled(value: object) -> bytes:
    return ForkingPickler.dumps(value).tobytes()


def _has_django() -> bool:
    """Whether Django was set up here, so that the other process can do the same."""
    apps = sys.modules.get("django.apps")
    return apps is not None and apps.apps.ready and "DJANGO_SETTINGS_MODULE" in os.environ


# ------------------------------------------------------------------------------------ in the process of the worker


def _serve(connection: Connection, spec: bytes, django: bool) -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if hasattr(os, "register_at_fork"):  # Windows has no forks
        os.register_at_fork(after_in_child=connection.close)
    Thread(target=_end_with_parent, daemon=True).start()

    with suppress(EOFError):
        while request := connection.recv_bytes():
            connection.send_bytes(_answer(request, spec, django))


@cache
def _host(spec: bytes, django: bool) -> Host:
    if django:
        from django import setup

        setup()
    return Host(pickle.loads(spec))  # noqa: S301 - from the parent


def _answer(request: bytes, spec: bytes, django: bool) -> bytes:
    """Return what `_Process.perform` reads: an exception and its traceback, or the result."""
    try:
        with fresh_connections():
            host = _host(spec, django)
            call: Call | None = pickle.loads(request)  # noqa: S301 - from the parent
            _ = host.worker
            return _pickled((None, "", None if call is None else host.perform(call)))
    except BaseException as error:  # noqa: BLE001 - the future raises it
        return _pickled((picklable(error), traceback.format_exc(), None))


def _end_with_parent() -> None:
    cast("BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)
