"""What a policy silently frees, because it replaces broader ones as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, assert_never

from django.db.models import Q

from limits_app.models import Enforcement, Policy, PolicyEffect, PolicyScope

__all__ = ["DroppedKey", "dropped_keys"]


class DroppedKey(NamedTuple):
    """A limit that holds no longer for those whom the policy is about."""

    key: str
    level: str
    """The policy that has the limit, such as `resource api`."""


def dropped_keys(policy: Policy) -> tuple[DroppedKey, ...]:
    """Give the keys that the replaced policies limit and this one, which is saved, does not.

    A policy that blocks or frees everything says so itself, and drops nothing silently; one that extends drops nothing.
    """
    if policy.effect != PolicyEffect.LIMITS or policy.extends:
        return ()
    kept = {limit.key for limit in policy.limits.all()}
    return tuple(
        DroppedKey(limit.key, str(replaced))
        for replaced in _replaced(policy)
        if replaced.effect == PolicyEffect.LIMITS
        for limit in replaced.limits.all()
        if limit.key not in kept
    )


def _replaced(policy: Policy) -> Iterable[Policy]:
    """The policies that would hold somewhere if this one did not."""
    same_scope = Q(resource=policy.resource_id, entity=policy.entity_id)
    policies = Policy.objects.using(policy._state.db).exclude(enforcement=Enforcement.OFF)
    policies = policies.select_related("resource", "entity").prefetch_related("limits")
    if policy.valid_from is not None or policy.weekly_hours:
        always = policies.filter(same_scope, valid_from=None, weekly_hours="")
        if always:
            return always
    others = policies.exclude(same_scope)
    scope = policy.scope
    match scope:
        case PolicyScope.SYSTEM:
            return ()
        case PolicyScope.RESOURCE:
            return others.filter(resource=None, entity=None)
        case PolicyScope.ENTITY:
            own = others.filter(entity=policy.entity_id).values("resource")
            return others.filter(entity=None).exclude(resource__in=own)
        case PolicyScope.ENTITY_ON_RESOURCE:
            broader = others.filter(
                Q(resource=policy.resource_id) | Q(resource=None), Q(entity=policy.entity_id) | Q(entity=None)
            )
            return sorted(broader, key=lambda other: list(PolicyScope).index(other.scope))[:1]
        case _:
            assert_never(scope)
