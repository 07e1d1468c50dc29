"""The options of a request, and its amounts: by key, or by a function of the effective limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypedDict

from django.core.exceptions import ValidationError

from limits_app.acquiring import LimitSet
from limits_app.engine import (
    CALLS,
    MILLI,
    Amount,
    EntityName,
    GivenAmount,
    Requested,
    checked_amount,
    checked_limits,
    checked_priority,
    counts_money,
    is_currency,
    is_metered,
    of_class,
)
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, MeteredLimit, ResourceLimit
from limits_app.models.patterns import check_client
from limits_app.models.users import entity_name
from limits_app.policies import DefaultLimits, ResolutionKey, checked_defaults, latest_code_limits, resolver

RequestedAmounts = Requested | Callable[[LimitSet], Requested]
"""Amounts by key, or a function that returns them for the effective limits."""

Resources = str | Mapping[str, RequestedAmounts]
"""A resource, or several with the amounts of each."""


class CheckOptions(TypedDict, total=False):
    """The options of `check`."""

    entity: EntityName
    requested: RequestedAmounts
    default_limits: LimitsInCode | str
    plan: str | None
    priority: str | None


LimitsInCode = Sequence[LimitDefinition]
"""Limits that callers pass; they apply where no policy does."""


class TryOptions(CheckOptions, total=False):
    """The options of `try_acquire`."""

    idempotency_key: str | None
    require_usage: bool


class AcquireOptions(TryOptions, total=False):
    """The options of `acquire`."""

    timeout: float | None


def key_of(
    resource: str, entity: EntityName, default_limits: LimitsInCode | str = (), plan: str | None = None
) -> ResolutionKey:
    """Return the key of the resolver for the arguments of a verb; raises InvalidLimit for invalid default limits."""
    if isinstance(default_limits, str):
        default_limits = _read_limits(default_limits)
    elif not isinstance(default_limits, tuple):  # such as a list, which cannot be looked up
        default_limits = checked_defaults(default_limits)
    return resource, entity_name(entity), default_limits, plan


def one_client(entity: EntityName) -> str | None:
    """The identifier of an entity; raises InvalidLimit for a pattern, which has no counters."""
    name = entity_name(entity)
    if not isinstance(name, str):
        return name
    try:
        check_client(name)
    except ValidationError as error:
        raise InvalidLimit("; ".join(error.messages)) from error
    return name


@lru_cache(maxsize=1024)
def _read_limits(text: str) -> DefaultLimits:
    return checked_limits(text)


def amounts_for(limits: LimitSet, requested: RequestedAmounts) -> Requested:
    """The amounts that are requested of some limits."""
    return requested(limits) if callable(requested) else requested


def prioritized(requested: RequestedAmounts, priority: str | None) -> RequestedAmounts:
    """The amounts of a request that names its priority; None leaves them as they are.

    Raises InvalidRequest for a priority that is not one of `LIMITS["PRIORITIES"]`.
    """
    if priority is None:
        return requested
    if not callable(requested):
        return of_class(requested, priority)
    checked_priority(priority)
    return lambda limits: of_class(requested(limits), priority)


def known_amounts(
    resource: str, entity: str | None, requested: Mapping[str, GivenAmount], plan: str | None = None
) -> dict[str, GivenAmount]:
    """The amounts of a request by the keys of its effective limits; `calls` may be used for the key of call limits.

    Raises InvalidRequest for an unknown key: in code it may be a key of other limits, in a command it is a mistake.
    """
    key = resource, entity, latest_code_limits(resource), plan
    resolved = resolver.get(key)
    while resolver.follow(key, resolved):
        resolved = resolver.get(key)
    keys = {*resolved.limit_set.keys, *(() if resolved.shadow is None else resolved.shadow.keys)}
    renamed = {
        CallLimit.key if name == CALLS and CALLS not in keys else name: amount for name, amount in requested.items()
    }
    if len(renamed) < len(requested):
        raise InvalidRequest(f"{CALLS} and {CallLimit.key} are the same key: use one of them")
    unknown = sorted(renamed.keys() - keys)
    if unknown and keys and Blocked.key not in keys:
        raise not_limited(unknown, keys, is_requested=True)
    return renamed


def not_limited(unknown: Iterable[str], keys: Iterable[str], *, is_requested: bool = False) -> InvalidRequest:
    """The error for keys without a limit, with the keys that have one.

    Keys that are requested may have a price instead, which counts where money is limited.
    """
    existing = sorted(keys)
    what = "limit and no price" if is_requested and any(map(is_currency, existing)) else "limit"
    return InvalidRequest(
        f"No {what} has the key {', '.join(unknown)}; must be one of: {', '.join(existing) or 'none'}"
    )


def one_of_each(named: Mapping[str, GivenAmount], limits: LimitSet) -> Mapping[str, GivenAmount] | None:
    """The amounts that are named, and 1 of every other limit.

    Calls and permits count 1 by default. Without this, a rate that an administrator adds to a resource would be an
    error wherever no code names it.
    """
    if not named:
        return ones_of(limits)
    if all(isinstance(limit, Blocked) for limit in limits):
        return None  # a name cannot be wrong where there are no limits
    return {**limits.no_money, **(limits.ones or {}), **named}


def ones_of(limits: LimitSet) -> Mapping[str, GivenAmount] | None:
    """1 of every limit, and no money; None where no amount has to be named."""
    return {**limits.no_money, **limits.ones} if limits.no_money and limits.ones else limits.ones


def amount_of_each(amount: Amount, limits: LimitSet) -> Mapping[str, GivenAmount] | None:
    """The amount for every rate and for the calls, and no money; permits count 1."""
    return {
        limit.key: 0 if counts_money(limit) else amount
        for limit in limits
        if isinstance(limit, MeteredLimit | CallLimit)
    }


def without_permits(requested: RequestedAmounts, limits: LimitSet) -> Requested:
    """The amounts that are requested, but no permits."""
    amounts = amounts_for(limits, requested)
    permits: dict[str, GivenAmount] = {limit.key: 0 for limit in limits if isinstance(limit, ResourceLimit)}
    if not permits:
        return amounts
    return {**((ones_of(limits) if amounts is None else amounts) or {}), **permits}


def remaining_amounts(
    taken: Mapping[str, Amount], named: Mapping[str, GivenAmount], limits: LimitSet
) -> Mapping[str, GivenAmount]:
    """The amounts that are named now, less the permits that are held; 0 of everything else that was taken."""
    rest: dict[str, GivenAmount] = {limit.key: 0 for limit in limits if limit.key in taken and not is_metered(limit)}
    permits = {limit.key for limit in limits if isinstance(limit, ResourceLimit)}
    for key, amount in named.items():
        is_held = key in permits and key in taken
        rest[key] = max(checked_amount(key, amount, decimals=False) // MILLI - taken[key], 0) if is_held else amount
    return rest
