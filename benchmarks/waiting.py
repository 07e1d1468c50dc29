"""Rows about waiting: how soon the next one goes on, what waiting costs, and whether everybody gets a turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from random import random
from threading import Event, Semaphore, Thread
from time import monotonic, monotonic_ns, process_time, sleep
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Effort, Turn, absolute, in_turns
from benchmarks.rows import Bar, Line, Row, at_most
from benchmarks.stores import memory_store, process_store, redis_store
from benchmarks.subjects import OURS, permit

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

__all__ = ["ROWS", "wait_in_child"]

Take = Callable[[], Callable[[], object]]
"""Take the only permit, however long it takes; gives what gives it back."""
Contenders = Callable[[], AbstractContextManager[dict[str, Take]]]
"""Those whose waiters are compared, by name."""

_WAITERS: Final = 200
_THREADS: Final = 8
_HOLD_SECONDS: Final = 0.001
_IN_MEMORY: Final = f"{OURS}, memory"
_IN_PROCESS_STORE: Final = f"{OURS}, process store"
_IN_REDIS: Final = f"{OURS}, Redis"


def _wake_up(contenders: Contenders, effort: Effort) -> Iterable[Line]:
    with contenders() as takes:
        wakes = effort.sized(200, 20)
        samples = in_turns({name: partial(_woken_after, take) for name, take in takes.items()}, wakes)
    bars: dict[str, Bar] = {_IN_MEMORY: at_most(1), _IN_PROCESS_STORE: at_most(3), _IN_REDIS: at_most(3)}
    for name in takes:
        yield Line(_indented(name), absolute(samples.figures(name), tail=True), "ms", bars.get(name))


def _woken_after(take: Take) -> Turn:
    """Milliseconds from a release to the waiter's going on."""
    give_back = take()
    moments: list[int] = []

    def wait() -> None:
        give_back_again = take()
        moments.append(monotonic_ns())
        give_back_again()

    waiter = Thread(target=wait)
    waiter.start()
    _let_it_fall_asleep()
    released = monotonic_ns()
    give_back()
    waiter.join()
    return Turn((moments[0] - released) / 1e6)


def _wake_up_between_processes(effort: Effort) -> Iterable[Line]:
    with process_store() as store, _child(str(store.directory)) as child:
        take = permit(store)

        def woken_after() -> float:
            give_back = take()
            child.send(True)
            _let_it_fall_asleep()
            released = monotonic_ns()
            give_back()
            woken: int = child.recv()
            return (woken - released) / 1e6

        values = [woken_after() for _ in range(effort.sized(200, 20))]
    yield Line(_IN_PROCESS_STORE, absolute(values, tail=True), "ms", at_most(3))


@contextmanager
def _child(directory: str) -> Iterator[Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=wait_in_child, args=(directory, theirs), daemon=True)
    process.start()
    ours.recv()
    try:
        yield ours
    finally:
        ours.send(False)
        process.join(10)


def wait_in_child(directory: str, orders: Connection) -> None:
    """Wait for the permit whenever told to, and say when it came; False ends it."""
    from limits_app.stores.process import open_process_store

    take = permit(open_process_store(directory))
    orders.send(None)
    while orders.recv():
        give_back = take()
        moment = monotonic_ns()
        give_back()
        orders.send(moment)


def _cost_of_waiting(contenders: Contenders, effort: Effort) -> Iterable[Line]:
    with contenders() as takes:
        for name, take in takes.items():
            rounds = effort.sized(3, 1)
            shares = [_share_of_a_core(take) for _ in range(rounds)]
            yield Line(_indented(name), absolute(shares), "% of a core", at_most(1) if name.startswith(OURS) else None)


def _share_of_a_core(take: Take) -> float:
    """What many waiters take of a core, in percent, while nothing is given back."""
    give_back = take()

    def wait() -> None:
        give_back_again = take()
        give_back_again()

    waiters = [Thread(target=wait) for _ in range(_WAITERS)]
    for waiter in waiters:
        waiter.start()
    sleep(0.5)
    started, used = monotonic(), process_time()
    sleep(2)
    share = 100 * (process_time() - used) / (monotonic() - started)
    assert all(waiter.is_alive() for waiter in waiters)
    give_back()
    for waiter in waiters:
        waiter.join()
    return share


def _fairness(contenders: Contenders, effort: Effort) -> Iterable[Line]:
    with contenders() as takes:
        for name, take in takes.items():
            turns = [_turns(take) for _ in range(effort.sized(3, 1))]
            ratios = absolute([max(each) / max(min(each), 1) for each in turns])
            fewest, most = min(turns[0]), max(turns[0])
            bar = at_most(1.5) if name.startswith(OURS) else None
            yield Line(f"{_indented(name)}, {fewest} to {most} turns", ratios, "most / fewest", bar)


def _turns(take: Take) -> list[int]:
    """How often each of several threads had the permit within two seconds."""
    over = Event()
    turns = [0] * _THREADS

    def work(number: int) -> None:
        while not over.is_set():
            give_back = take()
            sleep(_HOLD_SECONDS)
            turns[number] += not over.is_set()
            give_back()

    workers = [Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for worker in workers:
        worker.start()
    sleep(2)
    over.set()
    for worker in workers:
        worker.join()
    return turns


@contextmanager
def _on_redis() -> Iterator[dict[str, Take]]:
    with redis_store() as store:
        yield {_IN_REDIS: permit(store)}


@contextmanager
def _contenders() -> Iterator[dict[str, Take]]:
    from benchmarks.peers import concurry

    with ExitStack() as stack:
        yield {
            _IN_MEMORY: permit(stack.enter_context(memory_store())),
            _IN_PROCESS_STORE: permit(stack.enter_context(process_store())),
            "Concurry": concurry.permit(),
            "threading.Semaphore": _semaphore(),
        }


def _semaphore() -> Take:
    semaphore = Semaphore()

    def take() -> Callable[[], object]:
        semaphore.acquire()
        return semaphore.release

    return take


def _indented(name: str) -> str:
    return name if name.startswith(OURS) else f"  {name}"


def _let_it_fall_asleep() -> None:
    """Long enough to be waiting, and no multiple of anybody's polling interval."""
    sleep(0.01 + random() / 100)


ROWS: Final = (
    Row("waiting: wake-up after a release, same process", partial(_wake_up, _contenders)),
    Row("waiting: wake-up after a release, between two processes", _wake_up_between_processes),
    Row("waiting: 200 waiters", partial(_cost_of_waiting, _contenders)),
    Row("waiting: 8 threads, 1 permit, 2 seconds", partial(_fairness, _contenders)),
    Row("waiting on Redis: wake-up after a release", partial(_wake_up, _on_redis)),
    Row("waiting on Redis: 200 waiters", partial(_cost_of_waiting, _on_redis)),
    Row("waiting on Redis: 8 threads, 1 permit, 2 seconds", partial(_fairness, _on_redis)),
)
