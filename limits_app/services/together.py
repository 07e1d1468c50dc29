"""Acquiring on several resources, or for several entities, at once: all or nothing, in one step of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, zip_longest
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.conf import OnUnavailable
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import NeverAdmissible, StaleConfiguration
from limits_app.core.holding import hold
from limits_app.core.keys import Scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.core.plan import Ask, ScopedLimits, parts_of, plan_for
from limits_app.resolver import Key, Limits, ResolvedSet, resolver
from limits_app.services.acquiring import fresh, tell
from limits_app.services.asking import Asked, amounts_for
from limits_app.services.shadowing import follow

__all__ = ["Share", "try_acquire_all"]

_STRICTNESS: Final = (OnUnavailable.BLOCK, OnUnavailable.LOCAL, OnUnavailable.ALLOW)


class Share(NamedTuple):
    """What one resource and entity have to give to a request; the words are those of `try_acquire`."""

    resource: str
    entity: str | None = None
    requested: Asked = None
    default_limits: Limits = ()

    @property
    def key(self) -> Key:
        """What the resolver knows it by."""
        return self.resource, self.entity, self.default_limits


def try_acquire_all(shares: Sequence[Share]) -> Acquisition:
    """Acquire all shares now, or none; a refusal is a falsy acquisition whose `outcome` says why.

    No two shares may have the same resource and entity.
    Of a call or resource limit that a share does not name it takes 1, and none of a rate.
    Raises what `try_acquire` does.
    """
    together = _Together(shares)
    acquisition = fresh(*shares[0].key, together.take, by=together)
    if not acquisition.admitted:
        tell(acquisition.outcome)
    return follow(acquisition, together.asked_of)


class _Together:
    """Resolves all shares of a request; the key that each verb is given is that of one of them."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares
        self._sets: tuple[ResolvedSet, ...] = ()

    def limit_set(self, *_key: object) -> ResolvedSet:
        """The limits of all shares; StaleConfiguration where they are not of the same configuration."""
        self._sets = self._resolved(resolver.limit_set)
        return _joined(self._sets)

    def without_store(self, *_key: object) -> ResolvedSet:
        """The same while nobody can ask the store; the strictest policy counts."""
        self._sets = self._resolved(resolver.without_store)
        joined = _of_scopes(self._sets)
        policies = {limits.on_unavailable or conf.get(conf.ON_UNAVAILABLE) for limits in self._sets}
        joined.on_unavailable = min(policies, key=_STRICTNESS.index)
        return joined

    def forget(self, *_key: object) -> None:
        """Resolve all of them anew next time."""
        for share, limits in zip_longest(self._shares, self._sets):
            resolver.forget(*share.key, limits)

    def take(self, found: LimitSet) -> Acquisition:
        """Charge every share what it asks for."""
        if not found.scoped:
            return found.try_acquire()
        amounts = self._amounts()
        named = {key for asked in amounts.values() for key in asked}
        calls = [asked.get(CallLimit.key, 1) for asked in amounts.values()]
        plan = plan_for(
            found.scoped, named, version=found.version, left_out=(), reports_calls=any(amount > 1 for amount in calls)
        )
        charges = [(ask, _parts(ask, amounts[ask.part.scoped.scope])) for ask in plan.asks]
        acquisition = Acquisition(found, plan, charges)
        if any(parts > ask.ceiling for ask, parts in charges):
            found.store.peek(acquisition)
            raise NeverAdmissible(acquisition.outcome)
        if found.store.acquire(acquisition) and plan.permits:
            hold(acquisition)
        return acquisition

    def _resolved(self, resolve: Callable[[str, str | None, Limits], ResolvedSet]) -> tuple[ResolvedSet, ...]:
        return tuple([resolve(*share.key) for share in self._shares])

    def asked_of(self, found: LimitSet) -> Mapping[str, Amount]:
        """What the shares ask of limits that are tried beside them."""
        asked: dict[str, Amount] = {}
        for share in self._shares:
            asked |= amounts_for(found, share.requested) or {}
        return asked

    def _amounts(self) -> dict[Scope, Mapping[str, Amount]]:
        """What is asked of each scope, by key; what two shares have in common is charged as the first one says."""
        found: dict[Scope, Mapping[str, Amount]] = {}
        for share, limits in zip(self._shares, self._sets, strict=True):
            asked = amounts_for(limits, share.requested) or {}
            for one in limits.scoped:
                found.setdefault(one.scope, asked)
        return found


@lru_cache(maxsize=1024)
def _joined(sets: tuple[ResolvedSet, ...]) -> ResolvedSet:
    if len({limits.version for limits in sets}) > 1:
        raise StaleConfiguration("the shares of a request are of different configurations")
    return _of_scopes(sets)


def _of_scopes(sets: Iterable[ResolvedSet]) -> ResolvedSet:
    first, *_ = sets = tuple(sets)
    joined = ResolvedSet.composed(_unique(sets), first.store, version=first.version)
    tried = _unique(limits.shadow for limits in sets if limits.shadow is not None)
    if tried:
        joined.shadow = LimitSet.composed(tried, first.store, version=first.version)
    return joined


def _unique(sets: Iterable[LimitSet]) -> list[ScopedLimits]:
    scoped: dict[str, ScopedLimits] = {}
    for one in chain.from_iterable(limits.scoped for limits in sets):
        scoped.setdefault(one.scope.key, one)
    return list(scoped.values())


def _parts(ask: Ask, asked: Mapping[str, Amount]) -> int:
    usual = 0 if isinstance(ask.rule.limit, RateLimit) else 1
    return parts_of(ask, asked.get(ask.key, usual))
