"""Quotas, which start again when their period ends, and soft limits, which reject nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from limits_app.core.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.store import Store
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
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

__all__ = ["Quotas"]

HOUR = 3600
DAY = 86_400
SESSION = QuotaLimit.per_session(KEY, 10, HOUR)
MONTH = QuotaLimit.per_month(KEY, 10, "Europe/Berlin")
QUOTAS = [QuotaLimit.per_day(KEY, 10), MONTH, SESSION]
SOFT = [*[RateLimit(KEY, 10, HOUR, algorithm, soft=True) for algorithm in ALGORITHMS], replace(SESSION, soft=True)]
every_quota = pytest.mark.parametrize("quota", QUOTAS, ids=lambda quota: quota.period or "session")
every_soft_limit = pytest.mark.parametrize("limit", SOFT, ids=lambda limit: str(getattr(limit, "algorithm", "session")))


def us_of(moment: str) -> int:
    """A moment in UTC, in microseconds since 1970."""
    since = datetime.fromisoformat(moment).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


class Quotas(Contract):
    """Calendar periods, sessions, refunds within them, and limits that are soft."""

    @pytest.mark.parametrize(
        ("quota", "now", "hours"),
        [
            pytest.param(QuotaLimit.per_hour(KEY, 10), "2026-01-01 10:20", 2 / 3, id="an_hour"),
            pytest.param(QuotaLimit.per_day(KEY, 10), "2026-02-28 10:00", 14, id="a_day"),
            pytest.param(QuotaLimit.per_week(KEY, 10), "2026-01-01 10:00", 4 * 24 - 10, id="a_week"),
            pytest.param(QuotaLimit.per_month(KEY, 10), "2024-02-01 00:00", 29 * 24, id="a_leap_month"),
            pytest.param(MONTH, "2026-03-01 12:00", 31 * 24 - 14, id="a_month_of_a_zone_and_its_summer"),
            pytest.param(SESSION, "2026-01-01 10:20", 1, id="a_session"),
        ],
    )
    def test_a_quota_is_there_again_when_its_period_ends_and_not_before(
        self, store: Store, clock: FakeClock, *, quota: QuotaLimit, now: str, hours: float
    ) -> None:
        clock.move(us_of(now) - clock.now_us)
        limits = limits_of(store, quota)
        assert limits.try_acquire({KEY: 4})
        clock.advance(1)
        assert limits.try_acquire({KEY: 6})
        wait = wait_us(limits.try_acquire({KEY: 1}))
        assert wait == round(hours * HOUR - 1) * 1_000_000
        clock.move(wait - 1)
        assert not limits.try_acquire({KEY: 1})
        clock.move(1)
        assert limits.try_acquire({KEY: 10})

    @every_quota
    def test_what_was_not_used_is_given_back_in_its_period(self, store: Store, quota: QuotaLimit) -> None:
        limits = limits_of(store, quota)
        acquired = limits.try_acquire({KEY: 8})
        acquired.update({KEY: 3})
        acquired.release()
        assert available(limits) == 7

    @every_quota
    def test_what_was_taken_in_an_earlier_period_is_not_given_back(
        self, store: Store, clock: FakeClock, quota: QuotaLimit
    ) -> None:
        limits = limits_of(store, quota)
        old = limits.try_acquire({KEY: 8})
        clock.advance(40 * DAY)
        assert limits.try_acquire({KEY: 8})
        old.update({KEY: 0})
        old.release()
        assert available(limits) == 2

    @pytest.mark.parametrize("soft", [False, True])
    @every_quota
    def test_what_was_taken_while_the_clock_was_back_is_given_back_in_its_period(
        self, store: Store, clock: FakeClock, *, quota: QuotaLimit, soft: bool
    ) -> None:
        clock.move(us_of("2026-03-01 00:00") - clock.now_us)
        limits = limits_of(store, replace(quota, soft=soft))
        assert limits.try_acquire({KEY: 2})
        clock.advance(-2 * HOUR)
        early = limits.try_acquire({KEY: 5})
        clock.advance(2 * HOUR + 1)
        early.update({KEY: 1})
        early.release()
        assert available(limits) == 7

    @every_quota
    def test_over_use_is_debt_in_the_period_in_which_it_is_reported(
        self, store: Store, clock: FakeClock, quota: QuotaLimit
    ) -> None:
        limits = limits_of(store, quota)
        claim = taken(limits, {KEY: 8})
        clock.advance(40 * DAY)
        settle(limits, claim, {KEY: 12})
        assert limits.get_stats()[KEY]["used"] == 12
        refused = limits.try_acquire({KEY: 0})
        clock.move(wait_us(refused))
        assert limits.try_acquire({KEY: 10})

    def test_a_session_starts_with_its_first_use(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, SESSION)
        assert limits.try_acquire({KEY: 0})
        clock.advance(HOUR // 2)
        assert limits.try_acquire({KEY: 5})
        clock.advance(HOUR - 1)
        assert available(limits) == 5
        clock.advance(1)
        assert available(limits) == 10

    def test_a_clock_that_goes_back_neither_ends_a_session_nor_starts_one(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, SESSION)
        assert limits.try_acquire({KEY: 6})
        clock.advance(-DAY)
        assert not limits.try_acquire({KEY: 5})
        assert limits.try_acquire({KEY: 4})
        clock.advance(DAY + HOUR)
        assert limits.try_acquire({KEY: 10})

    @every_quota
    def test_a_changed_quota_keeps_what_was_used(self, store: Store, quota: QuotaLimit) -> None:
        assert limits_of(store, quota).try_acquire({KEY: 7})
        new: list[QuotaLimit | RateLimit] = [*QUOTAS, RateLimit(KEY, 12, DAY), replace(quota, capacity=8)]
        for definition in new:
            changed = limits_of(store, definition)
            assert changed.get_stats()[KEY]["used"] == 7
            assert not changed.try_acquire({KEY: int(definition.capacity) - 6})

    @every_quota
    def test_what_was_taken_before_a_change_is_settled_after_it(self, store: Store, quota: QuotaLimit) -> None:
        before = limits_of(store, quota)
        claim = taken(before, {KEY: 7})
        changed = limits_of(store, replace(quota, capacity=20))
        assert changed.try_acquire({KEY: 1})
        settle(before, claim, {KEY: -4})
        assert changed.get_stats()[KEY]["used"] == 4

    def test_a_refusal_of_another_limit_leaves_a_quota_as_it_was(self, store: Store) -> None:
        parts = [scoped(store, SESSION, entity="child"), scoped(store, CallLimit(1, HOUR), entity="parent")]
        family = limits_in(store, *parts)
        assert family.try_acquire({KEY: 3})
        before = snapshot(family)
        assert not family.try_acquire({KEY: 3})
        assert snapshot(family) == before

    @every_soft_limit
    def test_a_soft_limit_admits_everything_and_counts_it(self, store: Store, limit: RateLimit | QuotaLimit) -> None:
        limits = limits_of(store, limit)
        outcomes = [limits.try_acquire({KEY: amount}).outcome for amount in (6, 4, 0, 50)]
        assert [outcome.allowed for outcome in outcomes] == [True] * 4
        assert [outcome.passed[0].overdrawn for outcome in outcomes] == [0, 0, 0, 50]
        assert limits.get_stats()[KEY]["used"] == 60

    @every_soft_limit
    def test_a_limit_that_hardens_refuses_until_its_debt_is_worked_off(
        self, store: Store, clock: FakeClock, limit: RateLimit | QuotaLimit
    ) -> None:
        assert limits_of(store, limit).try_acquire({KEY: 15})
        hard = limits_of(store, replace(limit, soft=False))
        refused = hard.try_acquire({KEY: 0})
        clock.move(wait_us(refused) - 1)
        assert not hard.try_acquire({KEY: 0})
        clock.move(1)
        assert hard.try_acquire({KEY: 0})

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_a_soft_limit_is_charged_nothing_when_a_hard_one_refuses(
        self, store: Store, algorithm: RateLimitAlgorithm
    ) -> None:
        limits = limits_of(store, RateLimit("soft", 10, HOUR, algorithm, soft=True), RateLimit(KEY, 10, HOUR))
        assert limits.try_acquire({"soft": 30, KEY: 10})
        before = snapshot(limits)
        assert not limits.try_acquire({"soft": 30, KEY: 1})
        assert snapshot(limits) == before
