"""Exemptions: which clients and plans are exempt from all limits, and exempting another one.

Who is exempt is decided by `limits_app.policies.access_of`; this lists what it decides by.
"""

from __future__ import annotations

from django.db.models import F, Q, QuerySet

from limits_app import audit
from limits_app.models import Endpoint, Entity, Policy, PolicyEffect, write_alias
from limits_app.models.entity import IS_UNLIMITED
from limits_app.policies import is_exempting
from limits_app.services import definitions
from limits_app.services.definitions import Definition
from limits_app.services.listing import NamedScope


def exempting_policies() -> QuerySet[Policy]:
    """The policies that exempt clients, patterns, networks and plans, whenever they apply."""
    rows = Policy.objects.using(write_alias()).filter(is_exempting())
    names = (F("entity__identifier").asc(nulls_last=True), F("plan__name").asc(), F("pk").asc())
    return rows.select_related("entity__parent", "plan").prefetch_related("limits").order_by(*names)


def exempt_entities() -> QuerySet[Entity]:
    """The entities that are unlimited themselves."""
    return Entity.objects.using(write_alias()).filter(IS_UNLIMITED).select_related("parent").order_by("identifier")


def exempting_rules() -> QuerySet[Endpoint]:
    """The rules for URLs that do not charge everyone."""
    of_users = Q(exempt_staff=True) | Q(exempt_superusers=True) | ~Q(exempt_groups="")
    exempts = of_users | ~Q(exempt_networks="") | ~Q(exempt_entities="")
    return Endpoint.objects.using(write_alias()).filter(exempts).order_by("order", "pk")


def exempt(entity: str | None, plan: str | None, *, actor: str, reason: str = "") -> Policy:
    """Add the policy that exempts an entity or a pattern, or else a plan; an entity is made where it has no row.

    Raises InvalidDefinition with everything that is wrong, also where they have a policy that always applies.
    """
    with audit.acting(actor=actor, source="admin", reason=reason):
        definition = policy_of_effect(PolicyEffect.UNLIMITED, entity, plan, reason=reason)
        definitions.save(definition)
    policy: Policy = definition.row
    return policy


def policy_of_effect(effect: PolicyEffect, entity: str | None, plan: str | None = None, *, reason: str) -> Definition:
    """Read a policy that exempts or blocks an entity or a pattern, or else a plan, without saving it; see `exempt`."""
    data = {"entity": entity, "plan": plan, "effect": effect.value, "reason": reason}
    return definitions.read(Policy(), data, find=definitions.find_or_new)


def conflicting(entity: str | None, plan: str | None) -> Policy | None:
    """The policy that always applies to an entity or a plan on all resources, which `exempt` does not replace."""
    return NamedScope(None, entity, plan).policies().filter(valid_from=None, weekly_hours="").first()
