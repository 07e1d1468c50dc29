"""Reads the stored policies that may apply in target of others, with a few queries for many of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

from django.db.models import Q

from limits_app.engine import Noted
from limits_app.engine.limits import LimitDefinition
from limits_app.models import MAX_LEVELS, CodeLimits, Counted, Entity, Policy
from limits_app.models.fields import aware
from limits_app.models.patterns import is_pattern, patterns_in
from limits_app.models.plan import plans_by_groups
from limits_app.models.snapshots import batches
from limits_app.models.users import identifiers_of_client, is_user
from limits_app.policies.collector import Collector, EntityRow, PolicyTarget
from limits_app.policies.policy_values import PolicyValue, policy_value

_MOST_MEMBERS: Final = 10_000
"""How many members of plans are looked at, to see which patterns match them."""
_ENTITY: Final = (
    *("pk", "identifier", "blocked", "unlimited", "cascade"),
    *("parent", "parent__identifier", "plan__name", "billing_from"),
)


@dataclass(frozen=True, slots=True)
class StoredPolicies:
    """The policies that may apply in target of some, with these, by primary key, and what the clients of these have."""

    policies: Mapping[int, tuple[PolicyTarget, PolicyValue]]
    labels: Mapping[int | None, str]
    entities: Mapping[str, EntityRow]
    plans_by_groups: Mapping[str, str]
    code_limits: Mapping[str, tuple[LimitDefinition, ...]]

    def collector(self, is_meant: Callable[[PolicyValue], bool]) -> Collector:
        """The collector of the policies that are meant."""
        return Collector(
            [(target, policy) for target, policy in self.policies.values() if is_meant(policy)],
            self.entities,
            plans_by_groups=self.plans_by_groups,
            code_limits=self.code_limits,
        )


def stored_policy(policy: Policy, limits: Sequence[Noted] | None = None) -> tuple[PolicyTarget, PolicyValue]:
    """A row as a value, with its own limits or others, and what it is for."""
    target = PolicyTarget(*(str(related or "") for related in (policy.resource, policy.entity, policy.plan)))
    begins, ends = policy.valid_from and aware(policy.valid_from), policy.valid_until and aware(policy.valid_until)
    value = policy_value(
        {**vars(policy), "valid_from": begins, "valid_until": ends},
        [Noted(limit.definition(), limit.shared) for limit in policy.limits.all()] if limits is None else limits,
        policy_id=policy.pk,
        identifier=target.entity or None,
        plan=target.plan or None,
        has_resource=bool(target.resource),
    )
    return target, value


def stored_policies(policies: Collection[Policy]) -> StoredPolicies:
    """The policies that may apply in target of some of one database, and what the clients of these have.

    The policies may be new ones, whose resource, entity and plan need not be saved either.
    """
    using = next(iter(policies))._state.db or ""
    names = {str(policy.entity) for policy in policies if policy.entity is not None}
    others = {other for name in names for other in identifiers_of_client(name)} - names
    rows = Policy.objects.using(using).filter(_beside(policies, others)).order_by("pk")
    stored = list(rows.select_related("resource", "entity", "plan").prefetch_related("limits"))
    keys = {policy.pk for policy in policies}
    changed = [*(row for row in stored if row.pk in keys), *(policy for policy in policies if policy.pk is None)]
    clients = {row.entity_id: row.entity for row in changed if row.entity is not None}
    plans = {str(row.plan) for row in changed if row.plan is not None}
    are_matched = bool(plans) and any(row.entity is not None and is_pattern(str(row.entity)) for row in stored)
    members: set[Any] = set()
    for batch in batches(others):
        members.update(Entity.objects.using(using).filter(identifier__in=batch).values_list("pk", flat=True))
    if are_matched:
        members |= members_of_plans(plans, using)
    entities = _entities(clients, members, using)
    return StoredPolicies(
        {row.pk: stored_policy(row) for row in stored},
        {row.pk: str(row) for row in stored},
        entities,
        plans_of_clients(using, [*map(str, clients.values())], with_members=are_matched),
        stored_code_limits(using),
    )


def _beside(policies: Collection[Policy], others: Collection[str]) -> Q:
    """The filter for policies that may apply in target of some, whose clients have other identifiers too."""
    about = Q(entity=None) | patterns_in("entity__identifier")
    about |= Q(entity__in={policy.entity_id for policy in policies} - {None})
    if others:
        about |= Q(entity__identifier__in=others)
    if all(policy.is_for_all_entities for policy in policies):
        about = Q(entity=None, plan=None)
    if all(policy.resource is not None for policy in policies):
        about &= Q(resource=None) | Q(resource__in={policy.resource_id for policy in policies} - {None})
    if all(policy.counted == Counted.TOTAL for policy in policies):
        about &= Q(resource=None)
    return about


def plans_of_clients(
    using: str, clients: Iterable[str], *, with_members: bool, proposed: Collection[tuple[str, str, int]] = ()
) -> dict[str, str]:
    """The plans that some clients have by their groups, by their entities, and those of up to 10,000 others.

    The others are looked at to see which patterns match members of plans; `proposed` as in `plans_by_groups`.
    """
    by_groups = plans_by_groups(using, most=_MOST_MEMBERS, proposed=proposed) if with_members else {}
    for batch in batches([name for name in clients if is_user(name)]):
        by_groups |= plans_by_groups(using, batch, proposed=proposed)
    return by_groups


def members_of_plans(plans: Collection[str], using: str) -> set[Any]:
    """The primary keys of the entities that may be on some plans, at most 10,000 on each way to them.

    Those are entities on a plan, entities below these without one, and users whose groups have one of these plans:
    their own rows may have another.
    """
    by_groups = plans_by_groups(using, most=_MOST_MEMBERS)
    rows = Entity.objects.using(using).order_by("pk")
    level = [*rows.filter(plan__name__in=plans).values_list("pk", flat=True)[:_MOST_MEMBERS]]
    members = {*level}
    for _ in range(MAX_LEVELS - 1):
        below = [rows.filter(parent__in=batch, plan=None).values_list("pk", flat=True) for batch in batches(level)]
        level = [*islice(chain.from_iterable(below), _MOST_MEMBERS - min(len(members), _MOST_MEMBERS))]
        members.update(level)
    for batch in batches([name for name, plan in by_groups.items() if plan in plans]):
        members.update(rows.filter(identifier__in=batch).values_list("pk", flat=True))
    return members


def _entities(clients: Mapping[Any, Entity], members: Iterable[Any], using: str) -> dict[str, EntityRow]:
    """Some entities, by primary key, and others, with all above them."""
    entities: dict[str, EntityRow] = {}
    rows = Entity.objects.using(using).order_by("pk")
    values: list[Any] = []
    missing, read = {*members} - clients.keys(), set[Any]()
    for pk, row in clients.items():
        if row.parent_id is None and row.plan_id is None:  # nothing else has to be read
            begins = row.billing_from and aware(row.billing_from)
            entities[row.identifier] = EntityRow(row.blocked, row.unlimited, row.cascade, billing_from=begins)
            read.add(pk)
        else:
            missing.add(pk)
    while missing:
        for batch in batches(missing):
            values += rows.filter(pk__in=batch).values_list(*_ENTITY)
        missing = set()
        for pk, name, blocked, unlimited, cascade, parent, parent_name, plan, billing in values:
            billing_from = None if billing is None else aware(billing)
            entities[name] = EntityRow(blocked, unlimited, cascade, parent_name or "", plan or "", billing_from)
            read.add(pk)
            missing.add(parent)
        missing -= read | {None}
        values = []
    return entities


def stored_code_limits(using: str, resource: str | None = None) -> dict[str, tuple[LimitDefinition, ...]]:
    """The limits that code used last, by resource; those of one resource alone if it is given."""
    rows = CodeLimits.objects.using(using).order_by("used_at", "pk")
    rows = rows if resource is None else rows.filter(resource=resource)
    return {row.resource: row.definitions for row in rows}
