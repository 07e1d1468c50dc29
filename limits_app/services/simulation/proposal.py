"""Proposed limits: the effective limits of an entity on a resource, judged as stored ones are."""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from django.db.models import Q

from limits_app.engine import DAY, Noted, Prices, Schema, limit_text
from limits_app.engine.limits import CountedUnit
from limits_app.models import Counted, Entity, Policy, PolicyEffect, write_alias
from limits_app.models.entity import HAS_FLAG
from limits_app.models.patterns import patterns_in
from limits_app.models.snapshots import batches
from limits_app.models.users import identifiers_of_client
from limits_app.policies import ProposedLimits
from limits_app.services.limits_file.content import LIMITS, SECTIONS, Content, FileEntry, stored_entries
from limits_app.services.limits_file.proposed import proposed_rows
from limits_app.services.limits_file.stored import StoredObjects, client_policies, general_objects
from limits_app.stores.memory import MemoryStore

RequestPart = tuple[tuple[Any, ...] | None, Schema, Prices | None]
"""A scope, its limits and the prices of the resource; None for the requesting entity on the requested resource."""

_FOREVER: Final = 2**63
_MOST_OF_CLIENTS: Final = 10_000
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


_HAS_PLAN: Final = Q(plan__isnull=False) | Q(parent__isnull=False)
"""The filter for entities that may have a plan, of their own or of a parent."""
_HAS_EFFECT: Final = _HAS_PLAN | Q(billing_from__isnull=False) | HAS_FLAG
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

    def __init__(self, entries: Iterable[FileEntry], *, clients: Collection[str] | None = None) -> None:
        # Permits are held as long as the events say, and no client of the events gives way to another one.
        store = MemoryStore(lease_seconds=_YEAR_SECONDS, max_scopes=sys.maxsize)
        self._limits = ProposedLimits(proposed_rows(entries), write_alias(), store, clients=clients)
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


class ProposedPlaces:
    """Where a policy that need not be saved would apply: always and to all its entities, beside the stored policies.

    Of these, it replaces those of its scope, and those with dates or weekly hours are left out. Only rows are read on
    which it depends whether the policy applies. Where there are more than `most` of clients, they are read for those
    that are asked for.
    """

    def __init__(self, policy: Policy, *, most: int = _MOST_OF_CLIENTS) -> None:
        section = SECTIONS["policies"]
        names = [str(row or "") for row in (policy.resource, policy.entity, policy.plan)]
        key = (names[0], names[1], "", "", names[2], policy.counted)
        self._own = FileEntry(section, key, section.defaults() | {"effect": policy.effect, "extends": policy.extends})
        self._using, self._beside = write_alias(), _beside(policy)
        is_general = Q(entity=None) | patterns_in("entity__identifier")
        self._general = [self._own, *self._policies(is_general)]
        self._of_plans = any(entry.key[4] for entry in self._general)
        self._of_clients = ~is_general
        self._counting_rows = HAS_FLAG | _HAS_PLAN if self._of_plans else HAS_FLAG
        self._general += self._rows(patterns_in("identifier"))
        self._all = None if self._has_more(most) else self._proposal()
        self._applies: dict[tuple[str, str], bool] = {}

    def among(self, places: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of some resources and entities (empty: the site itself) to which the policy applies."""
        unknown = {*places} - self._applies.keys()
        if unknown:
            proposal = self._all or self._proposal({entity for _, entity in unknown if entity})
            for resource, entity in unknown:
                self._applies[resource, entity] = proposal.first_applies(resource, entity or None)
        return {pair for pair in places if self._applies[pair]}

    def _has_more(self, most: int) -> bool:
        """Whether there are more rows of clients."""
        policies = Policy._base_manager.using(self._using).filter(self._beside, self._of_clients)
        entities = Entity._base_manager.using(self._using).filter(self._counting_rows)
        return any(rows.values("pk")[most : most + 1] for rows in (policies, entities))

    def _proposal(self, clients: Collection[str] | None = None) -> Proposal:
        """The policy with the stored ones of some clients, or of all."""
        policies, entities = list[FileEntry](), StoredObjects(self._using)
        if clients is None:
            policies += self._policies(self._of_clients)
            entities.add(self._rows(Q()))
        else:
            for batch in batches({name for client in clients for name in identifiers_of_client(client)}):
                policies += self._policies(Q(entity__identifier__in=batch))
                entities.add(self._rows(Q(identifier__in=batch)))
        entities.read_lines(())
        users = clients if self._of_plans else ()  # of which groups may have plans
        return Proposal([*self._general, *policies, *entities.entries.values()], clients=users)

    def _policies(self, where: Q) -> Iterator[FileEntry]:
        stored = stored_entries(SECTIONS["policies"], self._using, self._beside & where)
        return (entry for entry in stored if entry.key != self._own.key)

    def _rows(self, where: Q) -> Iterator[FileEntry]:
        """The entities whose rows count: those with flags, and with plans where there are policies of these."""
        return stored_entries(SECTIONS["entities"], self._using, self._counting_rows & where)
