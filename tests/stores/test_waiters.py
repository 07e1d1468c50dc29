"""Waiters: each process gets its turns, and tasks that are cancelled keep nothing and leave the line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.limits import RateLimit, ResourceLimit
from tests.stores.fairness import Load, most_to_fewest, turns
from tests.stores.races import STORES
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, limits_of, until

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

ROUNDS = 30
SPAN_SECONDS = 0.004
"""About as long as it takes from a release until a waiter goes on."""
IN_A_DATABASE = [pytest.param(store, marks=pytest.mark.release) for store in ("postgres", "sqlite")]


@pytest.mark.alone
@pytest.mark.parametrize("store", ["process", "redis", *IN_A_DATABASE])
def test_no_process_starves_and_its_threads_take_turns(store: str, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        shared = turns(open_store, Load(seconds=2.5))
    for process in shared:
        counts = [one.count for one in process]
        # A thread that the machine keeps from asking again in time misses some turns.
        assert max(counts) <= 1.5 * min(counts) + 2, "waiters are served in the order of their arrival"
        assert min(counts) > 0
        assert max(one.longest_seconds for one in process) < PATIENCE / 2


@pytest.mark.alone
@pytest.mark.parametrize("store", IN_A_DATABASE)
def test_processes_that_share_a_database_get_similar_numbers_of_turns(
    store: str, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        shared = turns(open_store, Load(seconds=6, threads=1, hold_seconds=0.003, timeout=3))
    assert most_to_fewest(shared) <= 3, shared
    assert [one.timeouts for process in shared for one in process] == [0, 0, 0, 0]


async def cancelled_after(limits: LimitSet, seconds: float) -> None:
    """Let somebody wait for a permit, who is cancelled so long after it came back."""
    held = await limits.aacquire({"tokens": 0, "db": 1})
    waiter = asyncio.create_task(limits.aacquire({"tokens": 100, "db": 1}))
    await asyncio.to_thread(until, lambda: limits.store.line.busy)
    held.update({"tokens": 0})
    await held.arelease()
    await asyncio.sleep(seconds)
    waiter.cancel()
    with suppress(asyncio.CancelledError):
        await (await waiter).acancel()


@pytest.mark.parametrize("store", ["process", "redis", "postgres", "sqlite"])
def test_no_permit_and_no_waiter_is_left(store: str, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), STORES[store]() as open_store:
        limits = limits_of(open_store(), RateLimit("tokens", 1000, 3600), ResourceLimit("db", 1))

        def used() -> list[float]:
            return [stats["used"] for stats in limits.get_stats().values()]

        for number in range(ROUNDS):
            # What was given back may come a moment later, from a thread that asyncio.run waits for.
            asyncio.run(cancelled_after(limits, SPAN_SECONDS * number / ROUNDS))
            assert used() == [0, 0]
            assert not limits.store.line.busy
        until(lambda: limits.try_acquire({"tokens": 1000, "db": 1}).successful)
