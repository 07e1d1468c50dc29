"""The verbs of stores and waiting lines as steps, so that each procedure is written once for threads and for tasks.

A procedure is a generator that yields steps and is sent what they admitted; `run` and `run_in_task` drive it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import NamedTuple, TypeVar

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import NeverAdmissible
from limits_app.core.plan import Bucket, Claim
from limits_app.core.store import RemoteStore, Store, is_remote
from limits_app.core.waiters import Waiter

R = TypeVar("R")


class Acquire(NamedTuple):
    """Charge the first of these claims that fits; they share a store. See `Store.acquire_first`."""

    store: Store
    claims: Sequence[Claim]
    emptiest_first: bool = False
    failover: bool = True


class Peek(NamedTuple):
    """Fill in the current states of a claim."""

    store: Store
    claim: Claim


class Enqueue(NamedTuple):
    """Queue for these buckets of a store and for no others."""

    store: Store
    waiter: Waiter
    buckets: Sequence[Bucket]


class Sleep(NamedTuple):
    """Sleep for at most so many seconds (None: until woken)."""

    seconds: float | None


Steps = Generator[Acquire | Peek | Enqueue | Sleep, Claim | None, R]
"""Yields steps, is sent the claim that a step admitted or None, and returns its result."""


def _no_sleep(seconds: float | None) -> None:
    """For procedures that do not sleep."""


async def _no_sleep_in_task(seconds: float | None) -> None:
    """For procedures that do not sleep."""


def run(steps: Steps[R], sleep: Callable[[float | None], None] = _no_sleep) -> R:
    """Perform all steps in this thread; return the result of the procedure."""
    admitted: Claim | None = None
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
    admitted: Claim | None = None
    try:
        while True:
            step = steps.send(admitted)
            admitted = None
            if isinstance(step, Sleep):
                await sleep(step.seconds)
            elif is_remote(step.store):
                admitted = await _perform_remotely(step, step.store)
            else:
                admitted = _perform(step)
    except StopIteration as end:
        result: R = end.value
        return result


def _perform(step: Acquire | Peek | Enqueue) -> Claim | None:
    """Return the claim that was admitted, if any."""
    store = step.store
    if isinstance(step, Peek):
        store.peek(step.claim)
    elif isinstance(step, Enqueue):
        store.line.enqueue(step.waiter, step.buckets)
    elif len(step.claims) == 1:
        return step.claims[0] if store.acquire(step.claims[0]) else None
    else:
        return store.acquire_first(step.claims, emptiest_first=step.emptiest_first, failover=step.failover)
    return None


async def _perform_remotely(step: Acquire | Peek | Enqueue, store: RemoteStore) -> Claim | None:
    import asyncio  # only programs that use it pay for its import

    if isinstance(step, Peek):
        await store.apeek(step.claim)
    elif isinstance(step, Enqueue):
        await asyncio.to_thread(step.store.line.enqueue, step.waiter, step.buckets)  # it may have to reach the server
    elif len(step.claims) == 1:
        return step.claims[0] if await store.aacquire(step.claims[0]) else None
    else:
        return await store.aacquire_first(step.claims, emptiest_first=step.emptiest_first, failover=step.failover)
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
            claims = [one.claim for one in candidates]
            admitted = yield Acquire(store, claims, self.emptiest_first, self.failover)
            return next((one for one in candidates if one.claim is admitted), None)
        if self.emptiest_first:
            candidates = yield from sorted_by_load(candidates)
        for one in candidates if self.failover else candidates[:1]:
            if (yield Acquire(one.limit_set.store, [one.claim])) is not None:
                return one
        return None

    def refused(self) -> Steps[Acquisition]:
        """The refusal that ends first; where no store was asked yet, the state of the first acquisition."""
        refused = [one for one in self.acquisitions if one.claim.admitted is False]
        if refused:
            return refused_shortest(refused)
        first = self.acquisitions[0]
        yield Peek(first.limit_set.store, first.claim)
        return first


def admissible(acquisitions: Sequence[Acquisition]) -> Steps[list[Acquisition]]:
    """The acquisitions whose limits can ever admit their amounts; NeverAdmissible where there are none."""
    fitting = [one for one in acquisitions if one.claim.plan.can_fit(one.claim.amounts)]
    if not fitting:
        best = closest_to_admission(acquisitions)
        yield Peek(best.limit_set.store, best.claim)
        raise NeverAdmissible.of(best)
    return fitting


def sorted_by_load(acquisitions: Iterable[Acquisition]) -> Steps[list[Acquisition]]:
    """The acquisitions by rising load at this time; equal ones keep their order."""
    found = list(acquisitions)
    for one in found:
        yield Peek(one.limit_set.store, one.claim)
    return sorted(found, key=lambda one: one.claim.load())


def refused_shortest(refused: Sequence[Acquisition]) -> Acquisition:
    """The refusal that ends first."""
    return min(refused, key=lambda one: one.claim.refusal()[1])


def closest_to_admission(acquisitions: Sequence[Acquisition]) -> Acquisition:
    """Of acquisitions that can never be admitted, the one whose limits can admit the largest share of its amounts."""
    return max(acquisitions, key=_largest_share)


def _largest_share(acquisition: Acquisition) -> float:
    limits = zip(acquisition.claim.plan.limits, acquisition.claim.amounts, strict=True)
    return min(
        [limit.rule.most_parts / amount for limit, amount in limits if amount > limit.rule.most_parts], default=1.0
    )
