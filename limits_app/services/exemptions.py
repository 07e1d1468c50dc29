"""Exemptions: which clients and plans are exempt from all limits, and exempting another one.

Who is exempt is decided by `limits_app.policies.access_of`; this lists what it decides by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import NamedTuple

from django.db.models import F, Q, QuerySet

from limits_app import audit
from limits_app.models import ENFORCED, Endpoint, Entity, Policy, PolicyEffect, in_scope, write_alias
from limits_app.models.entity import IS_UNLIMITED
from limits_app.policies import (
    ENTITY_FLAGS,
    EXEMPTING,
    Access,
    EntityPolicies,
    PolicyChain,
    PolicyStatus,
    Subject,
    access_of,
    judge,
    policies_of_each,
    stored_policy,
)
from limits_app.services import definitions
from limits_app.services.listing import NamedScope


class Standing(NamedTuple):
    """The status of the policy or the flag that exempts, and whether that makes its clients exempt now."""

    status: PolicyStatus
    is_exempt: bool


def exempting_policies() -> QuerySet[Policy]:
    """The policies that exempt clients, patterns, networks and plans, whenever they apply."""
    is_exempting = reduce(or_, [in_scope(level) for level in sorted(EXEMPTING - {ENTITY_FLAGS})])
    rows = Policy.objects.using(write_alias()).filter(is_exempting, effect=PolicyEffect.UNLIMITED)
    names = (F("entity__identifier").asc(nulls_last=True), F("plan__name").asc(), F("pk").asc())
    return rows.select_related("entity__parent", "plan").prefetch_related("limits").order_by(*names)


def exempt_entities() -> QuerySet[Entity]:
    """The entities that are unlimited themselves."""
    return Entity.objects.using(write_alias()).filter(IS_UNLIMITED).select_related("parent").order_by("identifier")


def exempting_rules() -> QuerySet[Endpoint]:
    """The rules for URLs that do not charge everyone."""
    of_users = Q(exempt_staff=True) | Q(exempt_superusers=True) | ~Q(exempt_groups="")
    is_exempting = of_users | ~Q(exempt_networks="") | ~Q(exempt_entities="")
    return Endpoint.objects.using(write_alias()).filter(is_exempting).order_by("order", "pk")


def standings(rows: Sequence[Policy | Entity]) -> list[Standing]:
    """Return whether policies or entities of these lists, at most 100 of them, exempt now; in one query."""
    now = datetime.now(UTC)
    names = [*dict.fromkeys(name for row in rows if (name := _client(row)) is not None)]
    found = policies_of_each([Subject(None, name) for name in names], write_alias(), now) if names else []
    chains = dict(zip(names, found, strict=True))
    return [_standing(row, chains, now) for row in rows]


def _standing(row: Policy | Entity, chains: dict[str, PolicyChain], now: datetime) -> Standing:
    name = _client(row)
    if name is not None:
        links: Sequence[EntityPolicies] = chains[name].links
    else:  # all who match a pattern or are on a plan, to as many of whom it is rolled out
        assert isinstance(row, Policy)  # noqa: S101 - an entity is a client
        _place, value = stored_policy(row)
        links = [EntityPolicies(None, (replace(value, rollout_percent=100 if value.rollout_percent else 0),))]
    key = row.pk if isinstance(row, Policy) else None
    found = [one.status for one in judge(links[0], now).verdicts if one.policy.policy_id == key]
    is_exempt = access_of([links], ENFORCED, now).access is Access.EXEMPT
    return Standing(found[0] if found else PolicyStatus.NOT_NOW, is_exempt)


def _client(row: Policy | Entity) -> str | None:
    """The identifier of the client that a row is about; None for a pattern or a plan."""
    entity = row if isinstance(row, Entity) else row.entity
    return None if entity is None or entity.is_pattern else entity.identifier


def exempt(entity: str | None, plan: str | None, *, actor: str, reason: str = "") -> Policy:
    """Add the policy that exempts an entity or a pattern, or else a plan; an entity is made where it has no row.

    Raises InvalidDefinition with everything that is wrong, also where they have a policy that always applies.
    """
    data = {"entity": entity, "plan": plan, "effect": PolicyEffect.UNLIMITED.value, "reason": reason}
    with audit.acting(actor=actor, source="admin", reason=reason):
        definition = definitions.read(Policy(), data, find=definitions.find_or_new)
        definitions.save(definition)
    policy: Policy = definition.row
    return policy


def conflicting(entity: str | None, plan: str | None) -> Policy | None:
    """The policy that always applies to an entity or a plan on all resources, which `exempt` does not replace."""
    return NamedScope(None, entity, plan).policies().filter(valid_from=None, weekly_hours="").first()
