"""Acquiring by the name of a resource."""

from __future__ import annotations

from typing import Final, Unpack

from asgiref.sync import sync_to_async

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import EntityName, check_resource
from limits_app.engine.errors import LimitExceeded
from limits_app.engine.outcome import Outcome
from limits_app.policies import resolver
from limits_app.services.amounts import LimitsInCode, RequestedAmounts, Resources, TryOptions, key_of, prioritized
from limits_app.services.idempotency import IdempotentRequest
from limits_app.services.request import AmountsRequest
from limits_app.services.several import SharesSource, shares_of


def limit_set(
    resource: str, entity: EntityName = None, default_limits: LimitsInCode | str = (), plan: str | None = None
) -> LimitSet:
    """The effective limits of an entity (None: the site itself) on a resource, ready to be acquired.

    When the configuration changes, the set raises StaleConfiguration; the other functions resolve again by themselves.
    Raises InvalidLimit (a ValueError) for an invalid resource or entity, and StoreUnavailable while the store is down:
    policies for that case apply to the other functions only.
    """
    return resolver.latest(key_of(resource, entity, default_limits, plan)).limit_set


def try_acquire(
    resource: Resources,
    *,
    entity: EntityName = None,
    requested: RequestedAmounts = None,
    default_limits: LimitsInCode | str = (),
    idempotency_key: str | None = None,
    plan: str | None = None,
    require_usage: bool = True,
    priority: str | None = None,
) -> Acquisition:
    """Acquire now or not at all; a rejection is a falsy acquisition with the reasons in `outcome`.

    `entity` is an identifier or a user, such as `request.user`. `default_limits` apply where no policy does; they may
    be text, such as `"100/min tokens=1M/day"`. `plan` is the name of the plan of an entity that has none.
    Amounts and errors are those of `LimitSet.try_acquire`.
    A mapping of resources to amounts is acquired all or nothing, as by `try_acquire_all`.
    A request that was admitted and is repeated with its `idempotency_key` takes its permits again, and is charged
    nothing else, for `LIMITS["IDEMPOTENCY_SECONDS"]`; another request with the key raises InvalidRequest.
    With `require_usage=False`, a block need not report the usage of rates: what was not reported counts as used.
    `priority` is one of `LIMITS["PRIORITIES"]`, by default that of the plan, else of the resource, else `normal`; some
    limits leave a share free for higher ones.
    """
    return _request(
        resource, entity, requested, default_limits, idempotency_key, plan, require_usage, priority
    ).acquire()


def acquire(
    resource: Resources,
    *,
    entity: EntityName = None,
    requested: RequestedAmounts = None,
    timeout: float | None = 0,
    default_limits: LimitsInCode | str = (),
    idempotency_key: str | None = None,
    plan: str | None = None,
    require_usage: bool = True,
    priority: str | None = None,
) -> Acquisition:
    """Acquire; by default this does not wait, unlike `LimitSet.acquire`, which waits as long as it takes.

    `timeout` is the longest wait in seconds (None: as long as it takes).
    Raises LimitExceeded immediately without a timeout, LimitTimeout after waiting, and NeverAdmissible for more than
    can ever be admitted; each has the `outcome`. The other arguments are those of `try_acquire`.
    """
    request = _request(resource, entity, requested, default_limits, idempotency_key, plan, require_usage, priority)
    acquisition = request.acquire(timeout)
    if not acquisition.successful:
        raise LimitExceeded.of(acquisition)
    return acquisition


async def atry_acquire(resource: Resources, **options: Unpack[TryOptions]) -> Acquisition:
    """`try_acquire` for asyncio."""
    return await _request(resource, **options).aacquire()


async def aacquire(resource: Resources, *, timeout: float | None = 0, **options: Unpack[TryOptions]) -> Acquisition:
    """`acquire` for asyncio: by default this does not wait; waits and queries do not block the event loop."""
    acquisition = await _request(resource, **options).aacquire(timeout)
    if not acquisition.successful:
        raise LimitExceeded.of(acquisition)
    return acquisition


def check(
    resource: str,
    *,
    entity: EntityName = None,
    requested: RequestedAmounts = None,
    default_limits: LimitsInCode | str = (),
    plan: str | None = None,
    priority: str | None = None,
) -> Outcome:
    """What `try_acquire` would decide now; consumes nothing, and is not counted as a rejection."""
    amounts = prioritized(requested, priority)
    return AmountsRequest(key_of(resource, entity, default_limits, plan), amounts).peek()


acheck: Final = sync_to_async(check)
"""`check` for asyncio."""


def _request(  # noqa: PLR0917 - the arguments of the functions, in their order
    resource: Resources,
    entity: EntityName = None,
    requested: RequestedAmounts = None,
    default_limits: LimitsInCode | str = (),
    idempotency_key: str | None = None,
    plan: str | None = None,
    require_usage: bool = True,
    priority: str | None = None,
) -> AmountsRequest:
    request: AmountsRequest
    if isinstance(resource, str):
        key = key_of(resource, entity, default_limits, plan)
        if priority is not None:
            requested = prioritized(requested, priority)
        if idempotency_key is None:
            request = AmountsRequest(key, requested)
        else:
            check_resource(resource)
            request = IdempotentRequest(idempotency_key, key, requested, resolver)
    else:
        source = SharesSource(shares_of(resource, entity, requested, default_limits, plan, priority))
        request = source.request()
        if idempotency_key is not None:
            names = [share.resource for share in source.shares]
            request = IdempotentRequest(idempotency_key, source.shares[0].key, source.amounts, source, *names)
    request.requires_usage = require_usage
    return request
