"""The circuit breaker and the attendant: when a store is left alone, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from threading import Event, Thread, current_thread
from threading import enumerate as enumerate_threads

import pytest
from limits_app.stores.attendant import Attendant
from limits_app.stores.breaker import Breaker, BreakerRules, BreakerState

from limits_app.core.clock import Clock
from limits_app.core.errors import StaleConfiguration, StoreUnavailable
from limits_app.stores.memory import monotonic_us
from limits_app.testing import FakeClock
from tests.stores.support import until
from tests.threads import no_more_threads

SECOND = 1_000_000
RULES = BreakerRules(failure_ratio=0.5, min_calls=4, interval_us=10 * SECOND)
GONE = StoreUnavailable("gone")


class Course:
    """A breaker, its clock, and what it told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.told: list[BreakerState] = []
        self.breaker = Breaker(RULES, clock=self.clock, tell=self.told.append)

    def call(self, error: BaseException | None = None) -> bool:
        """Make a call that ends with an error, or well; says whether it was let through."""
        with self.breaker.call() as granted:
            if granted and error is not None:
                raise error
        return granted

    def opened(self) -> Course:
        """Open it."""
        for _ in range(RULES.min_calls):
            self.call(GONE)
        assert self.breaker.state is BreakerState.OPEN
        return self


@pytest.fixture
def course() -> Iterator[Course]:
    course = Course()
    yield course
    course.breaker.retire()


def test_it_is_calm_until_something_fails(course: Course) -> None:
    assert course.breaker.calm
    assert course.call()
    assert course.breaker.calm
    course.breaker.failed(GONE)
    assert not course.breaker.calm
    assert course.breaker.error is GONE
    assert course.breaker.state is BreakerState.CLOSED


def test_a_few_failures_mean_nothing(course: Course) -> None:
    assert [course.call(GONE) for _ in range(RULES.min_calls - 1)] == [True] * 3
    assert course.breaker.state is BreakerState.CLOSED
    assert course.told == []


def test_it_opens_when_too_large_a_part_fails(course: Course) -> None:
    for error in (GONE, None, None, None, GONE):
        course.call(error)
    assert course.breaker.state is BreakerState.CLOSED
    course.call(GONE)
    assert course.breaker.state is BreakerState.OPEN
    assert course.told == [BreakerState.OPEN]
    assert not course.call()


def test_what_is_older_than_the_interval_is_forgotten(course: Course) -> None:
    for _ in range(3):
        course.call(GONE)
    course.clock.advance(5)
    course.call()
    course.clock.advance(5)
    course.call(GONE)
    assert course.breaker.state is BreakerState.CLOSED
    course.clock.advance(4)
    assert not course.breaker.settle_down()
    course.clock.advance(6)
    assert course.breaker.settle_down()
    assert course.breaker.calm


@pytest.mark.parametrize("error", [StaleConfiguration(), None])
def test_a_store_that_answers_no_or_anything_else_works(course: Course, error: Exception | None) -> None:
    course.opened().breaker.probed()
    for _ in range(5):
        if error is None:
            assert course.call()
        else:
            with pytest.raises(StaleConfiguration):
                course.call(error)
    assert course.told == [BreakerState.OPEN, BreakerState.CLOSED]
    assert course.breaker.calm


def test_a_probe_that_fails_leaves_it_open(course: Course) -> None:
    course.opened().breaker.probed(GONE)
    assert course.breaker.state is BreakerState.OPEN
    course.breaker.probed()
    course.breaker.probed(GONE)
    assert course.breaker.state is BreakerState.OPEN
    assert course.told == [BreakerState.OPEN]


def test_few_pass_at_first_and_more_with_each_success(course: Course) -> None:
    course.opened().breaker.probed()
    passed = []
    for _ in range(3):
        with ExitStack() as together:
            passed.append(sum(together.enter_context(course.breaker.call()) for _ in range(9)))
    assert passed == [1, 2, 4]
    assert course.told == [BreakerState.OPEN, BreakerState.CLOSED]


def test_one_failure_on_the_way_back_opens_it_again(course: Course) -> None:
    course.opened().breaker.probed()
    assert course.call()
    assert course.call(GONE)
    assert course.breaker.state is BreakerState.OPEN
    assert course.told == [BreakerState.OPEN]


