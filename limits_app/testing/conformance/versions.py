"""Versions and resets: requests with old limits are stale, and a reset leaves permits with their holders."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from limits_app.core.errors import StaleConfiguration
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    available,
    claim_of,
    give_back,
    limits_of,
    settle,
    snapshot,
    taken,
)

__all__ = ["Versions"]


class Versions(Contract):
    """What an administrator does to a store."""

    def test_the_version_grows_with_every_change(self, store: Store) -> None:
        versions = [store.version(), *[store.advance_version() for _ in range(100)]]
        assert versions == sorted(set(versions))
        assert store.version() == versions[-1]

    def test_who_begins_anew_gives_no_version_again(self, store: Store) -> None:
        """Otherwise a process would continue with the limits that it has kept under an old version."""
        assert store.advance_version() > datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000

    def test_old_limits_are_stale_and_charge_nothing(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), version=store.version())
        timeless = limits_of(store, RateLimit(KEY, 10, 60))
        assert limits.try_acquire({KEY: 4})
        store.advance_version()
        before = snapshot(timeless)
        with pytest.raises(StaleConfiguration):
            limits.try_acquire({KEY: 1})
        with pytest.raises(StaleConfiguration):
            limits.peek({KEY: 1})
        assert snapshot(timeless) == before
        assert limits_of(store, RateLimit(KEY, 10, 60), version=store.version()).try_acquire({KEY: 6})

    def test_limits_without_a_version_are_never_stale(self, store: Store) -> None:
        limits = limits_of(store, CallLimit(10, 60))
        store.advance_version()
        assert limits.try_acquire()

    def test_limits_of_a_version_that_the_store_does_not_know_are_stale_too(self, store: Store) -> None:
        limits = limits_of(store, CallLimit(10, 60), version=store.version() + 1)
        with pytest.raises(StaleConfiguration):
            limits.try_acquire()

    def test_a_claim_decides_nothing_when_it_is_stale(self, store: Store) -> None:
        claim = claim_of(limits_of(store, CallLimit(10, 60), version=store.version()))
        store.advance_version()
        with pytest.raises(StaleConfiguration):
            store.acquire(claim)
        assert claim.admitted is None

    def test_what_was_admitted_before_a_change_is_renewed_and_settled_after_it(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), version=store.version())
        claim = taken(limits, {KEY: 5, "db": 1})
        store.advance_version()
        assert store.renew([claim]) == []
        settle(limits, claim, {KEY: -3, "db": -1})
        now = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), version=store.version())
        assert (available(now), available(now, "db")) == (8, 1)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_reset_forgets_what_was_used(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        claim = taken(limits, {KEY: 10})
        settle(limits, claim, {KEY: 90})
        store.reset([limits.scoped[0].scope.key])
        assert limits.get_stats()[KEY]["used"] == 0
        assert limits.try_acquire({KEY: 10})

    def test_a_reset_leaves_permits_with_their_holders(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1))
        claim = taken(limits, {KEY: 10, "db": 1})
        store.reset([limits.scoped[0].scope.key])
        assert (available(limits), available(limits, "db")) == (10, 0)
        assert not taken(limits, {KEY: 1}).admitted
        give_back(limits, claim)
        assert available(limits, "db") == 1

    def test_a_reset_of_some_limits_leaves_the_others_alone(self, store: Store) -> None:
        limits = limits_of(store, RateLimit("first", 10, 60), RateLimit("second", 10, 60))
        assert limits.try_acquire({"first": 5, "second": 5})
        store.reset([limits.scoped[0].scope.key], ["second", "unknown"])
        assert (available(limits, "first"), available(limits, "second")) == (5, 10)

    def test_a_reset_of_some_scopes_leaves_the_others_alone(self, store: Store) -> None:
        one, two, three = (limits_of(store, CallLimit(1, 60), entity=who) for who in ("one", "two", "three"))
        for limits in (one, two, three):
            assert limits.try_acquire()
        store.reset([one.scoped[0].scope.key, three.scoped[0].scope.key, "v1:never:seen"])
        assert [bool(limits.try_acquire()) for limits in (one, two, three)] == [True, False, True]

    def test_a_refund_after_a_reset_lifts_nothing_over_capacity(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60))
        claim = taken(limits, {KEY: 10})
        store.reset([limits.scoped[0].scope.key])
        settle(limits, claim, {KEY: -10})
        assert available(limits) == 10
        assert limits.try_acquire({KEY: 10})
        assert not limits.try_acquire({KEY: 1})
