"""Background tasks: when their steps run, and how they end and start again."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread, current_thread

import pytest

from limits_app.engine.clock import Clock, monotonic_us
from limits_app.stores import background
from limits_app.stores.background import BackgroundTask
from limits_app.testing import FakeClock
from tests.stores.support import PATIENCE, until
from tests.threads import no_more_threads

SECOND = 1_000_000
REAL = Clock(monotonic_us)


def test_a_step_runs_between_half_of_the_pause_and_all_of_it() -> None:
    clock = FakeClock()
    ran: list[int] = []

    def step() -> int | None:
        ran.append((clock() - start) // 1000)
        return None if len(ran) == 4 else SECOND

    jitter = iter([0.0, 1.0, 0.5, 0.0])
    task = BackgroundTask(step, SECOND, clock=clock, jitter=lambda: next(jitter))
    clock.advance(5)
    assert ran == []
    start = clock()
    task.start()
    task.start()
    clock.advance(5)
    assert ran == [500, 1500, 2250, 2750]


def test_a_task_that_is_started_while_its_step_runs_runs_it_again() -> None:
    clock = FakeClock()
    ran: list[int] = []

    def step() -> None:
        ran.append(clock())
        if len(ran) == 1:
            task.start()

    task = BackgroundTask(step, SECOND, clock=clock)
    task.start()
    clock.advance(10)
    assert len(ran) == 2
    task.start()
    clock.advance(10)
    assert len(ran) == 3


def test_steps_run_in_a_thread_where_time_passes_by_itself() -> None:
    done = Event()
    ran: list[int] = []

    def step() -> int | None:
        ran.append(1)
        if len(ran) < 3:
            return 1000
        done.set()
        return None

    task = BackgroundTask(step, 1000, clock=REAL)
    for _ in range(2):
        task.start()
        assert done.wait(PATIENCE)
        done.clear()
        task.after_fork()


def test_a_task_that_got_no_thread_can_be_started_again() -> None:
    done = Event()
    task = BackgroundTask(done.set, 1000, clock=REAL)
    with no_more_threads():
        task.start()
    assert not done.is_set()
    task.start()
    assert done.wait(PATIENCE)


def test_a_task_whose_step_raises_can_be_started_again() -> None:
    clock = FakeClock()
    ran: list[int] = []

    def step() -> None:
        ran.append(1)
        raise KeyError("bug")

    task = BackgroundTask(step, SECOND, clock=clock)
    for number in (1, 2):
        task.start()
        with pytest.raises(KeyError):
            clock.advance(2)
        assert len(ran) == number


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_by_an_error_is_replaced() -> None:
    ended, done = Event(), Event()

    def step() -> int | None:
        if ended.is_set():
            done.set()
            return None
        task.start()  # so that there is something left to do
        ended.set()
        raise KeyError("bug")

    task = BackgroundTask(step, 1000, clock=REAL)
    task.start()
    assert ended.wait(PATIENCE)

    def started_again() -> bool:
        task.start()
        return done.wait(0.01)

    until(started_again)


def test_a_thread_that_was_taken_over_ends_without_running_the_step() -> None:
    ran: list[int] = []
    task = BackgroundTask(lambda: ran.append(1), 1000, clock=REAL)
    other = Event()
    task._thread = Thread(target=other.wait)
    task._run()
    assert ran == []


@pytest.mark.parametrize("has_begun", [True, False])
def test_after_an_interruption_while_the_thread_starts_the_step_runs(
    monkeypatch: pytest.MonkeyPatch, *, has_begun: bool
) -> None:
    ran: list[str] = []
    task = BackgroundTask(lambda: ran.append(current_thread().name), 1000, clock=REAL)

    def interrupted(work: Callable[[], object], name: str) -> None:
        if has_begun:
            Thread(target=work, name=name, daemon=True).start()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(background, "start_thread", interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.start()
    if has_begun:
        until(lambda: len(ran) == 1)
    task.start()
    until(lambda: len(ran) > has_begun)  # the first thread may run it once more, too
    assert set(ran) == {"limits-background"}
