"""Resolving: asking the database what holds for an entity on a resource, and compiling the answer."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from time import time

from django.db import router

from limits_app.core.errors import UnknownPool
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limits import Limit
from limits_app.core.store import Store
from limits_app.models import Candidate, Link, Policy, PolicyEffect
from limits_app.resolver.chosen import CALL, Choice, Standing, changes_at, choose
from limits_app.resolver.compiled import Resolution, compiled
from limits_app.resolver.pooled import PooledSet
from limits_app.resolver.source import source
from limits_app.resolver.supplies import supplies
from limits_app.resolver.supply import Supply
from limits_app.stores.guards import guard_of

__all__ = ["Limits", "check_names", "home", "resolve", "resolve_pool"]

Limits = tuple[Limit, ...]


def resolve(
    resource: str,
    entity: str | None,
    default_limits: Limits = (),
    *,
    store: Store | None = None,
    now: float | None = None,
) -> Resolution:
    """Ask the database, in one query, and compile what holds `now`, in seconds of the system's clock.

    Raises InvalidLimit for a resource or an entity that cannot be, StoreUnavailable where the store has no version.
    """
    check_names(resource, entity)
    chosen_store = guard_of().store() if store is None else store
    version = chosen_store.version()  # before the query: a change in between makes the answer stale, never wrong
    moment = datetime.fromtimestamp(time() if now is None else now, UTC)
    links, supply = _found(resource, entity, moment, store=chosen_store, version=version)
    if default_limits:
        own = Candidate(CALL, PolicyEffect.LIMITS, tuple(default_limits), None)
        links[0] = replace(links[0], candidates=(*links[0].candidates, own))
    choices = tuple(choose(link, moment) for link in links)
    tried = [link for link, choice in zip(links, choices, strict=True) if _tries(choice)]
    shadows = tuple(choose(link, moment, shadow=True) for link in tried)
    limit_set = compiled(resource, choices, shadows, store=chosen_store, version=version, supply=supply)
    changes = [change for link in links if (change := changes_at(link, moment)) is not None]
    if changes:
        limit_set.changing_at(min(changes).timestamp())
    return Resolution(resource, entity, choices, shadows, limit_set)


def resolve_pool(pool: str, *, store: Store | None = None) -> PooledSet:
    """Ask the database for a pool, and compile it without limits of any resource.

    Raises UnknownPool where there is none of this name, and what `resolve` raises.
    """
    check_resource(pool)
    chosen_store = guard_of().store() if store is None else store
    version = chosen_store.version()
    supply = supplies.supply(pool, home(), chosen_store, version)
    pooled = PooledSet.serving((), supply, chosen_store, version=version)
    pooled.resolved_for((pool,))
    return pooled


def home() -> str:
    """The database to ask: the one that is written to, because a replica may not know yet what has just changed."""
    return router.db_for_write(Policy)


def check_names(resource: object, entity: object) -> None:
    """Raise InvalidLimit for a resource or an entity that cannot be."""
    check_resource(resource)
    if entity is not None:
        check_entity(entity)


def _found(
    resource: str, entity: str | None, moment: datetime, *, store: Store, version: int
) -> tuple[list[Link], Supply | None]:
    """Who is charged, and what the pool supplies that serves the resource."""
    missing = None
    while True:
        found = source.read(resource, entity, home(), moment)
        try:
            supply = None if found.pool is None else supplies.supply(found.pool, home(), store, version)
        except UnknownPool:
            if found.pool == missing:
                raise
            missing = found.pool  # perhaps it was renamed just now
        else:
            return found.links, supply


def _tries(choice: Choice) -> bool:
    return any(verdict.standing is Standing.SHADOW for verdict in choice.verdicts)
