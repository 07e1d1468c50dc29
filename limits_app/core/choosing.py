"""Choosing: several acquisitions of which one is wanted, and how their stores are asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import NeverAdmissible
from limits_app.core.steps import Acquire, Peek, Steps
from limits_app.core.store import Store

__all__ = ["Choice", "earliest", "emptiest_of", "nearest", "those_that_fit"]


def _at_once(acquisition: Acquisition) -> int:  # noqa: ARG001 - as others have it
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Acquisitions of which one is wanted, in the order in which they are to be asked.

    `emptiest_first` and `failover` are those of `Store.acquire_first`, which makes choice and charge one step.
    That takes one store: acquisitions of several are asked one after the other.
    `rest_us` says how many microseconds one is put aside for; when all are, none is.
    """

    wanted: Sequence[Acquisition]
    emptiest_first: bool = False
    failover: bool = True
    rest_us: Callable[[Acquisition], int] = _at_once

    @property
    def stores(self) -> list[Store]:
        """The stores that have to be asked."""
        return list(dict.fromkeys([one.limit_set.store for one in self.wanted]))

    def present(self) -> tuple[Sequence[Acquisition], int | None]:
        """Those that are not put aside, and in how many microseconds the next one comes back."""
        rests = [(one, self.rest_us(one)) for one in self.wanted]
        present = [one for one, rest in rests if not rest]
        return present or self.wanted, min([rest for _, rest in rests if rest], default=None)

    def asking(self, some: Sequence[Acquisition]) -> Steps[Acquisition | None]:
        """Have the first of some of them charged that fits; gives it, or None."""
        store = some[0].limit_set.store
        if all(one.limit_set.store is store for one in some):
            return (yield Acquire(store, some, self.emptiest_first, self.failover))
        if self.emptiest_first:
            some = yield from emptiest_of(some)
        for one in some if self.failover else some[:1]:
            if (yield Acquire(one.limit_set.store, [one])) is not None:
                return one
        return None


def those_that_fit(acquisitions: Sequence[Acquisition]) -> Steps[list[Acquisition]]:
    """Those whose limits can ever admit as much; NeverAdmissible of the one that admits most when there are none."""
    fitting = [one for one in acquisitions if one.claim.plan.can_fit(one.claim.amounts)]
    if not fitting:
        best = nearest(acquisitions)
        yield Peek(best.limit_set.store, best)
        raise NeverAdmissible.of(best)
    return fitting


def emptiest_of(acquisitions: Sequence[Acquisition]) -> Steps[list[Acquisition]]:
    """The same by rising load, as it is now; among equals in their order."""
    for one in acquisitions:
        yield Peek(one.limit_set.store, one)
    return sorted(acquisitions, key=lambda one: one.claim.load())


def earliest(refused: Sequence[Acquisition]) -> Acquisition:
    """The refusal that is over first."""
    return min(refused, key=lambda one: one.claim.refusal()[1])


def nearest(unfit: Sequence[Acquisition]) -> Acquisition:
    """Of those that can never admit as much, the one that can admit the largest share of it; the same in any order."""
    return max(unfit, key=_largest_share)


def _largest_share(unfit: Acquisition) -> float:
    limits = zip(unfit.claim.plan.limits, unfit.claim.amounts, strict=True)
    return min(
        [limit.rule.most_parts / amount for limit, amount in limits if amount > limit.rule.most_parts], default=1.0
    )
