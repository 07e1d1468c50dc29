"""Acquiring on several resources, or for several entities, at once: all or nothing, in one step of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.conf import OnUnavailable
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.errors import StaleConfiguration
from limits_app.core.limit_set import LimitSet
from limits_app.core.plan import ScopedLimits
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

    No two shares may have the same resource and entity. In the acquisition, keys are those of the limits
    after the resource, such as `api:call_count`; what two shares have in common is charged as the first one says.
    Amounts and errors are those of `try_acquire`.
    """
    together = _Together(shares)
    acquisition = fresh(*shares[0].key, lambda found: found.try_acquire(together.asked_of(found)), by=together)
    if not acquisition.admitted:
        tell(acquisition.outcome)
    return follow(acquisition, together.asked_of)


class _Together:
    """Resolves all shares of a request; the key that each verb is given is that of one of them."""

    def __init__(self, shares: Sequence[Share]) -> None:
        self._shares = shares
        self._prefixes = _prefixes(tuple([share.resource for share in shares]))
        self._sets: tuple[ResolvedSet, ...] = ()

    def limit_set(self, *_key: object) -> ResolvedSet:
        """The limits of all shares; StaleConfiguration where they are not of the same configuration."""
        self._sets = self._resolved(resolver.limit_set)
        if len({limits.version for limits in self._sets}) > 1:
            raise StaleConfiguration("the shares of a request are of different configurations")
        return _joined(self._sets, self._prefixes)

    def without_store(self, *_key: object) -> ResolvedSet:
        """The same while nobody can ask the store; the strictest policy counts."""
        self._sets = self._resolved(resolver.without_store)
        joined = _joined(self._sets, self._prefixes)
        policies = {limits.on_unavailable or conf.get(conf.ON_UNAVAILABLE) for limits in self._sets}
        joined.on_unavailable = min(policies, key=_STRICTNESS.index)
        return joined

    def forget(self, *_key: object) -> None:
        """Resolve all of them anew next time."""
        for share, limits in zip_longest(self._shares, self._sets):
            resolver.forget(share.resource, share.entity, share.default_limits, limits)
        self._sets = ()

    def asked_of(self, found: LimitSet) -> Mapping[str, Amount]:
        """What the shares ask, as far as what is asked has it."""
        known = {one.prefix + rule.key for one in found.scoped for rule in one.layout.rules}
        asked: dict[str, Amount] = {}
        for share, limits, prefix in zip(self._shares, self._sets, self._prefixes, strict=False):
            amounts = amounts_for(limits, share.requested) or {}
            asked |= {prefix + key: amount for key, amount in amounts.items() if prefix + key in known}
        return asked

    def _resolved(self, resolve: Callable[[str, str | None, Limits], ResolvedSet]) -> tuple[ResolvedSet, ...]:
        return tuple([resolve(*share.key) for share in self._shares])


@lru_cache(maxsize=1024)
def _prefixes(resources: tuple[str, ...]) -> tuple[str, ...]:
    """What goes before the keys of each share."""
    times = [resources[:place].count(resource) for place, resource in enumerate(resources)]
    return tuple(
        f"{resource}:" if again == 0 else f"{resource}:{again + 1}:"
        for resource, again in zip(resources, times, strict=True)
    )


@lru_cache(maxsize=1024)
def _joined(sets: tuple[ResolvedSet, ...], prefixes: tuple[str, ...]) -> ResolvedSet:
    first = sets[0]
    joined = ResolvedSet.composed(_unique(sets, prefixes), first.store, version=first.version)
    tried = _unique([limits.shadow for limits in sets], prefixes)
    if tried:
        joined.shadow = LimitSet.composed(tried, first.store, version=first.version)
    return joined


def _unique(sets: Sequence[LimitSet | None], prefixes: Sequence[str]) -> list[ScopedLimits]:
    """The scopes of all sets, each once."""
    scoped: dict[str, ScopedLimits] = {}
    for limits, prefix in zip(sets, prefixes, strict=True):
        for one in () if limits is None else limits.scoped:
            scoped.setdefault(one.scope.key, replace(one, prefix=prefix))
    return list(scoped.values())
