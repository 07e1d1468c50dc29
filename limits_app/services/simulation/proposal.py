"""Proposed limits: the effective limits of an entity on a resource, judged as stored ones are."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from django.db.models import Q

from limits_app.engine import DAY, Noted, Prices, Schema, limit_text
from limits_app.engine.limits import CountedUnit
from limits_app.models import Counted, Policy, PolicyEffect, write_alias
from limits_app.models.entity import HAS_FLAG
from limits_app.policies import ProposedLimits
from limits_app.services.limits_file.content import LIMITS, SECTIONS, Content, FileEntry, stored_entries
from limits_app.services.limits_file.proposed import proposed_rows
from limits_app.services.limits_file.stored import client_policies, general_objects
from limits_app.stores.memory import MemoryStore

RequestPart = tuple[tuple[Any, ...] | None, Schema, Prices | None]
"""A scope, its limits and the prices of the resource; None for the requesting entity on the requested resource."""

_FOREVER: Final = 2**63
_YEAR_SECONDS: Final = 366 * DAY


@dataclass(frozen=True, slots=True)
class Tried:
    """The effective limits of an entity on a resource, until a time in microseconds.

    `prices` are those of the resource, and `requested_as` has the keys by which requests name units that usage counts
    under other ones.
    """

    parts: tuple[RequestPart, ...]
    until_us: int = _FOREVER
    prices: Prices = ()
    requested_as: Mapping[str, str] = field(default_factory=dict)


_HAS_EFFECT: Final = Q(plan__isnull=False) | Q(parent__isnull=False) | Q(billing_from__isnull=False) | HAS_FLAG
"""The filter for entities whose row says more than their identifier."""


def _beside(policy: Policy) -> Q:
    """The filter for lasting policies on which it depends whether a policy applies."""
    lasting = Q(valid_from=None, weekly_hours="")
    if policy.counted == Counted.TOTAL:
        return lasting & (Q(resource=None) | ~Q(effect=PolicyEffect.LIMITS))
    if policy.resource is None:
        return lasting
    return lasting & (Q(resource=None) | Q(resource__name=policy.resource.name))


class Proposal:
    """Policies and entities that replace the stored ones in a simulation; pools are left out."""

    def __init__(self, entries: Iterable[FileEntry]) -> None:
        # Permits are held as long as the events say, and no client of the events gives way to another one.
        store = MemoryStore(lease_seconds=_YEAR_SECONDS, max_scopes=sys.maxsize)
        self._limits = ProposedLimits(proposed_rows(entries), write_alias(), store)
        self._alike: dict[Hashable, Tried] = {}
        self._first: dict[Hashable, bool] = {}

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
    def of_site(cls, *, resource: str | None = None) -> Proposal:
        """Propose the stored policies; they are read in parts, and entities whose row says nothing are left out.

        With the name of a resource, those that do not apply to it are left out where they are of clients.
        """
        using = write_alias()
        of_clients = chain.from_iterable(client_policies(using, resource=resource))
        return cls(chain(general_objects(using), of_clients, stored_entries(SECTIONS["entities"], using, _HAS_EFFECT)))

    @classmethod
    def of_policy(cls, policy: Policy) -> Proposal:
        """Propose a policy that need not be saved, always and for all its entities, beside the stored ones.

        Of these, it replaces those of its scope, and those with dates or weekly hours are left out. Only rows are read
        on which it depends whether the policy applies: a site may have many that are about other resources.
        """
        section = SECTIONS["policies"]
        names = [str(row or "") for row in (policy.resource, policy.entity, policy.plan)]
        key = (names[0], names[1], "", "", names[2], policy.counted)
        own = FileEntry(section, key, section.defaults() | {"effect": policy.effect, "extends": policy.extends})
        stored = stored_entries(section, write_alias(), _beside(policy))
        others = (entry for entry in stored if entry.key != key)
        return cls([own, *others, *stored_entries(SECTIONS["entities"], write_alias(), _HAS_EFFECT)])

    def first_applies(self, resource: str, entity: str | None) -> bool:
        """Whether the first policy of the proposal applies to an entity on a resource; those without rows share it."""
        alike = self._limits.alike(resource, entity)
        if alike is None:
            return self._limits.applies(1, resource, entity, datetime.now(UTC))
        if alike not in self._first:
            self._first[alike] = self._limits.applies(1, resource, entity, datetime.now(UTC))
        return self._first[alike]

    def tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        """The effective limits at a time; entities without policies and rows share the result."""
        alike = self._limits.alike(resource, entity)
        if alike is None:
            return self._tried(resource, entity, now_us)
        tried = self._alike.get(alike)
        if tried is None or now_us >= tried.until_us:
            tried = self._alike[alike] = self._tried(resource, entity, now_us)
        return tried

    def _tried(self, resource: str, entity: str | None, now_us: int) -> Tried:
        scopes, changes_at = self._limits.of(resource, entity, datetime.fromtimestamp(now_us / 1e6, UTC))
        until = _FOREVER if changes_at is None else round(changes_at.timestamp() * 1e6)
        parts = []
        for scoped in scopes:
            scope = scoped.scope
            own = not (scope.shared or scope.total) and scope.entity == entity
            whose = (resource, None, scoped.schema.limits[0].key) if scope.shared else (resource, scope.entity)
            key = None if own else (scope.key,) if scope.total else whose
            parts.append((key, scoped.schema, scoped.prices))
        units = [limit for scoped in scopes for limit in scoped.schema.limits if isinstance(limit, CountedUnit)]
        prices = scopes[0].prices if scopes else None
        return Tried(tuple(parts), until, prices or (), {unit.key: unit.requested_as for unit in units})
