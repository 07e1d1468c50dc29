"""Templates: the compiled limits of clients that the same policies apply to, each of whom has them by its own name."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from limits_app.engine import EntityScopes, Scope
from limits_app.models import PolicyScope
from limits_app.policies.chain import PolicyChain
from limits_app.policies.precedence import rollout_position
from limits_app.policies.resolution import DefaultLimits, Reading, resolution_of
from limits_app.policies.resolved_set import Evaluated, Resolution, ResolvedSet

_OF_A_PATTERN: Final = frozenset({PolicyScope.PATTERN_ON_RESOURCE, PolicyScope.PATTERN, PolicyScope.PATTERN_TOTAL})


class Template:
    """The limits of one client, which others have under their own names.

    `uses_code` says whether they are those that code sets.
    """

    __slots__ = ("_limits", "_resource", "_shadow", "resolved", "uses_code")

    def __init__(self, resolution: Resolution) -> None:
        first, *above = resolution.choices
        others, shadow = frozenset([choice.entity for choice in above]), resolution.resolved.shadow
        self.resolved = resolution.resolved
        self.uses_code = first.uses_code
        self._resource = resolution.resource
        self._limits = EntityScopes(self.resolved.limit_set.scopes, first.entity, others)
        self._shadow = None if shadow is None else EntityScopes(shadow.scopes, first.entity, others)

    def bind(self, entity: str | None, version: int) -> ResolvedSet:
        """The limits of a client, for a version of the configuration."""
        own = self.resolved
        scopes = self._limits.of(entity)
        limit_set = own.limit_set.bound(scopes, version=version, identity=(self._resource, entity))
        shadow, evaluated = own.shadow, own.evaluated
        if shadow is not None and self._shadow is not None:
            shadow = shadow.bound(self._shadow.of(entity), version=version)
            scopes = (*scopes, *shadow.scopes)
        if evaluated:
            evaluated = _moved(evaluated, self._scopes(), scopes)
        # By position, which takes a tenth of the time: each client that is new has this.
        return ResolvedSet(limit_set, own.alias, own.on_unavailable, shadow, own.available, evaluated, {}, own)

    def _scopes(self) -> Sequence[Scope]:
        shadow = self.resolved.shadow
        return (*self.resolved.limit_set.scopes, *(() if shadow is None else shadow.scopes))


def _moved(
    evaluated: Mapping[tuple[str, str], Evaluated], before: Sequence[Scope], now: Sequence[Scope]
) -> dict[tuple[str, str], Evaluated]:
    keys = {old.key: new.key for old, new in zip(before, now, strict=True)}
    return {(keys[scope], key): policy for (scope, key), policy in evaluated.items()}


class Templates:
    """The templates of clients that the same policies apply to, as far as a rollout includes them.

    A rollout includes the positions below its percentage, so the clients between two percentages share a template.
    `reading` was made for any one of these clients.
    """

    def __init__(self, reading: Reading, resource: str, default_limits: DefaultLimits) -> None:
        self._reading = reading
        self._resource = resource
        self._default_limits = default_limits
        link = reading.chain.links[0]
        percents = {policy.rollout_percent for policy in link.policies}
        percents |= {policy.candidate.percent for policy in link.policies if policy.candidate is not None}
        self._percents = sorted(percents - {0, 100})
        self._by_class: dict[int, Template] = {}

    def find(self, entity: str | None) -> Template | None:
        """The template of a client; None where it was not compiled."""
        return self._by_class.get(self._class_of(entity) if self._percents else 0)

    def compiled(self, entity: str | None, at: datetime) -> Template:
        """Compile the template of a client, at a time."""
        chain = self._reading.chain
        first, *above = chain.links
        reading = self._reading._replace(chain=replace(chain, links=[replace(first, entity=entity), *above]))
        template = Template(resolution_of(reading, self._resource, self._default_limits, at))
        self._by_class[self._class_of(entity)] = template
        return template

    def _class_of(self, entity: str | None) -> int:
        return bisect_right(self._percents, rollout_position(entity)) if self._percents else 0


def is_of_no_client(chain: PolicyChain, plan: str | None, patterns: Collection[str]) -> bool:
    """Whether a chain is that of all clients without rows that send a plan and match some patterns.

    A row may have been added since the identifiers, or the patterns, were looked up.
    """
    if chain.has_row or chain.plan not in {None, plan}:
        return False
    matching = [policy.subject for policy in chain.links[0].policies if policy.level in _OF_A_PATTERN]
    return all(pattern in patterns for pattern in matching)
