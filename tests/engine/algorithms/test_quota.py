"""Quotas: so much per period, refunds within it, debt in it, and what becomes of it when the definition changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.engine.algorithms.calendar import Calendar
from limits_app.engine.algorithms.rule import DEBT_PARTS
from limits_app.engine.limits import QuotaLimit, RateLimit
from limits_app.engine.periods import QuotaPeriod
from tests.engine.algorithms.definitions import ALGORITHMS, examples
from tests.engine.algorithms.driven import NOW, SECOND, Driven, Step, timelines
from tests.engine.algorithms.test_quota_calendar import moments, period_of, us

HOUR = 3600 * SECOND
DAILY = QuotaLimit.per_day("k", 10)
SESSION = QuotaLimit.per_session("k", 10, 3600)
#: Midnight in Berlin, and the last day of a month.
MIDNIGHT = us(datetime.fromisoformat("2026-01-31T00:00+01:00"))


@timelines(
    to_its_end=[(0, 10, True), (0, 1, False), (3_599_999, 1, False), (3_600_000, 10, True)],
    from_the_first_use_on=[(500_000, 4, True), (4_099_999, 7, False), (4_100_000, 7, True)],
    anew=[(0, 4, True), (9_000_000, 10, True), (12_599_999, 1, False), (12_600_000, 1, True)],
    asking_for_nothing_starts_none=[(0, 0, True), (1_000_000, 10, True), (4_599_999, 1, False)],
    a_clock_going_back=[(1000, 6, True), (0, 5, False), (0, 4, True), (3_600_999, 1, False)],
    all_given_back=[(0, 5, True), (0, "settle", -5), (1000, 10, True), (3_600_000, 1, False)],
    some_given_back=[(0, 5, True), (1000, "settle", -2), (1000, "used", 3), (1000, 7, True)],
    debt=[(0, 10, True), (1, "settle", 5), (1, "used", 15), (1, 0, False), (3_600_000, 0, True)],
    late=[(0, 10, True), (3_600_000, "settle", 3), (7_199_999, 8, False), (7_199_999, 7, True)],
    wait=[(0, 4, True), (0, "wait", 6, 0), (9, "wait", 7, 3_599_991), (9, "wait", 10, 3_599_991)],
    wait_while_back=[(1000, 4, True), (0, "wait", 7, 3_601_000), (3_601_000, "wait", 10, 0)],
    settling_nothing=[(0, 6, True), (3_600_000, "settle", 0), (0, "used", 6), (0, 5, False)],
)
def test_a_session_lasts_from_its_first_use_on(timeline: list[Step]) -> None:
    Driven(SESSION).run(timeline)


def test_a_clock_that_goes_back_behind_a_boundary_stays_in_the_period_that_began() -> None:
    tested = Driven(DAILY)
    assert tested.take(MIDNIGHT, 4)
    assert not tested.fits(MIDNIGHT - 48 * HOUR, 7)
    assert tested.used(MIDNIGHT - 48 * HOUR) == 4


def test_debt_is_remembered_up_to_a_bound() -> None:
    tested = Driven(DAILY)
    for _ in range(5):
        tested.settle(NOW, 10**12)
        tested.state = tested.rule.settle(tested.state, NOW, DEBT_PARTS)
    assert max(tested.state) < 2**53
    assert tested.used(NOW) == DEBT_PARTS


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Pacific/Apia"])
def test_a_clock_that_starts_at_0_is_as_good_as_any(zone: str) -> None:
    tested = Driven(QuotaLimit.per_month("k", 10, zone))
    assert tested.take(0, 10)
    assert not tested.fits(1, 1)
    assert tested.fits(32 * 24 * HOUR, 1)


@pytest.mark.parametrize("period", QuotaPeriod)
@pytest.mark.parametrize("years", [8029, 9000, -1970, -3000])
def test_a_time_beyond_the_calendar_of_python_is_in_an_endless_period(period: QuotaPeriod, years: int) -> None:
    now = round(years * 365.2425 * 86_400) * SECOND + 86_399 * SECOND
    quota = Driven(QuotaLimit("x", 3, period))
    assert quota.take(now, 2)
    assert not quota.take(now, 2)


def test_only_calendars_have_boundaries() -> None:
    berlin = Driven(QuotaLimit.per_day("k", 10, "Europe/Berlin")).rule
    assert berlin.boundaries(MIDNIGHT + 5, 2) == tuple(MIDNIGHT + days * 24 * HOUR for days in (-1, 0, 1, 2))
    assert Driven(SESSION).rule.boundaries(MIDNIGHT, 2) == ()
    assert Driven(RateLimit("k", 1, 1)).rule.boundaries(MIDNIGHT, 2) == ()


@examples(60)
@given(draw=st.data(), where=moments(), kind=st.sampled_from(QuotaPeriod))
def test_a_quota_follows_the_calendar(draw: st.DataObject, where: tuple[str, int], kind: QuotaPeriod) -> None:
    zone, now = where
    now = max(now, 0)
    decides_alike(draw, QuotaLimit("k", 10, kind, zone), now, lambda moment, _: period_of(kind, zone, moment))


@examples(200)
@given(draw=st.data(), milliseconds=st.integers(1, 10**6))
def test_a_session_decides_as_a_stopwatch_does(draw: st.DataObject, milliseconds: int) -> None:
    length = milliseconds * 1000

    def session_at(moment: int, running: tuple[int, int]) -> tuple[int, int]:
        return running if moment < running[1] else (moment, moment + length)

    decides_alike(draw, QuotaLimit.per_session("k", 10, milliseconds / 1000), NOW, session_at)


def decides_alike(
    draw: st.DataObject, limit: QuotaLimit, now: int, period_at: Callable[[int, tuple[int, int]], tuple[int, int]]
) -> None:
    """Play a random course of events against a count that is kept by hand."""
    tested, period, count = Driven(limit), (0, 0), 0
    taken: list[tuple[int, int]] = []
    for _ in range(draw.draw(st.integers(1, 10), "steps")):
        ends = max(tested.state[1] - now, 1)
        gaps = [0, 1, HOUR // 2, 24 * HOUR, ends, ends - 1, draw.draw(st.integers(0, 40 * 24 * HOUR), "any gap")]
        now += gaps[draw.draw(st.integers(0, len(gaps) - 1), "gap")]
        if now >= period[1] or not count:
            period, count = period_at(now, (0, 0) if not count else period), 0
        assert tested.used(now) == count
        if taken and draw.draw(st.booleans(), "settles"):
            taken_at, amount = taken.pop(draw.draw(st.integers(0, len(taken) - 1), "which"))
            change = draw.draw(st.integers(-amount, 5), "change")
            tested.settle(now, change, taken_at)
            if change > 0 or taken_at >= period[0]:
                count = max(count + change, 0)
        else:
            amount = draw.draw(st.integers(0, 10), "amount")
            assert tested.wait(now, amount) == (0 if count + amount <= 10 else period[1] - now)
            assert tested.take(now, amount) is (count + amount <= 10)
            if count + amount <= 10:
                count += amount
                taken.append((now, amount))
        assert tested.used(now) == count
        restored_at = tested.rule.restored_at(tested.state)
        assert restored_at == period[1] if count else restored_at <= now


WEEKLY = QuotaLimit.per_week("k", 10, "Europe/Berlin")


@pytest.mark.parametrize(("seconds", "left_us"), [(7200, HOUR * 3 // 2), (1800, HOUR // 2), (60, 60 * SECOND)])
def test_a_session_goes_on_with_its_new_length(seconds: int, left_us: int) -> None:
    tested = Driven(SESSION)
    assert tested.take(NOW, 10)
    changed = tested.carried_into(QuotaLimit.per_session("k", 10, seconds), NOW + HOUR // 2)
    assert changed.wait(NOW + HOUR // 2, 1) == left_us


@pytest.mark.parametrize(
    "changed", [QuotaLimit.per_session("k", 20, 60), QuotaLimit.per_session("k", 10, 60, soft=True)], ids=repr
)
def test_a_session_that_was_made_shorter_ends_no_later_for_another_change(changed: QuotaLimit) -> None:
    tested = Driven(SESSION)
    assert tested.take(NOW, 10)
    shorter = tested.carried_into(QuotaLimit.per_session("k", 10, 60), NOW + HOUR // 2)
    assert shorter.carried_into(changed, NOW + HOUR // 2 + SECOND).state == shorter.state


def test_a_day_becomes_a_session_that_lasts_from_the_change_on() -> None:
    tested, now = Driven(QuotaLimit.per_day("k", 10, "Europe/Berlin")), MIDNIGHT + 10 * HOUR
    assert tested.take(now, 10)
    session = tested.carried_into(QuotaLimit.per_session("k", 10, 20 * 3600), now)
    assert session.wait(now, 1) == 20 * HOUR


@pytest.mark.parametrize("limit", [DAILY, SESSION])
def test_unused_amounts_are_refunded_after_credit(limit: QuotaLimit) -> None:
    tested = Driven(limit)
    assert tested.take(NOW, 10)
    tested.state = tested.rule.credit(tested.state, NOW + SECOND, 3)
    tested.settle(NOW + 2 * SECOND, -4, taken_at=NOW)
    assert tested.used(NOW + 2 * SECOND) == 3


def test_a_period_that_is_over_carries_nothing() -> None:
    tested = Driven(SESSION)
    assert tested.take(NOW, 10)
    assert tested.carried_into(DAILY, NOW + HOUR).state == (0, 0, 0)


def test_a_change_while_the_clock_is_back_ends_no_period_early() -> None:
    tested = Driven(DAILY)
    assert tested.take(MIDNIGHT + 2 * HOUR, 10)
    hourly = tested.carried_into(QuotaLimit.per_hour("k", 10), MIDNIGHT - 3 * HOUR)
    assert hourly.used(MIDNIGHT - 3 * HOUR) == 10
    assert not hourly.fits(MIDNIGHT, 1)


@pytest.mark.parametrize(
    "changed",
    [QuotaLimit.per_hour("k", 10), QuotaLimit.per_session("k", 10, 7200), DAILY],
    ids=["hour", "longer", "day"],
)
@pytest.mark.parametrize(("limit", "back"), [(DAILY, 5 * HOUR), (SESSION, HOUR // 2)], ids=["day", "session"])
def test_change_keeps_use_recorded_while_the_clock_is_set_back(
    limit: QuotaLimit, back: int, changed: QuotaLimit
) -> None:
    tested, begins = Driven(limit), MIDNIGHT + HOUR
    assert tested.take(begins, 5)
    assert tested.take(begins - back, 5)
    after = tested.carried_into(changed, begins - back)
    assert after.used(begins + HOUR - 1) == 10
    after.settle(begins, -5, taken_at=begins - back)
    assert after.used(begins) == 5


@pytest.mark.parametrize("quota", [DAILY, WEEKLY, SESSION])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rate_becomes_a_quota_and_a_quota_a_rate(algorithm: str, quota: QuotaLimit) -> None:
    rate = RateLimit("k", 10, 3600, algorithm)  # type: ignore[arg-type]  # a member
    tested = Driven(rate)
    assert tested.take(NOW, 7)
    changed = tested.carried_into(quota, NOW)
    assert changed.used(NOW) == 7
    changed.settle(NOW + 1, -5, taken_at=NOW - 1)
    assert changed.used(NOW + 1) == 7, "what was taken before may have drained already"
    back = changed.carried_into(rate, NOW + 1)
    assert back.used(NOW + 1) == 7
    assert not back.fits(NOW + 1, 4)


class Watched(tzinfo):
    """A zone that counts how often it is asked."""

    asked = 0

    def utcoffset(self, moment: datetime | None) -> timedelta:
        self.asked += 1
        return timedelta(hours=1)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


def test_a_calendar_reckons_only_when_its_period_is_over() -> None:
    zone = Watched()
    calendar = Calendar(QuotaPeriod.DAY, zone)
    for hours, reckons in ((0, True), (1, False), (23, False), (24, True), (47, False), (23, True)):
        before = zone.asked
        assert MIDNIGHT + hours * HOUR < calendar.period_at(MIDNIGHT + hours * HOUR)[1] <= MIDNIGHT + 48 * HOUR
        assert (zone.asked > before) is reckons
