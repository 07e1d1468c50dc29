"""Standings: whether the policies and flags that may exempt clients do so now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from operator import or_
from typing import NamedTuple

from django.db.models import Q

from limits_app.models import ENFORCED, Entity, Policy, PolicyEffect, in_scope, write_alias
from limits_app.policies.access_by_policies import EXEMPTING, Access, access_of
from limits_app.policies.chain import PolicyChain, Subject
from limits_app.policies.policy_values import ENTITY_FLAGS, EntityPolicies
from limits_app.policies.precedence import PolicyStatus, judge
from limits_app.policies.query import policies_of_each
from limits_app.policies.stored import stored_policy


class Standing(NamedTuple):
    """The status of the policy or the flag that exempts, and whether that makes its clients exempt now."""

    status: PolicyStatus
    is_exempt: bool


def is_exempting() -> Q:
    """The filter for policies that exempt clients, patterns, networks and plans, whenever they apply."""
    scopes = [in_scope(level) for level in sorted(EXEMPTING - {ENTITY_FLAGS})]
    return reduce(or_, scopes) & Q(effect=PolicyEffect.UNLIMITED)


def standings(rows: Sequence[Policy | Entity]) -> list[Standing]:
    """Return whether such policies, or unlimited entities, at most 100 of them, exempt now; in one query."""
    now = datetime.now(UTC)
    names = [*dict.fromkeys(name for row in rows if (name := _client(row)) is not None)]
    chains = policies_of_each([Subject(None, name) for name in names], write_alias(), now) if names else []
    chain_of = dict(zip(names, chains, strict=True))
    return [_standing(row, chain_of, now) for row in rows]


def _standing(row: Policy | Entity, chain_of: Mapping[str, PolicyChain], now: datetime) -> Standing:
    name = _client(row)
    if name is not None:
        links: Sequence[EntityPolicies] = chain_of[name].links
    else:  # all who match a pattern or are on a plan, to as many of whom it is rolled out
        assert isinstance(row, Policy)  # noqa: S101 - an entity is a client
        _place, value = stored_policy(row)
        links = [EntityPolicies(None, (replace(value, rollout_percent=100 if value.rollout_percent else 0),))]
    key = row.pk if isinstance(row, Policy) else None
    statuses = [verdict.status for verdict in judge(links[0], now).verdicts if verdict.policy.policy_id == key]
    is_exempt = access_of([links], ENFORCED, now).access is Access.EXEMPT
    return Standing(statuses[0] if statuses else PolicyStatus.NOT_NOW, is_exempt)


def _client(row: Policy | Entity) -> str | None:
    """The identifier of the client that a row is about; None for a pattern or a plan."""
    entity = row if isinstance(row, Entity) else row.entity
    return None if entity is None or entity.is_pattern else entity.identifier
