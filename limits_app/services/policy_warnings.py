"""Sentences about a policy and others: the limits that it drops, and what applies without it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from django.utils.translation import gettext

from limits_app.models import Counted, Enforcement, Policy, PolicyEffect, PolicyScope, in_scope, write_alias
from limits_app.policies import (
    CODE,
    ENTITY_FLAGS,
    OF_CODE,
    PolicyValue,
    Subject,
    applied_policies,
    dropped_keys,
    judge,
    latest_code_limits,
    policies_for,
)

_MOST_NAMED: Final = 10


def overriding_block(policy: Policy) -> list[str]:
    """Return the first policies that override a saved block of the whole system; none for any other policy."""
    if policy.effect != PolicyEffect.BLOCKED or policy.scope != PolicyScope.SYSTEM:
        return []
    others = Policy.objects.using(policy._state.db).filter(extends=False, enforcement=Enforcement.ENFORCE)
    others = others.exclude(in_scope(PolicyScope.SYSTEM)).exclude(effect=PolicyEffect.BLOCKED)
    labels = [str(policy_row) for policy_row in others.select_related("resource", "entity", "plan")[: _MOST_NAMED + 1]]
    return labels if len(labels) <= _MOST_NAMED else [*labels[:_MOST_NAMED], "…"]


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
    names = [None if row is None else str(row) for row in (policy.resource, policy.entity, policy.plan)]
    now = datetime.now(UTC)
    link = policies_for(Subject(*names), write_alias(), now).links[0]
    others = tuple(other for other in link.policies if other.policy_id != policy.pk)
    limits_of_code = () if policy.resource is None else latest_code_limits(str(policy.resource))
    if limits_of_code:
        others += (PolicyValue(CODE, PolicyEffect.LIMITS, limits_of_code, None),)
    applied = applied_policies(judge(replace(link, policies=others), now).verdicts)
    if not applied:
        return gettext("Without it no policy applies, and everything is allowed.")
    rows = Policy.objects.using(write_alias()).in_bulk([value.policy_id for value in applied if value.policy_id])
    # An entity that is itself blocked or unlimited has no policy for that.
    without_row = {CODE: OF_CODE, ENTITY_FLAGS: f"entity {policy.entity}"}
    left = [str(rows[value.policy_id]) if value.policy_id else without_row[value.level] for value in applied]
    return gettext("Without it these apply: %(policies)s.") % {"policies": ", ".join(left)}
