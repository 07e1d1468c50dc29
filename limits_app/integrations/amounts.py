"""How much a way in takes, said once it is known which limits hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, CallLimit, MeteredLimit, ResourceLimit

__all__ = ["Report", "one_of_each", "so_much_of_each", "taken_by", "the_rest"]


@dataclass(frozen=True, slots=True)
class Report:
    """What a result says about its own cost: whether it counts at all, and how much of each limit was used."""

    usage: Callable[[Any], Mapping[str, Amount]] | None = None
    counts: Callable[[Any], bool] | None = None

    def update(self, result: object, *acquisitions: Acquisition) -> None:
        """Report it, so that the rest is given back at release where the algorithm can do that.

        Of several acquisitions the last that has an amount is told of it, since that one took it.
        """
        held = [one for one in acquisitions if not one.claim.settled]
        if not held:
            return
        if self.counts is not None and not self.counts(result):
            for one in held:
                one.update(dict.fromkeys(one.acquisitions, 0))
        elif self.usage is not None:
            said = dict(self.usage(result))
            while len(held) > 1:
                one = held.pop()
                one.update({key: said.pop(key) for key in [*said] if key in one.acquisitions})
            held[0].update(said)


def one_of_each(named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount] | None:
    """The amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by themselves. Without this, a rate that an administrator adds to a resource would be
    an error, or limit nothing, wherever nobody names it.
    """
    if not named:
        return found.ones
    if all(isinstance(limit, Blocked) for limit in found):
        return None  # nothing that a name could be wrong about
    return {**(found.ones or {}), **named}


def so_much_of_each(amount: Amount, found: LimitSet) -> Mapping[str, Amount] | None:
    """An amount of every rate and of the calls; permits count 1."""
    return {limit.key: amount for limit in found if isinstance(limit, MeteredLimit | CallLimit)}


def taken_by(acquisitions: Iterable[Acquisition]) -> Mapping[str, Amount]:
    """What several acquisitions took together, by key; where one is of several resources, whatever the resource."""
    taken: dict[str, Amount] = {}
    for acquisition in acquisitions:
        for name, use in acquisition.acquisitions.items():
            key = name.rpartition(":")[2]
            taken[key] = taken.get(key, 0) + use.requested
    return taken


def the_rest(taken: Mapping[str, Amount], named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount]:
    """The amounts that are named now, less the permits that are held already; of all else that was taken, nothing."""
    rest: dict[str, Amount] = {
        limit.key: 0 for limit in found if limit.key in taken and not isinstance(limit, MeteredLimit)
    }
    permits = {limit.key for limit in found if isinstance(limit, ResourceLimit)}
    for key, amount in named.items():
        rest[key] = max(amount - taken[key], 0) if key in permits and key in taken else amount
    return rest
