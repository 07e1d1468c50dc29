"""Acquiring by name: resolve what holds, decide, and resolve again when it has changed in between."""

from __future__ import annotations

from functools import partial

from asgiref.sync import sync_to_async

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import LimitExceeded, NeverAdmissible
from limits_app.core.keys import check_resource
from limits_app.core.limit_set import LimitSet
from limits_app.core.outcome import Outcome
from limits_app.resolver import Limits, resolver
from limits_app.services.asking import Asked, Requested, Resources, amounts_for
from limits_app.services.freshness import FAILURES, afresh, fresh, latest, tell
from limits_app.services.once import Once
from limits_app.services.patience import countdown, while_it_holds
from limits_app.services.shadowing import afollow, follow, peek
from limits_app.services.together import (
    Together,
    aacquire_all,
    acquire_all,
    atry_acquire_all,
    shares_of,
    try_acquire_all,
)
from limits_app.services.watching import WATCHERS
from limits_app.signals import limit_near
from limits_app.stores.breaker import TROUBLED

__all__ = [
    "Asked",
    "Limits",
    "Requested",
    "aacquire",
    "acheck",
    "acquire",
    "atry_acquire",
    "check",
    "limit_set",
    "try_acquire",
    "try_resource",
]


def limit_set(resource: str, entity: str | None = None, default_limits: Limits = ()) -> LimitSet:
    """The limits that hold now for an entity (None: the site itself) on a resource, ready to be acquired.

    Once the configuration has changed it raises StaleConfiguration; the other verbs ask anew by themselves.
    Raises InvalidLimit (a ValueError) for a resource or an entity that cannot be, StoreUnavailable while its store
    is down: policies for that are a matter of the other verbs.
    """
    return latest(resource, entity, default_limits)


def try_acquire(
    resource: Resources,
    *,
    entity: str | None = None,
    requested: Asked = None,
    default_limits: Limits = (),
    idempotency_key: str | None = None,
) -> Acquisition:
    """Acquire now or not at all; a refusal is a falsy acquisition whose `outcome` says why.

    `default_limits` hold where nothing is set. Amounts and errors are those of `LimitSet.try_acquire`.
    A mapping of resources to amounts is acquired all or nothing, as by `try_acquire_all`.
    A request that was admitted and comes again with its `idempotency_key` is admitted without being charged again,
    and holds nothing, for as long as `LIMITS["IDEMPOTENCY_SECONDS"]` says.
    """
    if idempotency_key is not None:
        return _once(idempotency_key, resource, entity, requested, default_limits).try_acquire()
    if not isinstance(resource, str):
        return try_acquire_all(shares_of(resource, entity, requested, default_limits))
    return try_resource(resource, entity, requested, default_limits)


def try_resource(resource: str, entity: str | None, requested: Asked, default_limits: Limits) -> Acquisition:
    """`try_acquire` of one resource, for those who are in a hurry: names of arguments cost as much as a call."""
    # What `fresh` does when all is well is written out, because a call costs here as much as anything else.
    found = None
    if TROUBLED or WATCHERS or limit_near.receivers:
        acquisition = fresh(resource, entity, default_limits, partial(_tried, requested))
    else:
        try:
            found = resolver.limit_set(resource, entity, default_limits)
            acquisition = found.try_acquire(requested(found) if callable(requested) else requested)
        except FAILURES as error:
            use = partial(_tried, requested)
            acquisition = fresh(resource, entity, default_limits, use, found=found, failures=[error])
            found = None
    if not acquisition.successful:
        tell(acquisition.outcome)
    elif found is None or found.shadow is not None:
        return follow(acquisition, requested)
    return acquisition


