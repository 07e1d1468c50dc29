"""Rows about the longest request: while a store with 200,000 clients is filled, rolled up and swept."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from time import thread_time
from typing import Final, cast

from benchmarks.harness import Effort, absolute
from benchmarks.rows import Line, Row, at_most
from benchmarks.stores import STORES
from benchmarks.subjects import limits_of
from limits_app import CallLimit
from limits_app.acquiring.store import CountingStore, Store
from limits_app.engine.errors import StoreFull

__all__ = ["ROWS"]

_START_US: Final = 1_000_000_000_000_000
_HOUR_US: Final = 3_600_000_000
_CLIENTS, _REQUESTS = 200_000, 20_000
_MEGABYTES: Final = 48
"""The default of the process store, which is 76 % full of so many clients."""
_MOST_MS: Final = 100
_PAUSE_SECONDS: Final = 0.01


def _longest(place: str, effort: Effort) -> Iterable[Line]:
    """The processor time of the longest request, without what Python's garbage collector takes."""
    clients, requests = effort.sized(_CLIENTS, _CLIENTS // 20), effort.sized(_REQUESTS, _REQUESTS // 20)
    now = [_START_US]
    with STORES[place](lambda: now[0], map_megabytes=_MEGABYTES) as store, _without_collector():
        longest = partial(_longest_of, store, now)
        yield _line("while 200,000 clients are added", longest(range(clients)))
        with _rolled_up(cast("CountingStore", store)):
            yield _line("of known clients, while they are rolled up", longest(range(requests)))
            yield _line("of new clients, while others are rolled up", longest(range(clients, clients + requests)))
        now[0] += 2 * _HOUR_US
        yield _line("of new clients, while all others are idle", longest(range(2 * clients, 2 * clients + requests)))


def _line(label: str, seconds: float) -> Line:
    return Line(label, absolute([1_000 * seconds]), "ms", at_most(_MOST_MS))


def _longest_of(store: Store, now: list[int], numbers: Iterable[int]) -> float:
    longest = 0.0
    for number in numbers:
        now[0] += 50
        limits = limits_of([CallLimit(100, 3600)], store, f"user:{number}", counts_usage=True)
        started = thread_time()
        with suppress(StoreFull):
            limits.try_acquire()
        longest = max(longest, thread_time() - started)
    return longest


@contextmanager
def _rolled_up(store: CountingStore) -> Iterator[None]:
    """Collect counts in another thread."""
    ended = Event()

    def collect() -> None:
        while not ended.is_set():
            batch = store.collect_counts()
            if batch is None:
                ended.wait(_PAUSE_SECONDS)
            else:
                store.forget_counts(batch.name)

    thread = Thread(target=collect)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _measure(place: str) -> Callable[[Effort], Iterable[Line]]:
    return partial(_longest, place)


ROWS: Final = (
    Row("growth: the longest request, process store", _measure("process store")),
    Row("growth: the longest request, memory store", _measure("memory")),
)
