"""Taking turns: the one course of waiting, driven by threads and by tasks alike."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from enum import Enum, auto
from random import random
from typing import Final, NamedTuple

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import shown
from limits_app.core.claim import Claim
from limits_app.core.errors import InvalidRequest, LimitTimeout
from limits_app.core.plan import Bucket
from limits_app.core.store import RemoteStore, Store, is_remote
from limits_app.core.waiting import TaskWaiter, ThreadWaiter, Waiter

__all__ = ["seconds_of", "wait_in_task", "wait_in_thread"]

_SECOND: Final = 1_000_000
_JITTER_US: Final = 500
_LONGEST_PAUSE: Final = 3600.0


def seconds_of(timeout: float | None) -> float | None:
    """Check a timeout; InvalidRequest unless it is None or a number of seconds, 0 or more."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or math.isnan(timeout) or timeout < 0:
        raise InvalidRequest(f"timeout must be None or seconds, 0 or more, not {shown(timeout)}")
    return None if math.isinf(timeout) else float(timeout)


class Ask(Enum):
    """What a store is asked when it is the waiter's turn."""

    ACQUIRE = auto()
    PEEK = auto()


class Stand(NamedTuple):
    """Stand in the lines of these buckets and of no others."""

    buckets: Sequence[Bucket]


class Pause(NamedTuple):
    """Sleep for at most so many seconds (None: until woken)."""

    seconds: float | None


Step = Ask | Stand | Pause


def wait_in_thread(acquisition: Acquisition, store: Store, timeout: float | None) -> None:
    """Wait until the store admits; LimitTimeout when the time is up. Whatever ends the wait, nothing stays held."""
    waiter = ThreadWaiter()
    steps = _turns(acquisition, store, waiter, timeout)
    admitted = None
    try:
        while (step := _next(steps, admitted)) is not None:
            if isinstance(step, Pause):
                waiter.sleep(step.seconds)
            else:
                admitted = _taken(step, acquisition, store, waiter)
    except BaseException:
        # Perhaps interrupted after it was admitted and before anybody knew.
        acquisition.cancel()
        raise
    finally:
        store.line.stand(waiter, ())


async def wait_in_task(acquisition: Acquisition, store: Store, timeout: float | None) -> None:
    """`wait_in_thread` for asyncio, without blocking the event loop."""
    import asyncio  # only programs that use it pay for its import

    waiter = TaskWaiter()
    steps = _turns(acquisition, store, waiter, timeout)
    admitted = None
    try:
        while (step := _next(steps, admitted)) is not None:
            if isinstance(step, Pause):
                await waiter.sleep(step.seconds)
            elif is_remote(store):
                admitted = await _taken_far_away(step, acquisition, store, waiter)
            else:
                admitted = _taken(step, acquisition, store, waiter)
    except BaseException:
        await acquisition.acancel()
        raise
    finally:
        if is_remote(store):
            await asyncio.to_thread(store.line.stand, waiter, ())
        else:
            store.line.stand(waiter, ())


def _turns(
    acquisition: Acquisition, store: Store, waiter: Waiter, timeout: float | None
) -> Generator[Step, bool | None, None]:
    """The steps of a waiter, until it is admitted or its time is up; sent whether it was admitted."""
    line, clock, plan = store.line, store.clock, acquisition.plan
    deadline = None if timeout is None else clock() + round(timeout * _SECOND)
    while True:
        # In line before asking, so that nothing that is given back meanwhile goes unnoticed.
        yield Stand(plan.buckets)
        until = None
        blocking = line.ahead(waiter, plan.buckets)
        if not blocking:
            if (yield Ask.ACQUIRE):
                return
            blocking, until = _next_try(acquisition, store)
        yield Stand(blocking)
        now = clock()
        if deadline is not None and now >= deadline:
            if acquisition.admitted is None:
                yield Ask.PEEK
            raise LimitTimeout(acquisition.outcome)
        yield Pause(_seconds(store, now, until, deadline))


def _next(steps: Generator[Step, bool | None, None], admitted: bool | None) -> Step | None:
    try:
        return steps.send(admitted)
    except StopIteration:
        return None


def _taken(step: Ask | Stand, acquisition: Acquisition, store: Store, waiter: Waiter) -> bool | None:
    """Take a step that is no pause; says whether it admitted."""
    match step:
        case Stand(buckets):
            store.line.stand(waiter, buckets)
        case Ask.ACQUIRE:
            return store.acquire(acquisition)
        case Ask.PEEK:
            store.peek(acquisition)
    return None


async def _taken_far_away(
    step: Ask | Stand, acquisition: Acquisition, store: RemoteStore, waiter: Waiter
) -> bool | None:
    """The same for asyncio, where the store has to be waited for."""
    import asyncio

    match step:
        case Stand(buckets):
            await asyncio.to_thread(store.line.stand, waiter, buckets)  # it may have to tell others
        case Ask.ACQUIRE:
            return await store.aacquire(acquisition)
        case Ask.PEEK:
            await store.apeek(acquisition)
    return None


def _next_try(claim: Claim, store: Store) -> tuple[list[tuple[str, str]], int | None]:
    """The buckets that refused, and when they are to be asked again at the latest."""
    buckets, wait = claim.violated()
    until = claim.decided_at + wait + round(random() * min(_JITTER_US, wait / 10))
    if claim.plan.permits and store.patience_us is not None:
        until = min(until, claim.decided_at + store.patience_us)
    return buckets, until


def _seconds(store: Store, now: int, until: int | None, deadline: int | None) -> float | None:
    """Seconds to sleep; None until woken, which is also how a clock moved by hand ends a pause."""
    moments = [moment for moment in (until, deadline) if moment is not None]
    if not moments or not store.clock.moves_by_itself:
        return None
    return min(max(min(moments) - now, 0) / _SECOND, _LONGEST_PAUSE)
