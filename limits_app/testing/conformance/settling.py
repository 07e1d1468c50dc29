"""Settling: refunds, over-use, debt, and settling the same claim twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    REFUNDING,
    Contract,
    available,
    limits_in,
    limits_of,
    scoped,
    settle,
    snapshot,
    taken,
    wait_us,
)

__all__ = ["Settling"]

KEEPING = tuple(algorithm for algorithm in ALGORITHMS if algorithm not in REFUNDING)


class Settling(Contract):
    """What becomes of amounts that were used otherwise than they were requested."""

    @pytest.mark.parametrize("algorithm", REFUNDING)
    def test_what_was_not_used_is_given_back(self, store: Store, algorithm: RateLimitAlgorithm) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        with limits.try_acquire({KEY: 8}) as acquired:
            acquired.update({KEY: 3})
        assert available(limits) == 7

    def test_threads_that_release_the_same_at_the_same_time_give_it_back_once(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 100, 366 * 86_400))
        assert limits.try_acquire({KEY: 50})
        barrier = Barrier(2)

        def release(acquired: Acquisition) -> None:
            barrier.wait()
            acquired.release()

        with ThreadPoolExecutor(2) as threads:
            for _ in range(20):
                acquired = limits.try_acquire({KEY: 10})
                acquired.update({KEY: 0})
                list(threads.map(release, [acquired] * 2))
        assert available(limits) == pytest.approx(50, abs=0.1)

    @pytest.mark.parametrize("algorithm", KEEPING)
    def test_what_was_not_used_stays_spent_where_the_algorithm_cannot_refund(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        with limits.try_acquire({KEY: 8}) as acquired:
            acquired.update({KEY: 3})
        assert available(limits) == 2

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("passed_ms", [0, 1, 1000, 29_999, 60_000, 3_600_000])
    def test_a_late_refund_never_lifts_the_level_over_the_burst(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm, passed_ms: int
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        acquired = limits.try_acquire({KEY: 10})
        clock.move(passed_ms * 1000)
        acquired.update({KEY: 0})
        acquired.release()
        assert available(limits) <= 10
        left = available(limits)
        assert limits.try_acquire({KEY: int(left)})
        assert not limits.try_acquire({KEY: 1})

    @pytest.mark.parametrize("algorithm", REFUNDING)
    @pytest.mark.parametrize("given_back", [0.001, 0.5, 2, 9.999])
    def test_a_refund_is_exact(self, store: Store, algorithm: RateLimitAlgorithm, given_back: Amount) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        acquired = limits.try_acquire({KEY: 10})
        acquired.update({KEY: round(10 - given_back, 3)})
        acquired.release()
        assert limits.try_acquire({KEY: given_back})
        assert not limits.try_acquire({KEY: 0.001})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_using_more_than_requested_is_debt(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        with limits.try_acquire({KEY: 4}) as acquired:
            acquired.update({KEY: 22})
        assert "22 used" in caplog.text
        stats = limits.get_stats()[KEY]
        assert (stats["used"], stats["available"], stats["utilization"]) == (22, 0, 2.2)
        refused = limits.try_acquire({KEY: 1})
        expected = 13 * 6_000_000 if algorithm in DRAINING else 60_000_000
        assert wait_us(refused) == expected
        clock.move(expected - 1)
        assert not limits.try_acquire({KEY: 1})
        clock.move(1)
        assert limits.try_acquire({KEY: 1})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_nothing_is_admitted_in_debt_not_even_a_request_for_nothing(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        afterwards = limits.try_acquire({KEY: 0})
        assert afterwards
        afterwards.update({KEY: 10})
        afterwards.release()
        assert limits.try_acquire({KEY: 0}), "all is used, but not more"
        afterwards = limits.try_acquire({KEY: 0})
        afterwards.update({KEY: 1})
        afterwards.release()
        refused = limits.try_acquire({KEY: 0})
        wait = wait_us(refused)
        assert wait == (6_000_000 if algorithm in DRAINING else 60_000_000)
        clock.move(wait - 1)
        assert not limits.try_acquire({KEY: 0})
        clock.move(1)
        assert limits.try_acquire({KEY: 0})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_debt_is_remembered_up_to_a_bound_that_fits_every_number(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10**6, 86_400, algorithm))
        for _ in range(3):
            claim = taken(limits, {KEY: 0})
            settle(limits, claim, {KEY: 10**12})
        for _, _, numbers in snapshot(limits):
            assert all(abs(number) < 2**53 for number in numbers if isinstance(number, int))
        assert not limits.try_acquire({KEY: 0})

    @pytest.mark.parametrize("change", [-3, 3])
    def test_settling_a_claim_again_changes_nothing(self, store: Store, change: int) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 3))
        others = taken(limits, {KEY: 1, "db": 1})
        claim = taken(limits, {KEY: 5, "db": 1})
        assert not claim.settled
        settle(limits, claim, {KEY: change, "db": -1})
        assert claim.settled
        before = snapshot(limits)
        settle(limits, claim, {KEY: change, "db": -1})
        settle(limits, claim, {KEY: -1})
        assert snapshot(limits) == before
        assert limits.get_stats()["db"]["holders"] == 1
        assert others.admitted

    def test_releasing_again_changes_nothing(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60))
        acquired = limits.try_acquire({KEY: 5})
        acquired.update({KEY: 2})
        for _ in range(3):
            acquired.release()
        assert available(limits) == 8

    def test_a_refused_acquisition_gives_nothing_back(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1))
        held = limits.try_acquire({KEY: 6})
        refused = limits.try_acquire({KEY: 6, "db": 0})
        before = snapshot(limits)
        with refused:
            pass
        refused.release()
        refused.cancel()
        assert snapshot(limits) == before
        assert held

    def test_what_a_failed_block_did_not_report_is_given_back_where_it_can_be(self, store: Store) -> None:
        keys = {str(algorithm): RateLimit(str(algorithm), 10, 60, algorithm) for algorithm in ALGORITHMS}
        limits = limits_of(store, *keys.values(), ResourceLimit("db", 1))

        def fail() -> None:
            with limits.try_acquire(dict.fromkeys(keys, 4)) as acquired:
                acquired.update({"gcra": 1})
                raise KeyError("the block's own")

        with pytest.raises(KeyError, match="the block's own"):
            fail()
        assert {key: available(limits, key) for key in keys} == {
            "token_bucket": 10,
            "leaky_bucket": 6,
            "sliding_window": 6,
            "fixed_window": 6,
            "gcra": 9,
        }
        assert available(limits, "db") == 1

    def test_settling_changes_several_scopes_at_once(self, store: Store) -> None:
        parts = [scoped(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), entity=who) for who in ("one", "two")]
        family = limits_in(store, *parts)
        acquired = family.try_acquire({KEY: 5})
        acquired.update({KEY: 1})
        acquired.release()
        for part in parts:
            assert available(limits_in(store, part)) == 9
            assert available(limits_in(store, part), "db") == 1

    def test_a_refund_counts_in_the_scope_even_after_it_was_forgotten(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 1))
        refund, debt = limits.try_acquire({KEY: 5}), limits.try_acquire({KEY: 5})
        clock.advance(100_000)
        for number in range(50):
            assert limits_of(store, CallLimit(1, 1), entity=f"newcomer {number}").try_acquire()
        refund.update({KEY: 0})
        refund.release()
        assert available(limits) == 10
        debt.update({KEY: 25})
        debt.release()
        assert limits.get_stats()[KEY]["used"] == 20

    @pytest.mark.parametrize("algorithm", DRAINING)
    def test_settling_while_the_clock_is_back_mints_nothing(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        acquired = limits.try_acquire({KEY: 10})
        clock.advance(-30)
        acquired.update({KEY: 9})
        acquired.release()
        clock.advance(30)
        assert available(limits) <= 1
