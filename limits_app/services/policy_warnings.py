"""Sentences about a policy and others: the limits that it drops, and what applies without it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Final

from django.utils.translation import gettext

from limits_app import conf
from limits_app.models import Counted, Enforcement, Policy, PolicyEffect, PolicyScope, in_scope
from limits_app.policies import applied_without, dropped_keys, prices_to_come

MOST_NAMED: Final = 10
"""How many rows a warning names."""


def overriding_block(policy: Policy) -> list[str]:
    """Return the first policies that override a saved block of the whole system; none for any other policy."""
    if policy.effect != PolicyEffect.BLOCKED or policy.scope != PolicyScope.SYSTEM:
        return []
    others = Policy.objects.using(policy._state.db).filter(extends=False, enforcement=Enforcement.ENFORCE)
    others = others.exclude(in_scope(PolicyScope.SYSTEM)).exclude(effect=PolicyEffect.BLOCKED)
    labels = [str(policy_row) for policy_row in others.select_related("resource", "entity", "plan")[: MOST_NAMED + 1]]
    return labels if len(labels) <= MOST_NAMED else [*labels[:MOST_NAMED], "…"]


def warnings_of(policy: Policy, keys: Iterable[str]) -> list[str]:
    """Return the sentences about a saved policy with limits of these keys: what it drops, and prices that it needs."""
    return dropped_messages(policy) + unpriced_messages(policy, keys)


def unpriced_messages(policy: Policy, keys: Iterable[str]) -> list[str]:
    """Return a sentence for each resource of which a budget of a saved policy makes requests an error for now."""
    money: tuple[str, ...] = conf.get(conf.CURRENCIES)
    currencies = frozenset(money).intersection(keys)
    if conf.get(conf.UNPRICED) is not conf.Unpriced.ERROR or not currencies:
        return []
    which = "name units and not" if policy.counted == Counted.TOTAL else "do not name"
    messages = [
        f"{name} has no price in {currency} before {begins.astimezone(UTC):%Y-%m-%d %H:%M} UTC: until then, its "
        f"requests that {which} {currency!r} are an error"
        for (name, currency), begins in prices_to_come(currencies).items()
        if policy.resource is None or policy.resource.name == name
    ]
    return messages if len(messages) <= MOST_NAMED else [*messages[:MOST_NAMED], "…"]


def dropped_messages(policy: Policy) -> list[str]:
    """Return a sentence for each key that a saved policy drops, or for an overridden block."""
    if others := overriding_block(policy):
        return [f"{policy} is blocked, but other policies override this: {', '.join(others)}; block the total"]
    levels: dict[str, list[str]] = {}
    for key, level in dropped_keys(policy):
        levels.setdefault(key, []).append(level)
    is_total = policy.counted == Counted.TOTAL
    return [
        dropped_message(str(policy), key, keys[0], others=len(keys) - 1, is_total=is_total)
        for key, keys in levels.items()
    ]


def dropped_message(policy: str, key: str, level: str, *, others: int = 0, is_total: bool = False) -> str:
    """Return the sentence about a key that a policy drops, which a policy limits, and so many others."""
    more = f" and {others} more" if others else ""
    advice = "limit it too" if is_total else "limit it too, or let it extend"
    return f"{policy} drops {key!r} of {level}{more}: {advice}"


def left_without(policy: Policy) -> str:
    """Say which policies apply now to the requests of a saved policy where it is not enforced."""
    others = applied_without(policy)
    if not others:
        return gettext("Without it no policy applies, and everything is allowed.")
    return gettext("Without it these apply: %(policies)s.") % {"policies": ", ".join(others)}
