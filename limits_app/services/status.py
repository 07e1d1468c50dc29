"""Status: the live state of limits, as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from typing import Final

from asgiref.sync import sync_to_async
from django.utils import timezone

from limits_app.core.amounts import Amount
from limits_app.core.errors import StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked
from limits_app.core.outcome import Stats, survey
from limits_app.core.plan import ScopedLimits
from limits_app.models import Entity, Resource
from limits_app.resolver import Pair, PooledSet, choices, resolver, scopes
from limits_app.stores.registry import resilient_store

__all__ = ["Status", "astatus", "status"]

_TOGETHER: Final = 200
"""How many entities are looked at in one step of the store, since others wait for it."""


@dataclass(frozen=True, slots=True)
class Status:
    """What is used and left of each limit, by key; the fields of each are those of `LimitSet.get_stats`.

    For a resource as a whole, `entities` says how many known entities were looked at,
    and `used_by_all` what they and the site itself use together.
    `members` are the limits of each member of the pool that serves the resource, by the member's name.
    """

    resource: str
    entity: str | None
    limits: dict[str, Stats]
    entities: int | None = None
    used_by_all: dict[str, Amount] = field(default_factory=dict)
    members: dict[str, dict[str, Stats]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The status as plain data, for JSON."""
        return asdict(self)


def status(resource: str, *, entity: str | None = None) -> Status:
    """Read the state of an entity on a resource; without one, of the site itself and of the resource as a whole.

    What is said of the entity is one consistent snapshot; known entities, which are those with a row in the database,
    are looked at a few hundred at a time. Changes nothing.
    Raises StoreUnavailable while the store is down: an outage must not look like no usage.
    """
    alias, limits, members = _read(resource, entity)
    if entity is not None:
        return Status(resource, entity, limits, members=members)
    known, total = _used_by_all(resource, alias)
    return Status(resource, None, limits, known, total, members)


async def astatus(resource: str, *, entity: str | None = None) -> Status:
    """`status` for asyncio."""
    return await sync_to_async(status)(resource, entity=entity)


def _read(resource: str, entity: str | None) -> tuple[str | None, dict[str, Stats], dict[str, dict[str, Stats]]]:
    """Where an entity is counted, and its limits and those of members there."""
    while True:
        found = resolver.get(resource, entity)
        try:
            limits = found.in_store()
            return found.alias, limits.get_stats(), _members(limits)
        except StaleConfiguration:
            resolver.forget(resource, entity, (), found)


def _members(limits: LimitSet) -> dict[str, dict[str, Stats]]:
    return limits.member_stats() if isinstance(limits, PooledSet) else {}


def _used_by_all(resource: str, alias: str | None) -> tuple[int, dict[str, Amount]]:
    """How many entities are known, and what they and the site itself use; what is shared is counted once."""
    row = Resource.objects.filter(name=resource).first()
    pairs: Iterator[Pair] = chain([(row, None)], ((row, entity) for entity in Entity.objects.iterator(_TOGETHER)))
    looked_at, seen, total = 0, set[str](), dict[str, Amount]()
    while some := list(islice(pairs, _TOGETHER)):
        looked_at += len(some)
        for stats in _survey(resource, alias, some, seen):
            for key, stats_of_key in stats.items():
                total[key] = total.get(key, 0) + _used(stats_of_key)
    total.pop(Blocked.key, None)
    return looked_at - 1, total


def _survey(resource: str, alias: str | None, pairs: list[Pair], seen: set[str]) -> Iterable[dict[str, Stats]]:
    """The state of the scopes of some entities; those that are shared are `seen` once."""
    store = resilient_store(alias).open()
    while True:
        version = store.version()  # before the queries: a change in between is found out by the store
        unique: dict[str, ScopedLimits] = {}
        for choice in choices(pairs, timezone.now()):
            unique |= {one.scope.key: one for one in scopes(resource, choice, store)}
        try:
            found = survey([one for key, one in unique.items() if key not in seen], store, version)
        except StaleConfiguration:
            continue
        seen.update(key for key, one in unique.items() if one.scope.shared)
        return found.values()


def _used(stats: Stats) -> Amount:
    used = stats["used"]
    return used if isinstance(used, int | float) else 0
