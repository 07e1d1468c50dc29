"""Reading policies: the limits of a resource, an entity, a plan or the system, and lists of those that have some."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.db.models import QuerySet

from limits_app.engine import Account, check_entity, check_resource
from limits_app.engine.limits import LimitDefinition
from limits_app.models import Counted, Policy, PolicyScope, in_scope, write_alias
from limits_app.models.users import entity_name

_ALWAYS: Final = {"valid_from": None, "weekly_hours": ""}
"""Only policies that always apply are listed, without boosts and weekly hours."""


class NamedScope(NamedTuple):
    """The names of what policies are for; None for all."""

    resource: str | None = None
    entity: str | None = None
    plan: str | None = None

    def policies(self, counted: str = Counted.EACH) -> QuerySet[Policy]:
        """All policies of the scope: the one that always applies, and those with dates or hours."""
        names = {"resource__name": self.resource, "entity__identifier": self.entity, "plan__name": self.plan}
        filters = {field: name for field, name in names.items() if name is not None}
        missing = {field.partition("__")[0]: None for field in names.keys() - filters.keys()}
        policies = Policy.objects.using(write_alias()).select_related("resource", "entity", "plan")
        return policies.filter(counted=counted, **filters, **missing)

    def limits(self, counted: str) -> tuple[LimitDefinition, ...] | None:
        """The limits of the policy that always applies; None without one."""
        policy = self.policies(counted).filter(**_ALWAYS).prefetch_related("limits").first()
        return None if policy is None else policy.definitions()


def get_system_limits(*, counted: str = "each") -> tuple[LimitDefinition, ...] | None:
    """The limits of the policy of the system that always applies; None without one.

    With `counted="total"`, those of the policy over all resources. A policy that is blocked or unlimited has no limits.
    """
    return NamedScope().limits(counted)


def get_resource_limits(resource: str) -> tuple[LimitDefinition, ...] | None:
    """The limits of the policy of a resource. See `get_system_limits`."""
    return NamedScope(check_resource(resource)).limits(Counted.EACH)


def get_entity_limits(
    entity: str | Account, *, resource: str | None = None, counted: str = "each"
) -> tuple[LimitDefinition, ...] | None:
    """The limits of the policy of an entity on a resource (None: on all). See `get_system_limits`."""
    name = None if resource is None else check_resource(resource)
    return NamedScope(name, check_entity(entity_name(entity))).limits(counted)


def get_plan_limits(
    plan: str, *, resource: str | None = None, counted: str = "each"
) -> tuple[LimitDefinition, ...] | None:
    """The limits of the policy of a plan on a resource (None: on all). See `get_system_limits`."""
    return NamedScope(None if resource is None else check_resource(resource), plan=plan).limits(counted)


def list_resources() -> dict[str, tuple[LimitDefinition, ...]]:
    """The resources with a policy, and its limits."""
    policies = Policy.objects.filter(in_scope(PolicyScope.RESOURCE), **_ALWAYS).select_related("resource")
    return {str(policy.resource): policy.definitions() for policy in policies.prefetch_related("limits")}


def list_resources_with_entities() -> list[str]:
    """The resources with a policy for an entity."""
    own = Policy.objects.filter(resource__isnull=False, entity__isnull=False, **_ALWAYS)
    return sorted(set(own.values_list("resource__name", flat=True)))


def list_entities(resource: str | None = None) -> dict[str, tuple[LimitDefinition, ...]]:
    """The entities with a policy for a resource (None: for all resources), and its limits."""
    return {str(policy.entity): policy.definitions() for policy in _named("entity", resource)}


def list_plans(resource: str | None = None) -> dict[str, tuple[LimitDefinition, ...]]:
    """The plans with a policy for a resource (None: for all resources), and its limits."""
    return {str(policy.plan): policy.definitions() for policy in _named("plan", resource)}


def _named(subject: str, resource: str | None) -> QuerySet[Policy]:
    """The policies that always apply on a resource, of all entities or of all plans."""
    where: dict[str, Any] = {"resource": None} if resource is None else {"resource__name": resource}
    policies = Policy.objects.filter(**{f"{subject}__isnull": False}, **where, **_ALWAYS, counted=Counted.EACH)
    return policies.select_related(subject).prefetch_related("limits")
