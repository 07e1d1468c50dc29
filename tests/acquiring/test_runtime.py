"""The process around the engine: forks, during which no thread waits for another one, and weak registries."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from threading import Event, RLock

import pytest

from limits_app.acquiring import runtime
from limits_app.acquiring.runtime import WeakRegistry, around_fork, lock_over_forks
from limits_app.testing.conformance.concurrency import switching_every_microsecond
from tests.interrupting import interrupted_at_event
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, running

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

SECONDS = 10
"""How long a fork may take that waits for one thread."""

FORKING_DURING_AN_IMPORT = """
import importlib, os, sys
import concurrent.futures.thread, logging  # they have hooks of their own
raised = []
sys.unraisablehook = raised.append
os.register_at_fork(before=lambda: importlib.import_module(sys.argv[1]))
child = os.fork()
if child == 0:
    os._exit(len(raised))
lock = importlib.import_module("limits_app.acquiring.runtime").lock_over_forks()
print(os.waitpid(child, 0)[1], len(raised), lock.acquire(blocking=False))
"""


def is_free(lock: RLock) -> bool:
    """Whether another thread could take a lock."""

    def take() -> bool:
        if taken := lock.acquire(blocking=False):
            lock.release()
        return taken

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(take).result(PATIENCE)


def child_gets(lock: RLock, child: int) -> bool:
    """Whether a child that was forked gets a lock free; the child itself ends here."""
    if child == 0:
        os._exit(0 if is_free(lock) else 1)
    return os.waitpid(child, 0)[1] == 0


def opening_while_another_forks(pipe: Connection) -> None:
    """Hold the lock, and acquire it again once another thread is about to fork."""
    opening, forking = Event(), Event()
    outer = lock_over_forks()
    os.register_at_fork(before=forking.set)  # it is called after what is registered later
    inner = lock_over_forks()

    def open_both() -> None:
        with outer:
            opening.set()
            forking.wait()
            with inner:
                pass

    with ThreadPoolExecutor(1) as executor:
        opened = executor.submit(open_both)
        opening.wait()
        child = os.fork()
        free = child_gets(outer, child)
        opened.result()
    pipe.send(free and is_free(outer) and is_free(inner))


def forking_while_opening(pipe: Connection) -> None:
    """Fork in the middle of opening something oneself."""
    lock = lock_over_forks()
    with lock:
        child = os.fork()
        taken = not is_free(lock)
    pipe.send((taken, child_gets(lock, child), is_free(lock)))


def making_a_lock_while_forking(pipe: Connection) -> None:
    """Make a lock when the process is already about to fork."""
    raised: list[object] = []
    made: list[RLock] = []
    sys.unraisablehook = raised.append
    os.register_at_fork(before=lambda: made.append(lock_over_forks()))
    child = os.fork()
    pipe.send((child_gets(made[0], child), is_free(made[0]), len(raised)))


class Machine:
    """An object during whose steps the process must not fork."""

    def __init__(self) -> None:
        self.fork_lock = RLock()
        around_fork(self)

    def before_fork(self) -> None:
        self.fork_lock.acquire()

    def after_fork(self) -> None:
        self.fork_lock = RLock()


def stepping_while_opening(pipe: Connection) -> None:
    """Take a step in the middle of opening something, once another thread is about to fork."""
    machine, lock = Machine(), lock_over_forks()
    opening, forking = Event(), Event()
    os.register_at_fork(before=forking.set)

    def open_and_step() -> None:
        with lock:
            opening.set()
            forking.wait()
            with machine.fork_lock:
                pass

    with ThreadPoolExecutor(1) as executor:
        opened = executor.submit(open_and_step)
        opening.wait()
        child = os.fork()
        free = child_gets(machine.fork_lock, child)
        opened.result()
    pipe.send(free and is_free(machine.fork_lock) and is_free(lock))


def forking_with_interruptions(pipe: Connection) -> None:
    """Fork while a signal handler raises at each point of what is done around forks; say which locks are left held."""
    raised: list[type[BaseException] | None] = []
    sys.unraisablehook = lambda hooked: raised.append(hooked.exc_type)
    for registered in (runtime._FORKED, runtime._GUARDED):
        registered.clear()  # what earlier tests have opened makes each fork longer
    machine, lock, number, held = Machine(), lock_over_forks(), 0, []
    while len(raised) == number:
        number += 1
        with interrupted_at_event(
            number, lambda frame, event: event in {"call", "c_return"} and frame.f_code.co_filename == runtime.__file__
        ):
            child = os.fork()
            if child == 0:
                os._exit(0)
        os.waitpid(child, 0)
        held += [number for one in (machine.fork_lock, lock) if not is_free(one)]
    pipe.send((number, held))


def test_an_exception_of_a_signal_handler_around_a_fork_leaves_no_lock_held() -> None:
    with running(forking_with_interruptions) as process:
        # Longer than for one fork: it forks about 14 times, and `make coverage` makes each child of a fork slow.
        number, held = process.hear(3 * PATIENCE)  # type: ignore[misc]
    assert number > 5
    assert held == []


def test_nested_opening_and_a_fork_do_not_deadlock() -> None:
    with running(opening_while_another_forks) as process:
        assert process.hear(SECONDS) is True


def test_what_is_opened_may_take_a_step_while_another_thread_forks() -> None:
    with running(stepping_while_opening) as process:
        assert process.hear(SECONDS) is True


def test_a_fork_while_a_store_opens_continues_in_both_processes() -> None:
    with running(forking_while_opening) as process:
        assert process.hear(SECONDS) == (True, True, True)


def test_a_lock_that_is_made_in_the_middle_of_a_fork_is_not_released() -> None:
    with running(making_a_lock_while_forking) as process:
        assert process.hear(SECONDS) == (True, True, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "limits_app.acquiring.runtime",
        "limits_app.stores.redis",
        "limits_app.stores.database",
        "limits_app.stores.registry",
    ],
)
def test_a_module_that_is_imported_in_the_middle_of_a_fork_releases_nothing(module: str) -> None:
    command = [sys.executable, "-c", FORKING_DURING_AN_IMPORT, module]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.split() == ["0", "0", "True"]


THREADS = 4
EACH = 3000


class Thing:
    """Something that can be referred to."""


def test_weak_set_has_each_living_object_once() -> None:
    living = WeakRegistry[Thing]()
    first, second = Thing(), Thing()
    for one in (first, second, first):
        living.add(one)
    assert living.all() == [first, second]
    del first, one
    assert living.all() == [second]
    living.clear()
    for _ in range(100):  # at the address of one that is gone
        thing = Thing()
        living.add(thing)
        assert living.all() == [thing]


def test_weak_set_can_be_iterated_while_it_changes() -> None:
    living, done = WeakRegistry[Thing](), Event()

    def come_and_go() -> None:
        kept = []
        for turn in range(EACH):
            thing = Thing()
            living.add(thing)
            if turn % 10 == 0:
                kept.append(thing)
        done.wait()
        assert all(thing in living.all() for thing in kept)

    with switching_every_microsecond(), ThreadPoolExecutor(THREADS) as executor:
        coming = [executor.submit(come_and_go) for _ in range(THREADS)]
        while len(living.all()) < THREADS * EACH // 10:
            pass
        done.set()
        for one in coming:
            one.result()
