"""Steps: what is asked of stores and lines, written once as generators and taken by threads and by tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import NamedTuple, TypeVar, assert_never

from limits_app.core.acquisition import Acquisition
from limits_app.core.plan import Bucket
from limits_app.core.store import RemoteStore, Store, is_remote
from limits_app.core.waiting import Waiter

__all__ = ["Acquire", "Pause", "Peek", "Stand", "Step", "Steps", "take", "take_all", "take_all_in_task", "take_in_task"]

R = TypeVar("R")


class Acquire(NamedTuple):
    """Have the first of these charged that fits; they are all of one store. See `Store.acquire_first`."""

    store: Store
    wanted: Sequence[Acquisition]
    emptiest_first: bool = False
    failover: bool = True


class Peek(NamedTuple):
    """Have the states of an acquisition filled in."""

    store: Store
    acquisition: Acquisition


class Stand(NamedTuple):
    """Stand in the lines of these buckets, and in no others of the store."""

    store: Store
    waiter: Waiter
    buckets: Sequence[Bucket]


class Pause(NamedTuple):
    """Sleep for at most so many seconds (None: until woken)."""

    seconds: float | None


Step = Acquire | Peek | Stand
Steps = Generator[Step | Pause, Acquisition | None, R]
"""Yields steps, is sent what was admitted, and returns its result."""


def _awake(seconds: float | None) -> None:
    """Sleep where no step is a pause."""


async def _awake_in_task(seconds: float | None) -> None:
    """The same for asyncio."""


def take_all(steps: Steps[R], sleep: Callable[[float | None], None] = _awake) -> R:
    """Take steps until they end; gives their result."""
    answer = None
    try:
        while True:
            step = steps.send(answer)
            answer = None
            if isinstance(step, Pause):
                sleep(step.seconds)
            else:
                answer = take(step)
    except StopIteration as end:
        result: R = end.value
        return result


async def take_all_in_task(steps: Steps[R], sleep: Callable[[float | None], Awaitable[None]] = _awake_in_task) -> R:
    """`take_all` for asyncio, without blocking the event loop."""
    answer = None
    try:
        while True:
            step = steps.send(answer)
            answer = None
            if isinstance(step, Pause):
                await sleep(step.seconds)
            else:
                answer = await take_in_task(step)
    except StopIteration as end:
        result: R = end.value
        return result


def take(step: Step) -> Acquisition | None:
    """Take one step; gives what it admitted."""
    match step:
        case Acquire(store, [wanted]):
            return wanted if store.acquire(wanted.claim) else None
        case Acquire(store, wanted, emptiest_first, failover):
            claims = [one.claim for one in wanted]
            claim = store.acquire_first(claims, emptiest_first=emptiest_first, failover=failover)
            return next((one for one in wanted if one.claim is claim), None)
        case Peek(store, acquisition):
            store.peek(acquisition.claim)
        case Stand(store, waiter, buckets):
            store.line.stand(waiter, buckets)
        case _:
            assert_never(step)
    return None


async def take_in_task(step: Step) -> Acquisition | None:
    """`take` for asyncio."""
    store = step.store
    return await _take_far_away(step, store) if is_remote(store) else take(step)


async def _take_far_away(step: Step, store: RemoteStore) -> Acquisition | None:
    import asyncio  # only programs that use it pay for its import

    match step:
        case Acquire(_, [wanted]):
            return wanted if await store.aacquire(wanted.claim) else None
        case Acquire(_, wanted, emptiest_first, failover):
            claims = [one.claim for one in wanted]
            claim = await store.aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)
            return next((one for one in wanted if one.claim is claim), None)
        case Peek(_, acquisition):
            await store.apeek(acquisition.claim)
        case Stand(_, waiter, buckets):
            await asyncio.to_thread(store.line.stand, waiter, buckets)  # it may have to tell others
        case _:
            assert_never(step)
    return None
