"""Concurrency: threads and processes that take from one limit at the same time, and waiters that are woken."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Barrier, Event
from typing import TypeVar

import pytest

from limits_app.acquiring import Acquisition, LimitSet, Store
from limits_app.engine.errors import LimitTimeout, StaleConfiguration
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    YEAR,
    Contract,
    admissions,
    available,
    claim_of,
    credit,
    give_back,
    holders,
    limits_of,
    reset,
    settle,
    taken,
)
from limits_app.testing.conformance.requests import members

R = TypeVar("R")

CAPACITY = 500
TRIES = 2 * CAPACITY
"""Of all threads or processes together."""
THREADS = 8
PROCESSES = 4
TIMEOUT = 60
"""Seconds after which a race or a waiter that was not woken fails."""


class Races(Contract):
    """Exactly as many requests are admitted as fit, from many threads and processes."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_threads_are_admitted_exactly_the_capacity(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        with switching_every_microsecond():
            assert sum(in_threads(store, RateLimit(KEY, CAPACITY, YEAR, algorithm))) == CAPACITY

    def test_threads_never_hold_more_permits_than_the_limit_has(self, store: Store) -> None:
        with switching_every_microsecond():
            admitted = in_threads(store, ResourceLimit("db", 5), each=100)
        limits = limits_of(store, ResourceLimit("db", 5))
        assert sum(admitted) > 0
        assert holders(limits) == 0
        acquisitions = [limits_of(store, ResourceLimit("db", 5)).try_acquire() for _ in range(6)]
        assert [bool(acquisition) for acquisition in acquisitions] == [True] * 5 + [False]

    @pytest.mark.parametrize("method", sorted({"fork", "spawn"} & {*multiprocessing.get_all_start_methods()}))
    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_processes_are_admitted_exactly_the_capacity(self, method: str) -> None:
        open_store = self.open_store()
        if open_store is None:
            pytest.skip("open_store() is not defined, so no other process can open the store")
        admitted = in_processes(open_store, method=method)
        assert {algorithm: sum(each) for algorithm, each in admitted.items()} == dict.fromkeys(ALGORITHMS, CAPACITY)

    @pytest.mark.parametrize("emptiest_first", [False, True])
    def test_threads_that_choose_take_exactly_the_capacity_of_all_sets(
        self, store: Store, *, emptiest_first: bool
    ) -> None:
        sets = members(store, CallLimit(100, YEAR), number=4)
        assert sum(choose_in_threads(store, sets, each=100, emptiest_first=emptiest_first)) == 400
        assert [available(limits, CallLimit.key) for limits in sets] == [0] * 4

    def test_threads_that_choose_the_emptiest_use_all_sets_equally(self, store: Store) -> None:
        sets = members(store, CallLimit(1000, YEAR), number=4)
        assert sum(choose_in_threads(store, sets, each=25, emptiest_first=True)) == THREADS * 25
        assert [available(limits, CallLimit.key) for limits in sets] == [1000 - THREADS * 25 // 4] * 4


@contextmanager
def switching_every_microsecond() -> Iterator[None]:
    """Have the interpreter switch threads as often as it can, so that most of what may happen in between does."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


def together(work: Callable[[], R]) -> list[R]:
    """Call `work` in eight threads that start at the same time; return the results."""
    barrier = Barrier(THREADS)

    def start(_: int) -> R:
        barrier.wait(TIMEOUT)
        return work()

    with ThreadPoolExecutor(THREADS) as executor:
        return list(executor.map(start, range(THREADS)))


def in_threads(store: Store, limit: LimitDefinition, *, each: int = TRIES // THREADS) -> list[int]:
    """How often each of eight threads is admitted that try at the same time, `each` times."""
    return together(lambda: admitted_of(store, limit, "threads", each))


def choose_in_threads(store: Store, sets: Sequence[LimitSet], *, each: int, emptiest_first: bool) -> list[int]:
    """How often each of eight threads is admitted that choose from sets at the same time, `each` times."""

    def choose() -> int:
        tries = [
            store.acquire_first([claim_of(limits) for limits in sets], emptiest_first=emptiest_first)
            for _ in range(each)
        ]
        return sum(claim is not None for claim in tries)

    return together(choose)


def in_processes(open_store: Callable[[], Store], *, method: str) -> dict[RateLimitAlgorithm, list[int]]:
    """How often each of four processes is admitted that try at the same time, one algorithm after the other."""
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
            process.join(TIMEOUT)
            process.kill()


def admitted_of(store: Store, limit: LimitDefinition, entity: str, tries: int) -> int:
    """How many of so many tries are admitted; permits are released immediately."""
    limits = limits_of(store, limit, entity=entity)
    requested = None if isinstance(limit, ResourceLimit) else {limit.key: 1}
    admitted = 0
    for _ in range(tries):
        acquired = limits.try_acquire(requested)
        admitted += bool(acquired)
        if requested is None:
            acquired.release()
    return admitted


def _work(open_store: Callable[[], Store], method: str, barrier: Barrier, end: Connection) -> None:
    store = open_store()
    for algorithm in ALGORITHMS:
        limit = RateLimit(KEY, CAPACITY, YEAR, algorithm)
        barrier.wait(TIMEOUT)
        end.send(admitted_of(store, limit, f"{method} {algorithm}", TRIES // PROCESSES))
    end.close()


def _result(end: Connection) -> int:
    assert end.poll(TIMEOUT), "a process does not answer"
    result = end.recv()
    assert isinstance(result, int)
    return result


class WaiterClock(FakeClock):
    """A clock that notices when it is read while a request waits."""

    def __init__(self) -> None:
        super().__init__()
        self.store: Store | None = None
        self.has_waiter = Event()

    def __call__(self) -> int:
        """The time; a waiter reads it between joining the line and going to sleep."""
        if self.store is not None and self.store.line.busy:
            self.has_waiter.set()
        return super().__call__()


@contextmanager
def waiting(clock: WaiterClock, acquire: Callable[[], Acquisition]) -> Iterator[Future[Acquisition]]:
    """Wait in another thread; the block runs when that thread waits in the line."""
    clock.has_waiter.clear()
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(acquire)
        try:
            assert clock.has_waiter.wait(TIMEOUT)
            assert not future.done()
            yield future
        finally:
            if not future.done():
                # So that a failing test ends.
                clock.advance(10**6)


class WakingTests(Contract):
    """Waiters on a clock that stands still are woken by changes, or not at all."""

    @pytest.fixture
    def waiter_clock(self) -> WaiterClock:
        """A clock that notices waiters."""
        return WaiterClock()

    @pytest.fixture
    def watched(self, waiter_clock: WaiterClock) -> Iterator[Store]:
        """The store under test, on that clock."""
        waiter_clock.store = self.make_store(waiter_clock)
        yield waiter_clock.store
        self.close_store(waiter_clock.store)

    @pytest.mark.parametrize("by", ["release", "refund", "reset", "time", *ALGORITHMS])
    def test_a_waiter_is_woken(self, watched: Store, waiter_clock: WaiterClock, by: str) -> None:
        algorithm = RateLimitAlgorithm(by) if by in ALGORITHMS else RateLimitAlgorithm.TOKEN_BUCKET
        limits = limits_of(watched, ResourceLimit("db", 1), RateLimit(KEY, 10, 3600, algorithm))
        claim = taken(limits, {"db": 1, KEY: 0} if by == "release" else {"db": 0, KEY: 10})
        with waiting(waiter_clock, lambda: limits.acquire({KEY: 5}, timeout=10**5)) as waiter:
            match by:
                case "release":
                    give_back(limits, claim)
                case "refund":
                    settle(limits, claim, {KEY: -5})
                case "reset":
                    reset(limits)
                case "time":
                    waiter_clock.advance(3600)
                case _:
                    credit(limits, KEY, 5)
            assert waiter.result(TIMEOUT)

    def test_a_changed_configuration_wakes_a_waiter_whose_limits_are_stale(
        self, watched: Store, waiter_clock: WaiterClock
    ) -> None:
        limits = limits_of(watched, CallLimit(1, 3600), version=watched.version())
        assert limits.try_acquire()
        with waiting(waiter_clock, lambda: limits.acquire(timeout=10**5)) as waiter:
            watched.advance_version()
            with pytest.raises(StaleConfiguration):
                waiter.result(TIMEOUT)

    def test_a_waiter_that_times_out_leaves_nothing_behind(self, watched: Store, waiter_clock: WaiterClock) -> None:
        limits = limits_of(watched, ResourceLimit("db", 1))
        claim = taken(limits)
        with waiting(waiter_clock, lambda: limits.acquire(timeout=1)) as waiter:
            waiter_clock.advance(1)
            with pytest.raises(LimitTimeout):
                waiter.result(TIMEOUT)
        assert not watched.line.busy
        give_back(limits, claim)
        assert admissions(limits, 2) == [True, False]

    def test_waiters_are_admitted_in_their_order(self, watched: Store, waiter_clock: WaiterClock) -> None:
        limits = limits_of(watched, ResourceLimit("db", 1))
        claim, admitted = taken(limits), list[int]()

        def wait(number: int) -> Acquisition:
            with limits_of(watched, ResourceLimit("db", 1)).acquire() as acquisition:
                admitted.append(number)
            return acquisition

        with (
            waiting(waiter_clock, lambda: wait(0)) as first,
            waiting(waiter_clock, lambda: wait(1)) as second,
            waiting(waiter_clock, lambda: wait(2)) as third,
        ):
            give_back(limits, claim)
            for waiter in (first, second, third):
                assert waiter.result(TIMEOUT)
        assert admitted == [0, 1, 2]
