"""The resolver: which limits hold for an entity on a resource, compiled and kept until something changes.

The most specific policy wins as a whole: an entity that is itself blocked or unlimited, entity on this resource,
entity on all resources, resource, system, and then the limits that the call itself brings.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Final, NamedTuple

from django.db import router

from limits_app import conf
from limits_app.core.errors import StoreUnavailable
from limits_app.core.keys import check_entity, check_resource, scope_of
from limits_app.core.layout import layout_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, Blocked, Limit
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.models import OWN, Candidate, Policy, PolicyEffect, PolicyScope, candidates, changes
from limits_app.stores import registry

logger = logging.getLogger("limits_app")

__all__ = ["CALL", "Resolution", "Resolver", "ResolverInfo", "advance_version", "resolve", "resolver"]

CALL: Final = "call"
"""The level of limits that a call brings itself."""

PRECEDENCE: Final = (OWN, *PolicyScope.values, CALL)

Limits = tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class Resolution:
    """What holds for an entity on a resource: `considered` in order of precedence, of which the first counts."""

    resource: str
    entity: str | None
    considered: tuple[Candidate, ...]
    limit_set: LimitSet


class ResolverInfo(NamedTuple):
    """How the cache of this process is doing."""

    hits: int
    misses: int
    size: int


def resolve(
    resource: str, entity: str | None, default_limits: Limits = (), *, store: Store | None = None
) -> Resolution:
    """Ask the database, in one query, and compile the answer.

    Raises InvalidLimit for a resource or an entity that cannot be.
    """
    check_resource(resource)
    if entity is not None:
        check_entity(entity)
    chosen_store = registry.store() if store is None else store
    version = chosen_store.version()  # before the query: a change in between makes the answer stale, never wrong
    found = candidates(resource, entity, router.db_for_read(Policy))
    if default_limits:
        found.append(Candidate(CALL, PolicyEffect.LIMITS, tuple(default_limits), None))
    considered = tuple(sorted(found, key=lambda candidate: PRECEDENCE.index(candidate.level)))
    scoped = _scoped(resource, entity, considered[0], chosen_store.lease_us) if considered else ()
    return Resolution(resource, entity, considered, LimitSet.composed(scoped, chosen_store, version=version))


def _scoped(resource: str, entity: str | None, chosen: Candidate, lease_us: int) -> tuple[ScopedLimits, ...]:
    limits: tuple[AnyLimit, ...] = chosen.limits if chosen.effect == PolicyEffect.LIMITS else ()
    if chosen.effect == PolicyEffect.BLOCKED:
        limits = (Blocked(),)
    return (ScopedLimits(scope_of(resource, entity), layout_of(limits, lease_us), chosen.level),) if limits else ()


class Resolver:
    """Keeps compiled limit sets, at most RESOLVER_MAX_ENTRIES, each for RESOLVER_TTL_SECONDS.

    A set that is older than the configuration is found out by its store when it is used, and then forgotten here.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str | None, Limits], tuple[LimitSet, float]] = {}
        self._lock = Lock()
        self._hits = 0
        self._misses = 0

    def kept(self, resource: str, entity: str | None, default_limits: Limits = ()) -> LimitSet | None:
        """The limit set if it is there and fresh."""
        try:
            entry = self._kept.get((resource, entity, default_limits))
        except TypeError:  # a name that cannot be, which resolving will say
            return None
        if entry is None or entry[1] < monotonic():
            return None
        self._hits += 1
        return entry[0]

    def limit_set(self, resource: str, entity: str | None, default_limits: Limits = ()) -> LimitSet:
        """The limit set, compiled and kept where it is not there yet.

        What a transaction reads that has changed limits itself is used once and not kept: it may be rolled back.
        """
        kept = self.kept(resource, entity, default_limits)
        if kept is not None:
            return kept
        default_limits = tuple(default_limits)
        self._misses += 1
        resolved = resolve(resource, entity, default_limits).limit_set
        if not changes.pending(router.db_for_read(Policy)):
            self._keep((resource, entity, default_limits), resolved)
        return resolved

    def forget(self, resource: str, entity: str | None, default_limits: Limits = ()) -> None:
        """Resolve anew next time."""
        self._kept.pop((resource, entity, tuple(default_limits)), None)

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def info(self) -> ResolverInfo:
        """Hits, misses and size."""
        return ResolverInfo(self._hits, self._misses, len(self._kept))

    def _keep(self, key: tuple[str, str | None, Limits], limit_set: LimitSet) -> None:
        most = conf.get(conf.RESOLVER_MAX_ENTRIES)
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = (limit_set, monotonic() + conf.get(conf.RESOLVER_TTL_SECONDS))
            for oldest in list(islice(self._kept, max(len(self._kept) - most, 0))):
                del self._kept[oldest]


resolver: Final = Resolver()


def advance_version(**details: object) -> None:  # noqa: ARG001 - a receiver of a signal
    """Limits have changed: whatever was compiled before is stale now, in every process that shares a store.

    A store that cannot be told is logged; its processes find out when what they keep is too old.
    """
    for alias in conf.get(conf.STORES):
        try:
            registry.store(alias).advance_version()
        except StoreUnavailable:
            logger.exception("the store %r was not told that limits have changed", alias)
