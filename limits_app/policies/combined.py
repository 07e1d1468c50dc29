"""Combinations: the limits of one combination of parts of a request, beside the bound of all those of its client.

Each combination has a separate counter. A client can send any header, cookie or field: so all its combinations
together have the same limits many times, in the step that charges one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from limits_app.acquiring import LimitSet
from limits_app.engine import (
    VALUES_LEVEL,
    Scope,
    ScopedLimits,
    schema_of,
    scope_of,
    shadow_scope,
    values_scope,
)
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit
from limits_app.policies.kept import Aged, Kept
from limits_app.policies.resolved_set import ResolvedSet

TIMES_OF_A_CLIENT: Final = 1024
"""How many times all combinations of a client have the limits of one."""
TIMES_OF_EVERYONE: Final = 65_536
"""How many times they have them where everyone is counted together."""
_USED_UP: Final = (RateLimit, CallLimit, QuotaLimit)
_MOST_BOUNDED: Final = 256
_BOUNDED: Final[Kept[object, ResolvedSet]] = Kept()
"""Sets with a bound, by the templates of the sets without it."""


def bounded(resolved: ResolvedSet, resource: str, entity: str | None, client: str | None) -> ResolvedSet:
    """Return the limits of a combination, which is an entity, with the bound of those of its client.

    It is compiled once for clients with the same limits. Nothing is bounded where the combination has no counter.
    """
    scope, shadow = scope_of(resource, entity), resolved.shadow
    position = _position(scope, resolved.own_scopes)
    in_shadow = None if shadow is None else _position(shadow_scope(scope), shadow.scopes)
    if position is None and in_shadow is None:
        return resolved
    template, times = resolved.template or resolved, TIMES_OF_EVERYONE if client is None else TIMES_OF_A_CLIENT
    form = template, position, in_shadow, times
    aged = _BOUNDED.get(form)
    if aged is None:
        aged = Aged(_compiled(template, position, in_shadow, times))
        _BOUNDED.add(form, aged, most=_MOST_BOUNDED)
    return _bound(aged.value, resolved, values_scope(scope_of(resource, client)))


def _position(scope: Scope, scopes: Sequence[Scope]) -> int | None:
    return next((position for position, own in enumerate(scopes) if own.key == scope.key), None)


def _compiled(template: ResolvedSet, position: int | None, in_shadow: int | None, times: int) -> ResolvedSet:
    limit_set, shadow = template.limit_set, template.shadow
    if position is not None and (bound := _bound_of(template.own[position], times)) is not None:
        limit_set = template.with_scopes([bound])
    if shadow is not None and in_shadow is not None and (bound := _bound_of(shadow.scoped[in_shadow], times)):
        shadow = LimitSet.composed((*shadow.scoped, bound), shadow.store, version=shadow.version)
    return replace(template, limit_set=limit_set, shadow=shadow, fallbacks={}, template=None)


def _bound_of(scoped: ScopedLimits, times: int) -> ScopedLimits | None:
    """The limits of one combination for so many; None without limits that are used up by requests."""
    limits = tuple([_more(limit, times) for limit in scoped.schema.limits if isinstance(limit, _USED_UP)])
    if not limits:
        return None
    values, schema = values_scope(scoped.scope), schema_of(limits, scoped.schema.lease_us)
    return replace(scoped, scope=values, schema=schema, level=VALUES_LEVEL, levels=(), lasting=False, slice_us=0)


def _more(limit: AnyLimit, times: int) -> AnyLimit:
    """A limit so many times, or as often as limits may be large; it rejects for every priority, also a soft one."""
    fields: dict[str, Any] = {"soft": False, "keep": ()}
    while True:
        for name in ("capacity", "burst"):
            amount = getattr(limit, name, None)
            fields |= {} if amount is None else {name: amount * times}
        try:
            return replace(limit, **fields)
        except InvalidLimit:
            times //= 2


def _bound(compiled: ResolvedSet, resolved: ResolvedSet, values: Scope) -> ResolvedSet:
    """The compiled limits for another client."""
    limit_set, shadow, own = compiled.limit_set, compiled.shadow, resolved.own_scopes
    scopes = _with(own, values, compiled.own_scopes, limit_set.scopes)
    version = resolved.limit_set.version
    if shadow is not None and resolved.shadow is not None:
        of_shadow = _with(resolved.shadow.scopes, shadow_scope(values), shadow.scopes, shadow.scopes)
        shadow = shadow.bound(of_shadow, version=version)
    return replace(
        compiled,
        limit_set=limit_set.bound(scopes, version=version, identity=resolved.limit_set.identity),
        shadow=shadow,
        evaluated=resolved.evaluated,
        template=compiled,
    )


def _with(own: Sequence[Scope], values: Scope, compiled: Sequence[Scope], scopes: Sequence[Scope]) -> tuple[Scope, ...]:
    """The scopes of a client in the order of compiled ones: its own, that of all its values if there is one, others."""
    return (*own, *([values] if len(compiled) > len(own) else ()), *scopes[len(compiled) :])
