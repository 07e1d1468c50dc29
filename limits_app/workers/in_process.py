"""Mode `process`: a worker in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing.reduction import ForkingPickler
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, cast

from limits_app.workers.connections import tidied
from limits_app.workers.resident import Recipe, Resident, travelling
from limits_app.workers.task import Task

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

__all__ = ["InProcess"]


class InProcess:
    """A worker in a process, which is started anew (not forked, because threads and connections do not survive that).

    A call fails with BrokenProcessPool when its process dies; those behind it go to a new process with a new worker.
    """

    def __init__(self, recipe: Recipe) -> None:
        try:
            self._recipe = pickle.dumps(recipe)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ValueError(f"mode 'process' cannot send the worker to another process: {error}") from error
        self._lock = Lock()
        self._life: _Life | None = None
        self._interrupted = False
        self._living()

    def stand(self) -> None:
        """See `BackEnd.stand`."""
        self._living().standing.result()

    def run(self, task: Task) -> None:
        """See `BackEnd.run`."""
        if task.begin():
            self._hand_over(task)

    def close(self, *, wait: bool) -> None:
        """See `BackEnd.close`."""
        if self._life is not None:
            self._life.executor.shutdown(wait=wait)

    def interrupt(self) -> None:
        """Terminate the process."""
        self._interrupted = True
        if self._life is not None:
            self._life.terminate()

    def _hand_over(self, task: Task) -> None:
        call = _written(task.call)
        life = self._living()
        try:
            handed = life.executor.submit(_perform, call)
        except BrokenProcessPool:
            # It died when it had nothing to do.
            self._end(life)
            life = self._living()
            handed = life.executor.submit(_perform, call)
        handed.add_done_callback(partial(self._settle, task, life))

    def _settle(self, task: Task, life: _Life, handed: Future[bytes]) -> None:
        error = handed.exception()
        if error is None:
            _deliver(task, handed.result())
        elif not isinstance(error, BrokenProcessPool):
            task.fail(error)
        else:
            # Results come in order, so the first without one is the call during which the process died.
            was_running, life.blamed = not life.blamed, True
            self._end(life)
            if was_running or self._interrupted:
                task.fail(error)
            else:
                self._hand_over_again(task)

    def _hand_over_again(self, task: Task) -> None:
        try:
            self._hand_over(task)
        except Exception as error:  # noqa: BLE001 - whoever waits for the future gets it
            task.fail(error)

    def _living(self) -> _Life:
        with self._lock:
            if self._life is None:
                self._life = _Life(self._recipe)
            return self._life

    def _end(self, life: _Life) -> None:
        """A process has died; whoever needs the next one starts it. Its executor has shut itself down."""
        with self._lock:
            if self._life is life:
                self._life = None


class _Life:
    """One process from its start to its end."""

    def __init__(self, recipe: bytes) -> None:
        self.executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _move_in, (recipe, _has_django()))
        self.standing = self.executor.submit(_stand)
        self.blamed = False

    def terminate(self) -> None:
        """End the process, if there is one; a public verb for this comes with Python 3.14."""
        for process in list((self.executor._processes or {}).values()):
            process.terminate()


def _deliver(task: Task, written: bytes) -> None:
    try:
        result = pickle.loads(written)  # noqa: S301 - from our own process
    except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
        task.fail(error)
    else:
        task.succeed(result)


def _written(value: object) -> bytes:
    """What travels, as executors would write it; they take what cannot be read for the death of a process."""
    return ForkingPickler.dumps(value).tobytes()


def _has_django() -> bool:
    """Whether Django was set up here, so that the other process can do the same."""
    apps = sys.modules.get("django.apps")
    return apps is not None and apps.apps.ready and "DJANGO_SETTINGS_MODULE" in os.environ


# ------------------------------------------------------------------------------------ in the process of the worker

_ARRIVED: Final[list[tuple[bytes, bool]]] = []


def _move_in(recipe: bytes, django: bool) -> None:
    """Nothing here can fail: an error would end the process without a word."""
    _ARRIVED.append((recipe, django))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    cast("BaseProcess", multiprocessing.parent_process()).join()
    os._exit(1)


@cache
def _resident() -> Resident:
    recipe, django = _ARRIVED[0]
    if django:
        from django import setup

        setup()
    return Resident(pickle.loads(recipe))  # noqa: S301 - from the parent


def _stand() -> None:
    try:
        _ = _resident().worker
    except Exception as error:
        _check_that_it_travels(error)
        raise


def _perform(call: bytes) -> bytes:
    try:
        with tidied():
            return _written(_resident().perform(pickle.loads(call)))  # noqa: S301 - from the parent
    except Exception as error:
        _check_that_it_travels(error)
        raise


def _check_that_it_travels(error: Exception) -> None:
    """An exception that cannot be read by the parent would take the whole process for dead."""
    arriving = travelling(error)
    if arriving is not error:
        raise arriving from error
