"""Proposed limits: the effective limits of an entity on a resource, by the rules of the resolver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from limits_app.core.notation import Noted, limit_text
from limits_app.core.record import Schema
from limits_app.models import MAX_LEVELS, Counted, Enforcement, PolicyEffect, write_alias
from limits_app.models.patterns import is_pattern, patterns_of, specificity
from limits_app.models.policy import Policy, scope_by_names
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.policies import (
    ENTITY_FLAGS,
    EntityPolicies,
    PolicyValue,
    StoreVersion,
    applied_policies,
    changes_at,
    compiled,
    judge,
    rollout_position,
)
from limits_app.services.limits_file.content import (
    LIMITS,
    SECTIONS,
    Content,
    Entry,
    State,
    noted,
    stored_content,
    stored_entries,
)
from limits_app.stores.memory import MemoryStore

Part = tuple[tuple[Any, ...] | None, Schema]
"""A scope and its limits; None for the requesting entity on the requested resource."""

_FOREVER: Final = 2**63
_YEAR_SECONDS: Final = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Tried:
    """The effective limits of an entity on a resource, until a time in microseconds."""

    parts: tuple[Part, ...]
    until_us: int = _FOREVER


class Proposal:
    """Policies and entities that replace the stored ones in a simulation; pools are left out."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._store = MemoryStore(lease_seconds=_YEAR_SECONDS)  # permits are held as long as the events say
        self._policy_values: dict[tuple[str, str, str], list[PolicyValue]] = {}
        self._entities: dict[str, State] = {}
        for number, entry in enumerate(entries, 1):
            if entry.section.name == "policies":
                resource, entity, _valid_from, _hours, plan, _counted = entry.key
                self._policy_values.setdefault((resource, entity, plan), []).append(_policy_value(number, entry))
            elif entry.section.name == "entities":
                self._entities[entry.key[0]] = entry.state
        named = {entity for _, entity, _ in self._policy_values} | self._entities.keys()
        self._known = {one for one in named if not is_pattern(one)}
        self._patterns = named - self._known
        self._rolls_out = any(one.rollout_percent < 100 for found in self._policy_values.values() for one in found)
        self._alike: dict[tuple[str, bool, int, tuple[str, ...]], Tried] = {}

    @classmethod
    def of_limits(cls, limits: Iterable[Noted]) -> Proposal:
        """Propose limits for all entities on every resource."""
        policies = SECTIONS["policies"]
        texts = tuple(limit_text(one.limit, shared=one.shared) for one in limits)
        key = ("", "", "", "", "", Counted.EACH.value)
        return cls([Entry(policies, key, policies.defaults() | {LIMITS: texts})])

    @classmethod
    def of_content(cls, content: Content) -> Proposal:
        """Propose the content of a limits file, and nothing else."""
        return cls(content.entries.values())

    @classmethod
    def of_site(cls) -> Proposal:
        """Propose the stored policies."""
        return cls(stored_content(write_alias()).values())

    @classmethod
    def of_policy(cls, policy: Policy) -> Proposal:
        """Propose a policy that need not be saved, always and for all its entities, beside the stored ones.

        Of these, it replaces those of its scope, and those with dates or weekly hours are left out.
        """
        section = SECTIONS["policies"]
        names = [str(one or "") for one in (policy.resource, policy.entity, policy.plan)]
        key = (names[0], names[1], "", "", names[2], policy.counted)
        own = Entry(section, key, section.defaults() | {"effect": policy.effect, "extends": policy.extends})
        others = (one for one in stored_entries(section, write_alias()) if one.key[2:4] == ("", "") and one.key != key)
        return cls([own, *others, *stored_entries(SECTIONS["entities"], write_alias())])

    def first_applies(self, resource: str, entity: str | None) -> bool:
        """Whether the first policy of the proposal applies to an entity on a resource."""
        found = judge(next(self._links(resource, entity)), datetime.now(UTC))
        return any(one.policy_id == 1 for one in applied_policies(found.verdicts))

    def tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        """The effective limits at a time; entities without policies and rows share the result."""
        if entity in self._known:
            return self._tried(resource, entity, now_us)
        position = rollout_position(entity) if self._rolls_out else 0
        alike = (resource, entity is None, position, tuple(self._matching(entity)))
        found = self._alike.get(alike)
        if found is None or now_us >= found.until_us:
            found = self._alike[alike] = self._tried(resource, entity, now_us)
        return found

    def _tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        moment = datetime.fromtimestamp(now_us / 1e6, UTC)
        links = [*self._links(resource, entity)]
        chosen = [judge(link, moment) for link in links]
        found = compiled(resource, chosen, (), store_version=StoreVersion("simulation", self._store, 0))
        changes = [change for link in links if (change := changes_at(link, moment)) is not None]
        until = round(min(changes).timestamp() * 1e6) if changes else _FOREVER
        parts = []
        for one in found.limit_set.scoped:
            scope = one.scope
            own = not (scope.shared or scope.total) and scope.entity == entity
            whose = (resource, None, one.schema.limits[0].key) if scope.shared else (resource, scope.entity)
            parts.append((None if own else (scope.key,) if scope.total else whose, one.schema))
        return Tried(tuple(parts), until)

    def _links(self, resource: str, entity: str | None) -> Iterator[EntityPolicies]:
        """The entity, and the entities above it as far as each one cascades."""
        everybody = tuple(self._about(resource))
        current = entity
        for _ in range(MAX_LEVELS):
            row = self._entities.get(current or "")
            own = [*_own(row)]
            for name in (current, *self._matching(current)) if current else ():
                own += self._about(resource, entity=name)
            if plan := self._plan_of(current):
                own += self._about(resource, plan=plan)
            yield EntityPolicies(current, (*own, *everybody))
            if row is None or not row["cascade"] or not row["parent"]:
                return
            current = row["parent"]

    def _about(self, resource: str, *, entity: str = "", plan: str = "") -> Iterator[PolicyValue]:
        yield from self._policy_values.get((resource, entity, plan), ())
        yield from self._policy_values.get(("", entity, plan), ())

    def _matching(self, entity: str | None) -> list[str]:
        """The patterns that match an entity."""
        if not entity or not self._patterns:
            return []
        return [pattern for pattern in patterns_of(entity) if pattern in self._patterns]

    def _plan_of(self, entity: str | None) -> str:
        """The plan of an entity, or of the nearest one above it that has one; plans of groups are left out."""
        for _ in range(MAX_LEVELS):
            row = self._entities.get(entity or "")
            if row is None:
                return ""
            if row["plan"]:
                return str(row["plan"])
            entity = row["parent"]
        return ""


