"""The circuit breaker: when it opens, which calls pass while it is half open, and when it closes."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import count

import pytest

from limits_app.acquiring.breaker import BreakerPolicy, BreakerState, CircuitBreaker, Entry
from limits_app.engine.clock import Clock
from limits_app.testing import FakeClock
from tests.forking import exit_code_of_child
from tests.interruptions import interrupt_anywhere
from tests.stores.support import MULTI_THREADED_FORK

SECOND = 1_000_000
POLICY = BreakerPolicy(0.5, 4, 10 * SECOND, probes_per_success=1, successes=5)
TIMED = BreakerPolicy(0.5, 4, 10 * SECOND, open_us=5 * SECOND, max_open_us=15 * SECOND)
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


class Course:
    """A breaker, its clock, and its changes of state."""

    def __init__(self, policy: BreakerPolicy = POLICY) -> None:
        self.clock = FakeClock()
        self.changes: list[tuple[BreakerState, BreakerState]] = []
        self.breaker = CircuitBreaker(
            policy, clock=self.clock, on_change=lambda before, after: self.changes.append((before, after))
        )

    def call(self, *, failed: bool | None = False) -> bool:
        """Make a call that ends at once; returns whether it passed."""
        entry = self.breaker.enter()
        if entry is not None:
            self.breaker.leave(entry, failed=failed)
        return entry is not None

    def opened(self) -> Course:
        """Open the breaker."""
        for _ in range(4):
            self.call(failed=True)
        assert self.breaker.state is OPEN
        return self


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        pytest.param("xxx", CLOSED, id="too_few_calls"),
        pytest.param("..x", CLOSED, id="fewer_failures"),
        pytest.param("..xx", OPEN, id="just_enough_failures"),
        pytest.param("xxx.", CLOSED, id="a_success_never_opens"),
        pytest.param("....x", CLOSED, id="one_of_five"),
        pytest.param("x...xx", OPEN, id="three_of_six"),
        pytest.param("????x", CLOSED, id="calls_without_a_result"),
    ],
)
@pytest.mark.parametrize("entered", [True, False])
def test_it_opens_when_too_large_a_part_fails(outcomes: str, state: BreakerState, *, entered: bool) -> None:
    course = Course()
    for outcome in outcomes:
        if entered or outcome == "?":
            course.call(failed=None if outcome == "?" else outcome == "x")
        else:
            course.breaker.record(failed=outcome == "x")
    assert course.breaker.state is state
    assert course.changes == ([(CLOSED, OPEN)] if state is OPEN else [])
    assert course.call() is (state is CLOSED)


def test_calls_that_are_older_than_the_interval_do_not_count() -> None:
    course = Course()
    for _ in range(3):
        course.call(failed=True)
    course.clock.advance(5)
    course.call()
    course.clock.advance(5)
    course.call(failed=True)
    assert course.breaker.state is CLOSED


def test_recent_failures_are_reported_within_the_interval() -> None:
    course = Course()
    assert not course.breaker.has_recent_failures()
    course.call(failed=True)
    course.clock.advance(8.9)
    course.call()
    assert course.breaker.has_recent_failures()
    course.clock.advance(1.1)
    assert not course.breaker.has_recent_failures()
    assert not course.opened().breaker.has_recent_failures()


def test_without_a_time_it_stays_open_until_a_probe_from_outside_succeeds() -> None:
    course = Course().opened()
    course.clock.advance(3600)
    assert not course.call()
    course.breaker.record(failed=True)
    assert course.breaker.retry_after_us() == 0
    course.breaker.half_open()
    assert course.breaker.state is HALF_OPEN
    course.breaker.half_open()
    assert course.changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN)]


def test_it_is_half_open_after_its_time_and_stays_open_longer_each_time() -> None:
    course, waits = Course(TIMED).opened(), []
    for _ in range(4):
        waits.append(course.breaker.retry_after_us() // SECOND)
        course.clock.advance(waits[-1] - 1)
        assert not course.call(failed=True)
        course.clock.advance(1)
        assert course.call(failed=True)
    assert waits == [5, 10, 15, 15]


def test_the_time_is_the_first_one_again_after_it_has_closed() -> None:
    course = Course(TIMED).opened()
    course.clock.advance(5)
    assert course.breaker.retry_after_us() == 0
    assert course.call()
    assert course.breaker.state is CLOSED
    assert course.breaker.retry_after_us() == 0
    assert course.opened().breaker.retry_after_us() == 5 * SECOND


def test_the_time_grows_without_a_bound_where_none_is_given() -> None:
    course = Course(replace(TIMED, max_open_us=None)).opened()
    for wait in (5, 10, 20, 40):
        assert course.breaker.retry_after_us() == wait * SECOND
        course.clock.advance(wait)
        course.call(failed=True)


def test_while_it_is_half_open_few_calls_run_at_the_same_time_and_more_after_each_success() -> None:
    course = Course().opened()
    course.breaker.half_open()
    passed = []
    for _ in range(3):
        entries = [entry for entry in [course.breaker.enter() for _ in range(9)] if entry is not None]
        passed.append(len(entries))
        for entry in entries:
            course.breaker.leave(entry, failed=False)
    assert passed == [1, 2, 4]
    assert course.changes == [(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, CLOSED)]


def test_without_more_probes_after_a_success_their_number_stays() -> None:
    course = Course(replace(TIMED, probes=2, successes=3)).opened()
    course.clock.advance(5)
    first, second = course.breaker.enter(), course.breaker.enter()
    assert isinstance(first, Entry)
    assert isinstance(second, Entry)
    assert not course.call()
    assert course.breaker.retry_after_us() == 5 * SECOND
    course.breaker.leave(first, failed=False)
    assert course.call()
    course.breaker.leave(second, failed=False)
    assert course.breaker.state is CLOSED


def test_one_failure_while_it_is_half_open_opens_it_again() -> None:
    course = Course().opened()
    course.breaker.half_open()
    assert course.call()
    assert course.call(failed=True)
    assert course.breaker.state is OPEN
    assert not course.call()


def test_successes_that_are_recorded_close_it_too() -> None:
    course = Course().opened()
    course.breaker.half_open()
    for _ in range(5):
        course.breaker.record(failed=False)
    assert course.breaker.state is CLOSED


def test_a_call_without_a_result_frees_its_place() -> None:
    course = Course().opened()
    course.breaker.half_open()
    assert [course.call(failed=None) for _ in range(3)] == [True] * 3
    assert course.breaker.state is HALF_OPEN


def test_the_place_of_a_call_that_never_ends_is_free_after_an_interval() -> None:
    course = Course().opened()
    course.breaker.half_open()
    lost = course.breaker.enter()
    assert lost is not None
    course.clock.advance(9)
    assert not course.call()
    course.clock.advance(1)
    assert course.call()
    course.breaker.leave(lost, failed=False)
    assert course.breaker.state is HALF_OPEN


@pytest.mark.parametrize("failed", [True, False, None])
def test_calls_that_began_before_the_last_change_do_not_count(failed: bool | None) -> None:
    course = Course()
    slow = course.breaker.enter()
    assert slow is not None
    course.opened().breaker.half_open()
    course.breaker.leave(slow, failed=failed)
    assert course.breaker.state is HALF_OPEN
    assert course.call()


def test_threads_that_fail_together_open_it_once() -> None:
    course, together = Course(), threading.Barrier(8)

    def fail() -> None:
        together.wait()
        for _ in range(50):
            course.call(failed=True)

    threads = [threading.Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert course.changes == [(CLOSED, OPEN)]


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
def test_a_child_has_the_state_of_its_parent_and_none_of_its_calls() -> None:
    course = Course().opened()
    course.breaker.half_open()
    assert course.breaker.enter() is not None
    assert exit_code_of_child(lambda: 0 if course.call() and course.breaker.state is HALF_OPEN else 2) == 0
    assert not course.call()


@pytest.mark.slow
def test_after_interruptions_anywhere_calls_pass_and_no_lock_is_held() -> None:
    reads = count()
    clock = Clock(lambda: next(reads) * 1_000)  # each look at the clock is a millisecond later
    breaker = CircuitBreaker(replace(TIMED, open_us=20_000, max_open_us=20_000), clock=clock)

    def calls() -> None:
        for number in range(100):
            entry = breaker.enter()
            if entry is not None:
                breaker.leave(entry, failed=number % 3 > 0)

    assert interrupt_anywhere(calls) > 100
    other = threading.Thread(target=breaker.record, kwargs={"failed": False}, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()
    for _ in range(20_000):
        entry = breaker.enter()
        if entry is not None:
            breaker.leave(entry, failed=False)
    assert breaker.state is CLOSED


def test_metrics_have_states_as_numbers() -> None:
    assert {state.value: state.level for state in BreakerState} == {"closed": 0, "half_open": 1, "open": 2}
