"""The verbs of stores and waiting lines as steps, so that each procedure is written once for threads and for tasks.

A procedure is a generator that yields steps and is sent what they admitted; `run` and `run_in_task` drive it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import NeverAdmissible
from limits_app.core.parts import Bucket
from limits_app.core.store import Store, is_remote
from limits_app.core.waiting import Waiter

__all__ = [
    "Alternatives",
    "Enqueue",
    "Sleep",
    "Steps",
    "admissible",
    "closest_to_admission",
    "refused_shortest",
    "run",
    "run_in_task",
    "sorted_by_load",
]

R = TypeVar("R")


class Acquire(NamedTuple):
    """Charge the first of these acquisitions that fits; they share a store. See `Store.acquire_first`."""

    store: Store
    acquisitions: Sequence[Acquisition]
    emptiest_first: bool = False
    failover: bool = True


class Peek(NamedTuple):
    """Fill in the current states of an acquisition."""

    store: Store
    acquisition: Acquisition


class Enqueue(NamedTuple):
    """Queue for these buckets of a store and for no others."""

    store: Store
    waiter: Waiter
    buckets: Sequence[Bucket]


class Sleep(NamedTuple):
    """Sleep for at most so many seconds (None: until woken)."""

    seconds: float | None


Steps = Generator[Acquire | Peek | Enqueue | Sleep, Acquisition | None, R]
"""Yields steps, is sent the acquisition that a step admitted or None, and returns its result."""


def _no_sleep(seconds: float | None) -> None:
    """For procedures that do not sleep."""


async def _no_sleep_in_task(seconds: float | None) -> None:
    """For procedures that do not sleep."""


def run(steps: Steps[R], sleep: Callable[[float | None], None] = _no_sleep) -> R:
    """Perform all steps in this thread; returns the result of the procedure."""
    admitted: Acquisition | None = None
    try:
        while True:
            step = steps.send(admitted)
            admitted = None
            if isinstance(step, Sleep):
                sleep(step.seconds)
            else:
                admitted = _perform(step)
    except StopIteration as end:
        result: R = end.value
        return result


async def run_in_task(steps: Steps[R], sleep: Callable[[float | None], Awaitable[None]] = _no_sleep_in_task) -> R:
    """`run` for asyncio: neither sleeping nor a remote store blocks the event loop."""
    admitted: Acquisition | None = None
    try:
        while True:
            step = steps.send(admitted)
            admitted = None
            if isinstance(step, Sleep):
                await sleep(step.seconds)
            elif step.store.remote:
                admitted = await _perform_remotely(step)
            else:
                admitted = _perform(step)
    except StopIteration as end:
        result: R = end.value
        return result


def _perform(step: Acquire | Peek | Enqueue) -> Acquisition | None:
    """Returns the acquisition that was admitted, if any."""
    store = step.store
    if isinstance(step, Peek):
        store.peek(step.acquisition)
    elif isinstance(step, Enqueue):
        store.line.enqueue(step.waiter, step.buckets)
    elif len(step.acquisitions) == 1:
        return step.acquisitions[0] if store.acquire(step.acquisitions[0]) else None
    else:
        return store.acquire_first(step.acquisitions, emptiest_first=step.emptiest_first, failover=step.failover)
    return None


async def _perform_remotely(step: Acquire | Peek | Enqueue) -> Acquisition | None:
    import asyncio  # only programs that use it pay for its import

    store = step.store
    if not is_remote(store):
        return _perform(step)
    if isinstance(step, Peek):
        await store.apeek(step.acquisition)
    elif isinstance(step, Enqueue):
        await asyncio.to_thread(store.line.enqueue, step.waiter, step.buckets)  # it may have to reach the server
    elif len(step.acquisitions) == 1:
        return step.acquisitions[0] if await store.aacquire(step.acquisitions[0]) else None
    else:
        return await store.aacquire_first(step.acquisitions, emptiest_first=step.emptiest_first, failover=step.failover)
    return None


def _never_cooling(acquisition: Acquisition) -> int:  # noqa: ARG001 - the signature of `cooling_us`
    return 0


class Alternatives:
    """Acquisitions of which one is wanted, in the order in which the stores try them.

    `emptiest_first` and `failover` are those of `Store.acquire_first`, which chooses and charges in one step.
    Acquisitions of several stores are tried one after the other.
    `cooling_us` returns for how many microseconds the set of an acquisition still cools down.
    """

    def __init__(
        self,
        acquisitions: Sequence[Acquisition],
        *,
        emptiest_first: bool = False,
        failover: bool = True,
        cooling_us: Callable[[Acquisition], int] = _never_cooling,
    ) -> None:
        self.acquisitions = acquisitions
        self.emptiest_first = emptiest_first
        self.failover = failover
        self._cooling_us = cooling_us

    def stores(self) -> list[Store]:
        """The stores of the acquisitions."""
        return list(dict.fromkeys([one.limit_set.store for one in self.acquisitions]))

    def available(self) -> tuple[Sequence[Acquisition], int | None]:
        """The acquisitions that do not cool down, or all where each of them does; and after how many microseconds the
        next one has cooled down.
        """
        cooling = [self._cooling_us(one) for one in self.acquisitions]
        available = [one for one, left_us in zip(self.acquisitions, cooling, strict=True) if not left_us]
        return available or self.acquisitions, min([left_us for left_us in cooling if left_us], default=None)

    def acquire(self, candidates: Sequence[Acquisition]) -> Steps[Acquisition | None]:
        """Charge the first of some of the acquisitions that fits; returns it, or None."""
        store = candidates[0].limit_set.store
        if all(one.limit_set.store is store for one in candidates):
            return (yield Acquire(store, candidates, self.emptiest_first, self.failover))
        if self.emptiest_first:
            candidates = yield from sorted_by_load(candidates)
        for one in candidates if self.failover else candidates[:1]:
            if (yield Acquire(one.limit_set.store, [one])) is not None:
                return one
        return None

    def refused(self) -> Steps[Acquisition]:
        """The refusal that ends first; where no store was asked yet, the state of the first acquisition."""
        refused = [one for one in self.acquisitions if one.admitted is False]
        if refused:
            return refused_shortest(refused)
        first = self.acquisitions[0]
        yield Peek(first.limit_set.store, first)
        return first


def admissible(acquisitions: Sequence[Acquisition]) -> Steps[list[Acquisition]]:
    """The acquisitions whose limits can ever admit their amounts; NeverAdmissible where there are none."""
    fitting = [one for one in acquisitions if one.plan.can_fit(one.amounts)]
    if not fitting:
        best = closest_to_admission(acquisitions)
        yield Peek(best.limit_set.store, best)
        raise NeverAdmissible.of(best)
    return fitting


def sorted_by_load(acquisitions: Iterable[Acquisition]) -> Steps[list[Acquisition]]:
    """The acquisitions by rising load at this time; equal ones keep their order."""
    found = list(acquisitions)
    for one in found:
        yield Peek(one.limit_set.store, one)
    return sorted(found, key=Acquisition.load)


def refused_shortest(refused: Sequence[Acquisition]) -> Acquisition:
    """The refusal that ends first."""
    return min(refused, key=lambda one: one.violated()[1])


def closest_to_admission(acquisitions: Sequence[Acquisition]) -> Acquisition:
    """Of acquisitions that can never be admitted, the one whose limits can admit the largest share of its amounts."""
    return max(acquisitions, key=_largest_share)


def _largest_share(acquisition: Acquisition) -> float:
    return min([ask.ceiling / amount for ask, amount in acquisition.charges if amount > ask.ceiling], default=1.0)
