"""Choosing one of several acquisitions, of one store or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.store import Store, is_remote
from limits_app.engine import Claim
from limits_app.engine.errors import NeverAdmissible


def _never_cooling(acquisition: Acquisition) -> int:  # noqa: ARG001 - the signature of `cooling_us`
    return 0


class Choice:
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

    @property
    def rank(self) -> int:
        """The rank of the class of the request; see `PlanShape.rank`."""
        return self.acquisitions[0].shape.rank

    def stores(self) -> list[Store]:
        """The stores of the acquisitions."""
        return list(dict.fromkeys([acquisition.limit_set.store for acquisition in self.acquisitions]))

    def available(self) -> tuple[Sequence[Acquisition], int | None]:
        """The acquisitions that do not cool down, or all where each of them does; and after how many microseconds the
        next one has cooled down.
        """
        cooling = [self._cooling_us(acquisition) for acquisition in self.acquisitions]
        available = [
            acquisition for acquisition, left_us in zip(self.acquisitions, cooling, strict=True) if not left_us
        ]
        return available or self.acquisitions, min([left_us for left_us in cooling if left_us], default=None)

    def acquire(self, candidates: Sequence[Acquisition]) -> Acquisition | None:
        """Charge the first of some of the acquisitions that fits; returns it, or None."""
        store = _common_store(candidates)
        if store is not None:
            if len(candidates) == 1:
                return candidates[0] if store.acquire(candidates[0]) else None
            admitted = store.acquire_first(candidates, emptiest_first=self.emptiest_first, failover=self.failover)
            return _of_claim(candidates, admitted)
        ordered = sorted_by_load(candidates) if self.emptiest_first else candidates
        for acquisition in ordered if self.failover else ordered[:1]:
            if acquisition.limit_set.store.acquire(acquisition):
                return acquisition
        return None

    async def aacquire(self, candidates: Sequence[Acquisition]) -> Acquisition | None:
        """`acquire` for asyncio."""
        store = _common_store(candidates)
        if store is not None and not is_remote(store):
            return self.acquire(candidates)
        if store is not None and len(candidates) > 1:
            admitted = await store.aacquire_first(
                candidates, emptiest_first=self.emptiest_first, failover=self.failover
            )
            return _of_claim(candidates, admitted)
        ordered = await asorted_by_load(candidates) if self.emptiest_first and store is None else candidates
        for acquisition in ordered if self.failover else ordered[:1]:
            own = acquisition.limit_set.store
            if await own.aacquire(acquisition) if is_remote(own) else own.acquire(acquisition):
                return acquisition
        return None

    def rejected(self) -> Acquisition:
        """The rejection that ends first; where no store was asked yet, the state of the first acquisition."""
        decided = [acquisition for acquisition in self.acquisitions if acquisition.admitted is False]
        if decided:
            return rejected_shortest(decided)
        peek(self.acquisitions[0])
        return self.acquisitions[0]

    async def arejected(self) -> Acquisition:
        """`rejected` for asyncio."""
        decided = [acquisition for acquisition in self.acquisitions if acquisition.admitted is False]
        if decided:
            return rejected_shortest(decided)
        await apeek(self.acquisitions[0])
        return self.acquisitions[0]


def _common_store(acquisitions: Sequence[Acquisition]) -> Store | None:
    store: Store = acquisitions[0].limit_set.store
    for acquisition in acquisitions:
        if acquisition.limit_set.store is not store:
            return None
    return store


def _of_claim(acquisitions: Sequence[Acquisition], claim: Claim | None) -> Acquisition | None:
    for acquisition in acquisitions:
        if acquisition is claim:
            return acquisition
    return None


def peek(acquisition: Acquisition) -> None:
    """Fill in the current states of an acquisition."""
    acquisition.limit_set.store.peek(acquisition)


async def apeek(acquisition: Acquisition) -> None:
    """`peek` for asyncio."""
    store = acquisition.limit_set.store
    await store.apeek(acquisition) if is_remote(store) else store.peek(acquisition)


def admissible(acquisitions: Sequence[Acquisition]) -> Sequence[Acquisition]:
    """The acquisitions whose limits can ever admit their amounts; NeverAdmissible where there are none."""
    fitting = [acquisition for acquisition in acquisitions if acquisition.fits]
    if not fitting:
        best = closest_to_admission(acquisitions)
        peek(best)
        raise NeverAdmissible.of(best)
    return fitting


async def aadmissible(acquisitions: Sequence[Acquisition]) -> Sequence[Acquisition]:
    """`admissible` for asyncio."""
    fitting = [acquisition for acquisition in acquisitions if acquisition.fits]
    if not fitting:
        best = closest_to_admission(acquisitions)
        await apeek(best)
        raise NeverAdmissible.of(best)
    return fitting


def sorted_by_load(acquisitions: Sequence[Acquisition]) -> list[Acquisition]:
    """The acquisitions by rising load at this time; equal ones keep their order."""
    for acquisition in acquisitions:
        peek(acquisition)
    return sorted(acquisitions, key=_load)


async def asorted_by_load(acquisitions: Sequence[Acquisition]) -> list[Acquisition]:
    """`sorted_by_load` for asyncio."""
    for acquisition in acquisitions:
        await apeek(acquisition)
    return sorted(acquisitions, key=_load)


def _retry_us(acquisition: Acquisition) -> int:
    return acquisition.retry_us()


def _load(acquisition: Acquisition) -> float:
    return acquisition.load()


def rejected_shortest(rejected: Sequence[Acquisition]) -> Acquisition:
    """The rejection that ends first."""
    return rejected[0] if len(rejected) == 1 else min(rejected, key=_retry_us)


def closest_to_admission(acquisitions: Sequence[Acquisition]) -> Acquisition:
    """Of acquisitions that can never be admitted, the one whose limits can admit the largest share of its amounts."""
    return max(acquisitions, key=_largest_share)


def _largest_share(acquisition: Acquisition) -> float:
    limits = zip(acquisition.shape.limits, acquisition.amounts, strict=True)
    return min(
        [limit.rule.most_parts / amount for limit, amount in limits if amount > limit.rule.most_parts], default=1.0
    )
