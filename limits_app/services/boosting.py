"""Boosting: more of what holds now for an entity, for a while."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from decimal import ROUND_DOWN, Decimal
from typing import Final

from django.utils import timezone

from limits_app.core.amounts import MAX_AMOUNT, Amount
from limits_app.core.errors import InvalidRequest
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limits import Blocked, CallLimit, Limit, RateLimit
from limits_app.models import Entity, Policy, Resource
from limits_app.resolver import Choice, choices, home
from limits_app.services.writing import grant_boost

__all__ = ["boost"]

_THOUSANDTH: Final = Decimal("0.001")


def boost(  # noqa: PLR0917 - who gets how much more, until when and why: a sentence
    entity: str, resource: str | None, factor: Decimal | float, until: datetime, reason: str, *, actor: str = ""
) -> Policy:
    """Multiply each limit that holds now for an entity on a resource (None: on all) until a moment.

    Limits that everybody shares stay as they are. See `grant_boost`; InvalidRequest where nothing can be multiplied.
    """
    times = _times_as_much(factor)
    limits = [
        _multiplied(held.limit, times)
        for held in _now(entity, resource).limits
        if not (held.shared or isinstance(held.limit, Blocked))
    ]
    if not limits:
        on = "all resources" if resource is None else resource
        raise InvalidRequest(f"nothing limits {entity} on {on} that could be boosted")
    return grant_boost(entity, resource, limits, until, reason, actor=actor)


def _times_as_much(factor: object) -> Decimal:
    if isinstance(factor, Decimal | float | int) and not isinstance(factor, bool):
        exact = Decimal(str(factor))
        if exact.is_finite() and 1 < exact <= MAX_AMOUNT:
            return exact
    raise InvalidRequest(f"a boost by {factor} gives nothing: say how many times as much, such as 2")


def _now(entity: str, resource: str | None) -> Choice:
    """What holds now; neither of them needs a row."""
    using = home()
    check_entity(entity)
    who = Entity.objects.using(using).filter(identifier=entity).first() or Entity(identifier=entity)
    what = None
    if resource is not None:
        check_resource(resource)
        what = Resource.objects.using(using).filter(name=resource).first() or Resource(name=resource)
    return choices([(what, who)], timezone.now())[0]


def _multiplied(limit: Limit, factor: Decimal) -> Limit:
    if isinstance(limit, RateLimit | CallLimit) and limit.burst is not None:
        return replace(limit, capacity=_times(limit.capacity, factor), burst=_times(limit.burst, factor))
    return replace(limit, capacity=_times(limit.capacity, factor))  # type: ignore[arg-type]  # whole numbers stay whole


def _times(amount: Amount, factor: Decimal) -> Amount:
    """A product, rounded down: to whole numbers where the amount is one."""
    product = Decimal(str(amount)) * factor
    return int(product) if isinstance(amount, int) else float(product.quantize(_THOUSANDTH, ROUND_DOWN))
