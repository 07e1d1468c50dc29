"""Findings about prices: units of priced resources that are free, and prices that match nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

from django.utils import timezone

from limits_app.engine import PriceList, is_currency
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.models import BucketKind, CodeLimits, Limit, PoolMember, Price, Resource, UsageSnapshot
from limits_app.models.limit_rules import stored_definition
from limits_app.models.patterns import prefixes_of
from limits_app.models.price import hour_us
from limits_app.policies import price_lists
from limits_app.services.doctor.environment import MOST_LISTED, Finding, Severity
from limits_app.usage.reading import without_members

_LATELY: Final = timedelta(days=30)


def priced(using: str) -> Iterator[Finding]:
    """Compare prices with the units and the resources of the site; nothing for a site without prices."""
    if not Price.objects.using(using).exists():
        return
    units = _units(using)
    yield from _few("limits_app.D032", "units have no price", _FREE, _free(units))
    yield from _few("limits_app.D033", "prices match nothing", _UNUSED, _matching_nothing(units, using))


_FREE: Final = "Set a price for the unit, of 0 if it is free, or ignore this if it is not paid for."
_UNUSED: Final = "Check that it is spelled as your code does."


def _few(code: str, what: str, advice: str, messages: Iterator[str]) -> Iterator[Finding]:
    """A finding for each of the first messages, and one with how many more there are."""
    number = 0
    for number, message in enumerate(messages, 1):
        if number <= MOST_LISTED:
            yield Finding(code, Severity.INFO, message, advice)
    if number > MOST_LISTED:
        yield Finding(code, Severity.INFO, f"more {what}: {number - MOST_LISTED}", advice)


def _units(using: str) -> dict[str, set[str]]:
    """The units of each resource that has a row, or was used in the last 30 days: by its limits, and by its use."""
    units: dict[str, set[str]] = {
        name: set() for name in Resource._base_manager.using(using).values_list("name", flat=True)
    }
    for name in CodeLimits._default_manager.using(using).values_list("resource", flat=True):
        units.setdefault(name, set())
    limits = Limit._base_manager.using(using).exclude(policy__resource=None).order_by()
    for name, key, text in limits.values_list("policy__resource__name", "key", "text").distinct():
        if _is_paid_for(key, text):
            units.setdefault(name, set()).add(key)
    usage = UsageSnapshot._default_manager.using(using).filter(start__gte=timezone.now() - _LATELY).order_by()
    own, permits = without_members(usage).exclude(bucket=BucketKind.MEMBER), _keys_of_permits(using)
    for name, key in own.values_list("resource", "key").distinct():
        of_resource = units.setdefault(name, set())
        if key not in permits and _is_paid_for(key, ""):
            of_resource.add(key)
    return units


def _keys_of_permits(using: str) -> set[str]:
    """The keys of limits of concurrent requests."""
    rows = Limit._base_manager.using(using).order_by().values_list("key", "text").distinct()
    return {key for key, text in rows if not _is_paid_for(key, text)}


def _is_paid_for(key: str, text: str) -> bool:
    """Whether amounts of a limit can have a price: not requests, permits and money."""
    if not key or key == CallLimit.key or is_currency(key):
        return False
    try:
        return not (text and isinstance(stored_definition(key, text)[0], ResourceLimit))
    except InvalidLimit:
        return False


def _free(units: Mapping[str, set[str]]) -> Iterator[str]:
    """Units without a price in a currency in which another unit of the resource has one."""
    now_us = hour_us(timezone.now())
    for (resource, _pool), prices in sorted(_lists(units).items()):
        in_currency: dict[str, set[str]] = {}
        for price in prices.at(now_us):
            in_currency.setdefault(price.currency, set()).add(price.unit)
        every = units[resource].union(*in_currency.values())
        for currency, with_price in sorted(in_currency.items()):
            for unit in sorted(every - with_price):
                yield f"{unit} of {resource} has no price in {currency}, and {min(with_price)} has one"


def _lists(units: Mapping[str, set[str]]) -> dict[tuple[str, str | None], PriceList]:
    return price_lists([(resource, None) for resource in units])


def _matching_nothing(units: Mapping[str, set[str]], using: str) -> Iterator[str]:
    """Patterns that match no resource, and members that no pool has."""
    matched = {pattern for resource in units for pattern in prefixes_of(resource)}
    members = {*PoolMember._base_manager.using(using).values_list("pool__name", "name")}
    targets = Price._base_manager.using(using).order_by("resource", "member").values_list("resource", "member")
    for resource, member in targets.distinct():
        if member and (resource, member) not in members:
            yield f"prices are for {member} of {resource}, and no pool of this name has this member"
        elif resource.endswith("*") and resource not in matched:
            yield f"prices are for {resource}, and no resource matches it"
