"""Choosing one of several acquisitions, in procedures that are written once for threads and for tasks.

A procedure is a generator that yields operations of stores and waiting lines and is sent what they admitted; `run` and
`run_in_task` drive it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.store import Store, is_remote
from limits_app.acquiring.waiting import TaskWaiter, ThreadWaiter, Waiter
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.plan import Bucket, Claim

R = TypeVar("R")


class Operation(NamedTuple):
    """One operation, which may admit a claim; `in_task` replaces it where it would block an event loop."""

    in_thread: Callable[[], Claim | None]
    in_task: Callable[[], Awaitable[Claim | None]] | None = None


Procedure = Generator[Operation, Claim | None, R]
"""Yields operations, is sent the claim that an operation admitted or None, and returns its result."""


def run(procedure: Procedure[R]) -> R:
    """Perform all operations in this thread; return the result of the procedure."""
    admitted: Claim | None = None
    try:
        while True:
            admitted = procedure.send(admitted).in_thread()
    except StopIteration as end:
        result: R = end.value
        return result


async def run_in_task(procedure: Procedure[R]) -> R:
    """`run` for asyncio: neither sleeping nor a remote store blocks the event loop."""
    admitted: Claim | None = None
    try:
        while True:
            operation = procedure.send(admitted)
            admitted = operation.in_thread() if operation.in_task is None else await operation.in_task()
    except StopIteration as end:
        result: R = end.value
        return result


def charge_first(
    store: Store, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
) -> Operation:
    """Charge the first of these claims that fits; see `Store.acquire_first`."""

    def in_thread() -> Claim | None:
        if len(claims) == 1:
            return claims[0] if store.acquire(claims[0]) else None
        return store.acquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    if not is_remote(store):
        return Operation(in_thread)

    async def in_task() -> Claim | None:
        if len(claims) == 1:
            return claims[0] if await store.aacquire(claims[0]) else None
        return await store.aacquire_first(claims, emptiest_first=emptiest_first, failover=failover)

    return Operation(in_thread, in_task)


def peek(acquisition: Acquisition) -> Operation:
    """Fill in the current states of an acquisition."""
    store, claim = acquisition.limit_set.store, acquisition.claim
    return Operation(partial(store.peek, claim), partial(store.apeek, claim) if is_remote(store) else None)


def enqueue(store: Store, waiter: Waiter, buckets: Sequence[Bucket]) -> Operation:
    """Queue for these buckets of a store and for no others; the line may have to reach a remote store."""
    call = partial(store.line.enqueue, waiter, buckets)
    return Operation(call, partial(_off_the_loop, call) if store.remote else None)


def sleep(waiter: ThreadWaiter | TaskWaiter, seconds: float | None) -> Operation:
    """Sleep for at most so many seconds (None: until woken)."""
    if isinstance(waiter, ThreadWaiter):
        return Operation(partial(waiter.sleep, seconds))
    return Operation(waiter.wake, partial(waiter.sleep, seconds))  # always performed in the task


async def _off_the_loop(call: Callable[[], None]) -> None:
    import asyncio  # only programs that use it pay for its import

    await asyncio.to_thread(call)


def _never_cooling(acquisition: Acquisition) -> int:  # noqa: ARG001 - the signature of `cooling_us`
    return 0


class Alternatives:
    """Acquisitions of which one is wanted, in the order in which the stores try them.

    `emptiest_first` and `failover` are those of `Store.acquire_first`, which chooses and charges in one operation.
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

    def acquire(self, candidates: Sequence[Acquisition]) -> Procedure[Acquisition | None]:
        """Charge the first of some of the acquisitions that fits; returns it, or None."""
        store = candidates[0].limit_set.store
        if all(one.limit_set.store is store for one in candidates):
            claims = [one.claim for one in candidates]
            admitted = yield charge_first(store, claims, emptiest_first=self.emptiest_first, failover=self.failover)
            return next((one for one in candidates if one.claim is admitted), None)
        if self.emptiest_first:
            candidates = yield from sorted_by_load(candidates)
        for one in candidates if self.failover else candidates[:1]:
            if (yield charge_first(one.limit_set.store, [one.claim])) is not None:
                return one
        return None

    def refused(self) -> Procedure[Acquisition]:
        """The refusal that ends first; where no store was asked yet, the state of the first acquisition."""
        refused = [one for one in self.acquisitions if one.claim.admitted is False]
        if refused:
            return refused_shortest(refused)
        first = self.acquisitions[0]
        yield peek(first)
        return first


def admissible(acquisitions: Sequence[Acquisition]) -> Procedure[list[Acquisition]]:
    """The acquisitions whose limits can ever admit their amounts; NeverAdmissible where there are none."""
    fitting = [one for one in acquisitions if one.claim.can_fit()]
    if not fitting:
        best = closest_to_admission(acquisitions)
        yield peek(best)
        raise NeverAdmissible.of(best)
    return fitting


def sorted_by_load(acquisitions: Iterable[Acquisition]) -> Procedure[list[Acquisition]]:
    """The acquisitions by rising load at this time; equal ones keep their order."""
    found = list(acquisitions)
    for one in found:
        yield peek(one)
    return sorted(found, key=lambda one: one.claim.load())


def refused_shortest(refused: Sequence[Acquisition]) -> Acquisition:
    """The refusal that ends first."""
    return min(refused, key=lambda one: one.claim.refusal()[1])


def closest_to_admission(acquisitions: Sequence[Acquisition]) -> Acquisition:
    """Of acquisitions that can never be admitted, the one whose limits can admit the largest share of its amounts."""
    return max(acquisitions, key=_largest_share)


def _largest_share(acquisition: Acquisition) -> float:
    limits = zip(acquisition.claim.shape.limits, acquisition.claim.amounts, strict=True)
    return min(
        [limit.rule.most_parts / amount for limit, amount in limits if amount > limit.rule.most_parts], default=1.0
    )
