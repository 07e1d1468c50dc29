"""Settling: refunds, debt and credit of every kind of limit, and settling twice."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction
from random import Random
from threading import Barrier
from typing import Final

import pytest

from limits_app.acquiring import Acquisition, Store
from limits_app.engine import DAY, HOUR
from limits_app.engine.limits import CallLimit, MeteredLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    DRAINING,
    KEY,
    REFUNDING,
    YEAR,
    Contract,
    available,
    credit,
    credit_of,
    holders,
    limits_in,
    limits_of,
    newcomers_come,
    report,
    scoped,
    settle,
    snapshot,
    taken,
    used,
    wait_us,
)

LIMITS: Final[Sequence[MeteredLimit]] = [
    *[RateLimit(KEY, 10, HOUR, algorithm) for algorithm in ALGORITHMS],
    QuotaLimit.per_day(KEY, 10),
    QuotaLimit.per_session(KEY, 10, HOUR),
]


class Settling(Contract):
    """What happens to amounts that were not used as they were requested."""

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_unused_amounts_are_refunded_where_the_algorithm_can(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        with limits.try_acquire({KEY: 8}) as acquired:
            acquired.update({KEY: 3})
        left = 7 if algorithm in REFUNDING else 2
        for _ in range(2):
            assert available(limits) == left
            acquired.release()
        for refunded in (0.001, 0.5, 2, 9.999) if algorithm in REFUNDING else ():
            exact = limits_of(store, RateLimit(KEY, 10, 60, algorithm), entity=str(refunded))
            report(exact.try_acquire({KEY: 10}), round(10 - refunded, 3))
            assert exact.try_acquire({KEY: refunded})
            assert not exact.try_acquire({KEY: 0.001})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_late_refund_never_restores_more_than_the_burst(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        for passed_ms in (0, 1, 1000, 29_999, 60_000, 3_600_000):
            limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm), entity=str(passed_ms))
            acquired = limits.try_acquire({KEY: 10})
            clock.move(passed_ms * 1000)
            report(acquired, 0)
            left = available(limits)
            assert left <= 10
            assert limits.try_acquire({KEY: int(left)})
            assert not limits.try_acquire({KEY: 1})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_using_more_than_requested_is_debt(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm, caplog: pytest.LogCaptureFixture
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        report(limits.try_acquire({KEY: 4}), 22)
        assert "22 used" in caplog.text
        stats = limits.get_stats()[KEY]
        assert (stats["used"], stats["available"], stats["utilization"]) == (22, 0, 2.2)
        expected = 13 * 6_000_000 if algorithm in DRAINING else 60_000_000
        assert wait_us(limits.try_acquire({KEY: 1})) == expected
        clock.move(expected - 1)
        assert not limits.try_acquire({KEY: 1})
        clock.move(1)
        assert limits.try_acquire({KEY: 1})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_nothing_is_admitted_in_debt_not_even_0(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm))
        report(limits.try_acquire({KEY: 0}), 10)
        assert limits.try_acquire({KEY: 0}), "all is used, but not more"
        report(limits.try_acquire({KEY: 0}), 1)
        wait = wait_us(limits.try_acquire({KEY: 0}))
        assert wait == (6_000_000 if algorithm in DRAINING else 60_000_000)
        clock.move(wait - 1)
        assert not limits.try_acquire({KEY: 0})
        clock.move(1)
        assert limits.try_acquire({KEY: 0})
        huge = limits_of(store, RateLimit(KEY, 10**6, 86_400, algorithm), entity="huge debt")
        for _ in range(3):
            settle(huge, taken(huge, {KEY: 0}), {KEY: 10**12})
        for _, _, numbers in snapshot(huge):
            assert all(abs(number) < 2**53 for number in numbers if isinstance(number, int))
        assert not huge.try_acquire({KEY: 0})

    @pytest.mark.parametrize("change", [-3, 3])
    def test_settling_a_claim_again_changes_nothing(self, store: Store, change: int) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 3))
        assert taken(limits, {KEY: 1, "db": 1}).admitted
        claim = taken(limits, {KEY: 5, "db": 1})
        assert not claim.settled
        settle(limits, claim, {KEY: change, "db": -1})
        assert claim.settled
        before = snapshot(limits)
        settle(limits, claim, {KEY: change, "db": -1})
        settle(limits, claim, {KEY: -1})
        assert snapshot(limits) == before
        assert holders(limits) == 1

    def test_threads_that_release_the_same_acquisition_refund_it_once(self, store: Store) -> None:
        limits = limits_of(store, RateLimit(KEY, 100, YEAR))
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

    def test_settling_changes_several_scopes_together(self, store: Store) -> None:
        parts = [scoped(store, RateLimit(KEY, 10, 60), ResourceLimit("db", 1), entity=name) for name in ("one", "two")]
        report(limits_in(store, *parts).try_acquire({KEY: 5}), 1)
        for part in parts:
            assert [available(limits_in(store, part), key) for key in (KEY, "db")] == [9, 1]

    def test_a_scope_that_was_forgotten_is_settled(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 1))
        refund, debt = limits.try_acquire({KEY: 5}), limits.try_acquire({KEY: 5})
        clock.advance(100_000)
        newcomers_come(store, "newcomer", 50)
        report(refund, 0)
        assert available(limits) == 10
        report(debt, 25)
        assert used(limits) == 20

    def test_settling_while_the_clock_is_back_restores_nothing_early(self, store: Store, clock: FakeClock) -> None:
        for algorithm in DRAINING:
            limits = limits_of(store, RateLimit(KEY, 10, 60, algorithm), entity=str(algorithm))
            acquired = limits.try_acquire({KEY: 10})
            clock.advance(-30)
            report(acquired, 9)
            clock.advance(30)
            assert available(limits) <= 1

    @pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", limit)))
    def test_undoing_refunds_with_every_algorithm(self, store: Store, clock: FakeClock, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit, ResourceLimit("db", 2))
        kept = limits.try_acquire({KEY: 3, "db": 1})
        undone = limits.try_acquire({KEY: 7, "db": 1})
        clock.move(1)
        assert not limits.try_acquire({KEY: 1})
        for _ in range(2):
            undone.undo()
            assert available(limits) == pytest.approx(7, abs=0.001)
        assert holders(limits) == 1
        kept.undo()
        assert (available(limits), holders(limits)) == (10, 0)

    @pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", limit)))
    def test_undoing_refunds_charges_made_while_the_clock_was_back(
        self, store: Store, clock: FakeClock, limit: MeteredLimit
    ) -> None:
        drains = getattr(limit, "algorithm", None) in DRAINING  # what may have drained since the charge stays
        for seconds in (1,) if drains else (1, 1800):
            limits = limits_of(store, limit, entity=str(seconds))
            assert limits.try_acquire({KEY: 1})
            clock.advance(-seconds)
            limits.try_acquire({KEY: 4}).undo()
            assert used(limits) == pytest.approx(1, abs=0.001)
            undone = limits.try_acquire({KEY: 9})
            clock.advance(seconds)
            undone.undo()
            assert used(limits) == pytest.approx(1, abs=0.001)

    def test_undoing_refunds_nothing_of_the_next_window_that_starts_before_the_clock_was_right_again(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 60, RateLimitAlgorithm.FIXED_WINDOW))
        assert limits.try_acquire({KEY: 1})
        clock.advance(-30)
        early = limits.try_acquire({KEY: 5})
        clock.advance(90)
        assert limits.try_acquire({KEY: 6})
        clock.advance(-40)
        early.undo()
        assert used(limits) == 6

    @pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", limit)))
    def test_undoing_never_refunds_returned_use(self, store: Store, clock: FakeClock, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit)
        early = limits.try_acquire({KEY: 10})
        clock.advance(DAY)
        assert limits.try_acquire({KEY: 6})
        early.undo()
        assert not limits.try_acquire({KEY: 5})
        assert limits.try_acquire({KEY: 4})

    def test_undoing_within_a_sliding_window_leaves_the_times_of_others(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 100, RateLimitAlgorithm.SLIDING_WINDOW))
        taken_at = []
        for amount in (1, 2, 3, 4):
            taken_at.append(limits.try_acquire({KEY: amount}))
            clock.advance(10)
        taken_at[1].undo()
        assert available(limits) == 2
        taken_at[3].undo()
        assert available(limits) == 6
        for seconds, left in ((59, 6), (1, 7), (19, 7), (1, 10)):
            clock.advance(seconds)
            assert available(limits) == left
        taken_at[2].undo()
        assert available(limits) == 10

    @pytest.mark.parametrize("algorithm", DRAINING)
    def test_undoing_returns_the_undrained_part_of_the_charge(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        for before, seconds, refunded in ((0, 3, 2), (5, 3, 5), (5, 6, 4), (0, 20, 0)):
            limits = limits_of(store, RateLimit(KEY, 10, 10, algorithm), entity=f"{before} {seconds}")
            assert limits.try_acquire({KEY: before})
            undone = limits.try_acquire({KEY: 5})
            clock.advance(seconds)
            assert limits.try_acquire({KEY: int(available(limits))})
            undone.undo()
            assert available(limits) == refunded

    @pytest.mark.parametrize("algorithm", [*DRAINING, RateLimitAlgorithm.SLIDING_WINDOW])
    def test_undoing_requests_that_have_run_never_refunds_the_use_of_others(
        self, store: Store, clock: FakeClock, algorithm: RateLimitAlgorithm
    ) -> None:
        limits, random = limits_of(store, RateLimit(KEY, 10, 100, algorithm)), Random(algorithm)
        running: list[Acquisition] = []
        charges: dict[Acquisition, tuple[int, int]] = {}
        seconds = 0
        for _ in range(300):
            passed, amount = random.choice((0, 0, 1, 7, 30)), random.choice((1, 2, 5))
            clock.advance(passed)
            seconds += passed
            if random.random() < 0.6 and (acquired := limits.try_acquire({KEY: amount})):
                running.append(acquired)
                charges[acquired] = seconds, amount
            elif running:
                ended = running.pop(random.randrange(len(running)))
                if random.random() < 0.7:
                    ended.undo(has_run=True)
                    del charges[ended]
                else:
                    report(ended, charges[ended][1])
            assert 10 - available(limits) >= _used_by([*charges.values()], algorithm, seconds)

    def test_undoing_requests_that_ran_side_by_side_refunds_no_more_than_is_left(
        self, store: Store, clock: FakeClock
    ) -> None:
        for algorithm in DRAINING:
            limits = limits_of(store, RateLimit(KEY, 10, 100, algorithm), entity=algorithm)
            first, slow = [limits.try_acquire({KEY: 5}) for _ in range(2)]
            first.undo(has_run=True)
            clock.advance(50)
            failed = limits.try_acquire({KEY: 5})
            report(failed, 5)
            slow.undo(has_run=True)
            assert available(limits) == 5, "all of the slow request had drained"

    def test_undoing_under_changed_limits_refunds_by_the_rule_that_has_recorded_the_use(self, store: Store) -> None:
        for before in ALGORITHMS:
            for after in ALGORITHMS:
                name = f"{before} {after}"
                undone = limits_of(store, RateLimit(KEY, 10, HOUR, before), entity=name).try_acquire({KEY: 8})
                new = limits_of(store, RateLimit(KEY, 20, HOUR, after), entity=name)
                taken(new, {KEY: 2})
                undone.undo()
                assert used(new) in {2, 10}
                assert used(new) == 2 or after is not before

    @pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: str(getattr(limit, "algorithm", limit)))
    def test_credit_reduces_the_use_of_every_limit_to_0_at_least(self, store: Store, limit: MeteredLimit) -> None:
        limits = limits_of(store, limit, CallLimit(9, HOUR), ResourceLimit("db", 2))
        credit(limits, KEY, 5)
        assert available(limits) == 10, "nothing was used"
        taken(limits, {KEY: 8})
        others = [state for _, key, state in snapshot(limits) if key != KEY]
        claim = credit_of(limits, KEY)
        for _ in range(3):
            store.settle(claim, [-3 * claim.shape.limits[0].rule.parts_per_unit])
        assert available(limits) == 5, "once for each claim"
        credit(limits, KEY, 1000)
        assert available(limits) == 10
        assert [state for _, key, state in snapshot(limits) if key != KEY] == others
        settle(limits, taken(limits, {KEY: 4}), {KEY: 26})
        credit(limits, KEY, 15)
        assert not limits.try_acquire({KEY: 0}), "still in debt"
        credit(limits, KEY, 10)
        assert available(limits) == 5
        soft = limits_of(store, replace(limit, soft=True), entity="soft")
        taken(soft, {KEY: 18})
        credit(soft, KEY, 10)
        assert used(soft) == 8

    @pytest.mark.parametrize("before", ALGORITHMS)
    def test_credit_under_changed_limits(self, store: Store, before: RateLimitAlgorithm) -> None:
        for after in ALGORITHMS:
            taken(limits_of(store, RateLimit(KEY, 10, HOUR, before), entity=str(after)), {KEY: 8})
            new = limits_of(store, RateLimit(KEY, 20, HOUR, after), entity=str(after))
            credit(new, KEY, 3)
            assert available(new) == 15

    def test_credit_is_given_in_one_scope(self, store: Store) -> None:
        parts = [scoped(store, RateLimit(KEY, 10, HOUR), entity=name) for name in ("child", "parent")]
        taken(limits_in(store, *parts), {KEY: 8})
        credit(limits_in(store, parts[0]), KEY, 5)
        assert [available(limits_in(store, part)) for part in parts] == [7, 2]

    def test_credit_of_a_sliding_window_reduces_the_oldest_use(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, RateLimit(KEY, 10, 10, RateLimitAlgorithm.SLIDING_WINDOW))
        for _ in range(5):
            assert limits.try_acquire({KEY: 2})
            clock.advance(1)
        credit(limits, KEY, 3)
        assert limits.try_acquire({KEY: 3})
        assert wait_us(limits.try_acquire({KEY: 1})) == 6_000_000
        clock.advance(6)
        assert available(limits) == 1
        credit(limits, KEY, 6)
        for seconds, left in ((0, 7), (3, 7), (1, 10)):
            clock.advance(seconds)
            assert available(limits) == left


def _used_by(charges: Sequence[tuple[int, int]], algorithm: RateLimitAlgorithm, now: int) -> Fraction:
    """How much of 10 in 100 seconds some charges use, which are times and amounts: as if there had been no others."""
    if algorithm is RateLimitAlgorithm.SLIDING_WINDOW:
        return Fraction(sum(amount for charged_at, amount in charges if charged_at > now - 100))
    level, last = Fraction(0), 0
    for charged_at, amount in charges:
        level, last = max(level - Fraction(charged_at - last, 10), Fraction(0)) + amount, charged_at
    return max(level - Fraction(now - last, 10), Fraction(0))
