"""Retries of calls in workers, on a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.retry import Pauses
from limits_app.engine.limits import ResourceLimit
from limits_app.testing import FakeClock
from limits_app.workers import Worker, WorkerPool
from tests.acquiring.test_retry import until_pausing
from tests.acquiring.watched import Caller
from tests.workers.people import Clerk, back_end_of

SECONDS = 20


def test_a_call_is_made_again_until_it_succeeds_and_the_last_error_counts(mode: str) -> None:
    with Clerk.options(mode=mode, num_retries=3, retry_on=LookupError, retry_wait=0).init() as clerk:
        assert clerk.fail_times(3).result(SECONDS) == 4
        assert clerk.fail_times_later(7).result(SECONDS) == 8
        for method, last in ((clerk.fail_times, "12"), (clerk.fail_times_later, "16")):
            with pytest.raises(LookupError, match=last):
                method(99).result(SECONDS)


class Patient(Worker):
    """Fails at first; where it waits for permits, it holds one while it fails."""

    def __init__(self) -> None:
        self.moments: list[int] = []

    def work(self, clock: FakeClock, times: int) -> list[int]:
        self.moments.append(clock.now_us)
        if len(self.moments) <= times:
            with self.limits.try_acquire():
                raise LookupError("not yet")
        return self.moments

    async def work_async(self, clock: FakeClock, times: int) -> list[int]:
        return self.work(clock, times)


def pauses_of(pool: WorkerPool[Any]) -> Pauses:
    pauses: Pauses = back_end_of(pool)._host.retrier.pauses
    return pauses


def test_a_callable_decides_with_the_method_and_its_arguments(mode: str) -> None:
    options = Clerk.options(mode=mode, num_retries=3, retry_on=only_twice, retry_wait=0)
    with options.init() as clerk, pytest.raises(LookupError, match="2"):
        clerk.fail_times(9).result(SECONDS)


def only_twice(*, exception: Exception, attempt: int, elapsed: float, **context: object) -> bool:
    assert isinstance(exception, LookupError)
    assert elapsed >= 0
    assert context == {"worker_class": Clerk, "method": "fail_times", "args": (9,), "kwargs": {}}
    return attempt < 2


@pytest.mark.parametrize(("mode", "method"), [("thread", "work"), ("asyncio", "work"), ("asyncio", "work_async")])
def test_attempts_are_made_at_their_times_and_hold_nothing_in_between(clock: FakeClock, mode: str, method: str) -> None:
    limits = LimitSet([ResourceLimit("desk", 1)], shared=True, mode="thread")
    start = clock.now_us
    with Patient.options(
        mode=mode, limits=limits, num_retries=3, retry_wait=1, retry_jitter=0, clock=clock
    ).init() as patient:
        future = getattr(patient, method)(clock, 3)
        for seconds in (1, 2, 4):
            until_pausing(pauses_of(patient))
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
        until_pausing(pauses_of(clerk))
        assert clerk.get_pool_stats()["submission_queues"][0] == {
            "index": 0,
            "worker_idx": 0,
            "capacity": 1,
            "waiting": 1,
            "in_flight": 1,
        }
        clock.advance(1)
        assert failing.result(SECONDS) == 2
        assert following.result(SECONDS) == ["called", "called", "next"]


@pytest.mark.parametrize("mode", ["thread", "asyncio", "sync"])
def test_stopping_in_a_hurry_ends_pauses_with_the_error(clock: FakeClock, mode: str) -> None:
    clerk = Clerk.options(mode=mode, num_retries=1, clock=clock).init()
    caller = Caller(clerk.fail)
    until_pausing(pauses_of(clerk))
    clerk.stop(timeout=0)
    with pytest.raises(LookupError):
        caller.result().result(SECONDS)
