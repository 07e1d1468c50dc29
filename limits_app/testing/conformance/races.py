"""Races: threads and processes that take from one limit at the same time."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Barrier

import pytest

from limits_app.core.limits import Limit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.conformance.contract import ALGORITHMS, KEY, Contract, limits_of

__all__ = ["Races"]

CAPACITY = 1000
TRIES = 2 * CAPACITY
"""Of all who take part, together."""
THREADS = 8
PROCESSES = 4
DAYS = 366 * 86_400
PATIENCE = 60
"""Seconds after which a race counts as stuck."""


class Races(Contract):
    """Exactly as many requests are admitted as fit, from many threads and processes."""

    @pytest.fixture(params=[None, 1e-6], ids=["usual_switching", "switching_every_microsecond"])
    def switching(self, request: pytest.FixtureRequest) -> Iterator[None]:
        """How often the interpreter switches threads."""
        with switch_interval(request.param):
            yield

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.usefixtures("switching")
    def test_threads_together_are_admitted_exactly_the_capacity(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        assert sum(in_threads(store, RateLimit(KEY, CAPACITY, DAYS, algorithm))) == CAPACITY

    @pytest.mark.usefixtures("switching")
    def test_threads_never_hold_more_permits_than_there_are(self, store: Store) -> None:
        admitted = in_threads(store, ResourceLimit("db", 5), each=100)
        limits = limits_of(store, ResourceLimit("db", 5))
        assert sum(admitted) > 0
        assert limits.get_stats()["db"]["holders"] == 0
        held = [limits_of(store, ResourceLimit("db", 5)).try_acquire() for _ in range(6)]
        assert [bool(one) for one in held] == [True] * 5 + [False]

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_processes_together_are_admitted_exactly_the_capacity(self, method: str) -> None:
        open_store = self.open_store()
        if open_store is None:
            pytest.skip("open_store() is not given, so no other process can open the store")
        admitted = in_processes(open_store, method=method)
        assert {algorithm: sum(each) for algorithm, each in admitted.items()} == dict.fromkeys(ALGORITHMS, CAPACITY)


@contextmanager
def switch_interval(seconds: float | None) -> Iterator[None]:
    """Have the interpreter switch threads that often; None leaves it as it is."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual if seconds is None else seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def in_threads(store: Store, limit: Limit, *, each: int = TRIES // THREADS) -> list[int]:
    """How often each of eight threads is admitted when all of them try at once, `each` times."""
    barrier = Barrier(THREADS)

    def work(_: int) -> int:
        barrier.wait(PATIENCE)
        return admissions(store, limit, "threads", each)

    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(work, range(THREADS)))


def in_processes(open_store: Callable[[], Store], *, method: str) -> dict[RateLimitAlgorithm, list[int]]:
    """How often each of four processes is admitted when all of them try at once, one algorithm after the other."""
    context = multiprocessing.get_context(method)
    barrier = context.Barrier(PROCESSES)
    processes, ends = [], []
    for _ in range(PROCESSES):
        end, other = context.Pipe(duplex=False)
        process = context.Process(  # type: ignore[attr-defined]  # every context has one, though not their base
            target=_work, args=(open_store, method, barrier, other)
        )
        process.start()
        other.close()
        processes.append(process)
        ends.append(end)
    try:
        return {algorithm: [_result(end) for end in ends] for algorithm in ALGORITHMS}
    finally:
        for process in processes:
            process.join(PATIENCE)
            process.kill()


def admissions(store: Store, limit: Limit, entity: str, tries: int) -> int:
    """How many of so many tries are admitted; permits are given back at once."""
    limits = limits_of(store, limit, entity=entity)
    requested = None if isinstance(limit, ResourceLimit) else {limit.key: 1}
    admitted = 0
    for _ in range(tries):
        acquired = limits.try_acquire(requested)
        if acquired:
            admitted += 1
            if requested is None:
                acquired.release()
    return admitted


def _work(open_store: Callable[[], Store], method: str, barrier: Barrier, end: Connection) -> None:
    store = open_store()
    for algorithm in ALGORITHMS:
        limit = RateLimit(KEY, CAPACITY, DAYS, algorithm)
        barrier.wait(PATIENCE)
        end.send(admissions(store, limit, f"{method} {algorithm}", TRIES // PROCESSES))
    end.close()


def _result(end: Connection) -> int:
    assert end.poll(PATIENCE), "a process is stuck"
    result = end.recv()
    assert isinstance(result, int)
    return result
