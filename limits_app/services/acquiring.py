"""Acquiring by name: resolve what holds, decide, and resolve again when it has changed in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TypeVar

from asgiref.sync import sync_to_async

from limits_app import signals
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import LimitExceeded, StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Limit
from limits_app.core.outcome import Outcome
from limits_app.core.turns import seconds_of
from limits_app.resolver import resolver

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
    "try_acquire",
]

Requested = Mapping[str, Amount] | None
Asked = Requested | Callable[[LimitSet], Requested]
"""Amounts by key, or a function that says them once it is known which limits hold."""
Limits = tuple[Limit, ...]
T = TypeVar("T")


def limit_set(resource: str, entity: str | None = None, default_limits: Limits = ()) -> LimitSet:
    """The limits that hold now for an entity (None: the site itself) on a resource, ready to be acquired.

    Once the configuration has changed it raises StaleConfiguration; the other verbs ask anew by themselves.
    Raises InvalidLimit (a ValueError) for a resource or an entity that cannot be.
    """
    found = resolver.limit_set(resource, entity, default_limits)
    if found.version == found.store.version():
        return found
    resolver.forget(resource, entity, default_limits)
    return resolver.limit_set(resource, entity, default_limits)


def try_acquire(
    resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()
) -> Acquisition:
    """Acquire now or not at all; a refusal is a falsy acquisition whose `outcome` says why.

    `default_limits` hold where nothing is set. Amounts and errors are those of `LimitSet.try_acquire`.
    """
    acquisition = fresh(resource, entity, default_limits, lambda found: found.try_acquire(_amounts(requested, found)))
    if not acquisition.admitted:
        _tell(acquisition.outcome)
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
    left = _countdown(timeout)
    return fresh(resource, entity, default_limits, lambda found: found.acquire(_amounts(requested, found), left()))


async def atry_acquire(
    resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()
) -> Acquisition:
    """`try_acquire` for asyncio."""
    acquisition = await _afresh(
        resource, entity, default_limits, lambda found: found.atry_acquire(_amounts(requested, found))
    )
    if not acquisition.admitted:
        _tell(acquisition.outcome)
    return acquisition


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
    left = _countdown(timeout)
    return await _afresh(
        resource, entity, default_limits, lambda found: found.aacquire(_amounts(requested, found), left())
    )


def check(resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()) -> Outcome:
    """What `try_acquire` would decide now; consumes nothing."""
    return fresh(resource, entity, default_limits, lambda found: found.peek(_amounts(requested, found)))


def fresh(resource: str, entity: str | None, default_limits: Limits, use: Callable[[LimitSet], T]) -> T:
    """Use the limits that hold now; again with those of the latest configuration when it has changed meanwhile."""
    while True:
        try:
            return use(resolver.limit_set(resource, entity, default_limits))
        except StaleConfiguration:
            resolver.forget(resource, entity, default_limits)
        except LimitExceeded as error:
            _tell(error.outcome)
            raise


async def _afresh(
    resource: str, entity: str | None, default_limits: Limits, use: Callable[[LimitSet], Awaitable[T]]
) -> T:
    """`fresh` for asyncio; a thread asks the database when nothing is kept."""
    while True:
        found = resolver.kept(resource, entity, default_limits)
        if found is None:
            found = await sync_to_async(resolver.limit_set)(resource, entity, default_limits)
        try:
            return await use(found)
        except StaleConfiguration:
            resolver.forget(resource, entity, default_limits)
        except LimitExceeded as error:
            _tell(error.outcome)
            raise


def _amounts(requested: Asked, found: LimitSet) -> Requested:
    return requested(found) if callable(requested) else requested


def _admitted(acquisition: Acquisition) -> Acquisition:
    if not acquisition.admitted:
        raise LimitExceeded(acquisition.outcome)
    return acquisition


def _countdown(timeout: float | None) -> Callable[[], float | None]:
    """What is left of a timeout, whenever it is asked."""
    seconds = seconds_of(timeout)
    deadline = None if seconds is None else monotonic() + seconds
    return lambda: None if deadline is None else max(deadline - monotonic(), 0)


def _tell(outcome: Outcome) -> None:
    """Let those who care know about a refusal; nothing is formatted when nobody does."""
    if signals.limit_exceeded.receivers:
        signals.limit_exceeded.send_robust(sender=None, outcome=outcome)
