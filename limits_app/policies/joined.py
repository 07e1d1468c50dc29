"""Joined sets: the limits of several resources or entities, which are acquired together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from limits_app import conf
from limits_app.acquiring import LimitSet
from limits_app.conf import OnUnavailable
from limits_app.engine import Prices, Scope, ScopedLimits
from limits_app.engine.errors import InvalidRequest
from limits_app.policies.kept import Aged, Kept
from limits_app.policies.pools import PoolMembers
from limits_app.policies.resolved_set import Evaluated, ResolvedSet

_STRICTNESS: Final = (OnUnavailable.BLOCK, OnUnavailable.LOCAL, OnUnavailable.ALLOW)
"""The policies from the strictest to the least strict; the strictest one of all sets applies."""

_MOST_JOINED: Final = 256
_JOINED: Final[Kept[object, ResolvedSet]] = Kept()
"""Sets of several sets, by the templates of these."""


def joined_set(sets: tuple[ResolvedSet, ...], prefixes: tuple[str, ...]) -> ResolvedSet:
    """The limits of several resources or entities as one set, compiled once for clients with the same limits.

    These are other sets where other sets have a scope in common, such as a total of their entity. `prefixes` precede
    the keys of each. Raises InvalidRequest where several pools would serve the request.
    """
    own = [scope for resolved in sets for scope in resolved.own_scopes]
    in_shadow = [scope for resolved in sets if resolved.shadow is not None for scope in resolved.shadow.scopes]
    form = tuple([resolved.template or resolved for resolved in sets]), prefixes, _repeated(own), _repeated(in_shadow)
    aged = _JOINED.get(form)
    if aged is None:
        joined = _compiled(sets, prefixes)
        _JOINED.add(form, Aged(joined), most=_MOST_JOINED)
        return joined
    joined = aged.value
    scopes = tuple({scope.key: scope for scope in own}.values())
    version, shadow = sets[0].limit_set.version, joined.shadow
    limit_set = joined.limit_set.bound(
        (*scopes, *joined.limit_set.scopes[len(scopes) :]), version=version, identity=_identity(sets)
    )
    if shadow is not None:
        shadow = shadow.bound(tuple({scope.key: scope for scope in in_shadow}.values()), version=version)
    return replace(joined, limit_set=limit_set, shadow=shadow, evaluated=_evaluated(sets), template=joined)


def _repeated(scopes: Sequence[Scope]) -> tuple[int, ...]:
    """Where each scope comes first."""
    keys = [scope.key for scope in scopes]
    return tuple(map(keys.index, keys))


def _identity(sets: Sequence[ResolvedSet]) -> Hashable:
    return tuple([resolved.limit_set.identity for resolved in sets])


def _evaluated(sets: Sequence[ResolvedSet]) -> dict[tuple[str, str], Evaluated]:
    return {place: evaluated for resolved in sets for place, evaluated in resolved.evaluated.items()}


def _compiled(sets: Sequence[ResolvedSet], prefixes: Sequence[str]) -> ResolvedSet:
    first = next((resolved for resolved in sets if not resolved.available), sets[0])
    shadow = _unique([() if resolved.shadow is None else resolved.shadow.scoped for resolved in sets], prefixes)
    policies = {resolved.on_unavailable or conf.get(conf.ON_UNAVAILABLE) for resolved in sets}
    return ResolvedSet.of(
        _unique([resolved.own for resolved in sets], prefixes),
        first.store_version,
        _members(sets, prefixes),
        resource=sets[0].limit_set.resource,
        identity=_identity(sets),
        on_unavailable=min(policies, key=_STRICTNESS.index),
        shadow=LimitSet.composed(shadow, first.store_version.store, version=first.store_version.version)
        if shadow
        else None,
        evaluated=_evaluated(sets),
        accepts_all=any(resolved.limit_set.accepts_all for resolved in sets),
    )


def _members(sets: Sequence[ResolvedSet], prefixes: Sequence[str]) -> PoolMembers | None:
    """The members of the pool that serves a request; InvalidRequest for several pools."""
    pools: dict[str, PoolMembers] = {}
    for resolved, prefix in zip(sets, prefixes, strict=True):
        members = resolved.members
        if members is None:
            continue
        earlier = pools.get(members.name)
        if earlier is None:
            pools[members.name] = replace(members.changed(partial(_prefixed, prefix=prefix)), prefixes=(prefix,))
        else:
            pools[members.name] = replace(earlier, prefixes=(*earlier.prefixes, prefix))
    if len(pools) > 1:
        raise InvalidRequest(
            f"a request can be served by one pool, and its resources have several: {', '.join(pools)}; "
            "request them one by one"
        )
    return next(iter(pools.values()), None)


def _unique(sets: Sequence[Iterable[ScopedLimits]], prefixes: Sequence[str]) -> list[ScopedLimits]:
    """The scopes of all sets, each once; a total is charged with the sum of all its shares."""
    scoped: dict[str, ScopedLimits] = {}
    for limits, prefix in zip(sets, prefixes, strict=True):
        for scope_limits in limits:
            earlier = scoped.get(scope_limits.scope.key)
            if earlier is None:
                scoped[scope_limits.scope.key] = _prefixed(scope_limits, prefix)
            elif scope_limits.scope.total:
                scoped[scope_limits.scope.key] = _of_another(earlier, prefix, scope_limits.prices)
    return list(scoped.values())


def _of_another(total: ScopedLimits, prefix: str, prices: Prices | None) -> ScopedLimits:
    """A total that is also charged for another resource, with the prices of that one."""
    return replace(
        total,
        more_prefixes=(*total.more_prefixes, prefix),
        prices=total.prices or (),
        more_prices=(*total.more_prices, prices or ()),
    )


def _prefixed(scoped: ScopedLimits, prefix: str) -> ScopedLimits:
    return replace(scoped, prefix=prefix)
