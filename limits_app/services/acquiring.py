"""Acquiring by name: resolve what holds, decide, and resolve again when it has changed in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError

from limits_app import signals
from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitExceeded, StaleConfiguration, StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import Outcome
from limits_app.resolver import Key, Limits, ResolvedSet, resolver
from limits_app.services.asking import Asked, Requested, amounts_for
from limits_app.services.failure import unresolved, without_store
from limits_app.services.patience import countdown, while_it_holds
from limits_app.services.shadowing import afollow, follow, peek
from limits_app.stores.breaker import TROUBLED
from limits_app.stores.guards import guard_of

__all__ = [
    "Asked",
    "Limits",
    "Requested",
    "aacquire",
    "acquire",
    "atry_acquire",
    "check",
    "fresh",
    "limit_set",
    "tell",
    "try_acquire",
]

T = TypeVar("T")


def limit_set(resource: str, entity: str | None = None, default_limits: Limits = ()) -> LimitSet:
    """The limits that hold now for an entity (None: the site itself) on a resource, ready to be acquired.

    Once the configuration has changed it raises StaleConfiguration; the other verbs ask anew by themselves.
    Raises InvalidLimit (a ValueError) for a resource or an entity that cannot be, StoreUnavailable while its store
    is down: policies for that are a matter of the other verbs.
    """
    with guard_of().asking():
        found = resolver.limit_set(resource, entity, default_limits)
        if found.version == found.store.version():
            return found
        resolver.forget(resource, entity, default_limits, found)
        return resolver.limit_set(resource, entity, default_limits)


def try_acquire(
    resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()
) -> Acquisition:
    """Acquire now or not at all; a refusal is a falsy acquisition whose `outcome` says why.

    `default_limits` hold where nothing is set. Amounts and errors are those of `LimitSet.try_acquire`.
    """
    # Written out, because a call costs here as much as anything else.
    acquisition = fresh(
        resource,
        entity,
        default_limits,
        lambda found: found.try_acquire(requested(found) if callable(requested) else requested),
    )
    if not acquisition.admitted:
        tell(acquisition.outcome)
    elif getattr(acquisition.limit_set, "shadow", None) is not None:
        return follow(acquisition, requested)
    return acquisition


def acquire(
    resource: str,
    *,
    entity: str | None = None,
    requested: Asked = None,
    timeout: float | None = 0,
    default_limits: Limits = (),
) -> Acquisition:
    """Acquire, waiting up to `timeout` seconds (by default not at all; None: as long as it takes).

    Raises LimitExceeded at once, LimitTimeout after waiting, NeverAdmissible for more than can ever be admitted;
    each carries the outcome.
    """
    if timeout == 0:
        return _admitted(try_acquire(resource, entity=entity, requested=requested, default_limits=default_limits))
    left = countdown(timeout)

    def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return found.acquire(amounts_for(found, requested), seconds)

    return follow(fresh(resource, entity, default_limits, wait), requested)


async def atry_acquire(
    resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()
) -> Acquisition:
    """`try_acquire` for asyncio."""
    acquisition = await _afresh(
        resource, entity, default_limits, lambda found: found.atry_acquire(amounts_for(found, requested))
    )
    if not acquisition.admitted:
        tell(acquisition.outcome)
    return await afollow(acquisition, requested)


async def aacquire(
    resource: str,
    *,
    entity: str | None = None,
    requested: Asked = None,
    timeout: float | None = 0,
    default_limits: Limits = (),
) -> Acquisition:
    """`acquire` for asyncio: waits, and asks the database, without blocking the event loop."""
    if timeout == 0:
        return _admitted(
            await atry_acquire(resource, entity=entity, requested=requested, default_limits=default_limits)
        )
    left = countdown(timeout)

    async def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return await found.aacquire(amounts_for(found, requested), seconds)

    return await afollow(await _afresh(resource, entity, default_limits, wait), requested)


def check(resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()) -> Outcome:
    """What `try_acquire` would decide now; consumes nothing."""
    return fresh(resource, entity, default_limits, lambda found: peek(found, requested))


class Resolving(Protocol):
    """Finds out which limits hold, and forgets what is stale."""

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
) -> T:
    """Use the limits that hold now; again with those of the latest configuration when it has changed meanwhile.

    While the store is down, those that decide in its place.
    """
    found = None
    while True:
        try:
            if not TROUBLED:
                try:
                    found = by.limit_set(resource, entity, default_limits)
                    return use(found)
                except StoreUnavailable as error:
                    guard_of().failed(error)
            else:
                with guard_of().call() as granted:
                    if granted:
                        found = by.limit_set(resource, entity, default_limits)
                        return use(found)
            found = by.without_store(resource, entity, default_limits)
            with without_store(guard_of(), found) as meanwhile:
                return use(meanwhile)
        except StaleConfiguration:
            by.forget(resource, entity, default_limits, found)
        except LimitExceeded as error:
            tell(error.outcome)
            raise
        except (OperationalError, InterfaceError) as error:
            return use(unresolved(error))


async def _afresh(
    resource: str, entity: str | None, default_limits: Limits, use: Callable[[LimitSet], Awaitable[T]]
) -> T:
    """`fresh` for asyncio."""
    key = resource, entity, default_limits
    found = None
    while True:
        try:
            if not TROUBLED:
                try:
                    found = await _found(key, resolver.limit_set)
                    return await use(found)
                except StoreUnavailable as error:
                    guard_of().failed(error)
            else:
                with guard_of().call() as granted:
                    if granted:
                        found = await _found(key, resolver.limit_set)
                        return await use(found)
            found = await _found(key, resolver.without_store)
            with without_store(guard_of(), found) as meanwhile:
                return await use(meanwhile)
        except StaleConfiguration:
            resolver.forget(*key, found)
        except LimitExceeded as error:
            tell(error.outcome)
            raise
        except (OperationalError, InterfaceError) as error:
            return await use(unresolved(error))


async def _found(key: Key, resolve: Callable[[str, str | None, Limits], ResolvedSet]) -> ResolvedSet:
    """The limits that are kept; a thread asks the database when there are none."""
    kept = resolver.kept(*key)
    return await sync_to_async(resolve)(*key) if kept is None else kept


def _admitted(acquisition: Acquisition) -> Acquisition:
    if not acquisition.admitted:
        raise LimitExceeded(acquisition.outcome)
    return acquisition


def tell(outcome: Outcome) -> None:
    """Let those who care know about a refusal; nothing is formatted when nobody does."""
    if signals.limit_exceeded.receivers:
        signals.limit_exceeded.send_robust(sender=None, outcome=outcome)
