"""Acquiring on several resources, or for several entities, at once: all or nothing, in one step of the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Final, NamedTuple

from limits_app import conf
from limits_app.conf import OnUnavailable
from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount, check_amounts, shown
from limits_app.core.errors import InvalidRequest, StaleConfiguration
from limits_app.core.keys import check_resource
from limits_app.core.limit_set import LimitSet
from limits_app.core.plan import ScopedLimits
from limits_app.core.planning import nothing_requested
from limits_app.resolver import Key, Limits, PooledSet, ResolvedSet, Supply, joined_supply, resolver
from limits_app.services.asking import Asked, amounts_for
from limits_app.services.freshness import afresh, fresh, tell
from limits_app.services.patience import countdown, while_it_holds
from limits_app.services.shadowing import afollow, follow

__all__ = ["Share", "Together", "aacquire_all", "acquire_all", "atry_acquire_all", "shares_of", "try_acquire_all"]

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

    No two shares may have the same resource and entity, and all must be counted in one store.
    In the acquisition, keys are those of the limits after the resource, such as `api:call_count`; what two shares have
    in common is charged as the first one says.
    Amounts and errors are those of `try_acquire`; no shares are an InvalidRequest, and so is one that comes twice.
    """
    together = Together(shares)
    acquisition = fresh(*shares[0].key, lambda found: found.try_acquire(together.asked_of(found)), by=together)
    if not acquisition.successful:
        tell(acquisition.outcome)
    return follow(acquisition, together.asked_of)


async def atry_acquire_all(shares: Sequence[Share]) -> Acquisition:
    """`try_acquire_all` for asyncio."""
    together = Together(shares)
    acquisition = await afresh(*shares[0].key, lambda found: found.atry_acquire(together.asked_of(found)), by=together)
    if not acquisition.successful:
        tell(acquisition.outcome)
    return await afollow(acquisition, together.asked_of)


def acquire_all(shares: Sequence[Share], timeout: float | None) -> Acquisition:
    """`try_acquire_all` that waits up to `timeout` seconds (None: as long as it takes); LimitTimeout after that."""
    together, left = Together(shares), countdown(timeout)

    def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return found.acquire(together.asked_of(found), seconds)

    return follow(fresh(*shares[0].key, wait, by=together), together.asked_of)


async def aacquire_all(shares: Sequence[Share], timeout: float | None) -> Acquisition:
    """`acquire_all` for asyncio."""
    together, left = Together(shares), countdown(timeout)

    async def wait(found: LimitSet) -> Acquisition:
        with while_it_holds(found, left()) as seconds:
            return await found.aacquire(together.asked_of(found), seconds)

    return await afollow(await afresh(*shares[0].key, wait, by=together), together.asked_of)


def shares_of(
    resources: Mapping[str, Asked], entity: str | None, requested: Asked, default_limits: Limits
) -> list[Share]:
    """What an entity takes of several resources, as the caller of a verb says it; a name alone is the caller's to ask.

    Raises InvalidLimit for what is no mapping, InvalidRequest for a mapping without any resource,
    and for amounts that are said twice.
    """
    if not isinstance(resources, Mapping):
        check_resource(resources)
    if not resources:
        raise InvalidRequest("a mapping of resources to amounts must have some")
    if requested is not None:
        raise InvalidRequest("amounts of several resources are said in their mapping: leave requested= out")
    for name, asked in resources.items():
        if not (asked is None or isinstance(asked, Mapping) or callable(asked)):
            raise InvalidRequest(f"{shown(name)} must be mapped to amounts by key, or to None, not to {shown(asked)}")
    return [Share(check_resource(name), entity, asked, default_limits) for name, asked in resources.items()]


