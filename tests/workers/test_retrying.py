"""Retries: which, how often, and after how long, on a clock that is moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from threading import Event
from time import monotonic
from typing import Any

import pytest

from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import ResourceLimit
from limits_app.testing import FakeClock
from limits_app.workers import RetryAlgorithm, Worker
from limits_app.workers.retrying import Attempts, Pauses, Retry
from tests.core.watched import Caller
from tests.workers.people import Clerk

SECONDS = 20


@pytest.mark.parametrize(
    ("algorithm", "pauses"),
    [
        ("fixed", [2, 2, 2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8, 10, 12]),
        ("exponential", [2, 4, 8, 16, 32, 64]),
        ("fibonacci", [2, 2, 4, 6, 10, 16]),
    ],
)
def test_pauses_grow_as_the_algorithm_says(algorithm: str, pauses: Sequence[float]) -> None:
    retry = Retry(times=6, algorithm=algorithm, wait=2, jitter=0)
    assert [retry.pause_after(attempt) for attempt in range(1, 7)] == pauses


@pytest.mark.parametrize("algorithm", RetryAlgorithm)
def test_no_pause_is_longer_than_a_day_or_shorter_than_nothing(algorithm: str) -> None:
    assert Retry(algorithm=algorithm, wait=86_400, jitter=0).pause_after(1_000_000) == 86_400
    assert Retry(algorithm=algorithm, wait=0).pause_after(1_000_000) == 0


@pytest.mark.parametrize(("drawn", "pause"), [(0.0, 7.0), (0.25, 8.5), (0.5, 10.0), (1.0, 13.0)])
def test_jitter_is_a_share_to_both_sides(drawn: float, pause: float) -> None:
    retry = Retry(algorithm="fixed", wait=10, jitter=0.3, random=lambda: drawn)
    assert retry.pause_after(1) == pytest.approx(pause)


def test_jitter_is_drawn_anew_each_time() -> None:
    assert len({Retry().pause_after(1) for _ in range(20)}) > 1


@pytest.mark.parametrize("on", [LookupError, [LookupError], (OSError, LookupError), {LookupError}, Exception])
def test_errors_of_the_types_are_retried(on: Any) -> None:
    assert Attempts(Retry(times=1, on=on)).pause(KeyError()) is not None


@pytest.mark.parametrize("on", [OSError, [], [OSError, ValueError]])
def test_other_errors_are_not(on: Any) -> None:
    assert Attempts(Retry(times=1, on=on)).pause(KeyError()) is None


def test_a_callable_sees_the_error_the_attempt_and_the_elapsed_time(clock: FakeClock) -> None:
    seen = []

    def rule(error: Exception, attempt: int, elapsed: float) -> bool:
        seen.append((error.args[0], attempt, elapsed))
        return elapsed < 5

    attempts = Attempts(Retry(times=10, on=rule, algorithm="fixed", wait=1, jitter=0, clock=clock))
    answers = []
    for seconds in (0, 2.5, 2.5):
        clock.advance(seconds)
        answers.append(attempts.pause(LookupError("no")))
    assert seen == [("no", 1, 0.0), ("no", 2, 2.5), ("no", 3, 5.0)]
    assert answers == [1, 1, None]


def test_there_are_as_many_retries_as_was_said() -> None:
    attempts = Attempts(Retry(times=2, jitter=0))
    assert [attempts.pause(LookupError()) for _ in range(3)] == [1, 2, None]


# ------------------------------------------------------------------------------------------------- in workers


@pytest.mark.parametrize("method", ["fail_times", "fail_times_later"])
def test_a_call_is_made_again_until_it_succeeds(mode: str, method: str) -> None:
    with Clerk.options(mode=mode, num_retries=3, retry_on=LookupError, retry_wait=0).init() as clerk:
        assert getattr(clerk, method)(3).result(SECONDS) == 4


@pytest.mark.parametrize("method", ["fail_times", "fail_times_later"])
def test_the_last_error_is_the_one_that_counts(mode: str, method: str) -> None:
    options = Clerk.options(mode=mode, num_retries=2, retry_wait=0)
    with options.init() as clerk, pytest.raises(LookupError, match="3"):
        getattr(clerk, method)(9).result(SECONDS)


class Patient(Worker):
    """Fails at first; where it waits for permits, it holds one while it fails."""

    def __init__(self) -> None:
        self.failed = Event()
        self.moments: list[int] = []

    def work(self, clock: FakeClock, times: int) -> list[int]:
        self.moments.append(clock.now_us)
        if len(self.moments) <= times:
            with self.limits.try_acquire():
                self.failed.set()
                raise LookupError("not yet")
        return self.moments

    async def work_async(self, clock: FakeClock, times: int) -> list[int]:
        return self.work(clock, times)

    def say_failed(self) -> Event:
        return self.failed


def pausing(pauses: Pauses, number: int = 1) -> None:
    """Wait until so many pause."""
    end = monotonic() + SECONDS
    while len(pauses._alarms) < number:
        assert monotonic() < end


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_pause_ends_when_its_time_has_come_and_not_a_moment_early(clock: FakeClock, asynchronous: bool) -> None:
    pauses = Pauses(clock)

    def pause() -> bool:
        return asyncio.run(pauses.take_async(2)) if asynchronous else pauses.take(2)

    caller = Caller(pause)
    pausing(pauses)
    clock.move(1_999_999)
    assert len(pauses._alarms) == 1
    clock.move(1)
    assert caller.result() is True
    assert not pauses._alarms


@pytest.mark.parametrize("asynchronous", [False, True])
def test_pauses_can_be_ended_also_those_to_come(clock: FakeClock, asynchronous: bool) -> None:
    pauses = Pauses(clock)

    def pause() -> bool:
        return asyncio.run(pauses.take_async(2)) if asynchronous else pauses.take(2)

    caller = Caller(pause)
    pausing(pauses)
    pauses.end()
    assert caller.result() is False
    assert pause() is False


def test_a_pause_of_nothing_is_over_at_once(clock: FakeClock) -> None:
    assert Pauses(clock).take(0)
    assert asyncio.run(Pauses(clock).take_async(0))


def test_a_pause_takes_as_long_as_it_should_by_a_clock_that_moves_by_itself() -> None:
    assert Pauses(Retry().clock).take(0.001)
    assert asyncio.run(Pauses(Retry().clock).take_async(0.001))


def test_a_pause_that_is_cancelled_leaves_nothing_behind(clock: FakeClock) -> None:
    pauses = Pauses(clock)

    async def abandon() -> None:
        task = asyncio.create_task(pauses.take_async(2))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(abandon())
    assert not pauses._alarms
    clock.advance(5)


@pytest.mark.parametrize(("mode", "method"), [("thread", "work"), ("asyncio", "work"), ("asyncio", "work_async")])
def test_attempts_are_made_at_their_times_and_hold_nothing_in_between(clock: FakeClock, mode: str, method: str) -> None:
    limits = LimitSet([ResourceLimit("desk", 1)], shared=True, mode="thread")
    start = clock.now_us
    with Patient.options(
        mode=mode, limits=limits, num_retries=3, retry_wait=1, retry_jitter=0, clock=clock
    ).init() as patient:
        pauses = patient._back_ends[0]._resident.pauses  # type: ignore[attr-defined]
        future = getattr(patient, method)(clock, 3)
        for seconds in (1, 2, 4):
            pausing(pauses)
            assert limits.get_stats()["desk"]["used"] == 0
            clock.advance(seconds)
        assert [moment - start for moment in future.result(SECONDS)] == [0, 1_000_000, 3_000_000, 7_000_000]
        assert patient.get_pool_stats()["submission_queues"][0]["in_flight"] == 0


def test_a_call_that_pauses_keeps_its_one_slot(clock: FakeClock) -> None:
    options = Clerk.options(
        mode="asyncio", num_retries=1, retry_wait=1, retry_jitter=0, clock=clock, max_queued_tasks=1
    )
    with options.init() as clerk:
        failing = clerk.fail_times_later(1)
        following = clerk.tell_later("next")
        pausing(clerk._back_ends[0]._resident.pauses)  # type: ignore[attr-defined]
        assert clerk.get_pool_stats()["submission_queues"][0] == {
            "index": 0,
            "capacity": 1,
            "waiting": 1,
            "in_flight": 1,
        }
        clock.advance(1)
        assert failing.result(SECONDS) == 2
        assert following.result(SECONDS) == ["called", "called", "next"]


@pytest.mark.parametrize(("mode", "method"), [("thread", "fail"), ("asyncio", "fail"), ("sync", "fail")])
def test_stopping_in_a_hurry_ends_pauses_with_the_error(clock: FakeClock, mode: str, method: str) -> None:
    clerk = Clerk.options(mode=mode, num_retries=1, clock=clock).init()
    caller = Caller(getattr(clerk, method))
    pausing(clerk._back_ends[0]._resident.pauses)  # type: ignore[attr-defined]
    clerk.stop(timeout=0)
    with pytest.raises(LookupError):
        caller.result().result(SECONDS)
