"""Bounds: the size of a store depends on the scopes that are active, not on those that were ever used."""

from __future__ import annotations

import pytest

from limits_app.acquiring import Store
from limits_app.engine import DAY, HOUR
from limits_app.engine.limits import AnyLimit, CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    YEAR,
    Contract,
    give_back,
    limits_of,
    newcomers_come,
    reset,
    taken,
)
from limits_app.testing.conformance.token_leases import settled, with_lease

ROUNDS = 12
NEWCOMERS = 40
"""The scopes that are used in each round."""
IDLE: dict[str, AnyLimit] = {
    **{str(algorithm): RateLimit(KEY, 10, 1, algorithm) for algorithm in ALGORITHMS},
    "abandoned_permit": ResourceLimit("db", 2),
    "released_permit": ResourceLimit("db", 2),
}


class Bounds(Contract):
    """Many scopes that are used once; these tests need `count_entries`."""

    def entries(self, store: Store) -> int:
        """How many entries the store keeps."""
        count = self.count_entries(store)
        if count is None:
            pytest.skip("count_entries(store) is not defined")
        return count

    def use_space(self, store: Store) -> None:
        """Use as much space of a store as makes it delete idle scopes; a store may keep them before."""

    @pytest.mark.parametrize("kind", IDLE)
    def test_idle_scopes_are_forgotten(self, store: Store, clock: FakeClock, kind: str) -> None:
        self.use_space(store)
        counts = []
        for crowd in range(ROUNDS):
            for number in range(NEWCOMERS):
                limits = limits_of(store, IDLE[kind], entity=f"{crowd}/{number}")
                claim = taken(limits, {} if "permit" in kind else {KEY: 10})
                assert claim.admitted
                if kind == "released_permit":
                    give_back(limits, claim)
            counts.append(self.entries(store))
            clock.advance(100_000)
        assert max(counts) <= 3 * counts[0]

    def test_tokens_are_forgotten_whether_they_were_settled_or_not(self, store: Store, clock: FakeClock) -> None:
        self.use_space(store)
        counts = []
        for _ in range(ROUNDS):
            for number in range(NEWCOMERS):
                acquisition = with_lease(store, RateLimit(KEY, 10**6, 1)).try_acquire({KEY: 1})
                if number % 2:
                    assert settled(acquisition, {KEY: 1})
            counts.append(self.entries(store))
            clock.advance(100_000)
        assert max(counts) <= 3 * counts[0]

    @pytest.mark.parametrize("kind", [kind for kind in IDLE if kind != "released_permit"])
    def test_scopes_that_were_used_while_the_clock_was_ahead_are_forgotten(
        self, store: Store, clock: FakeClock, kind: str
    ) -> None:
        self.use_space(store)
        clock.advance(5 * YEAR)
        for number in range(5 * NEWCOMERS):
            taken(limits_of(store, IDLE[kind], entity=f"ahead/{number}"), {} if "permit" in kind else {KEY: 10})
        before = self.entries(store)
        clock.advance(-5 * YEAR)
        for crowd in range(ROUNDS):
            newcomers_come(store, f"crowd {crowd}", NEWCOMERS)
            clock.advance(100_000)
        assert self.entries(store) <= before / 2

    def test_peeks_resets_and_refusals_keep_nothing(self, store: Store) -> None:
        busy = limits_of(store, CallLimit(1, HOUR), entity="busy")
        assert busy.try_acquire()
        before = self.entries(store)
        for number in range(NEWCOMERS):
            limits = limits_of(store, RateLimit(KEY, 10, 1), ResourceLimit("db", 1), entity=f"looked at {number}")
            assert limits.peek({KEY: 1}).allowed
            limits.get_stats()
            reset(limits)
            assert not busy.try_acquire()
        assert self.entries(store) == before

    def test_the_requests_of_one_scope_do_not_make_it_grow(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10**6, 1, RateLimitAlgorithm.SLIDING_WINDOW), ResourceLimit("db", 1))
        assert limits.try_acquire({KEY: 1})
        before = self.entries(store)
        for _ in range(2000):
            clock.move(700)
            with limits.try_acquire({KEY: 1}) as acquired:
                acquired.update({KEY: 1})
        assert self.entries(store) <= before + 1

    def test_a_scope_in_use_is_never_forgotten(self, store: Store, clock: FakeClock) -> None:
        quiet = limits_of(store, RateLimit(KEY, 10, DAY, RateLimitAlgorithm.FIXED_WINDOW), entity="quiet")
        assert quiet.try_acquire({KEY: 10})
        for crowd in range(ROUNDS):
            clock.advance(7000)
            newcomers_come(store, f"crowd {crowd}", NEWCOMERS)
            assert not quiet.try_acquire({KEY: 1})
        clock.advance(DAY - 7000 * ROUNDS)
        assert quiet.try_acquire({KEY: 10})
