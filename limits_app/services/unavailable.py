"""Decisions while a store or the database is unavailable, by `on_unavailable` of a policy or ON_UNAVAILABLE.

`block` raises StoreUnavailable, `allow` decides as if nothing had been used, and `local` admits the share of this
process. Entities that are blocked or unlimited stay so, since that needs no store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from limits_app import conf
from limits_app.acquiring import LimitSet, Store, Unlimited
from limits_app.conf import OnUnavailable
from limits_app.engine import Amount, ScopedLimits, counts_money, from_micro, schema_of, to_micro
from limits_app.engine.errors import LimitExceeded, NeverAdmissible, Unresolved
from limits_app.engine.limits import AnyLimit, Blocked, CountedUnit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.models.own_queries import check_unresolved
from limits_app.policies import ResolvedSet
from limits_app.stores.allowing import AllowingStore
from limits_app.stores.registry import resilient_store


def fallback_of(resolved: ResolvedSet) -> LimitSet:
    """Return the limits that decide in place of those in the unavailable store; raises StoreUnavailable for `block`."""
    unavailable, limits = resilient_store(resolved.alias), resolved.limit_set
    is_unlimited = all(rule.is_counted for scoped in limits.scoped for rule in scoped.schema.rules)
    if is_unlimited or any(isinstance(limit, Blocked) for limit in limits):
        return _in_store(resolved, unavailable.fallback(), _unchanged, degraded=False)
    policy = resolved.on_unavailable or conf.get(conf.ON_UNAVAILABLE)
    unavailable.count_degraded(policy)
    if policy is OnUnavailable.BLOCK:
        raise unavailable.unavailable()
    if policy is OnUnavailable.ALLOW:
        return _in_store(resolved, _ALLOWING, _unchanged)
    return _in_store(resolved, unavailable.fallback(), _process_share)


def check_exceeds_limits(error: LimitExceeded, resolved: ResolvedSet) -> None:
    """Raise StoreUnavailable for a request that exceeds the share of this process, but not the limits themselves.

    Such a request may be admitted when the store is available, so it must not be reported as never admissible.
    """
    if isinstance(error, NeverAdmissible):
        too_large = [status for status in error.outcome.violations if status.never]
        if not any(status.requested > resolved.ceiling(status.key) for status in too_large):
            raise resilient_store(resolved.alias).unavailable() from error


def without_limits(error: Unresolved) -> LimitSet:
    """Return the limits where those of the configuration are unknown: none, unless ON_UNRESOLVED raises the error."""
    check_unresolved(error)
    return UNLIMITED


_ALLOWING: Final = AllowingStore()
UNLIMITED: Final = Unlimited()
"""No limits: every request is allowed, and charged nothing."""


def _in_store(
    resolved: ResolvedSet, store: Store, change: Callable[[AnyLimit], AnyLimit], *, degraded: bool = True
) -> LimitSet:
    """The limits of a resolved set, each replaced by the result of `change`, in another store.

    The last result is cached; all clients of a template have it under their own names.
    """

    def changed(scoped: ScopedLimits) -> ScopedLimits:
        schema = schema_of(tuple(map(change, scoped.schema.limits)), store.lease_us)
        return replace(scoped, schema=schema, degraded=degraded)

    key, own = (store, store.version(resolved.limit_set.namespace)), resolved.template or resolved
    fallback = own.fallbacks.get(key)
    if fallback is None:
        own.fallbacks.clear()
        fallback = own.fallbacks[key] = own.moved(changed, store)
    return fallback if own is resolved else fallback.bound(resolved.limit_set.scopes, version=fallback.version)


def _unchanged(limit: AnyLimit) -> AnyLimit:
    return limit


def _process_share(limit: AnyLimit) -> AnyLimit:
    """The share of a limit that one of the expected processes may admit."""
    processes = conf.get(conf.EXPECTED_PROCESSES) or 1
    match limit:
        case QuotaLimit() | RateLimit() if counts_money(limit):
            return _money_share(limit, processes)
        case Blocked() | CountedUnit():
            return limit
        case ResourceLimit() | QuotaLimit():
            return replace(limit, capacity=max(int(limit.capacity) // processes, 1))
        case _:
            burst = None if limit.burst is None else _part_of(limit.burst, processes)
            return replace(limit, capacity=_part_of(limit.capacity, processes), burst=burst)


def _money_share(limit: QuotaLimit | RateLimit, processes: int) -> AnyLimit:
    """The share in money: a whole number of millionths, at least one."""
    fields: dict[str, Any] = {
        name: from_micro(max(to_micro(amount) // processes, 1))
        for name in ("capacity", "burst")
        if (amount := getattr(limit, name, None)) is not None
    }
    return replace(limit, **fields)


def _part_of(amount: Amount, processes: int) -> Amount:
    """A whole part, at least 1, and at most the amount."""
    return min(amount, max(int(amount // processes), 1))