def test_who_is_interrupted_gives_the_place_back(course: Course) -> None:
    course.opened().breaker.probed()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            course.call(KeyboardInterrupt())
    assert course.call()
    assert course.breaker.state is BreakerState.HALF_OPEN


@pytest.mark.parametrize("end", [GONE, None, KeyError()])
def test_calls_that_began_before_say_nothing_about_the_store_as_it_is_now(
    course: Course, end: Exception | None
) -> None:
    with suppress(KeyError), course.breaker.call():
        course.opened().breaker.probed()
        if end is not None:
            raise end
    assert course.breaker.state is BreakerState.HALF_OPEN
    assert course.call()


def test_success_while_it_is_open_changes_nothing(course: Course) -> None:
    course.opened().breaker.failed(GONE)
    assert course.breaker.state is BreakerState.OPEN
    assert not course.breaker.settle_down()


def test_threads_that_fail_together_open_it_once(course: Course) -> None:
    begin = Event()

    def fail() -> None:
        begin.wait()
        for _ in range(50):
            course.call(GONE)

    threads = [Thread(target=fail) for _ in range(8)]
    for thread in threads:
        thread.start()
    begin.set()
    for thread in threads:
        thread.join()
    assert course.told == [BreakerState.OPEN]


def test_an_attendant_comes_between_half_of_the_time_and_all_of_it() -> None:
    clock = FakeClock()
    came: list[int] = []

    def look() -> int | None:
        came.append((clock() - start) // 1000)
        return None if len(came) == 4 else SECOND

    jitter = iter([0.0, 1.0, 0.5, 0.0])
    start = clock()
    attendant = Attendant(look, SECOND, clock=clock, jitter=lambda: next(jitter))
    clock.advance(5)
    assert came == []
    start = clock()
    attendant.call()
    attendant.call()
    clock.advance(5)
    assert came == [500, 1500, 2250, 2750]


def test_an_attendant_that_is_called_while_it_looks_looks_again() -> None:
    clock = FakeClock()
    came: list[int] = []

    def look() -> None:
        came.append(clock())
        if len(came) == 1:
            attendant.call()

    attendant = Attendant(look, SECOND, clock=clock)
    attendant.call()
    clock.advance(10)
    assert len(came) == 2
    attendant.call()
    clock.advance(10)
    assert len(came) == 3


def test_an_attendant_has_a_thread_where_time_passes_by_itself() -> None:
    done = Event()
    came: list[int] = []

    def look() -> int | None:
        came.append(1)
        if len(came) < 3:
            return 1000
        done.set()
        return None

    attendant = Attendant(look, 1000, clock=Clock(monotonic_us))
    attendant.call()
    assert done.wait(10)
    attendant.after_fork()
    done.clear()
    attendant.call()
    assert done.wait(10)


def test_an_attendant_that_got_no_thread_is_called_again() -> None:
    done = Event()
    attendant = Attendant(done.set, 1000, clock=Clock(monotonic_us))
    with no_more_threads():
        attendant.call()
    assert not done.is_set()
    attendant.call()
    assert done.wait(10)


def test_an_attendant_that_is_called_as_it_ends_is_followed_by_one_other() -> None:
    looks: list[str] = []

    class Called(Attendant):
        """An attendant that is called when it has just said that it ends."""

        def _come(self) -> int | None:
            again = super()._come()
            if len(looks) == 1:
                self.call()
            return again

    before = set(enumerate_threads())
    attendant = Called(lambda: looks.append(current_thread().name), 1000, clock=Clock(monotonic_us))
    attendant.call()
    until(lambda: len(looks) == 2)
    for thread in set(enumerate_threads()) - before:
        thread.join(10)
    assert len(looks) == 2


def test_an_attendant_whose_work_breaks_can_be_called_again() -> None:
    clock = FakeClock()
    looks = iter([1])

    def look() -> None:
        next(looks)
        raise KeyError("bug")

    attendant = Attendant(look, SECOND, clock=clock)
    attendant.call()
    with pytest.raises(KeyError):
        clock.advance(2)
    attendant.call()
    with pytest.raises(StopIteration):
        clock.advance(2)
