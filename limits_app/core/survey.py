"""Surveys: the live state of many scopes at once, as one snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from limits_app.core.claim import Claim
from limits_app.core.parts import Ask, Part, ScopedLimits
from limits_app.core.plan import Plan
from limits_app.core.stats import Stats, stats_by_scope
from limits_app.core.store import Store

__all__ = ["survey"]


class Overlook(Plan):
    """Every limit of many scopes, to be looked at and never charged: so nothing is written out for it."""

    def __init__(self, scoped: Iterable[ScopedLimits], version: int | None) -> None:
        self.parts = tuple([Part(one) for one in scoped])
        self.asks = tuple(
            [Ask(part, index, rule) for part in self.parts for index, rule in enumerate(part.layout.rules)]
        )
        self.scopes = tuple([part.key for part in self.parts])
        self.only = None
        self.permits = frozenset()
        self.version = version


def survey(scoped: Iterable[ScopedLimits], store: Store, version: int | None) -> dict[str, dict[str, Stats]]:
    """Read scopes that differ in one step of the store: by key of scope, by key of limit. `stats_of` lists the fields.

    Raises StaleConfiguration where `version` is not that of the configuration any more, StoreUnavailable.
    """
    plan = Overlook(scoped, version)
    if not plan.parts:
        return {}
    claim = Claim(plan, [0] * len(plan.asks))
    store.peek(claim)
    return stats_by_scope(claim)