class Together:
    """Resolves all shares of a request; the key that each verb is given is that of one of them."""

    def __init__(self, shares: Sequence[Share]) -> None:
        if not shares:
            raise InvalidRequest("a request for several resources must have some: give a Share for each")
        names = [(share.resource, share.entity) for share in shares]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"{shown(twice[0])} of {shown(twice[1])} is in two shares: add up what they request")
        self._shares = shares
        self._prefixes = _prefixes(tuple([share.resource for share in shares]))
        self._sets: tuple[ResolvedSet, ...] = ()

    def kept(self, *_key: object) -> ResolvedSet | None:
        """The limits of all shares if they are there, fresh and of the same configuration."""
        sets = tuple([found for share in self._shares if (found := resolver.kept(*share.key)) is not None])
        if len(sets) < len(self._shares) or len({(limits.alias, limits.version) for limits in sets}) > 1:
            return None
        self._sets = sets
        return _joined(sets, self._prefixes)

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
        """What the shares ask, as far as what is asked has it; InvalidRequest for a share of which that cannot be."""
        known = {one.prefix + rule.key for one in found.scoped for rule in one.schema.rules}
        asked: dict[str, Amount] = {}
        for share, limits, prefix in zip(self._shares, self._sets, self._prefixes, strict=False):
            amounts = _amounts(share, limits)
            asked |= {prefix + key: amount for key, amount in amounts.items() if prefix + key in known}
        return asked

    def _resolved(self, resolve: Callable[[str, str | None, Limits], ResolvedSet]) -> tuple[ResolvedSet, ...]:
        """The limits of each share; InvalidRequest where they are in several stores, which cannot decide together."""
        sets = tuple([resolve(*share.key) for share in self._shares])
        if _are_apart(sets):  # as it may look, too, while some of them are not known yet to have moved
            self.forget()
            sets = tuple([resolve(*share.key) for share in self._shares])
        if _are_apart(sets):
            where = [f"{share.resource} in {one.alias!r}" for share, one in zip(self._shares, sets, strict=True)]
            raise InvalidRequest(
                f"the resources of a request must be in one store, and are in several: {', '.join(where)}; "
                "ask for them one by one, or have an administrator put them into the same"
            )
        return sets


def _amounts(share: Share, limits: ResolvedSet) -> Mapping[str, Amount]:
    """What a share asks of its own limits; a key that is none of them is skipped, with a warning."""
    amounts = amounts_for(limits, share.requested)
    if amounts is None:
        if limits.rates:
            raise nothing_requested(f"{', '.join(limits.rates)} of {share.resource}")
        return {}
    for key in amounts.keys() - set(limits.keys):
        check_amounts("requested", {key: amounts[key]})
        limits.skip_unknown(key)
    return amounts


def _are_apart(sets: Sequence[ResolvedSet]) -> bool:
    return len({limits.alias for limits in sets}) > 1


@lru_cache(maxsize=1024)
def _prefixes(resources: tuple[str, ...]) -> tuple[str, ...]:
    """What goes before the keys of each share."""
    times = [resources[:place].count(resource) for place, resource in enumerate(resources)]
    return tuple(
        f"{resource}:" if again == 0 else f"{resource}:{again + 1}:"
        for resource, again in zip(resources, times, strict=True)
    )


def _joined(sets: tuple[ResolvedSet, ...], prefixes: tuple[str, ...]) -> ResolvedSet:
    """The limits of all shares as one set, kept for those who come again."""
    pools = len(sets) - [limits.supply for limits in sets].count(None)
    return _combinations(sets, prefixes) if pools > 1 else _composition(sets, prefixes)


def _join(sets: tuple[ResolvedSet, ...], prefixes: tuple[str, ...]) -> ResolvedSet:
    first = sets[0]
    own = _unique([limits.own for limits in sets], prefixes)
    supplies: dict[str, Supply] = {}
    for limits, prefix in zip(sets, prefixes, strict=True):
        if isinstance(limits.supply, Supply):
            supplies.setdefault(limits.supply.name, limits.supply.changed(partial(_prefixed, prefix=prefix)))
    supply = joined_supply(supplies.values())
    if supply is None:
        joined = ResolvedSet.composed(own, first.store, version=first.version)
    else:
        joined = PooledSet.serving(own, supply, first.store, version=first.version)
    joined.resolved_for(tuple([limits.of for limits in sets]), first.alias)
    tried = _unique([() if limits.shadow is None else limits.shadow.scoped for limits in sets], prefixes)
    if tried:
        joined.try_out(LimitSet.composed(tried, first.store, version=first.version))
    return joined


_composition: Final = lru_cache(maxsize=1024)(_join)
# Many sets each, one for every combination of members.
_combinations: Final = lru_cache(maxsize=64)(_join)


def _unique(sets: Sequence[Sequence[ScopedLimits]], prefixes: Sequence[str]) -> list[ScopedLimits]:
    """The scopes of all sets, each once."""
    scoped: dict[str, ScopedLimits] = {}
    for limits, prefix in zip(sets, prefixes, strict=True):
        for one in limits:
            scoped.setdefault(one.scope.key, _prefixed(one, prefix))
    return list(scoped.values())


def _prefixed(one: ScopedLimits, prefix: str) -> ScopedLimits:
    return replace(one, prefix=prefix)
