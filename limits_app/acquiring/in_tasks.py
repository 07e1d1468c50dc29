"""Acquires of a limit set for asyncio.

No coroutine is compiled: mypyc passes exceptions on to what is awaited in a way that Python has deprecated since 3.12.
"""

from __future__ import annotations

from typing import Protocol

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.blocking import Timeout, checked_timeout, must_wait, wait_in_task
from limits_app.acquiring.choice import Choice
from limits_app.acquiring.store import Store, is_remote
from limits_app.engine import Requested, of_class
from limits_app.engine.errors import LimitTimeout


class AcquirableSet(Protocol):
    """What is used of a limit set here."""

    store: Store

    @property
    def is_free(self) -> bool:
        """See `LimitSet.is_free`."""

    def prepare(self, requested: Requested, checks: bool = True) -> Acquisition:
        """See `LimitSet.prepare`."""

    def try_acquire(self, requested: Requested = None) -> Acquisition:
        """See `LimitSet.try_acquire`."""

    def acquire(self, requested: Requested = None, timeout: Timeout = None) -> Acquisition:
        """See `LimitSet.acquire`."""


async def try_acquire_in_task(limit_set: AcquirableSet, requested: Requested, priority: str | None) -> Acquisition:
    """See `LimitSet.atry_acquire`."""
    store = limit_set.store
    if priority is not None:
        requested = of_class(requested, priority)
    if limit_set.is_free or not is_remote(store):
        return limit_set.try_acquire(requested)
    acquisition = limit_set.prepare(requested, checks=False)
    await acquisition.acheck_fits()
    if await store.aacquire(acquisition):  # it refunds what a cancelled task was charged
        acquisition.track()
    return acquisition


async def acquire_in_task(
    limit_set: AcquirableSet, requested: Requested, timeout: Timeout, priority: str | None
) -> Acquisition:
    """See `LimitSet.aacquire`."""
    requested = of_class(requested, priority)
    if limit_set.is_free:
        return limit_set.acquire(requested, timeout)
    store, seconds = limit_set.store, checked_timeout(timeout)
    acquisition = limit_set.prepare(requested, checks=False)
    await acquisition.acheck_fits()
    try:
        admitted = False
        if seconds == 0 or not must_wait(acquisition):
            admitted = await store.aacquire(acquisition) if is_remote(store) else store.acquire(acquisition)
        if not admitted and seconds != 0:
            await wait_in_task(Choice([acquisition]), seconds)
            admitted = True
        if admitted:
            acquisition.track()
    except BaseException:
        if not store.remote:
            acquisition.give_up()
        raise
    if not admitted:
        raise LimitTimeout.of(acquisition)
    return acquisition
