"""What the tests of the stores share: processes that are started, told, heard and killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from threading import Event, Lock
from time import monotonic
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.acquiring.waiting import ThreadWaiter
from limits_app.engine.clock import Clock, system_us
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import EntityScopes, scope_of
from limits_app.engine.limits import AnyLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock

PATIENCE = 30
"""Seconds after which something that should have happened counts as missing."""

MULTI_THREADED_FORK = "ignore:.*multi-threaded.*fork:DeprecationWarning"


class OnlyForked:
    """Beside a class of the conformance suite: a store on a server is opened alike in spawned and in forked processes.

    The process store is always tested with both, others before a release.
    """

    @pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.release)])
    @pytest.mark.filterwarnings(MULTI_THREADED_FORK)
    def test_processes_are_admitted_exactly_the_capacity(self, method: str) -> None:
        super().test_processes_are_admitted_exactly_the_capacity(method)  # type: ignore[misc]


@dataclass
class Running:
    """A process, and a pipe to it."""

    process: BaseProcess
    pipe: Connection

    def hear(self, seconds: float = PATIENCE) -> object:
        """What the process says next, within so many seconds."""
        assert self.pipe.poll(seconds), "the process says nothing"
        try:
            return self.pipe.recv()
        except EOFError:
            raise AssertionError("the process has ended without a word") from None

    def kill(self) -> float:
        """End it at once, as the kernel does when memory runs out; returns when that was."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        killed = monotonic()
        self.ended()
        return killed

    def ended(self) -> int | None:
        """Wait for its end; returns its exit code."""
        assert wait([self.process.sentinel], PATIENCE), "the process does not end"
        self.process.join(PATIENCE)
        return self.process.exitcode


@contextmanager
def running(target: Callable[..., None], *args: object, method: str = "fork") -> Iterator[Running]:
    """Run `target(pipe, *args)` in a process of its own until the block ends."""
    context = multiprocessing.get_context(method)
    mine, other = context.Pipe()
    process = context.Process(target=_guarded, args=(target, other, args))
    process.start()
    other.close()
    try:
        yield Running(process, mine)
    finally:
        mine.close()
        if process.is_alive():
            process.kill()
        process.join(PATIENCE)


def _guarded(target: Callable[..., None], pipe: Connection, args: tuple[object, ...]) -> None:
    try:
        target(pipe, *args)
    except BaseException:
        traceback.print_exc()
        raise


def until(condition: Callable[[], bool], *, pause_seconds: float = 0.005) -> None:
    """Look again and again, since nobody tells when a process has been killed."""
    deadline, pause = monotonic() + PATIENCE, Event()
    while not condition():
        assert monotonic() < deadline, "it does not happen"
        pause.wait(pause_seconds)


class Lookout(Clock):
    """The machine's clock, which notices when it is read while somebody stands in line."""

    def __init__(self) -> None:
        super().__init__(system_us)
        self.store: Store | None = None
        self.somebody_waits = Event()

    def __call__(self) -> int:
        """The time; a waiter reads it between joining the line and going to sleep, and so may others."""
        if self.store is not None and self.store.line.busy:
            self.somebody_waits.set()
        return super().__call__()


class ActingClock(FakeClock):
    """A clock that does something once when it is read, as a signal handler or a finalizer may."""

    deed: Callable[[], object] | None = None
    failure: StoreUnavailable | None = None
    """Why the store did not do it."""

    def __call__(self) -> int:
        deed, self.deed = self.deed, None
        if deed is not None:
            try:
                deed()
            except StoreUnavailable as error:
                self.failure = error
        return super().__call__()


def limits_of(store: Store, *limits: AnyLimit, entity: str = "someone", version: int | None = None) -> LimitSet:
    """A set over one scope."""
    scoped = ScopedLimits(scope_of("tests", entity), schema_of(limits, store.lease_us))
    return LimitSet.composed([scoped], store, version=version)


def for_each_entity(limits: LimitSet) -> Callable[[str], LimitSet]:
    """The limits of a set for any other entity, as the clients of a resource have them: they are compiled once."""
    scopes = EntityScopes(limits.scopes, limits.scopes[0].entity)
    return lambda entity: limits.bound(scopes.of(entity), version=limits.version)


def used(limits: LimitSet, key: str = "call_count") -> object:
    """How much of a limit is taken."""
    return limits.get_stats()[key]["used"]


def holders(limits: LimitSet, key: str = "db") -> object:
    """How many hold permits."""
    return limits.get_stats()[key]["holders"]


def count_entries(store: ProcessStore) -> int:
    """How many entries the file of a store holds."""
    with file_of(store).open().begin() as txn:
        return int(txn.stat()["entries"])


def entries(store: ProcessStore, prefix: bytes) -> list[bytes]:
    """The keys in the file of a store that start with a prefix."""
    with file_of(store).open().begin() as txn:
        return [bytes(key) for key, _ in txn.cursor() if bytes(key).startswith(prefix)]


def files(store: ProcessStore, suffix: str) -> list[Path]:
    """The files in the directory of a store that end so."""
    return sorted((store.directory / "state").glob(f"*{suffix}"))


class Loser:
    """Loses a share of the replies to some commands, and as many in a row as `next` says.

    Unless they arrive, the commands themselves are lost.
    """

    def __init__(self, command: bytes) -> None:
        self.command = command
        self.share = 0.0
        self.next = 0
        self.arrives = True
        self._random = Random(1)
        self._lock = Lock()

    def __call__(self, command: bytes) -> bool:
        """Return whether the reply to a command is lost."""
        with self._lock:
            if self.command not in command:
                return False
            if self.next:
                self.next -= 1
                return True
            lost = self._random.random() < self.share
        if lost and not self.arrives:
            raise ConnectionError  # the proxy closes both connections before it has sent the command
        return lost


def again(verb: Callable[[], object]) -> None:
    """Call something until it is known to be done."""
    for _ in range(20):
        try:
            verb()
        except StoreUnavailable:
            continue
        return
    raise AssertionError("it never succeeds")


def connections_of(store: Any) -> Any:
    """The connections of a store on a server."""
    return store._connections


def file_of(store: ProcessStore) -> Any:
    """The state file of a store."""
    return store._file


def waking_of(store: Any) -> Any:
    """What wakes those who wait for a store, in other processes too."""
    return store._waking


def has_subscribed(store: Any) -> bool:
    """Whether a store is notified of what wakes those who wait for it."""
    return waking_of(store)._subscribed.is_set()  # type: ignore[no-any-return]


@contextmanager
def watching(store: Any, scope: str) -> Iterator[None]:
    """Wait for a scope, as a caller does that goes to sleep."""
    waiter = ThreadWaiter()
    try:
        store.line.enqueue(waiter, [(scope, "key")])
        yield
    finally:
        store.line.leave(waiter)
