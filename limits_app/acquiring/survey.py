"""Surveys: statistics of different scopes, read in one step of a store."""

from __future__ import annotations

from collections.abc import Iterable

from limits_app.acquiring.store import Store
from limits_app.engine import Claim, ScopedLimits, plan_for, stats_by_scope
from limits_app.engine.outcome import Stats


def survey_scopes(scoped: Iterable[ScopedLimits], store: Store, version: int | None) -> dict[str, dict[str, Stats]]:
    """Read different scopes in one step of the store; return statistics by key of the scope and key of the limit.

    Raises StaleConfiguration where `version` is not the present configuration, and StoreUnavailable.
    """
    scopes = list(scoped)
    keys = {key for scope in scopes for rule in scope.schema.rules for key in scope.keys_of(rule)}
    plan = plan_for(scopes, keys, left_out=())
    if not plan.scopes:
        return {}
    claim = Claim(plan, [0] * len(plan.shape.limits), version)
    store.peek(claim)
    return stats_by_scope(claim)
