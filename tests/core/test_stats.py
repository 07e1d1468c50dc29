"""Statistics: every field, consistent over all keys, and reading changes nothing."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.core.sets import TPM, limit_set


def test_every_field_of_every_kind(store: MemoryStore) -> None:
    limits = limit_set(
        store,
        RateLimit("tpm", 100, 60, burst=50),
        CallLimit(5, 1, RateLimitAlgorithm.SLIDING_WINDOW),
        ResourceLimit("db", 4, 30),
    )
    first = limits.try_acquire({"tpm": 20, "db": 2})
    second = limits.try_acquire({"tpm": 0.5, "db": 1})
    assert first
    assert second
    assert limits.get_stats() == {
        "tpm": {
            "type": "rate",
            "algorithm": "token_bucket",
            "capacity": 100,
            "window_seconds": 60,
            "available": 29.5,
            "used": 20.5,
            "utilization": 0.41,
            "burst": 50,
        },
        "call_count": {
            "type": "call",
            "algorithm": "sliding_window",
            "capacity": 5,
            "window_seconds": 1,
            "available": 3,
            "used": 2,
            "utilization": 0.4,
        },
        "db": {
            "type": "resource",
            "algorithm": None,
            "capacity": 4,
            "window_seconds": None,
            "available": 1,
            "used": 3,
            "utilization": 0.75,
            "holders": 2,
        },
    }


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_the_live_state_of_every_algorithm(algorithm: RateLimitAlgorithm, store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, RateLimit("k", 10, 60, algorithm))
    seen = []

    def look() -> None:
        stats = limits.get_stats()["k"]
        assert stats["algorithm"] == str(algorithm)
        seen.append((stats["used"], stats["available"], stats["utilization"]))

    look()
    acquisition = limits.try_acquire({"k": 4})
    look()
    acquisition.update({"k": 15})
    acquisition.release()
    look()
    clock.advance(90)
    look()
    assert seen == [(0, 10, 0), (4, 6, 0.4), (15, 0, 1.5), (0, 10, 0)]


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_reading_changes_nothing(algorithm: RateLimitAlgorithm, store: MemoryStore, clock: FakeClock) -> None:
    read, unread = (limit_set(store, RateLimit("k", 7, 13, algorithm), ResourceLimit("db", 9)) for _ in range(2))
    for step in range(60):
        clock.move(333_333)
        for _ in range(3):
            read.get_stats()
            read.peek({"k": 1})
        one, other = (limits.try_acquire({"k": 1 + step % 3, "db": 0}) for limits in (read, unread))
        assert bool(one) is bool(other)
        assert one.outcome.as_dict() == other.outcome.as_dict()
    assert read.get_stats() == unread.get_stats()


def test_reading_an_unused_set_keeps_no_state(store: MemoryStore) -> None:
    limits = limit_set(store)
    limits.get_stats()
    limits.peek({"tpm": 1})
    assert len(store) == 0


def test_permits_of_leases_that_ran_out_are_not_counted(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, ResourceLimit("db", 4))
    limits.try_acquire({"db": 2})  # and forgotten at once
    kept = limits.try_acquire({"db": 1})
    clock.advance(10)
    stats = limits.get_stats()["db"]
    assert (stats["used"], stats["holders"], stats["available"]) == (1, 1, 3)
    kept.release()


def test_all_keys_are_of_one_moment() -> None:
    # Every request takes as much of one as of the other: whoever reads them apart sees a difference.
    limits = limit_set(MemoryStore(), RateLimit("a", 10**9, 3600), RateLimit("b", 10**9, 3600))
    stop = Event()

    def consume() -> None:
        while not stop.is_set():
            limits.try_acquire({"a": 1, "b": 1})

    threads = [Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            stats = limits.get_stats()
            assert stats["a"]["used"] == stats["b"]["used"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_stats_of_nothing() -> None:
    assert limit_set(MemoryStore(), TPM).get_stats()["tpm"]["used"] == 0
