"""Policy resolution for many entities on many resources in two queries, for lists.

Only the policies of each entity itself: the entities above it, which are charged too, are left to `resolve`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from itertools import product

from django.db.models import F, Func, IntegerField, Q

from limits_app.conf import OnUnavailable
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.models import (
    ENTITY_FLAGS,
    Enforcement,
    Entity,
    EntityPolicies,
    Policy,
    PolicyEffect,
    PolicyValue,
    Resource,
)
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.resolver.policies import Choice, choose
from limits_app.resolver.resolution import home
from limits_app.resolver.resolved_set import scopes_of
from limits_app.resolver.store_versions import schemas_of

__all__ = ["Pair", "choices", "scopes"]

Pair = tuple[Resource | None, Entity | None]
"""A resource (None: all resources), and an entity (None: the site itself)."""


def choices(pairs: Collection[Pair], now: datetime) -> list[Choice]:
    """Choose the policies of each pair, in the order of the pairs."""
    by_ids: dict[tuple[int, int], list[PolicyValue]] = {}
    for policy in _policies(pairs, now):
        by_ids.setdefault((policy.resource_id or 0, policy.entity_id or 0), []).append(_policy_value(policy))
    return [choose(_policies_of(resource, entity, by_ids), now) for resource, entity in pairs]


def scopes(resource: str, choice: Choice, store: Store) -> list[ScopedLimits]:
    """The limits of a choice, each in the scope in which a store keeps its state."""
    return scopes_of(resource, [choice], schemas_of(store))


def _policies(pairs: Collection[Pair], now: datetime) -> Iterable[Policy]:
    resources = {0, *(resource.pk for resource, _ in pairs if resource is not None)}
    entities = {0, *(entity.pk for _, entity in pairs if entity is not None)}
    policies = Policy.objects.using(home()).annotate(
        resource_or_zero=_or_zero("resource_id"), entity_or_zero=_or_zero("entity_id")
    )
    not_ended = Q(valid_until=None) | Q(valid_until__gt=now)
    return (
        policies.filter(not_ended, resource_or_zero__in=resources, entity_or_zero__in=entities)
        .order_by()
        .prefetch_related("limits")
    )


def _or_zero(column: str) -> Func:
    """A column with 0 for NULL, as in the unique index of policies; SQLite uses the index only with 0 as a literal."""
    return Func(F(column), template="COALESCE(%(expressions)s, 0)", output_field=IntegerField())


def _policies_of(
    resource: Resource | None, entity: Entity | None, by_ids: dict[tuple[int, int], list[PolicyValue]]
) -> EntityPolicies:
    resources = {0, 0 if resource is None else resource.pk}
    entities = {0, 0 if entity is None else entity.pk}
    found = [one for ids in product(resources, entities) for one in by_ids.get(ids, ())]
    return EntityPolicies(None if entity is None else entity.identifier, (*_flags(entity), *found))


def _flags(entity: Entity | None) -> Iterable[PolicyValue]:
    """A policy in place of the `blocked` and `unlimited` fields of an entity; none where both are unset."""
    if entity is not None and (entity.blocked or entity.unlimited):
        yield PolicyValue(ENTITY_FLAGS, PolicyEffect.BLOCKED if entity.blocked else PolicyEffect.UNLIMITED, (), None)


def _policy_value(policy: Policy) -> PolicyValue:
    return PolicyValue(
        level=policy.scope.value,
        effect=PolicyEffect(policy.effect),
        limits=policy.definitions(),
        policy_id=policy.pk,
        on_unavailable=OnUnavailable(policy.on_unavailable) if policy.on_unavailable else None,
        extends=policy.extends,
        shared=frozenset(limit.key for limit in policy.limits.all() if limit.shared),
        enforcement=Enforcement(policy.enforcement),
        rollout_percent=policy.rollout_percent,
        valid_from=policy.valid_from,
        valid_until=policy.valid_until,
        hours=_hours(policy),
    )


def _hours(policy: Policy) -> WeeklyHours | None:
    if not policy.weekly_hours:
        return None
    try:
        return WeeklyHours.parse(policy.weekly_hours, policy.time_zone)
    except ValueError:  # written past the validation of the model
        return WeeklyHours.NEVER
