"""Proposed limits: the effective limits of an entity on a resource, judged as stored ones are."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from limits_app.engine.notation import Noted, limit_text
from limits_app.engine.periods import DAY
from limits_app.engine.record import Schema
from limits_app.models import Counted, Policy, write_alias
from limits_app.policies import Client, StoreVersion, applied_policies, changes_at, compiled, judge, rollout_position
from limits_app.services.limits_file.content import LIMITS, SECTIONS, Content, FileEntry, stored_content, stored_entries
from limits_app.services.limits_file.proposed import proposed_collector
from limits_app.stores.memory import MemoryStore

RequestPart = tuple[tuple[Any, ...] | None, Schema]
"""A scope and its limits; None for the requesting entity on the requested resource."""

_FOREVER: Final = 2**63
_YEAR_SECONDS: Final = 366 * DAY


@dataclass(frozen=True, slots=True)
class Tried:
    """The effective limits of an entity on a resource, until a time in microseconds."""

    parts: tuple[RequestPart, ...]
    until_us: int = _FOREVER


class Proposal:
    """Policies and entities that replace the stored ones in a simulation; pools are left out."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        # Permits are held as long as the events say, and no client of the events gives way to another one.
        self._store = MemoryStore(lease_seconds=_YEAR_SECONDS, max_scopes=sys.maxsize)
        self._collector = proposed_collector(entries, write_alias())
        self._alike: dict[tuple[str, bool, int, Client], Tried] = {}

    @classmethod
    def of_limits(cls, limits: Iterable[Noted]) -> Proposal:
        """Propose limits for all entities on every resource."""
        policies = SECTIONS["policies"]
        texts = tuple(limit_text(noted.limit, shared=noted.shared) for noted in limits)
        key = ("", "", "", "", "", Counted.EACH.value)
        return cls([FileEntry(policies, key, policies.defaults() | {LIMITS: texts})])

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
        names = [str(row or "") for row in (policy.resource, policy.entity, policy.plan)]
        key = (names[0], names[1], "", "", names[2], policy.counted)
        own = FileEntry(section, key, section.defaults() | {"effect": policy.effect, "extends": policy.extends})
        others = (
            entry for entry in stored_entries(section, write_alias()) if entry.key[2:4] == ("", "") and entry.key != key
        )
        return cls([own, *others, *stored_entries(SECTIONS["entities"], write_alias())])

    def first_applies(self, resource: str, entity: str | None) -> bool:
        """Whether the first policy of the proposal applies to an entity on a resource."""
        choice = judge(next(self._collector.links(resource, entity)), datetime.now(UTC))
        return any(policy.policy_id == 1 for policy in applied_policies(choice.verdicts))

    def tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        """The effective limits at a time; entities without policies and rows share the result."""
        if entity in self._collector.known:
            return self._tried(resource, entity, now_us)
        position = rollout_position(entity) if self._collector.rolls_out else 0
        client = self._collector.client(entity or "")._replace(entity="")
        alike = (resource, entity is None, position, client)
        resolved = self._alike.get(alike)
        if resolved is None or now_us >= resolved.until_us:
            resolved = self._alike[alike] = self._tried(resource, entity, now_us)
        return resolved

    def _tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        moment = datetime.fromtimestamp(now_us / 1e6, UTC)
        links = [*self._collector.links(resource, entity)]
        chosen = [judge(link, moment) for link in links]
        resolved = compiled(resource, chosen, (), store_version=StoreVersion("simulation", self._store, 0))
        changes = [change for link in links if (change := changes_at(link, moment)) is not None]
        until = round(min(changes).timestamp() * 1e6) if changes else _FOREVER
        parts = []
        for scoped in resolved.limit_set.scoped:
            scope = scoped.scope
            own = not (scope.shared or scope.total) and scope.entity == entity
            whose = (resource, None, scoped.schema.limits[0].key) if scope.shared else (resource, scope.entity)
            parts.append((None if own else (scope.key,) if scope.total else whose, scoped.schema))
        return Tried(tuple(parts), until)
