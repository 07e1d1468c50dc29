"""Tests of a host project freeze the time or travel: limits follow, and afterwards nothing is stuck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import freezegun
import pytest
import time_machine

from limits_app.acquiring.breaker import BreakerPolicy, BreakerState, CircuitBreaker
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.acquiring.waiting import WaitingLine
from limits_app.engine.clock import Clock, monotonic_us
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.background import BackgroundTask
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis.hints import Rejections
from limits_app.stores.slices import Slices, sliced
from limits_app.testing import FakeClock
from tests.stores.support import PATIENCE, limits_of

FUTURE = datetime(2055, 6, 1, 12, tzinfo=UTC)
PAST = datetime(2003, 6, 1, 12, tzinfo=UTC)
WINDOW = 500

Travel = Callable[[datetime], AbstractContextManager[object]]


@pytest.fixture(params=["freezegun", "time_machine"])
def at(request: pytest.FixtureRequest) -> Travel:
    """Return what stops the clocks at a time."""
    if request.param == "freezegun":
        return freezegun.freeze_time
    return lambda time: time_machine.travel(time, tick=False)


@pytest.fixture(params=["memory", "process"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return a store with a clock of its own."""
    if request.param == "memory":
        yield MemoryStore()
        return
    store = ProcessStore(tmp_path, map_megabytes=4)
    yield store
    store.close()


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_limits_follow_the_time_and_are_free_a_window_after_it_came_back(
    store: Store, at: Travel, algorithm: RateLimitAlgorithm
) -> None:
    limits = limits_of(store, CallLimit(2, WINDOW, algorithm))
    with at(FUTURE):
        assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]
    with at(FUTURE + timedelta(seconds=WINDOW)):
        assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]
    outcome = limits.try_acquire().outcome
    assert outcome.retry_after is not None
    assert outcome.retry_after <= WINDOW
    with at(datetime.now(UTC) + timedelta(seconds=WINDOW)):
        assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]
    with at(PAST):
        assert not limits.try_acquire()
    with at(PAST + timedelta(seconds=WINDOW)):
        assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]


def test_a_quota_of_a_frozen_day_ends_with_the_present_day(store: Store, at: Travel) -> None:
    limits = limits_of(store, QuotaLimit.per_day("calls", 1))
    with at(FUTURE):
        assert limits.try_acquire({"calls": 1})
    outcome = limits.try_acquire({"calls": 1}).outcome
    assert outcome.retry_after is not None
    assert outcome.retry_after <= 86_400


def test_a_permit_of_a_frozen_time_returns_a_lease_later(store: Store, at: Travel) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    with at(FUTURE):
        held = limits.try_acquire()
        assert held
    (violation,) = limits.try_acquire().outcome.violations
    assert violation.reset_after <= store.lease_us / 1_000_000
    held.release()
    assert limits.try_acquire()


@pytest.mark.parametrize("tries", [1, 3])
def test_a_wait_in_frozen_time_ends(store: Store, at: Travel, tries: int) -> None:
    limits = limits_of(store, CallLimit(1, WINDOW))
    with at(FUTURE):
        assert limits.try_acquire()
        for _ in range(tries):
            with pytest.raises(LimitTimeout):
                limits.acquire(timeout=0.05)


def test_a_background_task_that_starts_in_frozen_time_goes_on(at: Travel) -> None:
    ran = Event()
    steps = iter([1000, 1000])

    def step() -> int | None:
        again = next(steps, None)
        if again is None:
            ran.set()
        return again

    task = BackgroundTask(step, 1000, clock=Clock(monotonic_us))
    with at(FUTURE):
        task.start()
    assert ran.wait(PATIENCE)


def test_a_breaker_that_opened_later_than_now_lets_a_call_through() -> None:
    clock = FakeClock()
    policy = BreakerPolicy(failure_ratio=0.5, min_calls=1, interval_us=1000, open_us=5000)
    breaker = CircuitBreaker(policy, clock=clock)
    breaker.record(failed=True)
    assert breaker.state is BreakerState.OPEN
    assert breaker.retry_after_us() == 5000
    clock.move(-1)
    assert breaker.retry_after_us() == 0
    running = breaker.enter()
    assert running is not None
    assert breaker.enter() is None, "one probe at a time"
    clock.move(-1)
    assert breaker.enter() is not None, "a probe that began later than now has ended"


def test_failures_from_later_than_now_are_not_recent() -> None:
    clock = FakeClock()
    breaker = CircuitBreaker(BreakerPolicy(failure_ratio=0.9, min_calls=3, interval_us=1000), clock=clock)
    breaker.record(failed=True)
    breaker.record(failed=True)
    assert breaker.has_recent_failures()
    clock.move(-10_000)
    assert not breaker.has_recent_failures()
    breaker.record(failed=True)
    assert breaker.state is BreakerState.CLOSED


def test_a_remembered_rejection_of_a_frozen_time_is_forgotten(at: Travel) -> None:
    limits = limits_of(MemoryStore(), CallLimit(1, WINDOW, RateLimitAlgorithm.FIXED_WINDOW))
    rejections = Rejections()
    with at(FUTURE):
        limits.try_acquire()
        rejections.learn(limits.try_acquire().claim, rejections.forgotten)
        again = limits.prepare(None).claim
        assert rejections.reject(again)
    if monotonic_us() < FUTURE.timestamp() * 1_000_000:
        frozen = monotonic_us() + 10**12
        remembered = rejections._known
        [(key, rejection)] = remembered.items()
        remembered[key] = (rejection[0], frozen, *rejection[2:])
    assert not rejections.reject(limits.prepare(None).claim)


def test_a_slice_of_a_frozen_time_is_returned_and_not_spent() -> None:
    clock, times = FakeClock(), [10**15]
    shared = MemoryStore(clock=clock)
    slices = Slices(lambda: times[0], lambda: 1)
    applied, slice_us = sliced([(CallLimit(10_000, WINDOW), 2)])
    limits = LimitSet.composed(
        [ScopedLimits(scope_of("hot", None), schema_of(applied, shared.lease_us), slice_us=slice_us)], shared
    )

    def ask() -> int:
        claim = limits.prepare(None).claim
        request = slices.take(claim)
        if request is None:
            return 0
        slices.decided(request, shared.acquire_first(request.claims))
        return len(request.claims)

    for _ in range(40):
        ask()
    assert 0 in [ask() for _ in range(5)], "a slice is spent"
    times[0] -= 10**14
    assert ask() > 0, "it is not spent any more"
    slices.return_ended(shared.settle, everything=True)
    assert not any(slices.unspent().values())
    assert [ask() for _ in range(40)].count(0) > 0, "and others are taken"


def test_waiters_of_other_processes_from_a_frozen_time_are_forgotten() -> None:
    line = WaitingLine()
    line.note_competitors([("scope", "db")], 5_000, 100)
    line.note_competitors([("scope", "db")], 5_050, 10)
    assert line.has_competitors([("scope", "db")], 5_099)
    line.note_competitors([("scope", "db")], 50, 10)
    assert line.has_competitors([("scope", "db")], 59)
    assert not line.has_competitors([("scope", "db")], 60)
