"""How much a way in takes, said once it is known which limits hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, MeteredLimit, ResourceLimit

__all__ = ["one_of_each", "taken_by", "the_rest"]


def one_of_each(named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount] | None:
    """The amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by themselves. Without this, a rate that an administrator adds to a resource would be
    an error, or limit nothing, wherever nobody names it.
    """
    rates = found.rates
    if not named:
        return dict.fromkeys(rates, 1) if rates else None
    if all(isinstance(limit, Blocked) for limit in found):
        return None  # nothing that a name could be wrong about
    return {**dict.fromkeys(rates, 1), **named}


def taken_by(acquisitions: Iterable[Acquisition]) -> Mapping[str, Amount]:
    """What several acquisitions took together, by key."""
    taken: dict[str, Amount] = {}
    for acquisition in acquisitions:
        for key, use in acquisition.acquisitions.items():
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
