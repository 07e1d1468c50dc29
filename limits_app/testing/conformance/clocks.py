"""Clocks that are set: at most one window later everything is as it was, with the use that there was."""

from __future__ import annotations

import pytest

from limits_app.acquiring import Store
from limits_app.engine import DAY, HOUR, SECOND_US, Claim
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit, RateLimit, ResourceLimit
from limits_app.testing.clock import FakeClock
from limits_app.testing.conformance.contract import (
    ALGORITHMS,
    KEY,
    REFUNDING,
    YEAR,
    Contract,
    available,
    limits_of,
    settle,
    taken,
)

WINDOW = 40
CAPACITY = 6
HOLD = 25
LIMITS: list[tuple[LimitDefinition, int]] = [
    *[(RateLimit(KEY, CAPACITY, WINDOW, algorithm), WINDOW) for algorithm in ALGORITHMS],
    (RateLimit(KEY, CAPACITY, WINDOW, "leaky_bucket", burst=1), WINDOW),
    (QuotaLimit.per_session(KEY, CAPACITY, WINDOW), WINDOW),
    (QuotaLimit.per_hour(KEY, CAPACITY), HOUR),
    (QuotaLimit.per_month(KEY, CAPACITY, "Europe/Berlin"), 31 * DAY + HOUR),
]
"""Limits, and their windows in seconds."""
every_limit = pytest.mark.parametrize(("limit", "window"), LIMITS, ids=[str(limit) for limit, _ in LIMITS])
STEPS_BACK = {"slightly_more_than_a_window": 0.001, "an_hour": HOUR, "thirty_years": 30 * YEAR}
"""By how many seconds more than two windows a clock is set back."""


