"""Compiling: what was chosen for a chain of entities, as one limit set over the scopes of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from limits_app.core.keys import Scope, scope_of, shadow_scope, shared_scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.plan import ScopedLimits
from limits_app.models import Candidate, PolicyScope
from limits_app.resolver.chosen import PRECEDENCE, Choice, Held
from limits_app.resolver.layouts import LayOut, layouts
from limits_app.resolver.pooled import PooledSet
from limits_app.resolver.present import Place
from limits_app.resolver.resolved import ResolvedSet
from limits_app.resolver.supply import Supply

__all__ = ["Resolution", "compiled", "scopes_of"]

_OF_AN_ENTITY: Final = frozenset({PolicyScope.ENTITY_ON_RESOURCE.value, PolicyScope.ENTITY.value})


@dataclass(frozen=True, slots=True)
class Resolution:
    """What holds for an entity on a resource: a choice for it and for each above it that is charged too.

    `shadows` are the choices of those for whom policies are tried, as they would be if these were enforced.
    A resource that is not `known` has no row.
    """

    resource: str
    entity: str | None
    choices: tuple[Choice, ...]
    shadows: tuple[Choice, ...]
    limit_set: ResolvedSet
    known: bool = True

    @property
    def considered(self) -> tuple[Candidate, ...]:
        """The policies about the entity itself, in order of precedence."""
        return tuple(verdict.candidate for verdict in self.choices[0].verdicts)


def compiled(
    resource: str,
    choices: Sequence[Choice],
    shadows: Sequence[Choice],
    *,
    place: Place,
    supply: Supply | None = None,
) -> ResolvedSet:
    """Compile choices into one limit set; its on_unavailable is what the first of them that says anything says."""
    alias, store, version = place
    scoped = scopes_of(resource, choices, layouts(store))
    if supply is None:
        resolved = ResolvedSet.composed(scoped, store, version=version)
    else:
        resolved = PooledSet.serving(scoped, supply, store, version=version)
    resolved.resolved_for((resource, choices[0].entity), alias)
    resolved.on_unavailable = next((choice.on_unavailable for choice in choices if choice.on_unavailable), None)
    tried = [_in_the_shadow(one) for one in scopes_of(resource, shadows, layouts(store, counts=False))]
    if tried:
        resolved.try_out(LimitSet.composed(tried, store, version=version))
    return resolved


def scopes_of(resource: str, choices: Iterable[Choice], lay_out: LayOut) -> list[ScopedLimits]:
    """The scopes of all choices; what an entity and its parent share is charged once, as the entity has it."""
    scoped: dict[str, ScopedLimits] = {}
    for choice in choices:
        for one in _scoped(resource, choice, lay_out):
            scoped.setdefault(one.scope.key, one)
    return list(scoped.values())


def _scoped(resource: str, choice: Choice, lay_out: LayOut) -> Iterator[ScopedLimits]:
    own = [held for held in choice.limits if not held.shared]
    if own:
        yield _in_scope(scope_of(resource, choice.entity), own, lay_out)
    for held in choice.limits:
        if held.shared:
            yield _in_scope(shared_scope(resource, held.limit.key), [held], lay_out)


def _in_scope(scope: Scope, limits: Sequence[Held], lay_out: LayOut) -> ScopedLimits:
    levels = tuple(held.candidate.level for held in limits)
    layout = lay_out(tuple(held.limit for held in limits))
    level = min(levels, key=PRECEDENCE.index)
    return ScopedLimits(scope, layout, level, levels=levels, lasting=level in _OF_AN_ENTITY)


def _in_the_shadow(scoped: ScopedLimits) -> ScopedLimits:
    return replace(scoped, scope=shadow_scope(scoped.scope))
