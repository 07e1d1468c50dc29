"""The process around the engine: background threads, weak registries, and forks."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, local
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from limits_app.engine.locks import RLock

logger = logging.getLogger("limits_app")

T = TypeVar("T")


def start_thread(work: Callable[[], object], name: str) -> Thread | None:
    """Start a daemon thread; None, with a warning, where the system cannot give one.

    That happens at the end of the process, and where a container allows no more threads.
    """
    thread = Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.warning("cannot start the thread %s; it is started again later: %s", name, error)
        return None
    return thread


class WeakRegistry(Generic[T]):
    """Objects that are registered for as long as they live.

    Several threads may add and list at the same time, which a `weakref.WeakSet` does not allow.
    """

    def __init__(self) -> None:
        self._objects: WeakValueDictionary[int, T] = WeakValueDictionary()

    def add(self, entry: T) -> None:
        """Register an object."""
        self._objects[id(entry)] = entry

    def all(self) -> list[T]:
        """Return the objects that live now."""
        # Copying the references of the dictionary is one step of the interpreter.
        entries = [reference() for reference in self._objects.valuerefs()]
        return [entry for entry in entries if entry is not None]

    def clear(self) -> None:
        """Remove all objects."""
        self._objects.clear()


class Process:
    """The running process; `forks` is how many forks lie between it and the first process that imported this module."""

    def __init__(self) -> None:
        self.forks = 0
        self._at_end: dict[Callable[[], object], None] = {}
        self._ends_known = False

    def at_end(self, act: Callable[[], object]) -> None:
        """Call a function when this process ends normally, and when a forked child does; see `at_end`."""
        self._at_end[act] = None
        if not self._ends_known:
            self._ends_known = True
            # A process that has not loaded them is not such a child.
            if "multiprocessing.util" in sys.modules:
                self.add_finalizer()
            if "celery.signals" in sys.modules:
                sys.modules["celery.signals"].worker_process_shutdown.connect(self._end, dispatch_uid="limits_app")

    def forked(self) -> None:
        """Start again in a child."""
        self.forks += 1
        self._ends_known = False
        if "multiprocessing.util" in sys.modules:  # which removes all finalizers, and then calls this
            sys.modules["multiprocessing.util"].register_after_fork(self, Process.add_finalizer)

    def add_finalizer(self) -> None:
        """Call a function when a child of `multiprocessing` ends."""
        # Below 0: in a process that has children, when those have ended.
        sys.modules["multiprocessing.util"].Finalize(None, self.end, exitpriority=-10)

    def end(self) -> None:
        """Call a function at the end."""
        for act in reversed(list(self._at_end)):
            try:
                act()
            except Exception:
                logger.exception("%r failed at the end of the process", act)

    def _end(self, **_: object) -> None:
        self.end()


PROCESS: Final = Process()
atexit.register(PROCESS.end)


def at_end(act: Callable[[], object]) -> None:
    """Call a function when this process ends normally, and when a forked child of it does; equal functions once.

    Children of `multiprocessing` and of Celery's workers skip `atexit`. The function may be called more than once.
    """
    PROCESS.at_end(act)


class Forked(Protocol):
    """An object with locks, threads or handles of its process."""

    def after_fork(self) -> None:
        """Start again in a child process."""


class ForkGuarded(Forked, Protocol):
    """An object during whose steps the process must not fork: `fork_lock` is held during every step."""

    fork_lock: RLock

    def before_fork(self) -> None:
        """Acquire `fork_lock`, which is released after the fork, and close handles that no child may use."""


_FORKED: Final[WeakRegistry[Forked]] = WeakRegistry()
_GUARDED: Final[WeakRegistry[ForkGuarded]] = WeakRegistry()
_OPENING: Final = RLock()


class _Forking(local):
    """The locks that the running thread has acquired in order to fork."""

    def __init__(self) -> None:
        self.acquired: list[RLock] = []


_FORKING: Final = _Forking()


def on_fork(forked: Forked) -> None:
    """Call `after_fork` in every child process, as long as the object lives."""
    _FORKED.add(forked)


class AtFork:
    """Calls a function in every child process, as long as this object lives; compiled stores have one."""

    def __init__(self, after_fork: Callable[[], None]) -> None:
        self.after_fork = after_fork
        on_fork(self)


def around_fork(guarded: ForkGuarded) -> None:
    """As `on_fork`; in addition the process forks only between steps of the object."""
    on_fork(guarded)
    _GUARDED.add(guarded)


def lock_over_forks() -> RLock:
    """Return the lock that is held while the process forks, so that no child inherits it locked by another thread.

    It is one lock for all callers, so that stores that open other stores need no lock order.
    """
    return _OPENING


def _before() -> None:
    # Each is noted before it is acquired, so that a signal handler that raises leaves none acquired after the fork.
    # First this one, since a step may be taken while a store is opened.
    _FORKING.acquired.append(_OPENING)
    _OPENING.acquire()
    for guarded in _GUARDED.all():
        _FORKING.acquired.append(guarded.fork_lock)
        guarded.before_fork()


def _release() -> None:
    acquired = _FORKING.acquired  # empty if the fork began before this module was imported
    while acquired:
        with suppress(RuntimeError):  # it was not acquired
            acquired[-1].release()
        acquired.pop()


def _in_child() -> None:
    PROCESS.forked()
    _release()
    for forked in _FORKED.all():
        forked.after_fork()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
    os.register_at_fork(after_in_parent=_release)  # once more, after a signal handler has raised in the first call
