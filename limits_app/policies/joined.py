"""Joined sets: the limits of several resources or entities, which are acquired together."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from limits_app import conf
from limits_app.acquiring import LimitSet
from limits_app.conf import OnUnavailable
from limits_app.engine import Scope, ScopedLimits, lower_of
from limits_app.engine.errors import InvalidRequest
from limits_app.policies.kept import Aged, Kept
from limits_app.policies.pools import PoolMembers
from limits_app.policies.resolved_set import Evaluated, ResolvedSet

_STRICTNESS: Final = (OnUnavailable.BLOCK, OnUnavailable.LOCAL, OnUnavailable.ALLOW)
"""The policies from the strictest to the least strict; the strictest one of all sets applies."""

_Change = tuple[str, str]
"""The prefix of the keys of a set, and the priority of its requests."""

_MOST_JOINED: Final = 256
_JOINED: Final[Kept[object, ResolvedSet]] = Kept()
"""Sets of several sets, by the templates of these."""


def joined_set(sets: tuple[ResolvedSet, ...], prefixes: tuple[str, ...], priorities: tuple[str, ...]) -> ResolvedSet:
    """The limits of several resources or entities as one set, compiled once for clients with the same limits.

    These are other sets where other sets have a scope in common, such as a total of their entity. `prefixes` precede
    the keys of each, and `priorities` are those of the requests of each, empty for that of its limits. Raises
    InvalidRequest where several pools would serve the request.
    """
    own = [scope for resolved in sets for scope in resolved.own_scopes]
    in_shadow = [scope for resolved in sets if resolved.shadow is not None for scope in resolved.shadow.scopes]
    form = (
        tuple([resolved.template or resolved for resolved in sets]),
        prefixes,
        priorities,
        _repeated(own),
        _repeated(in_shadow),
    )
    aged = _JOINED.get(form)
    if aged is None:
        joined = _compiled(sets, [*zip(prefixes, priorities, strict=True)])
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
    return {limit: evaluated for resolved in sets for limit, evaluated in resolved.evaluated.items()}


def _compiled(sets: Sequence[ResolvedSet], changes: Sequence[_Change]) -> ResolvedSet:
    first = next((resolved for resolved in sets if not resolved.available), sets[0])
    shadow = _unique([() if resolved.shadow is None else resolved.shadow.scoped for resolved in sets], changes)
    policies = {resolved.on_unavailable or conf.get(conf.ON_UNAVAILABLE) for resolved in sets}
    return ResolvedSet.of(
        _unique([resolved.own for resolved in sets], changes),
        first.store_version,
        _members(sets, changes),
        resource=sets[0].limit_set.resource,
        identity=_identity(sets),
        on_unavailable=min(policies, key=_STRICTNESS.index),
        shadow=LimitSet.composed(shadow, first.store_version.store, version=first.store_version.version)
        if shadow
        else None,
        evaluated=_evaluated(sets),
        accepts_all=any(resolved.limit_set.accepts_all for resolved in sets),
    )


def _members(sets: Sequence[ResolvedSet], changes: Sequence[_Change]) -> PoolMembers | None:
    """The members of the pool that serves a request; InvalidRequest for several pools."""
    pools: dict[str, PoolMembers] = {}
    for resolved, change in zip(sets, changes, strict=True):
        members, (prefix, _) = resolved.members, change
        if members is None:
            continue
        earlier, prices = pools.get(members.name), {prefix + name: some for name, some in members.prices.items()}
        if earlier is None:
            pools[members.name] = replace(members.changed(partial(_changed, change=change)), prices=prices)
        else:
            pools[members.name] = replace(earlier, prices={**earlier.prices, **prices})
    if len(pools) > 1:
        raise InvalidRequest(
            f"a request can be served by one pool, and its resources have several: {', '.join(pools)}; "
            "request them one by one"
        )
    return next(iter(pools.values()), None)


def _unique(sets: Sequence[Iterable[ScopedLimits]], changes: Sequence[_Change]) -> list[ScopedLimits]:
    """The scopes of all sets, each once; a total is charged with the sum of all its shares, in the lowest class."""
    scoped: dict[str, ScopedLimits] = {}
    for limits, change in zip(sets, changes, strict=True):
        for scope_limits in limits:
            earlier, changed = scoped.get(scope_limits.scope.key), _changed(scope_limits, change)
            if earlier is None:
                scoped[scope_limits.scope.key] = changed
            elif scope_limits.scope.total:
                scoped[scope_limits.scope.key] = _of_another(earlier, changed)
    return list(scoped.values())


def _of_another(total: ScopedLimits, other: ScopedLimits) -> ScopedLimits:
    """A total that is also charged for another resource, with the prices of that one, in the lower class."""
    return replace(
        total,
        more_prefixes=(*total.more_prefixes, other.prefix),
        prices=total.prices or (),
        more_prices=(*total.more_prices, other.prices or ()),
        priority=lower_of(total.priority, other.priority),
    )


def _changed(scoped: ScopedLimits, change: _Change) -> ScopedLimits:
    prefix, priority = change
    return replace(scoped, prefix=prefix, priority=priority or scoped.priority)
