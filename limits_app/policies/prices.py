"""The prices of resources as stored."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from django.db.models import Min
from django.utils import timezone

from limits_app.engine import PricedFor, PriceList, StoredPrice, UnitPrice
from limits_app.models import Price, write_alias
from limits_app.models.fields import aware
from limits_app.models.own_queries import read
from limits_app.models.patterns import prefixes_of
from limits_app.models.price import hour_us
from limits_app.models.snapshots import MOST_NAMES

_COLUMNS: Final = ("resource", "member", "unit", "currency", "amount", "per", "valid_from")


PriceLists = dict[tuple[str, str | None], PriceList]
"""The prices of resources, each with its pool or None."""


def stored_prices(resource: str, pool: str | None = None) -> PriceList:
    """All prices that may apply to a resource, also those of the past and of the future.

    With the name of its pool, also those of its members.
    """
    return price_lists([(resource, pool)])[resource, pool]


def price_lists(resources: Collection[tuple[str, str | None]]) -> PriceLists:
    """`stored_prices` of several resources and pools, in one query."""
    places = {(resource, pool): frozenset([resource, *prefixes_of(resource)]) for resource, pool in resources}
    names = {name for of_resource in places.values() for name in of_resource} | {pool for _, pool in places if pool}
    using = write_alias()
    rows = Price.objects.using(using).order_by("valid_from")
    if len(names) <= MOST_NAMES:
        rows = rows.filter(resource__in=names)
    if not any(pool for _, pool in places):
        rows = rows.filter(member="")
    columns: list[Any] = read(using, lambda: [*rows.values_list(*_COLUMNS)], [])
    of_all, of_members = dict[str, list[StoredPrice]](), dict[str, list[StoredPrice]]()
    for price in (_stored(*row) for row in columns):
        (of_members if price.target.member else of_all).setdefault(price.target.resource, []).append(price)
    return {
        (resource, pool): PriceList(
            [*of_members.get(pool or "", ()), *[price for name in of_resource for price in of_all.get(name, ())]]
        )
        for (resource, pool), of_resource in places.items()
    }


def prices_to_come(currencies: Collection[str]) -> dict[tuple[str, str], datetime]:
    """The resources and patterns without a price in one of the currencies now, and the hour from which they have one.

    Each is with its currency. Prices of members of pools are left out.
    """
    rows = Price.objects.using(write_alias()).filter(currency__in=currencies, member="").order_by()
    now = timezone.now()
    firsts = rows.values_list("resource", "currency").annotate(first=Min("valid_from")).filter(first__gt=now)
    columns: list[Any] = read(write_alias(), lambda: [*firsts.order_by("resource", "currency")], [])
    lists = price_lists({(resource, None) for resource, _, _ in columns})
    return {
        (resource, currency): aware(begins)
        for resource, currency, begins in columns
        if currency not in lists[resource, None].currencies(hour_us(now))
    }


def _stored(  # noqa: PLR0917 - the columns
    resource: str, member: str, unit: str, currency: str, amount: Decimal, per: int, valid_from: datetime
) -> StoredPrice:
    """A row as a value, without an object of the model for each of very many."""
    return StoredPrice(PricedFor(resource, member), UnitPrice.of(unit, currency, amount, per), hour_us(valid_from))
