"""Scopes that were used before their limits changed to any others, on every database."""

from __future__ import annotations

from itertools import permutations

import pytest

from limits_app.core.errors import StaleConfiguration
from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.models import ScopeState
from limits_app.stores.database import DatabaseStore
from limits_app.testing.conformance.contract import claim_of, limits_of, taken
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS

YEAR = 366 * 86_400
UNITS = [RateLimit("units", 10, YEAR, algorithm) for algorithm in RateLimitAlgorithm]
DEFINITIONS: dict[str, list[AnyLimit]] = {
    "empty": [],
    "blocked": [Blocked()],
    "calls": [CallLimit(9, YEAR)],
    "permits": [ResourceLimit("units", 5), CallLimit(9, YEAR)],
    "ordered": [CallLimit(9, YEAR), ResourceLimit("units", 5)],
    "quota": [QuotaLimit("units", 10, "day")],
    "soft": [RateLimit("units", 1, YEAR, soft=True)],
    **{str(limit.algorithm): [limit] for limit in UNITS},
}


def use(store: DatabaseStore, limits: list[AnyLimit]) -> None:
    """Acquire, release, and read what the pages of a site show."""
    one = limits_of(store, *limits)
    claim = taken(one, {limit.key: 1 for limit in limits if limit.key == "units"})
    assert claim.admitted is not any(isinstance(limit, Blocked) for limit in limits)
    if claim.admitted:
        store.settle(claim, claim.plan.changes((), claim.amounts))
    assert list(one.get_stats()) == [limit.key for limit in limits]


@pytest.mark.parametrize("counts", [False, True], ids=["", "reset_between"])
def test_a_used_scope_takes_any_other_limits(open_store: Open, *, counts: bool) -> None:
    store = open_store()
    for before, after in permutations(DEFINITIONS.values(), 2):
        for limits in (before, after, before):
            use(store, limits)
            if counts:
                store.reset([limits_of(store, *after).scoped[0].scope.key])
        store.reset([limits_of(store, *after).scoped[0].scope.key])


def test_the_version_is_compared_before_a_record_is_rewritten(open_store: Open) -> None:
    store = open_store()
    assert taken(limits_of(store, CallLimit(9, YEAR))).admitted
    rows = ScopeState._default_manager.using(ALIAS).values_list("states")
    before = list(rows.all())
    stale = limits_of(store, Blocked(), version=store.version() + 1)
    for verb in (store.acquire, store.peek):
        with pytest.raises(StaleConfiguration):
            verb(claim_of(stale))
    assert list(rows.all()) == before
