"""Compiling: what was chosen for a chain of entities, as one limit set over the scopes of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from limits_app.conf import OnUnavailable
from limits_app.core.keys import Scope, scope_of, shadow_scope, shared_scope
from limits_app.core.layout import layout_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.plan import ScopedLimits
from limits_app.core.store import Store
from limits_app.models import Candidate
from limits_app.resolver.chosen import PRECEDENCE, Choice, Held

__all__ = ["Resolution", "ResolvedSet", "compiled"]

"""What the keys of scopes end with on which policies are tried; no other key does."""


class ResolvedSet(LimitSet):
    """The limits that hold, and what happens while their store is down (None: what the site says).

    `changes_at` is when a date or an hour comes that may change them, in seconds of the system's clock; None for never.
    `shadow` are the limits that are tried at the same time and refuse nothing.
    """

    on_unavailable: OnUnavailable | None = None
    changes_at: float | None = None
    shadow: LimitSet | None = None


@dataclass(frozen=True, slots=True)
class Resolution:
    """What holds for an entity on a resource: a choice for it and for each above it that is charged too.

    `shadows` are the choices of those for whom policies are tried, as they would be if these were enforced.
    """

    resource: str
    entity: str | None
    choices: tuple[Choice, ...]
    shadows: tuple[Choice, ...]
    limit_set: ResolvedSet

    @property
    def considered(self) -> tuple[Candidate, ...]:
        """The policies about the entity itself, in order of precedence."""
        return tuple(verdict.candidate for verdict in self.choices[0].verdicts)


def compiled(
    resource: str, choices: Sequence[Choice], shadows: Sequence[Choice], *, store: Store, version: int
) -> ResolvedSet:
    """Compile choices into one limit set; its on_unavailable is what the first of them that says anything says."""
    resolved = ResolvedSet.composed(_unique(resource, choices, store.lease_us), store, version=version)
    resolved.on_unavailable = next((choice.on_unavailable for choice in choices if choice.on_unavailable), None)
    tried = [_in_the_shadow(one) for one in _unique(resource, shadows, store.lease_us)]
    if tried:
        resolved.shadow = LimitSet.composed(tried, store, version=version)
    return resolved


def _unique(resource: str, choices: Iterable[Choice], lease_us: int) -> list[ScopedLimits]:
    """The scopes of all choices; what an entity and its parent share is charged once, as the entity has it."""
    scoped: dict[str, ScopedLimits] = {}
    for choice in choices:
        for one in _scoped(resource, choice, lease_us):
            scoped.setdefault(one.scope.key, one)
    return list(scoped.values())


def _scoped(resource: str, choice: Choice, lease_us: int) -> Iterator[ScopedLimits]:
    own = [held for held in choice.limits if not held.shared]
    if own:
        yield _in_scope(scope_of(resource, choice.entity), own, lease_us)
    for held in choice.limits:
        if held.shared:
            yield _in_scope(shared_scope(resource, held.limit.key), [held], lease_us)


def _in_scope(scope: Scope, limits: Sequence[Held], lease_us: int) -> ScopedLimits:
    level = min((held.candidate.level for held in limits), key=PRECEDENCE.index)
    return ScopedLimits(scope, layout_of(tuple(held.limit for held in limits), lease_us), level)


def _in_the_shadow(scoped: ScopedLimits) -> ScopedLimits:
    return replace(scoped, scope=shadow_scope(scoped.scope))
