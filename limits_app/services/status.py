"""Status: the live state of limits, as one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from asgiref.sync import sync_to_async

from limits_app.core.amounts import Amount
from limits_app.core.errors import StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked
from limits_app.core.stats import Stats
from limits_app.models import Entity
from limits_app.resolver import PooledSet, ResolvedSet, resolver
from limits_app.stores.guards import guard_of

__all__ = ["Status", "astatus", "status"]

T = TypeVar("T")


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

    Each scope is one consistent snapshot; known entities are those with a row in the database. Changes nothing.
    Raises StoreUnavailable while the store is down: an outage must not look like no usage.
    """
    if entity is not None:
        limits, members = _read(resource, entity, lambda found: (found.get_stats(), _members(found)))
        return Status(resource, entity, limits, members=members)
    known = 0
    limits, members, by_scope = _read(
        resource, None, lambda found: (found.get_stats(), _members(found), _by_scope(found))
    )
    for identifier in Entity.objects.values_list("identifier", flat=True).iterator():
        known += 1
        by_scope |= _read(resource, identifier, _by_scope)
    total: dict[str, Amount] = {}
    for stats in by_scope.values():
        for key, stats_of_key in stats.items():
            total[key] = total.get(key, 0) + _used(stats_of_key)
    total.pop(Blocked.key, None)
    return Status(resource, None, limits, known, total, members)


async def astatus(resource: str, *, entity: str | None = None) -> Status:
    """`status` for asyncio."""
    return await sync_to_async(status)(resource, entity=entity)


def _read(resource: str, entity: str | None, read: Callable[[ResolvedSet], T]) -> T:
    while True:
        found = None
        try:
            with guard_of().asking():
                found = resolver.limit_set(resource, entity)
                return read(found)
        except StaleConfiguration:
            resolver.forget(resource, entity, (), found)


def _members(found: ResolvedSet) -> dict[str, dict[str, Stats]]:
    return found.member_stats() if isinstance(found, PooledSet) else {}


def _by_scope(found: ResolvedSet) -> dict[str, dict[str, Stats]]:
    """The state of each scope by itself, so that what several entities have in common is counted once."""
    return {
        one.scope.key: LimitSet.composed([one], found.store, version=found.version).get_stats() for one in found.own
    }


def _used(stats: Stats) -> Amount:
    used = stats["used"]
    return used if isinstance(used, int | float) else 0