class Clocks(Contract):
    """Steps back and forward, with every kind of limit."""

    @every_limit
    @pytest.mark.parametrize("more", STEPS_BACK.values(), ids=STEPS_BACK)
    def test_a_window_after_a_step_back_the_whole_limit_is_available(
        self, store: Store, clock: FakeClock, *, limit: LimitDefinition, window: int, more: float
    ) -> None:
        limits = limits_of(store, limit)
        everything = {KEY: int(limit.ceiling)}
        assert taken(limits, everything).admitted
        clock.advance(-2 * window - more)
        assert not taken(limits, {KEY: 1}).admitted, "the use is kept"
        clock.advance(window)
        assert taken(limits, everything).admitted
        assert not taken(limits, {KEY: 1}).admitted

    @every_limit
    def test_requests_that_are_rejected_after_a_step_back_put_nothing_off(
        self, store: Store, clock: FakeClock, *, limit: LimitDefinition, window: int
    ) -> None:
        limits = limits_of(store, limit)
        everything = {KEY: int(limit.ceiling)}
        assert taken(limits, everything).admitted
        clock.advance(-YEAR)
        for _ in range(8):
            assert not taken(limits, {KEY: int(limit.ceiling) + 1}).admitted
            clock.advance(window / 8)
        assert taken(limits, everything).admitted

    @every_limit
    def test_partial_use_is_kept_over_a_step_back(
        self, store: Store, clock: FakeClock, *, limit: LimitDefinition, window: int
    ) -> None:
        limits = limits_of(store, limit)
        half = max(int(limit.ceiling) // 2, 1)
        assert taken(limits, {KEY: half}).admitted
        clock.advance(-3 * window)
        assert available(limits) == limit.ceiling - half
        assert not taken(limits, {KEY: int(limit.ceiling) - half + 1}).admitted
        assert taken(limits, {KEY: int(limit.ceiling) - half}).admitted
        assert not taken(limits, {KEY: 1}).admitted
        clock.advance(window)
        assert available(limits) == limit.ceiling

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("back", [0.001, WINDOW / 2, WINDOW])
    def test_a_step_back_of_at_most_a_window_changes_no_state(
        self, store: Store, clock: FakeClock, algorithm: str, back: float
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, CAPACITY, WINDOW, algorithm))
        assert taken(limits, {KEY: CAPACITY}).admitted
        clock.advance(-back)
        assert not taken(limits, {KEY: 1}).admitted
        clock.advance(back)
        assert not taken(limits, {KEY: 1}).admitted, "the time that the clock had already shown passes once"
        clock.advance(WINDOW)
        assert taken(limits, {KEY: CAPACITY}).admitted

    @every_limit
    def test_a_trip_into_the_future_costs_at_most_a_window(
        self, store: Store, clock: FakeClock, *, limit: LimitDefinition, window: int
    ) -> None:
        limits = limits_of(store, limit)
        everything = {KEY: int(limit.ceiling)}
        assert taken(limits, everything).admitted
        clock.advance(5 * YEAR)
        assert taken(limits, everything).admitted
        clock.advance(-5 * YEAR)
        assert not taken(limits, everything).admitted
        clock.advance(window)
        assert taken(limits, everything).admitted

    @pytest.mark.parametrize("algorithm", REFUNDING)
    def test_charge_before_a_step_back_is_refunded_after_it(
        self, store: Store, clock: FakeClock, algorithm: str
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, CAPACITY, WINDOW, algorithm))
        claim = taken(limits, {KEY: CAPACITY})
        clock.advance(-HOUR)
        settle(limits, claim, {KEY: -CAPACITY + 2})
        assert available(limits) == CAPACITY - 2
        assert taken(limits, {KEY: CAPACITY - 2}).admitted
        assert not taken(limits, {KEY: 1}).admitted

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_over_use_that_is_reported_after_a_step_back_is_charged_now(
        self, store: Store, clock: FakeClock, algorithm: str
    ) -> None:
        limits = limits_of(store, RateLimit(KEY, CAPACITY, WINDOW, algorithm))
        claim = taken(limits, {KEY: 1})
        clock.advance(-HOUR)
        settle(limits, claim, {KEY: CAPACITY - 1})
        assert not taken(limits, {KEY: 1}).admitted
        clock.advance(WINDOW)
        assert taken(limits, {KEY: CAPACITY}).admitted

    def test_changed_limits_take_over_use_from_before_a_step_back(self, store: Store, clock: FakeClock) -> None:
        assert taken(limits_of(store, CallLimit(5, WINDOW))).admitted
        clock.advance(-HOUR)
        limits = limits_of(store, CallLimit(2, WINDOW))
        assert [taken(limits).admitted for _ in range(2)] == [True, False]
        clock.advance(WINDOW)
        assert [taken(limits).admitted for _ in range(3)] == [True, True, False]

    def test_permits_of_a_holder_that_died_return_a_lease_after_a_step_back(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1))
        assert taken(limits).admitted
        clock.advance(-HOUR)
        assert not taken(limits).admitted
        clock.advance(store.lease_us / SECOND_US)
        assert taken(limits).admitted

    def test_a_living_holder_keeps_its_permits_over_a_step_back(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1))
        claim = taken(limits)
        clock.advance(-HOUR)
        assert not taken(limits).admitted
        for _ in range(3):
            clock.advance(store.lease_us / SECOND_US / 2)
            assert store.renew([claim]) == []
        assert not taken(limits).admitted
        settle(limits, claim, {KEY: -1})
        assert taken(limits).admitted

    @pytest.mark.parametrize("more", STEPS_BACK.values(), ids=STEPS_BACK)
    @pytest.mark.parametrize("held_before", [0, HOLD * 0.4])
    def test_the_longest_hold_of_a_permit_begins_anew_with_a_step_back(
        self, store: Store, clock: FakeClock, *, held_before: float, more: float
    ) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1, max_hold_seconds=HOLD))
        claim, lease = taken(limits), store.lease_us / SECOND_US
        _hold(store, clock, claim, held_before)
        clock.advance(-2 * HOLD - more)
        assert not taken(limits).admitted
        clock.advance(lease / 4)
        _hold(store, clock, claim, HOLD - 0.001)
        assert not taken(limits).admitted
        clock.advance(0.001)
        assert store.renew([claim]) == [claim]
        other = taken(limits)
        assert other.admitted
        settle(limits, claim, {KEY: -1})
        assert not taken(limits).admitted, "a late release changes nothing"
        _hold(store, clock, other, HOLD - 0.001)
        settle(limits, other, {KEY: -1})
        assert [taken(limits).admitted for _ in range(2)] == [True, False]

    def test_a_step_back_of_at_most_the_longest_hold_lets_a_permit_end_by_the_old_clock(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1, max_hold_seconds=HOLD))
        claim = taken(limits)
        clock.advance(-HOLD)
        _hold(store, clock, claim, 2 * HOLD - 0.001)
        clock.advance(0.001)
        assert store.renew([claim]) == [claim]
        assert taken(limits).admitted

    def test_each_permit_of_a_holder_ends_by_its_own_longest_hold_after_a_step_back(
        self, store: Store, clock: FakeClock
    ) -> None:
        long, short = "long", ResourceLimit(KEY, 1, max_hold_seconds=HOLD)
        limits = limits_of(store, short, ResourceLimit(long, 1, max_hold_seconds=3 * HOLD), ResourceLimit("ever", 1))
        claim = taken(limits)
        clock.advance(-2 * HOLD)
        _hold(store, clock, claim, HOLD - 0.001)
        clock.advance(0.001)
        assert store.renew([claim]) == [claim]
        assert taken(limits, left_out={long, "ever"}).admitted
        assert not taken(limits, left_out={KEY, "ever"}).admitted
        assert not taken(limits, left_out={KEY, long}).admitted

    def test_a_permit_is_lost_when_the_clock_is_right_again(self, store: Store, clock: FakeClock) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1, max_hold_seconds=HOLD))
        claim = taken(limits)
        for _ in range(3):
            clock.advance(-HOUR)
            _hold(store, clock, claim, HOLD / 2)
        clock.advance(3 * HOUR)
        assert store.renew([claim]) == [claim]
        assert [taken(limits).admitted for _ in range(2)] == [True, False]

    def test_a_holder_is_notified_that_its_longest_hold_has_ended_after_a_step_back(
        self, store: Store, clock: FakeClock
    ) -> None:
        limits = limits_of(store, ResourceLimit(KEY, 1, max_hold_seconds=HOLD))
        with limits.try_acquire() as acquisition:
            clock.advance(-HOUR)
            clock.advance(HOLD - 0.001)
            assert not acquisition.lost_lease
            assert limits.try_acquire(), "a nested request does not wait for itself"
            clock.advance(0.001)
            assert acquisition.lost_lease
            assert taken(limits).admitted
            assert not limits.try_acquire()


def _hold(store: Store, clock: FakeClock, claim: Claim, seconds: float) -> None:
    """Keep the permits of a claim for a time, renewed at its beginning, at its end and in between."""
    left = round(seconds * SECOND_US)
    assert store.renew([claim]) == []
    while left > 0:
        step = min(left, store.lease_us // 3)
        clock.move(step)
        left -= step
        assert store.renew([claim]) == []
