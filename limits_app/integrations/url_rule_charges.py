"""Rules for URLs: who is counted for a request, and what the rules that match it charge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from limits_app.integrations.charges import Charge, ChargeKey
from limits_app.integrations.identity import (
    client_of,
    entity_of_api_key,
    entity_of_header,
    entity_of_session,
    entity_of_user,
)
from limits_app.integrations.request_identities import names_of
from limits_app.integrations.request_parts import combined_entity
from limits_app.services.integration import CountedBy, GivenAmount, is_currency, lower_of, usage_of_units
from limits_app.services.url_rules import UrlRule

if TYPE_CHECKING:
    from limits_app.integrations.request import RequestLimits


def entity_of(rule: UrlRule, limits: RequestLimits) -> str | None:
    """Who is counted for a request; the IP address where it lacks what the rule counts by."""
    entity: str | None
    request = limits.request
    match rule.counted_by:
        case CountedBy.EVERYONE:
            return None
        case CountedBy.USER:
            entity = entity_of_user(getattr(request, "user", None))
        case CountedBy.API_KEY:
            entity = entity_of_api_key(request)
        case CountedBy.SESSION:
            entity = entity_of_session(request)
        case CountedBy.HEADER:
            entity = entity_of_header(request, rule.header)
        case CountedBy.IP:
            entity = None
        case _:
            return limits.entity
    return entity or client_of(request)


def charges_for(limits: RequestLimits, rules: Iterable[UrlRule], *, confirmed: bool = False) -> list[Charge]:
    """The charges of the matching rules of a request, in order, each resource and entity once. May query the database.

    Two rules with the same resource and entity charge the larger amounts, in the lower priority. The first rule with
    `stop` that does not exempt the request is the last one. `confirmed` is True for rules that are known to be current.
    Rules that need the response are left out where the time of its end is unknown, as for a proxy.
    """
    charged: dict[ChargeKey, Charge] = {}
    for rule in rules:
        if rule.needs_response and not limits.takes_permits:
            continue
        client = entity_of(rule, limits)
        if rule.exemptions:
            names = names_of(limits, rule.exemptions.entities.kinds)
            if rule.exemptions.apply(limits, [client, limits.entity, *names]):
                continue
        entity = combined_entity(rule, limits.request, client) if rule.parts else client
        key = rule.resource, entity
        client = client if rule.parts else None
        charge = charged.setdefault(key, Charge(*key, rule.amounts, client=client, priority=rule.priority))
        charge.rules = (*charge.rules, rule)
        if len(charge.rules) > 1:
            charge.named = _larger(charge.named, rule.amounts)
            charge.priority = _lower(charge.priority, rule.priority)
        if not confirmed:
            charge.requested = rule.confirm(charge.named)
        if rule.stop:
            break
    limits.by_rules = [*charged.values()]
    return limits.by_rules


def _lower(priority: str | None, other: str | None) -> str | None:
    """The lower of the priorities that two rules have; None where neither has one."""
    return lower_of(priority or other or "", other or priority or "") or None


def _larger(amounts: Mapping[str, GivenAmount], other: Mapping[str, GivenAmount]) -> dict[str, GivenAmount]:
    """The larger amount of each key; an amount that is not named is 1, and no money."""
    unnamed = {key: 0 if is_currency(key) else 1 for key in {**amounts, **other}}
    return {
        key: max(amounts.get(key, least), other.get(key, least), key=partial(_size, key))
        for key, least in unnamed.items()
    }


def _size(key: str, amount: GivenAmount) -> float:
    """An amount to compare; an invalid one, written past the validation of the model, is the largest: it is refused."""
    try:
        return usage_of_units(key, amount)
    except ValueError:
        return inf
