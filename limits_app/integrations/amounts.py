"""The amounts that an integration requests, computed when the effective limits are known."""

from __future__ import annotations

from collections.abc import Mapping

from limits_app.core.amounts import Amount
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, CallLimit, MeteredLimit, ResourceLimit

__all__ = ["amount_of_each", "one_of_each", "remaining_amounts"]


def one_of_each(named: Mapping[str, Amount], found: LimitSet) -> Mapping[str, Amount] | None:
    """Return the amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by default. Without this, a rate that an administrator adds to a resource would be an
    error wherever no code names it.
    """
    if not named:
        return found.ones
    if all(isinstance(limit, Blocked) for limit in found):
        return None  # a name cannot be wrong where there are no limits
    return {**(found.ones or {}), **named}


def amount_of_each(amount: Amount, found: LimitSet) -> Mapping[str, Amount] | None:
    """Return the amount for every rate and for the calls; permits count 1."""
    return {limit.key: amount for limit in found if isinstance(limit, MeteredLimit | CallLimit)}


def remaining_amounts(
    taken: Mapping[str, Amount], named: Mapping[str, Amount], found: LimitSet
) -> Mapping[str, Amount]:
    """Return the amounts that are named now, less the permits that are held; 0 of everything else that was taken."""
    rest: dict[str, Amount] = {
        limit.key: 0 for limit in found if limit.key in taken and not isinstance(limit, MeteredLimit)
    }
    permits = {limit.key for limit in found if isinstance(limit, ResourceLimit)}
    for key, amount in named.items():
        rest[key] = max(amount - taken[key], 0) if key in permits and key in taken else amount
    return rest
