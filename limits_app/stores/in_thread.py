"""What a task leaves to a thread, and what becomes of it when the task is cancelled meanwhile."""

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

__all__ = ["AskedInThread", "give_back", "in_thread", "keep_unsettled", "surely_in_thread"]

logger = logging.getLogger("limits_app")

C = TypeVar("C", bound=Claim)
R = TypeVar("R")


async def in_thread(work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> R:
    """Have something done in a thread; when the task is cancelled meanwhile, `abandoned` is told how it ended, there.

    Whoever cancels is not kept waiting; what has not begun by then is never done.
    """
    job = _Job(work, abandoned)
    return await _awaited(job, asyncio.to_thread(job.run))


async def surely_in_thread(work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> R:
    """The same, and it is done even when the task is cancelled before it has begun."""
    job = _Job(work, abandoned)
    # No task, which would be cancelled with all others when the loop ends.
    begun = asyncio.get_running_loop().run_in_executor(None, copy_context().run, job.run)
    return await _awaited(job, asyncio.shield(begun))


async def _awaited(job: _Job[R], done: Awaitable[R]) -> R:
    try:
        return await done
    except asyncio.CancelledError:
        if job.leave():
            asyncio.get_running_loop().run_in_executor(None, job.tidy)
        raise


def give_back(store: RemoteStore, claim: Claim | StoreUnavailable | None) -> None:
    """Settle a claim that was admitted, if one was, as one that has used nothing; later, if it cannot be done now."""
    if isinstance(claim, Claim):
        changes = [-amount for amount in claim.amounts]
        try:
            store.settle(claim, changes)
        except StoreUnavailable as error:
            keep_unsettled(store, claim, changes, error)


def keep_unsettled(store: RemoteStore, claim: Claim, changes: Amounts, ended: object) -> None:
    """Have what nobody waits for settled later, if that ended with an error of the store."""
    if not isinstance(ended, StoreUnavailable):
        return
    if store.settle_later is None:
        raise ended
    store.settle_later(claim, changes)


class AskedInThread:
    """The verbs for asyncio of a store that is asked from threads only."""

    settle_later: Callable[[Claim, Amounts], object] | None = None
    """See `RemoteStore.settle_later`."""

    async def aacquire(self: RemoteStore, claim: Claim) -> bool:
        """`acquire` for asyncio, in a thread; a task that is cancelled meanwhile is charged nothing."""
        return await in_thread(lambda: claim if self.acquire(claim) else None, partial(give_back, self)) is not None

    async def aacquire_first(
        self: RemoteStore, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True
    ) -> C | None:
        """`acquire_first` for asyncio, in a thread; a task that is cancelled meanwhile is charged nothing."""
        ask = partial(self.acquire_first, claims, emptiest_first=emptiest_first, failover=failover)
        return await in_thread(ask, partial(give_back, self))

    async def asettle(self: RemoteStore, claim: Claim, changes: Amounts) -> None:
        """`settle` for asyncio, in a thread; it is done even when the task is cancelled."""
        await surely_in_thread(partial(self.settle, claim, changes), partial(keep_unsettled, self, claim, changes))

    async def apeek(self: Store, claim: Claim) -> None:
        """`peek` for asyncio, in a thread."""
        await asyncio.to_thread(self.peek, claim)


class _Job(Generic[R]):
    """Something that is done once, whose result somebody takes or nobody."""

    def __init__(self, work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> None:
        self._work = work
        self._abandoned = abandoned
        self._lock = Lock()
        self._left = False
        self._ends: list[R | StoreUnavailable] = []

    def run(self) -> R:
        """Do it, and tidy up when nobody waits for it any more."""
        try:
            result = self._work()
        except StoreUnavailable as error:
            self._ended(error)
            raise
        self._ended(result)
        return result

    def leave(self) -> bool:
        """Nobody waits for it any more; says whether it is done, so that somebody else has to tidy up."""
        with self._lock:
            self._left = True
            return bool(self._ends)

    def tidy(self) -> None:
        """Tell what nobody has heard."""
        try:
            self._abandoned(self._ends[0])
        except Exception:
            logger.warning("what a cancelled task was given could not be given back", exc_info=True)

    def _ended(self, how: R | StoreUnavailable) -> None:
        with self._lock:
            self._ends.append(how)
            left = self._left
        if left:
            self.tidy()
