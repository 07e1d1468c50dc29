"""Using the limits that hold now: again when they have changed in between, and others while the store is down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError

from limits_app.core.errors import LimitExceeded, LimitTimeout, StaleConfiguration, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.resolver import Key, Limits, ResolvedSet, resolver
from limits_app.resolver.present import NOWHERE
from limits_app.services.failure import unresolved, without_store
from limits_app.services.watching import WATCHERS, admitted, admitted_in_task, tell
from limits_app.signals import limit_near
from limits_app.stores.registry import resilient_store

__all__ = ["FAILURES", "Resolving", "afresh", "fresh", "latest", "tell"]

T = TypeVar("T")

FAILURES: Final = (StoreUnavailable, StaleConfiguration, LimitExceeded, OperationalError, InterfaceError)
"""What `fresh` knows to handle."""


class Resolving(Protocol):
    """Finds out which limits hold, and forgets what is stale."""

    def kept(self, resource: str, entity: str | None, default_limits: Limits, /) -> ResolvedSet | None: ...

    def limit_set(self, resource: str, entity: str | None, default_limits: Limits, /) -> ResolvedSet: ...

    def without_store(self, resource: str, entity: str | None, default_limits: Limits, /) -> ResolvedSet: ...

    def forget(
        self, resource: str, entity: str | None, default_limits: Limits, stale: ResolvedSet | None, /
    ) -> None: ...


def fresh(
    resource: str,
    entity: str | None,
    default_limits: Limits,
    use: Callable[[LimitSet], T],
    *,
    by: Resolving = resolver,
    found: ResolvedSet | None = None,
    failures: list[Exception] | None = None,
) -> T:
    """Use the limits that hold now; again with those of the latest configuration when it has changed meanwhile.

    While their store is down, those that decide in its place. Who has tried already, and perhaps `found` some, says
    what came of it: one of FAILURES.
    """
    while True:
        try:
            try:
                if failures:
                    raise failures.pop()
                found = None
                found = by.limit_set(resource, entity, default_limits)
                if found.store is NOWHERE:
                    resilient_store(found.alias).open()
                decision = use(found)
                # As `admitted` asks, which is a call more.
                return admitted(resource, decision) if WATCHERS or limit_near.receivers else decision
            except StoreUnavailable:
                found = by.without_store(resource, entity, default_limits)
            with without_store(resilient_store(found.alias), found) as meanwhile:
                return admitted(resource, use(meanwhile))
        except StaleConfiguration:
            by.forget(resource, entity, default_limits, found)
        except LimitExceeded as error:
            tell(error.outcome, waited=isinstance(error, LimitTimeout))
            raise
        except (OperationalError, InterfaceError) as error:
            return use(unresolved(error))


async def afresh(
    resource: str,
    entity: str | None,
    default_limits: Limits,
    use: Callable[[LimitSet], Awaitable[T]],
    *,
    by: Resolving = resolver,
) -> T:
    """`fresh` for asyncio."""
    key = resource, entity, default_limits
    while True:
        found = None
        try:
            try:
                found = await _found(key, by, by.limit_set)
                if found.store is NOWHERE:
                    resilient_store(found.alias).open()
                return admitted_in_task(resource, await use(found))
            except StoreUnavailable:
                found = await _found(key, by, by.without_store)
            with without_store(resilient_store(found.alias), found) as meanwhile:
                return admitted_in_task(resource, await use(meanwhile))
        except StaleConfiguration:
            by.forget(*key, found)
        except LimitExceeded as error:
            tell(error.outcome, waited=isinstance(error, LimitTimeout))
            raise
        except (OperationalError, InterfaceError) as error:
            return await use(unresolved(error))


def latest(resource: str, entity: str | None, default_limits: Limits = (), *, by: Resolving = resolver) -> ResolvedSet:
    """The limits that hold now; StoreUnavailable while their store is down."""
    found = by.limit_set(resource, entity, default_limits)
    if found.version == found.store.version():
        return found
    by.forget(resource, entity, default_limits, found)
    return by.limit_set(resource, entity, default_limits)


async def _found(key: Key, by: Resolving, resolve: Callable[[str, str | None, Limits], ResolvedSet]) -> ResolvedSet:
    """The limits that are kept; a thread asks the database when there are none."""
    kept = by.kept(*key)
    return await sync_to_async(resolve)(*key) if kept is None else kept
