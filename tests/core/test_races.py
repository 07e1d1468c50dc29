"""Many threads at once: exactly as much is admitted as the limit says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Barrier

import pytest

from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from tests.core.sets import used
from tests.core.watched import Caller

THREADS = 8
CAPACITY = 1000


@pytest.fixture(params=[None, 1e-6], ids=["as_usual", "switching_every_microsecond"])
def _switching(request: pytest.FixtureRequest) -> Iterator[None]:
    """How often threads take turns."""
    before = sys.getswitchinterval()
    if request.param is not None:
        sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)


def in_threads(work: Callable[[], int]) -> int:
    """Do the same in all threads at once; returns the sum of their results."""
    gate = Barrier(THREADS)

    def at_once() -> int:
        gate.wait()
        return work()

    callers = [Caller(at_once) for _ in range(THREADS)]
    return sum(caller.result() for caller in callers)


@pytest.mark.usefixtures("_switching")
@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_eight_threads_get_exactly_the_capacity(algorithm: RateLimitAlgorithm) -> None:
    for _ in range(5):
        limits = LimitSet([CallLimit(CAPACITY, 366 * 86_400, algorithm)], shared=True, mode="thread")

        def work(limits: LimitSet = limits) -> int:
            admitted = 0
            while limits.try_acquire():
                admitted += 1
            return admitted

        assert in_threads(work) == CAPACITY
        assert CAPACITY - 0.1 < limits.get_stats()["call_count"]["used"] <= CAPACITY  # type: ignore[operator]  # a number


@pytest.mark.usefixtures("_switching")
def test_eight_threads_hold_exactly_as_many_permits_as_there_are() -> None:
    limits = LimitSet([ResourceLimit("db", CAPACITY)], shared=True, mode="thread")

    def work() -> int:
        held = []
        while acquisition := limits.try_acquire({"db": 1}):
            held.append(acquisition)
        gathered.append(held)
        return len(held)

    gathered: list[object] = []
    assert in_threads(work) == CAPACITY
    assert used(limits) == {"db": CAPACITY}


@pytest.mark.usefixtures("_switching")
def test_refunds_and_releases_of_many_threads_lose_nothing() -> None:
    limits = LimitSet([RateLimit("tpm", 100_000, 366 * 86_400), ResourceLimit("db", 3)], shared=True, mode="thread")

    def work() -> int:
        for _ in range(100):
            with limits.acquire({"tpm": 10}) as acquisition:
                acquisition.update({"tpm": 7})
        return 1

    assert in_threads(work) == THREADS
    stats = used(limits)
    assert stats["db"] == 0
    assert 5599 <= float(stats["tpm"]) <= 5600  # type: ignore[arg-type]  # a number, less what has drained


def test_never_more_than_the_permits_are_inside_at_the_same_time() -> None:
    limits = LimitSet([ResourceLimit("db", 3)], store=MemoryStore())
    inside: set[int] = set()
    most = []

    def work() -> int:
        for number in range(50):
            with limits.acquire():
                inside.add(me := id(object()) + number)
                most.append(len(inside))
                inside.discard(me)
        return 1

    assert in_threads(work) == THREADS
    assert max(most) <= 3
    assert used(limits) == {"db": 0}
    assert not limits.store.line.busy
