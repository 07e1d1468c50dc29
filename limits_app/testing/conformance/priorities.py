"""Priorities: requests of lower classes leave a share of a limit free for higher ones."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest

from limits_app.acquiring import LimitSet, Store
from limits_app.engine import SECOND_US, Claim
from limits_app.engine.errors import NeverAdmissible
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    KEY,
    YEAR,
    Contract,
    claim_of,
    give_back,
    limits_of,
    scoped,
    settle,
    taken,
    used,
    wait_us,
)
from limits_app.testing.conformance.contract import limits_in as set_of

KEEP: Final = {"low": 60, "normal": 20}
WORKERS: Final = ("low", "high", "low", "normal")
CLASSES: Final = ("high", "normal", "low")
MOST: Final = {"high": 100, "normal": 80, "low": 40}
"""What requests of each class may use of a capacity of 100."""
DEFINITIONS: Final[Mapping[str, LimitDefinition]] = {
    **{str(algorithm): RateLimit(KEY, 100, 1000, algorithm, keep=KEEP) for algorithm in RateLimitAlgorithm},
    "burst": RateLimit(KEY, 10, 100, burst=100, keep=KEEP),
    "day": QuotaLimit.per_day(KEY, 100, keep=KEEP),
    "session": QuotaLimit.per_session(KEY, 100, 1000, keep=KEEP),
    "permits": ResourceLimit(KEY, 100, keep=KEEP),
}


class Priorities(Contract):
    """A request is admitted if what its class leaves free would remain after it; then its amount alone is charged."""

    @pytest.fixture(params=[*DEFINITIONS.values()], ids=[*DEFINITIONS])
    def limits(self, store: Store, request: pytest.FixtureRequest) -> LimitSet:
        """Limits of 100 of each kind."""
        return limits_of(store, request.param)

    @pytest.mark.parametrize("order", [CLASSES, CLASSES[::-1], ("normal", "low", "high")], ids="-".join)
    def test_each_class_uses_no_more_than_its_share(self, limits: LimitSet, order: tuple[str, ...]) -> None:
        total = 0
        for priority in order:
            for amount in (10, 1):
                while taken(limits, {KEY: amount}, priority=priority).admitted:
                    total += amount
            assert total == max(total, MOST[priority])
            assert used(limits) == total
        assert total == 100

    def test_largest_amount_of_a_class_fits_and_one_more_never_does(self, limits: LimitSet) -> None:
        for priority, most in MOST.items():
            with pytest.raises(NeverAdmissible) as caught:
                limits.try_acquire({KEY: most + 1}, priority=priority)
            [status] = caught.value.outcome.violations
            assert (status.capacity, status.remaining, status.priority) == (most, most, priority)
            assert limits.peek({KEY: most}, priority=priority).allowed
        assert used(limits) == 0
        assert limits.try_acquire({KEY: 40}, priority="low")
        assert used(limits) == 40

    def test_request_without_a_class_is_normal(self, limits: LimitSet) -> None:
        assert taken(limits, {KEY: 80}).admitted
        assert not taken(limits, {KEY: 1}).admitted
        assert taken(limits, {KEY: 20}, priority="high").admitted

    def test_rejection_charges_nothing_and_reports_the_remaining_amount_of_the_class(self, limits: LimitSet) -> None:
        assert taken(limits, {KEY: 35}, priority="high").admitted
        rejected = limits.try_acquire({KEY: 6}, priority="low")
        [status] = rejected.outcome.violations
        assert (status.capacity, status.remaining, status.requested, status.priority) == (40, 5, 6, "low")
        assert used(limits) == 35
        assert taken(limits, {KEY: 5}, priority="low").admitted

    def test_amount_of_0_knows_no_class(self, limits: LimitSet) -> None:
        claim = taken(limits, {KEY: 100}, priority="high")
        if not claim.shape.permits:
            assert taken(limits, {KEY: 0}, priority="low").admitted
        assert used(limits) == 100

    def test_settlement_knows_no_class(self, limits: LimitSet) -> None:
        claim = taken(limits, {KEY: 40}, priority="low")
        if claim.shape.permits:
            give_back(limits, claim)
            assert used(limits) == 0
        else:
            settle(limits, claim, {KEY: 50})
            assert used(limits) == 90
            assert not taken(limits, {KEY: 1}).admitted
            assert taken(limits, {KEY: 10}, priority="high").admitted

    @pytest.mark.parametrize("priority", ["normal", "low"])
    def test_rejected_amount_fits_after_its_wait_and_not_before(
        self, clock: FakeClock, limits: LimitSet, priority: str
    ) -> None:
        if claim_of(limits, {KEY: 1}).shape.permits:
            return  # no release can be foreseen
        clock.move(12_345)
        for amount in (MOST[priority] - 10, 9, 1):
            assert taken(limits, {KEY: amount}, priority="high").admitted
            clock.move(SECOND_US)
        wait = wait_us(limits.try_acquire({KEY: 7}, priority=priority))
        clock.move(wait - 1)
        assert wait_us(limits.try_acquire({KEY: 7}, priority=priority)) == 1
        clock.move(1)
        assert limits.try_acquire({KEY: 7}, priority=priority)

    def test_rejection_of_a_class_is_none_of_a_higher_one(self, limits: LimitSet) -> None:
        assert taken(limits, {KEY: 90}, priority="high").admitted
        for _ in range(3):
            assert not limits.try_acquire({KEY: 2}, priority="low")
            assert not limits.try_acquire({KEY: 2})
            assert limits.try_acquire({KEY: 1}, priority="high")

    def test_classes_of_several_limits_are_decided_all_or_nothing(self, store: Store) -> None:
        keeping = RateLimit(KEY, 100, 1000, keep=KEEP)
        limits = set_of(store, scoped(store, keeping, entity="a"), scoped(store, RateLimit(KEY, 70, 1000), entity="b"))
        shared = limits_of(store, keeping, entity="a")
        assert taken(limits, {KEY: 30}, priority="low").admitted
        assert not taken(limits, {KEY: 20}, priority="low").admitted
        assert taken(limits, {KEY: 40}, priority="high").admitted
        assert (used(shared), used(limits_of(store, RateLimit(KEY, 70, 1000), entity="b"))) == (70, 70)

    def test_first_of_several_sets_that_leaves_enough_free_is_charged(self, store: Store) -> None:
        sets = [limits_of(store, RateLimit(KEY, 100, 1000, keep=KEEP), entity=name) for name in ("a", "b")]
        assert taken(sets[0], {KEY: 39}, priority="high").admitted

        def chosen(priority: str, *, emptiest_first: bool = False) -> Claim | None:
            claims = [claim_of(limits, {KEY: 5}, priority=priority) for limits in sets]
            return store.acquire_first(claims, emptiest_first=emptiest_first)

        admitted = [chosen("low"), chosen("high"), chosen("low", emptiest_first=True)]
        assert all(claim is not None for claim in admitted)
        assert [used(limits) for limits in sets] == [44, 10]

    @pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
    def test_threads_of_all_priorities_take_the_limit_and_no_more_than_their_shares(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limit = RateLimit(KEY, 100, YEAR, algorithm, keep=KEEP)
        with ThreadPoolExecutor(len(WORKERS)) as executor:
            admitted = list(executor.map(lambda priority: admitted_of(store, limit, priority, 100), WORKERS))
        check_shares(admitted, 100)

    @pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
    def test_processes_of_all_priorities_take_the_limit_and_no_more_than_their_shares(self) -> None:
        open_store = self.open_store()
        if open_store is None or "fork" not in multiprocessing.get_all_start_methods():
            pytest.skip("open_store() is not defined, so no other process can open the store")
        with multiprocessing.get_context("fork").Pool(len(WORKERS)) as pool:
            tasks = [pool.apply_async(_in_process, (open_store, priority)) for priority in WORKERS]
            check_shares([task.get(60) for task in tasks], 500)

    def test_changed_share_keeps_the_use(self, store: Store) -> None:
        for limit in (RateLimit(KEY, 100, 1000), QuotaLimit.per_month(KEY, 100), CallLimit(100, 1000)):
            key = limit.key
            assert taken(limits_of(store, limit, entity=key + str(type(limit))), {key: 40}).admitted
            keeping = limits_of(store, _with_keep(limit, {"normal": 50}), entity=key + str(type(limit)))
            assert used(keeping, key) == 40
            assert not taken(keeping, {key: 11}).admitted
            assert taken(keeping, {key: 10}, priority="normal").admitted
            assert taken(limits_of(store, limit, entity=key + str(type(limit))), {key: 50}).admitted


def admitted_of(store: Store, limit: LimitDefinition, priority: str, tries: int) -> int:
    """Return how many of so many requests of a priority are admitted."""
    limits = limits_of(store, limit, entity="all priorities")
    return sum(bool(limits.try_acquire({limit.key: 1}, priority=priority)) for _ in range(tries))


def check_shares(admitted: Sequence[int], capacity: int) -> None:
    """Check what the workers were admitted: the limit together, and no priority more than its share."""
    counts = Counter[str]()
    for priority, count in zip(WORKERS, admitted, strict=True):
        counts[priority] += count
    assert counts["low"] <= capacity * 40 // 100
    assert counts["low"] + counts["normal"] <= capacity * 80 // 100
    assert counts.total() == capacity


def _in_process(open_store: Callable[[], Store], priority: str) -> int:
    return admitted_of(open_store(), RateLimit(KEY, 500, YEAR, keep=KEEP), priority, 500)


def _with_keep(limit: RateLimit | QuotaLimit | CallLimit, keep: Mapping[str, int]) -> LimitDefinition:
    if isinstance(limit, QuotaLimit):
        return QuotaLimit.per_month(KEY, 100, keep=keep)
    return CallLimit(100, 1000, keep=keep) if isinstance(limit, CallLimit) else RateLimit(KEY, 100, 1000, keep=keep)