def _own(row: State | None) -> Iterator[PolicyValue]:
    if row is not None and (row["blocked"] or row["unlimited"]):
        yield PolicyValue(ENTITY_FLAGS, PolicyEffect.BLOCKED if row["blocked"] else PolicyEffect.UNLIMITED, (), None)


def _policy_value(number: int, entry: Entry) -> PolicyValue:
    resource, entity, valid_from, hours, plan, counted = entry.key
    state = entry.state
    read = sorted((noted(text) for text in state[LIMITS]), key=lambda one: one.limit.key)
    scope = scope_by_names(entity or None, has_plan=bool(plan), has_resource=bool(resource), counted=counted)
    return PolicyValue(
        level=scope.value,
        effect=PolicyEffect(state["effect"]),
        limits=tuple(one.limit for one in read),
        policy_id=number,
        extends=state["extends"],
        shared=frozenset(one.limit.key for one in read if one.shared),
        enforcement=Enforcement(state["enforcement"]),
        rollout_percent=state["rollout_percent"],
        valid_from=datetime.fromisoformat(valid_from) if valid_from else None,
        valid_until=datetime.fromisoformat(state["valid_until"]) if state["valid_until"] else None,
        hours=WeeklyHours.stored(hours, state["time_zone"]) if hours else None,
        subject=plan or entity,
        specificity=specificity(entity) if is_pattern(entity) else 0,
    )
