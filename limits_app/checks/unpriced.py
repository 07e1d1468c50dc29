"""Limits in money on resources that have no price in their currency."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from django.core.checks import CheckMessage, Warning  # noqa: A004 - Django's name
from django.utils import timezone

from limits_app.engine import counts_money
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Limit
from limits_app.models.limit_rules import stored_definition
from limits_app.models.price import hour_us
from limits_app.policies import price_lists


def unpriced_resources(limits: Iterable[Limit]) -> Iterator[CheckMessage]:
    """Report the resources of some limits, of which a request is an error unless it names the currency."""
    places: dict[tuple[str, str], str | None] = {}
    for row in limits:
        resource = row.policy.resource if row.policy else None
        if resource is not None and _is_money(row):
            places[resource.name, row.key] = None if resource.pool is None else resource.pool.name
    prices, now_us = price_lists({(name, pool) for (name, _), pool in places.items()}), hour_us(timezone.now())
    for (name, currency), pool in sorted(places.items()):
        if currency not in prices[name, pool].currencies(now_us):
            yield Warning(
                f"{name} is limited in {currency}, and has no price in {currency}",
                hint=f"Set a price in {currency}: until then, requests that do not name {currency!r} are an error. "
                "LIMITS['UNPRICED'] = 'free' allows them without a charge.",
                id="limits_app.W079",
            )


def _is_money(row: Limit) -> bool:
    try:
        limit, _ = stored_definition(row.key, row.text)
    except InvalidLimit:  # it was written past the validation of the model
        return False
    return counts_money(limit)
