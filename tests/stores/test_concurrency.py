"""Concurrency: threads that acquire, settle and look at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from threading import Barrier, Event

import pytest

from limits_app.acquiring.store import Store
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.conformance.concurrency import switching_every_microsecond
from tests.stores.support import PATIENCE, limits_of

THREADS = 8
DAY = 86_400


@pytest.fixture(autouse=True)
def _switching() -> Iterator[None]:
    with switching_every_microsecond():
        yield


def test_three_limits_are_charged_together_and_refunded_exactly(store: Store) -> None:
    rates = {"a": 3, "b": 2, "c": 5}
    limits = limits_of(store, *[RateLimit(key, 700 * each, DAY) for key, each in rates.items()])
    barrier = Barrier(THREADS)

    def work(number: int) -> tuple[int, int]:
        admitted = kept = 0
        barrier.wait(PATIENCE)
        for turn in range(300):
            with limits.try_acquire(rates) as acquired:
                if acquired:
                    admitted += 1
                    keep = (turn + number) % 3 == 0
                    kept += keep
                    acquired.update(rates if keep else dict.fromkeys(rates, 0))
        return admitted, kept

    with ThreadPoolExecutor(THREADS) as executor:
        results = list(executor.map(work, range(THREADS)))
    kept = sum(each for _, each in results)
    assert kept == min(700, kept)
    assert {key: stats["used"] for key, stats in limits.get_stats().items()} == {
        key: kept * each for key, each in rates.items()
    }


def test_threads_are_admitted_exactly_the_capacity_of_three_limits(store: Store) -> None:
    limits = limits_of(
        store,
        RateLimit("a", 900, DAY, RateLimitAlgorithm.GCRA),
        RateLimit("b", 301, DAY, RateLimitAlgorithm.SLIDING_WINDOW),
        CallLimit(1000, DAY, RateLimitAlgorithm.LEAKY_BUCKET),
    )

    def work(_: int) -> int:
        return sum(bool(limits.try_acquire({"a": 3, "b": 1})) for _ in range(100))

    with ThreadPoolExecutor(THREADS) as executor:
        assert sum(executor.map(work, range(THREADS))) == 300
    stats = limits.get_stats()
    assert [stats[key]["available"] for key in ("a", "b", "call_count")] == [0, 1, 700]


def test_statistics_are_never_torn(store: Store) -> None:
    rates = {"a": 3, "b": 2, "c": 5}
    limits = limits_of(store, *[RateLimit(key, 10**6, DAY, RateLimitAlgorithm.LEAKY_BUCKET) for key in rates])
    stop = Event()

    def work() -> None:
        while not stop.is_set():
            assert limits.try_acquire(rates)

    with ThreadPoolExecutor(4) as executor:
        futures = [executor.submit(work) for _ in range(4)]
        try:
            for _ in range(200):
                seen = {key: Fraction(str(stats["used"])) for key, stats in limits.get_stats().items()}
                assert seen["a"] / 3 == seen["b"] / 2 == seen["c"] / 5
        finally:
            stop.set()
        for future in futures:
            future.result(PATIENCE)


def test_every_waiting_request_gets_a_permit(store: Store) -> None:
    order: list[int] = []

    def work(number: int) -> None:
        mine = limits_of(store, ResourceLimit("db", 1))
        for _ in range(10):
            with mine.acquire(timeout=None):
                order.append(number)

    with ThreadPoolExecutor(THREADS) as executor:
        futures = [executor.submit(work, number) for number in range(THREADS)]
        for future in futures:
            future.result(PATIENCE)
    assert sorted(order) == sorted(list(range(THREADS)) * 10)
