"""Collects the policies that may apply to clients from rows in memory: proposed ones, or many stored ones.

It finds what the query finds in a database; a test compares the two on random configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

from limits_app.engine.limits import LimitDefinition
from limits_app.models import MAX_LEVELS, PolicyEffect
from limits_app.models.patterns import Patterns, is_pattern, prefixes_of
from limits_app.models.users import identifiers_of_client
from limits_app.policies.policy_values import EntityPolicies, PolicyValue, policy_of_flags
from limits_app.policies.precedence import CODE


class PolicyTarget(NamedTuple):
    """What a policy is for: the names of a resource, of an entity and of a plan; an empty one is for all."""

    resource: str = ""
    entity: str = ""
    plan: str = ""


class EntityRow(NamedTuple):
    """The fields of an entity that decide; `parent` and `plan` are names, and empty for none."""

    blocked: bool = False
    unlimited: bool = False
    cascade: bool = False
    parent: str = ""
    plan: str = ""
    billing_from: datetime | None = None


class Client(NamedTuple):
    """A client as policies see it: its entity, its plan, and the patterns that match it; empty for none."""

    entity: str = ""
    plan: str = ""
    patterns: tuple[str, ...] = ()


EVERYBODY: Final = Client()
"""A client without a row, a plan or patterns."""


class Collector:
    """The policies, and the entities, from which the chains of clients are made.

    `plans_by_groups` are the plans that users have by their groups, by their entities; `code_limits` are the limits
    that code sets, by resource.
    """

    def __init__(
        self,
        policies: Iterable[tuple[PolicyTarget, PolicyValue]],
        entities: Mapping[str, EntityRow],
        *,
        plans_by_groups: Mapping[str, str] | None = None,
        code_limits: Mapping[str, tuple[LimitDefinition, ...]] | None = None,
    ) -> None:
        self.entities = entities
        self._by_groups = plans_by_groups or {}
        self._code = {
            resource: PolicyValue(CODE, PolicyEffect.LIMITS, limits, None)
            for resource, limits in (code_limits or {}).items()
            if limits
        }
        self._by_target: dict[PolicyTarget, list[PolicyValue]] = {}
        for target, policy in policies:
            self._by_target.setdefault(target, []).append(policy)
        named = {target.entity for target in self._by_target if target.entity} | entities.keys()
        self.known = {name for name in named if not is_pattern(name)}
        """The entities with a row or a policy."""
        self.patterns = frozenset(name for name in named if is_pattern(name) or "/" in name)
        """The identifiers that may match others; that of a network may be a client too."""
        self._patterns = Patterns(self.patterns)

    def links(self, resource: str, entity: str | None, plan: str | None = None) -> Iterator[EntityPolicies]:
        """A client (None: the site itself), and the entities above it as far as each one cascades.

        `plan` is the plan of the request.
        """
        current = entity
        for level in range(MAX_LEVELS):
            client = self.client(current or "", plan or "") if level == 0 else self._parent(current or "")
            billing_from = self._billing_of_rows(client.entity)
            yield EntityPolicies(current, self.policies(resource, client), billing_from, client.plan)
            row = self.entities.get(client.entity)
            if row is None or not row.cascade or not row.parent:
                return
            current = row.parent

    def client(self, entity: str, plan: str = "") -> Client:
        """What a client has; its own plan, or that of an entity above it, precedes that of the request."""
        plan = self._plan_of_rows(entity) or plan or self._plan_of_groups(entity)
        entity_is_pattern = is_pattern(entity)
        patterns = [name for name in self._patterns.matching(entity) if name != entity]
        if entity_is_pattern and entity in self.patterns:
            patterns.append(entity)
        return Client("" if entity_is_pattern else entity, plan, tuple(patterns))

    def _parent(self, entity: str) -> Client:
        return Client(entity, self._plan_of_rows(entity), self.matching(prefixes_of(entity)))

    def matching(self, patterns: Iterable[str]) -> tuple[str, ...]:
        """Those of several patterns that have a row or policies."""
        return tuple([pattern for pattern in patterns if pattern in self.patterns]) if self.patterns else ()

    def policies(self, resource: str, client: Client) -> tuple[PolicyValue, ...]:
        """The policies that may apply to a client on a resource (empty: all resources)."""
        return (*self.own(resource, client), *self.of_everybody(resource))

    def own(self, resource: str, client: Client) -> tuple[PolicyValue, ...]:
        """Those for its entity, its plan and its patterns, with the flags of its entity."""
        subjects = [(entity, "") for entity in (client.entity, *client.patterns) if entity]
        rows = [row for entity, _ in subjects if (row := self.entities.get(entity)) is not None]
        flags = [policy for row in rows for policy in policy_of_flags(blocked=row.blocked, unlimited=row.unlimited)]
        if client.plan:
            subjects.append(("", client.plan))
        return (*flags[:1], *[policy for subject in subjects for policy in self._about(resource, *subject)])

    def of_everybody(self, resource: str) -> tuple[PolicyValue, ...]:
        """Those for all clients, and the limits that code sets."""
        return (*self._about(resource, "", ""), *self.of_code(resource))

    def of_code(self, resource: str) -> tuple[PolicyValue, ...]:
        """The limits that code sets."""
        return (self._code[resource],) if resource in self._code else ()

    def _about(self, resource: str, entity: str, plan: str) -> Iterator[PolicyValue]:
        if resource:
            yield from self._by_target.get(PolicyTarget(resource, entity, plan), ())
        yield from self._by_target.get(PolicyTarget("", entity, plan), ())

    def resources(self, client: Client) -> set[str]:
        """The resources on which a client has its own policies; of EVERYBODY: those that have policies for all."""
        subjects = [(entity, "") for entity in (client.entity, *client.patterns) if entity]
        if client.plan or client == EVERYBODY:
            subjects.append(("", client.plan))
        return set().union(*(self._resources.get(subject, ()) for subject in subjects))

    @cached_property
    def _resources(self) -> Mapping[tuple[str, str], set[str]]:
        """The resources of the policies for an entity or a plan."""
        resources: dict[tuple[str, str], set[str]] = {}
        for resource, entity, plan in self._by_target:
            if resource:
                resources.setdefault((entity, plan), set()).add(resource)
        return resources

    @cached_property
    def rolls_out(self) -> bool:
        """Whether a policy applies to a part of the clients only."""
        return any(policy.rollout_percent < 100 for policies in self._by_target.values() for policy in policies)

    @cached_property
    def all_resources(self) -> frozenset[str]:
        """The resources that have policies, or limits that code sets."""
        return frozenset(self._code).union(*self._resources.values())

    @cached_property
    def members(self) -> Mapping[str, set[tuple[str, ...]]]:
        """The patterns that match members of each plan."""
        members: dict[str, set[tuple[str, ...]]] = {}
        for entity in self.entities.keys() | self._by_groups.keys() if self.patterns else ():
            client = self.client(entity)
            if client.plan:
                members.setdefault(client.plan, set()).add(client.patterns)
        return members

    def _plan_of_groups(self, entity: str) -> str:
        plans = [self._by_groups[name] for name in identifiers_of_client(entity) if name in self._by_groups]
        return plans[0] if plans else ""

    def _plan_of_rows(self, entity: str) -> str:
        """The plan of an entity, or of the nearest one above it that has one."""
        return next((row.plan for row in self._rows_up(entity) if row.plan), "")

    def _billing_of_rows(self, entity: str) -> datetime | None:
        """The billing date of an entity, or of the nearest one above it that has one."""
        return next((row.billing_from for row in self._rows_up(entity) if row.billing_from), None)

    def _rows_up(self, entity: str) -> Iterator[EntityRow]:
        """The rows of an entity and of those above it."""
        for _ in range(MAX_LEVELS):
            row = self.entities.get(entity)
            if row is None:
                return
            yield row
            entity = row.parent
