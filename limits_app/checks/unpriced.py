"""Limits in money on resources that have no price in their currency."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC
from typing import Final

from django.core.checks import CheckMessage, Warning  # noqa: A004 - Django's name
from django.utils import timezone

from limits_app.engine import counts_money, is_metered
from limits_app.engine.errors import InvalidLimit
from limits_app.models import Limit
from limits_app.models.limit_rules import stored_definition
from limits_app.models.price import hour_us
from limits_app.policies import price_lists, prices_to_come

_FREE: Final = "LIMITS['UNPRICED'] = 'free' allows them without a charge."


def unpriced_resources(limits: Iterable[Limit]) -> Iterator[CheckMessage]:
    """Report the resources of some limits, of which a request is an error unless it names the currency."""
    pools: dict[tuple[str, str], str | None] = {}
    for row in limits:
        resource = row.policy.resource if row.policy else None
        if resource is not None and _is_money(row):
            pools[resource.name, row.key] = None if resource.pool is None else resource.pool.name
    for name, currency in _without_price(pools):
        yield Warning(
            f"{name} is limited in {currency}, and has no price in {currency}",
            hint=f"Set a price in {currency}: until then, requests that do not name {currency!r} are an error. {_FREE}",
            id="limits_app.W079",
        )


def unpriced_totals(currencies: Collection[str], units: Iterable[Limit]) -> Iterator[CheckMessage]:
    """Report the resources with limits of `units`, or with future prices, without a price in a currency of totals.

    Of these, requests that name amounts of units are an error. Resources that are limited in the currency themselves
    are left to `unpriced_resources`.
    """
    pools: dict[str, str | None] = {}
    own: set[tuple[str, str]] = set()
    for row in units:
        resource = row.policy.resource if row.policy else None
        if resource is not None:
            own.add((resource.name, row.key))
            if _is_metered(row):
                pools[resource.name] = None if resource.pool is None else resource.pool.name
    others = {(name, key): pool for name, pool in pools.items() for key in currencies if (name, key) not in own}
    for name, currency in _without_price(others):
        yield Warning(
            f"{name} limits units and has no price in {currency}, and a total is limited in {currency}",
            hint=f"Set a price in {currency}, 0 if it is free: until then, requests that name units and not "
            f"{currency!r} are an error for clients with the total. {_FREE}",
            id="limits_app.W079",
        )
    for (name, currency), begins in prices_to_come(currencies).items():
        if (name, currency) not in own and name not in pools:
            hour = f"{begins.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
            yield Warning(
                f"{name} has no price in {currency} before {hour}, and a total is limited in {currency}",
                hint=f"Until then, requests that name units and not {currency!r} are an error for clients with the "
                f"total. {_FREE}",
                id="limits_app.W079",
            )


def _without_price(pools: Mapping[tuple[str, str], str | None]) -> Iterator[tuple[str, str]]:
    """The resources and currencies without a price now; each has the pool that serves the resource."""
    prices, now_us = price_lists({(name, pool) for (name, _), pool in pools.items()}), hour_us(timezone.now())
    for (name, currency), pool in sorted(pools.items()):
        if currency not in prices[name, pool].currencies(now_us):
            yield name, currency


def _is_metered(row: Limit) -> bool:
    try:
        limit, _ = stored_definition(row.key, row.text)
    except InvalidLimit:
        return False
    return is_metered(limit) and not counts_money(limit)


def _is_money(row: Limit) -> bool:
    try:
        limit, _ = stored_definition(row.key, row.text)
    except InvalidLimit:  # it was written past the validation of the model
        return False
    return counts_money(limit)
