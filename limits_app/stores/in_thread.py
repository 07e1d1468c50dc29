"""Asyncio for stores that block: their verbs run in threads, and a cancelled task leaves nothing behind.

A thread cannot be interrupted. When a task is cancelled while a thread acquires for it, the acquisition is released
by that thread; when it is cancelled while a thread settles, the claim is settled all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from functools import partial
from threading import Lock
from typing import Generic, TypeVar

from limits_app.core.errors import StoreUnavailable
from limits_app.core.plan import Amounts, Claim
from limits_app.core.store import RemoteStore, Store

logger = logging.getLogger("limits_app")

R = TypeVar("R")


async def in_thread(work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> R:
    """Run `work` in a thread and return its result.

    When the task is cancelled it does not wait. If the thread has begun by then, `abandoned` is called there with the
    result, or with the StoreUnavailable that `work` raised; otherwise `work` is not run.
    """
    job = _Job(work, abandoned)
    return await _awaited(job, asyncio.to_thread(job.run))


async def surely_in_thread(work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> R:
    """`in_thread`, but `work` is run even when the task is cancelled before the thread has begun."""
    job = _Job(work, abandoned)
    # No task, which would be cancelled with all others when the loop ends.
    begun = asyncio.get_running_loop().run_in_executor(None, copy_context().run, job.run)
    return await _awaited(job, asyncio.shield(begun))


async def _awaited(job: _Job[R], done: Awaitable[R]) -> R:
    try:
        return await done
    except asyncio.CancelledError:
        if job.abandon():
            asyncio.get_running_loop().run_in_executor(None, job.clean_up)
        raise


def give_back(store: RemoteStore, claim: Claim | StoreUnavailable | None) -> None:
    """Release a claim if it was admitted, without any usage; later, if the store cannot settle it now."""
    if isinstance(claim, Claim):
        changes = [-amount for amount in claim.amounts]
        try:
            store.settle(claim, changes)
        except StoreUnavailable as error:
            keep_unsettled(store, claim, changes, error)


def keep_unsettled(store: RemoteStore, claim: Claim, changes: Amounts, result: object) -> None:
    """Have a claim settled later if `result` is an error of the store, or raise it without a `settle_later`."""
    if not isinstance(result, StoreUnavailable):
        return
    if store.settle_later is None:
        raise result
    store.settle_later(claim, changes)


class AskedInThread:
    """The asyncio verbs of a store whose other verbs block."""

    settle_later: Callable[[Claim, Amounts], object] | None = None
    """See `RemoteStore.settle_later`."""

    async def aacquire(self: RemoteStore, claim: Claim) -> bool:
        """`acquire` in a thread; a task that is cancelled meanwhile is charged nothing."""
        return await in_thread(lambda: claim if self.acquire(claim) else None, partial(give_back, self)) is not None

    async def aacquire_first(
        self: RemoteStore, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        """`acquire_first` in a thread; a task that is cancelled meanwhile is charged nothing."""
        acquire_first = partial(self.acquire_first, claims, emptiest_first=emptiest_first, failover=failover)
        return await in_thread(acquire_first, partial(give_back, self))

    async def asettle(self: RemoteStore, claim: Claim, changes: Amounts) -> None:
        """`settle` in a thread; it is done even when the task is cancelled."""
        await surely_in_thread(partial(self.settle, claim, changes), partial(keep_unsettled, self, claim, changes))

    async def apeek(self: Store, claim: Claim) -> None:
        """`peek` in a thread."""
        await asyncio.to_thread(self.peek, claim)


class Settling:
    """The claims that are being settled, for stores that settle without a lock: each claim by one caller at a time."""

    def __init__(self) -> None:
        self._claims: dict[Claim, object] = {}

    def begin(self, claim: Claim) -> bool:
        """Whether the caller has to settle a claim, and to call `end` afterwards; False while another caller does."""
        mine = object()
        if claim.settled or self._claims.setdefault(claim, mine) is not mine:
            return False
        if claim.settled:  # by a caller that has ended since
            self.end(claim)
            return False
        return True

    def end(self, claim: Claim) -> None:
        """The claim is settled, or other callers may try."""
        del self._claims[claim]


class _Job(Generic[R]):
    """Work that runs once in a thread, and whose result a task takes or abandons."""

    def __init__(self, work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> None:
        self._work = work
        self._abandoned = abandoned
        self._lock = Lock()
        self._is_abandoned = False
        self._results: list[R | StoreUnavailable] = []

    def run(self) -> R:
        """Do the work, and clean up if the task has been cancelled meanwhile."""
        try:
            result = self._work()
        except StoreUnavailable as error:
            self._finish(error)
            raise
        self._finish(result)
        return result

    def abandon(self) -> bool:
        """The task was cancelled; returns whether the work is done, so that the caller has to clean up."""
        with self._lock:
            self._is_abandoned = True
            return bool(self._results)

    def clean_up(self) -> None:
        """Pass the result to `abandoned`."""
        try:
            self._abandoned(self._results[0])
        except Exception:
            logger.warning("what a cancelled task was given could not be given back", exc_info=True)

    def _finish(self, result: R | StoreUnavailable) -> None:
        with self._lock:
            self._results.append(result)
            is_abandoned = self._is_abandoned
        if is_abandoned:
            self.clean_up()
