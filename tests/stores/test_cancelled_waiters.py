"""Tasks that are cancelled at whatever moment of waiting: none keeps what nobody would give back, or stays in line."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import RateLimit, ResourceLimit
from tests.stores.races import STORES
from tests.stores.support import limits_of, until

ROUNDS = 30
SPAN_SECONDS = 0.004
"""About as long as it takes from a release until a waiter goes on."""


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
def test_nothing_stays_held_and_nobody_in_line(store: str, django_db_blocker: DjangoDbBlocker) -> None:
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
