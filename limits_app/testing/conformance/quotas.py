"""Quotas, which start again when their period ends, and soft limits, which reject nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest

from limits_app.acquiring import Store
from limits_app.engine import DAY, HOUR, SECOND_US
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    Contract,
    available,
    limits_in,
    limits_of,
    report,
    scoped,
    settle,
    snapshot,
    taken,
    used,
    wait_us,
)

SESSION = QuotaLimit.per_session(KEY, 10, HOUR)
MONTH = QuotaLimit.per_month(KEY, 10, "Europe/Berlin")
BILLED = QuotaLimit.per_month(KEY, 10, "Europe/Berlin", starts="31+6h")
QUOTAS = [QuotaLimit.per_day(KEY, 10), MONTH, BILLED, SESSION]
SOFT = [*[RateLimit(KEY, 10, HOUR, algorithm, soft=True) for algorithm in ALGORITHMS], replace(SESSION, soft=True)]
PERIODS = {
    "hour": (QuotaLimit.per_hour(KEY, 10), "2026-01-01 10:20", 2 / 3),
    "day": (QuotaLimit.per_day(KEY, 10), "2026-02-28 10:00", 14),
    "week": (QuotaLimit.per_week(KEY, 10), "2026-01-01 10:00", 4 * 24 - 10),
    "month_of_a_leap_year": (QuotaLimit.per_month(KEY, 10), "2024-02-01 00:00", 29 * 24),
    "month_in_which_summer_time_begins": (MONTH, "2026-03-01 12:00", 31 * 24 - 14),
    "month_from_a_day": (BILLED, "2026-02-28 05:00", 31 * 24 - 1),
    "month_from_a_day_that_is_missing": (BILLED, "2026-02-28 04:00", 1),
    "month_from_a_leap_day": (QuotaLimit.per_month(KEY, 10, starts="30"), "2024-01-30 00:00", 30 * 24),
    "week_from_a_day": (QuotaLimit.per_week(KEY, 10, starts="sun+6h"), "2026-01-01 10:00", 2 * 24 + 20),
    "day_from_an_hour": (QuotaLimit.per_day(KEY, 10, starts="6h"), "2026-02-28 05:00", 1),
    "session": (SESSION, "2026-01-01 10:20", 1),
}
"""Quotas, the time in UTC when they are first used, and after how many hours their period ends."""
every_quota = pytest.mark.parametrize("quota", QUOTAS, ids=["day", "month", "billed", "session"])


def us_of(time: str) -> int:
    """A time in UTC, in microseconds since 1970."""
    since = datetime.fromisoformat(time).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(microseconds=1)


class Quotas(Contract):
    """Calendar periods, sessions, refunds within them, and soft limits."""

    @pytest.mark.parametrize(("quota", "time", "hours"), PERIODS.values(), ids=PERIODS)
    def test_a_quota_is_available_again_when_its_period_ends(
        self, store: Store, clock: FakeClock, *, quota: QuotaLimit, time: str, hours: float
    ) -> None:
        clock.move(us_of(time) - clock.now_us)
        limits = limits_of(store, quota)
        assert limits.try_acquire({KEY: 4})
        clock.advance(1)
        assert limits.try_acquire({KEY: 6})
        wait = wait_us(limits.try_acquire({KEY: 1}))
        assert wait == round(hours * HOUR - 1) * SECOND_US
        clock.move(wait - 1)
        assert not limits.try_acquire({KEY: 1})
        clock.move(1)
        assert limits.try_acquire({KEY: 10})

    @every_quota
    def test_a_refund_counts_in_its_period_and_debt_in_that_of_its_report(
        self, store: Store, clock: FakeClock, quota: QuotaLimit
    ) -> None:
        limits = limits_of(store, quota)
        report(limits.try_acquire({KEY: 8}), 3)
        assert available(limits) == 7
        refund, debt = limits.try_acquire({KEY: 3}), taken(limits, {KEY: 4})
        clock.advance(40 * DAY)
        assert limits.try_acquire({KEY: 8})
        report(refund, 0)
        assert available(limits) == 2
        settle(limits, debt, {KEY: 12})
        assert used(limits) == 20
        clock.move(wait_us(limits.try_acquire({KEY: 0})))
        assert limits.try_acquire({KEY: 10})

    @every_quota
    def test_amount_charged_while_the_clock_was_back_is_refunded_in_its_period(
        self, store: Store, clock: FakeClock, quota: QuotaLimit
    ) -> None:
        clock.move(us_of("2026-03-01 00:00") - clock.now_us)
        for soft in (False, True):
            limits = limits_of(store, replace(quota, soft=soft), entity=f"soft {soft}")
            assert limits.try_acquire({KEY: 2})
            clock.advance(-HOUR)
            early = limits.try_acquire({KEY: 5})
            clock.advance(HOUR + 1)
            report(early, 1)
            assert available(limits) == 7
            clock.advance(-1)

    def test_a_session_starts_with_its_first_use(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, SESSION)
        assert limits.try_acquire({KEY: 0})
        clock.advance(HOUR // 2)
        assert limits.try_acquire({KEY: 5})
        for seconds, left in ((HOUR - 1, 5), (1, 10)):
            clock.advance(seconds)
            assert available(limits) == left

    def test_a_clock_that_goes_back_neither_ends_a_session_nor_starts_one(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, SESSION)
        assert limits.try_acquire({KEY: 6})
        clock.advance(-DAY)
        assert not limits.try_acquire({KEY: 5})
        assert limits.try_acquire({KEY: 4})
        clock.advance(DAY + HOUR)
        assert limits.try_acquire({KEY: 10})

    def test_money_is_exact_to_the_millionth(self, store: Store) -> None:
        limits = limits_of(store, QuotaLimit.per_month("usd", 1))
        for _ in range(9):
            assert limits.try_acquire({"usd": 0.1})
        claim = taken(limits, {"usd": 0.099999})
        assert not limits.try_acquire({"usd": 0.000002})
        assert limits.try_acquire({"usd": 0.000001})
        assert not limits.try_acquire({"usd": 0.000001})
        settle(limits, claim, {"usd": -0.099998})
        assert available(limits, "usd") == Fraction("0.099998")
        larger = limits_of(store, QuotaLimit.parse("1.5/day", "usd"))
        assert available(larger, "usd") == Fraction("0.599998")
        rate = limits_of(store, RateLimit("usd", 1.5, HOUR))
        assert available(rate, "usd") == Fraction("0.599998")

    @every_quota
    def test_a_changed_quota_keeps_its_use(self, store: Store, quota: QuotaLimit) -> None:
        before = limits_of(store, quota)
        claim = taken(before, {KEY: 7})
        new: list[QuotaLimit | RateLimit] = [*QUOTAS, RateLimit(KEY, 12, DAY), replace(quota, capacity=8)]
        for definition in new:
            changed = limits_of(store, definition)
            assert used(changed) == 7
            assert not changed.try_acquire({KEY: int(definition.capacity) - 6})
        larger = limits_of(store, replace(quota, capacity=20))
        assert larger.try_acquire({KEY: 1})
        settle(before, claim, {KEY: -4})
        assert used(larger) == 4

    @pytest.mark.parametrize("starts", ["", "15", "31+6h"])
    def test_a_changed_start_ends_the_period_later_or_earlier(
        self, store: Store, clock: FakeClock, starts: str
    ) -> None:
        clock.move(us_of("2026-02-10 12:00") - clock.now_us)
        for before in ("", "15", "31+6h"):
            first = limits_of(store, QuotaLimit.per_month(KEY, 10, starts=before), entity=before)
            assert first.try_acquire({KEY: 7})
            changed = QuotaLimit.per_month(KEY, 10, starts=starts)
            second = limits_of(store, changed, entity=before)
            assert not second.try_acquire({KEY: 4})
            unused = limits_of(store, changed, entity=f"unused {before}")
            assert unused.try_acquire({KEY: 10})
            assert wait_us(second.try_acquire({KEY: 4})) == wait_us(unused.try_acquire({KEY: 4}))

    def test_a_refusal_of_another_limit_leaves_a_quota_as_it_was(self, store: Store) -> None:
        parts = [scoped(store, SESSION, entity="child"), scoped(store, CallLimit(1, HOUR), entity="parent")]
        family = limits_in(store, *parts)
        assert family.try_acquire({KEY: 3})
        before = snapshot(family)
        assert not family.try_acquire({KEY: 3})
        assert snapshot(family) == before

    @pytest.mark.parametrize("limit", SOFT, ids=lambda limit: str(getattr(limit, "algorithm", "session")))
    def test_a_soft_limit_admits_and_counts_everything(
        self, store: Store, clock: FakeClock, limit: RateLimit | QuotaLimit
    ) -> None:
        limits = limits_of(store, limit)
        outcomes = [limits.try_acquire({KEY: amount}).outcome for amount in (6, 4, 0, 50)]
        assert [outcome.allowed for outcome in outcomes] == [True] * 4
        assert [outcome.passed[0].overdrawn for outcome in outcomes] == [0, 0, 0, 50]
        assert used(limits) == 60
        mixed = limits_of(store, limit, RateLimit("hard", 10, HOUR), entity="mixed")
        assert mixed.try_acquire({KEY: 30, "hard": 10})
        before = snapshot(mixed)
        assert not mixed.try_acquire({KEY: 30, "hard": 1})
        assert snapshot(mixed) == before
        hard = limits_of(store, replace(limit, soft=False))
        clock.move(wait_us(hard.try_acquire({KEY: 0})) - 1)
        assert not hard.try_acquire({KEY: 0})
        clock.move(1)
        assert hard.try_acquire({KEY: 0})
