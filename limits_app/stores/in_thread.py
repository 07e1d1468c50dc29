"""Asyncio for stores that block: their verbs run in threads, and a cancelled task leaves nothing behind.

A thread cannot be interrupted. When a task is cancelled while a thread acquires for it, the acquisition is released
by a thread; when it is cancelled while a thread settles, the claim is settled all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from limits_app.acquiring import RemoteStore, Store
from limits_app.engine import Amounts, Claim
from limits_app.engine.errors import StoreUnavailable

logger = logging.getLogger("limits_app")

R = TypeVar("R")


async def in_thread(work: Callable[[], R], abandoned: Callable[[R | StoreUnavailable], object]) -> R:
    """Run `work` in a thread of the event loop and return its result.

    A task that is cancelled does not wait. The work is done all the same, and `abandoned` is called in a thread with
    its result, or with the StoreUnavailable that it raised.
    """
    done: Future[R] = Future()
    done.set_running_or_notify_cancel()  # which the task cannot cancel from now on

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the task
            done.set_exception(error)

    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, copy_context().run, run)
    try:
        return await asyncio.wrap_future(done)
    except asyncio.CancelledError:
        loop.run_in_executor(None, done.add_done_callback, partial(_clean_up, abandoned))
        raise


def _clean_up(abandoned: Callable[[R | StoreUnavailable], object], done: Future[R]) -> None:
    """Pass the result to `abandoned`."""
    try:
        error = done.exception()
        if error is None or isinstance(error, StoreUnavailable):
            abandoned(error or done.result())
        else:
            logger.error("the store failed after its task was cancelled", exc_info=error)
    except Exception:
        logger.warning("an acquisition of a cancelled task could not be released", exc_info=True)


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
        await in_thread(partial(self.settle, claim, changes), partial(keep_unsettled, self, claim, changes))

    async def apeek(self: Store, claim: Claim) -> None:
        """`peek` in a thread."""
        await asyncio.to_thread(self.peek, claim)
