"""Resolving: asking the database what holds for an entity on a resource, and compiling the answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from time import time
from typing import Final, cast

from django.db import router

from limits_app.core.errors import UnknownPool
from limits_app.core.keys import check_entity, check_resource
from limits_app.core.limits import Blocked, Limit, checked_limits
from limits_app.core.store import Store
from limits_app.models import Candidate, Policy, PolicyEffect
from limits_app.models.policy_lookup import PolicyChain
from limits_app.resolver.chosen import CALL, Choice, Standing, changes_at, choose
from limits_app.resolver.compiled import Resolution, compiled
from limits_app.resolver.pooled import PooledSet
from limits_app.resolver.present import Place, Present
from limits_app.resolver.source import source
from limits_app.resolver.supplies import supplies
from limits_app.resolver.supply import Supply

__all__ = ["Limits", "check_names", "checked_defaults", "home", "resolve", "resolve_pool"]

Limits = tuple[Limit, ...]

_BLOCKED: Final = (Blocked(),)


def resolve(
    resource: str,
    entity: str | None,
    default_limits: Limits = (),
    *,
    store: Store | None = None,
    now: float | None = None,
) -> Resolution:
    """Ask the database, in one query, and compile what holds `now`, in seconds of the system's clock.

    It is compiled for the store that the resource names, for `store` where that is given, and for NOWHERE while the
    one cannot be used. Raises InvalidLimit for a resource, an entity or default limits that cannot be.
    """
    check_names(resource, entity)
    default_limits = checked_defaults(default_limits)
    present = Present(store)
    moment = datetime.fromtimestamp(time() if now is None else now, UTC)
    found, supply, place = _found(resource, entity, moment, present)
    links = found.links
    if default_limits:
        own = Candidate(CALL, PolicyEffect.LIMITS, default_limits, None)
        links[0] = replace(links[0], candidates=(*links[0].candidates, own))
    choices = tuple(choose(link, moment) for link in links)
    tried = [link for link, choice in zip(links, choices, strict=True) if _tries(choice)]
    shadows = tuple(choose(link, moment, shadow=True) for link in tried)
    limit_set = compiled(resource, choices, shadows, place=place, supply=supply)
    changes = [change for link in links if (change := changes_at(link, moment)) is not None]
    if changes:
        limit_set.changing_at(min(changes).timestamp())
    return Resolution(resource, entity, choices, shadows, limit_set, found.known)


def resolve_pool(pool: str, alias: str | None = None, *, store: Store | None = None) -> PooledSet:
    """Ask the database for a pool, and compile it without limits of any resource, for the store of an alias.

    Raises UnknownPool where there is none of this name, and what `resolve` raises.
    """
    check_resource(pool)
    place = Present(store).place(alias)
    supply = supplies.supply(pool, home(), place.store, place.version)
    pooled = PooledSet.serving((), supply, place.store, version=place.version)
    pooled.resolved_for((pool,), place.alias)
    return pooled


def home() -> str:
    """The database to ask: the one that is written to, because a replica may not know yet what has just changed."""
    return router.db_for_write(Policy)


def check_names(resource: object, entity: object) -> None:
    """Raise InvalidLimit for a resource or an entity that cannot be."""
    check_resource(resource)
    if entity is not None:
        check_entity(entity)


def checked_defaults(limits: Iterable[object]) -> Limits:
    """The limits that a call brings, as a tuple; InvalidLimit says what is wrong with them.

    A way in whose rate is 0 brings a block.
    """
    if limits == _BLOCKED:
        return cast("Limits", limits)
    return checked_limits(limits, "default_limits=[limit]")


def _found(
    resource: str, entity: str | None, moment: datetime, present: Present
) -> tuple[PolicyChain, Supply | None, Place]:
    """Who is charged, what the pool supplies that serves the resource, and where all of it is counted."""
    missing = None
    while True:
        found = source.read(resource, entity, home(), moment)
        place = present.place(found.store)
        try:
            supply = None if found.pool is None else supplies.supply(found.pool, home(), place.store, place.version)
        except UnknownPool:
            if found.pool == missing:
                raise
            missing = found.pool  # perhaps it was renamed just now
        else:
            return found, supply, place


def _tries(choice: Choice) -> bool:
    return any(verdict.standing is Standing.SHADOW for verdict in choice.verdicts)
