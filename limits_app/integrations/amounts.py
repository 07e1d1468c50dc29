"""How much a way in takes, said once it is known which limits hold."""

from __future__ import annotations

from collections.abc import Mapping

from limits_app.core.acquisition import LimitUse
from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import RateLimit, ResourceLimit

__all__ = ["one_of_each", "the_rest"]


def one_of_each(named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount] | None:
    """The amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by themselves. Without this, a rate that an administrator adds to a resource would be
    an error, or limit nothing, wherever nobody names it.
    """
    if not len(found):
        return None
    rates = found.rates
    return {**dict.fromkeys(rates, 1), **named} if rates else named or None


def the_rest(taken: Mapping[str, LimitUse], named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount]:
    """The amounts that are named now, less the permits that are held already; of all else that was taken, nothing."""
    rest: dict[str, Amount] = {
        limit.key: 0 for limit in found if limit.key in taken and not isinstance(limit, RateLimit)
    }
    permits = {limit.key for limit in found if isinstance(limit, ResourceLimit)}
    for key, amount in named.items():
        held = taken[key].requested if key in taken and key in permits else 0
        rest[key] = max(amount - held, 0) if held else amount
    return rest
