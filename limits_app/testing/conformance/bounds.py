"""Bounds: what a store keeps depends on who is active, not on who was ever seen."""

from __future__ import annotations

import pytest

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import ALGORITHMS, KEY, Contract, limits_of, taken

__all__ = ["Bounds"]

CROWD = 100
ROUNDS = 12


class Bounds(Contract):
    """Crowds that come once and never again; these tests need `count_entries`."""

    def entries(self, store: Store) -> int:
        """How many entries the store keeps."""
        count = self.count_entries(store)
        if count is None:
            pytest.skip("count_entries(store) is not defined")
        return count

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_idle_scopes_are_forgotten(self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm) -> None:
        counts = []
        for crowd in range(ROUNDS):
            for number in range(CROWD):
                limits = limits_of(store, RateLimit(KEY, 10, 1, algorithm), entity=f"{crowd}/{number}")
                assert limits.try_acquire({KEY: 10})
            counts.append(self.entries(store))
            clock.advance(100_000)
        assert max(counts) <= 3 * counts[0]

    def test_abandoned_permits_are_forgotten(self, store: Store, clock: FakeClock) -> None:
        counts = []
        for crowd in range(ROUNDS):
            for number in range(CROWD):
                assert taken(limits_of(store, ResourceLimit("db", 2), entity=f"{crowd}/{number}")).admitted
            counts.append(self.entries(store))
            clock.advance(100_000)
        assert max(counts) <= 3 * counts[0]

    def test_permits_that_were_given_back_leave_nothing_behind(self, store: Store, clock: FakeClock) -> None:
        counts = []
        for crowd in range(ROUNDS):
            for number in range(CROWD):
                with limits_of(store, ResourceLimit("db", 2), entity=f"{crowd}/{number}").try_acquire() as held:
                    assert held
            counts.append(self.entries(store))
            clock.advance(100_000)
        assert max(counts) <= 3 * counts[0]

    def test_looking_keeps_nothing(self, store: Store) -> None:
        before = self.entries(store)
        for number in range(CROWD):
            limits = limits_of(store, RateLimit(KEY, 10, 1), ResourceLimit("db", 1), entity=f"looked at {number}")
            assert limits.peek({KEY: 1}).allowed
            limits.get_stats()
            store.reset([limits.scoped[0].scope.key])
        assert self.entries(store) == before

    def test_refusals_keep_nothing(self, store: Store) -> None:
        busy = limits_of(store, CallLimit(1, 3600), entity="busy")
        assert busy.try_acquire()
        before = self.entries(store)
        for _ in range(CROWD):
            assert not busy.try_acquire()
        assert self.entries(store) == before

    def test_the_traffic_of_one_scope_does_not_make_it_grow(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10**6, 1, RateLimitAlgorithm.SLIDING_WINDOW), ResourceLimit("db", 1))
        assert limits.try_acquire({KEY: 1})
        before = self.entries(store)
        for _ in range(3000):
            clock.move(700)
            with limits.try_acquire({KEY: 1}) as acquired:
                acquired.update({KEY: 1})
        assert self.entries(store) <= before + 1

    def test_what_is_still_counted_is_never_forgotten(self, store: Store, clock: FakeClock) -> None:
        quiet = limits_of(store, RateLimit(KEY, 10, 86_400, RateLimitAlgorithm.FIXED_WINDOW), entity="quiet")
        assert quiet.try_acquire({KEY: 10})
        for crowd in range(ROUNDS):
            clock.advance(7000)
            for number in range(CROWD):
                assert limits_of(store, CallLimit(1, 1), entity=f"{crowd}/{number}").try_acquire()
            assert not quiet.try_acquire({KEY: 1})
        clock.advance(86_400 - 7000 * ROUNDS)
        assert quiet.try_acquire({KEY: 10})