def acquire(
    resource: Resources,
    *,
    entity: str | None = None,
    requested: Asked = None,
    timeout: float | None = 0,
    default_limits: Limits = (),
    idempotency_key: str | None = None,
) -> Acquisition:
    """Acquire, waiting up to `timeout` seconds (by default not at all; None: as long as it takes).

    Raises LimitExceeded at once, LimitTimeout after waiting, NeverAdmissible for more than can ever be admitted;
    each carries the outcome. A mapping of resources to amounts and an idempotency key are as for `try_acquire`.
    """
    if idempotency_key is not None:
        once = _once(idempotency_key, resource, entity, requested, default_limits)
        return _admitted(once.try_acquire()) if timeout == 0 else once.acquire(timeout)
    if timeout == 0:
        return _admitted(try_acquire(resource, entity=entity, requested=requested, default_limits=default_limits))
    if not isinstance(resource, str):
        return acquire_all(shares_of(resource, entity, requested, default_limits), timeout)
    left = countdown(timeout)

    def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return found.acquire(amounts_for(found, requested), seconds)

    return follow(fresh(resource, entity, default_limits, wait), requested)


async def atry_acquire(
    resource: Resources,
    *,
    entity: str | None = None,
    requested: Asked = None,
    default_limits: Limits = (),
    idempotency_key: str | None = None,
) -> Acquisition:
    """`try_acquire` for asyncio."""
    if idempotency_key is not None:
        return await _once(idempotency_key, resource, entity, requested, default_limits).atry_acquire()
    if not isinstance(resource, str):
        return await atry_acquire_all(shares_of(resource, entity, requested, default_limits))
    acquisition = await afresh(
        resource, entity, default_limits, lambda found: found.atry_acquire(amounts_for(found, requested))
    )
    if not acquisition.successful:
        tell(acquisition.outcome)
    return await afollow(acquisition, requested)


async def aacquire(
    resource: Resources,
    *,
    entity: str | None = None,
    requested: Asked = None,
    timeout: float | None = 0,
    default_limits: Limits = (),
    idempotency_key: str | None = None,
) -> Acquisition:
    """`acquire` for asyncio: waits, and asks the database, without blocking the event loop."""
    if idempotency_key is not None:
        once = _once(idempotency_key, resource, entity, requested, default_limits)
        return _admitted(await once.atry_acquire()) if timeout == 0 else await once.aacquire(timeout)
    if timeout == 0:
        return _admitted(
            await atry_acquire(resource, entity=entity, requested=requested, default_limits=default_limits)
        )
    if not isinstance(resource, str):
        return await aacquire_all(shares_of(resource, entity, requested, default_limits), timeout)
    left = countdown(timeout)

    async def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return await found.aacquire(amounts_for(found, requested), seconds)

    return await afollow(await afresh(resource, entity, default_limits, wait), requested)


def check(resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()) -> Outcome:
    """What `try_acquire` would decide now; consumes nothing, and counts as no refusal."""
    decided = fresh(resource, entity, default_limits, lambda found: _peeked(found, requested))
    if isinstance(decided, NeverAdmissible):
        raise decided
    return decided


def _tried(requested: Asked, found: LimitSet) -> Acquisition:
    return found.try_acquire(amounts_for(found, requested))


def _peeked(found: LimitSet, requested: Asked) -> Outcome | NeverAdmissible:
    """What would be decided; the error as a value, because one that is raised would be told as a refusal."""
    try:
        return peek(found, requested)
    except NeverAdmissible as error:
        return error


async def acheck(
    resource: str, *, entity: str | None = None, requested: Asked = None, default_limits: Limits = ()
) -> Outcome:
    """`check` for asyncio."""
    ask = sync_to_async(check)
    return await ask(resource, entity=entity, requested=requested, default_limits=default_limits)


def _once(  # noqa: PLR0917 - the words of the verbs, in their order
    key: object, resource: Resources, entity: str | None, requested: Asked, default_limits: Limits
) -> Once:
    if isinstance(resource, str):
        return Once(key, (check_resource(resource), entity, default_limits), requested, by=resolver)
    shares = shares_of(resource, entity, requested, default_limits)
    together = Together(shares)
    names = [share.resource for share in shares]
    return Once(key, shares[0].key, together.asked_of, *names, by=together)


def _admitted(acquisition: Acquisition) -> Acquisition:
    if not acquisition.successful:
        raise LimitExceeded.of(acquisition)
    return acquisition
