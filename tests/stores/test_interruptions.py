"""Signal handlers that raise at any point: no lock is held afterwards, no flag is left, and no pipe is half made."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from contextvars import copy_context
from pathlib import Path
from random import Random
from threading import current_thread, main_thread
from time import monotonic
from types import FrameType
from typing import Any

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.stores.process import ProcessStore
from tests.interrupting import Interrupted, interrupted_at_event
from tests.stores.support import PATIENCE, holders, limits_of, used

PROCESS_STORE = str(Path("limits_app") / "stores" / "process")
LIMITS = (CallLimit(10**6, 3600), RateLimit("x", 10**6, 3600), ResourceLimit("db", 2))


@contextmanager
def interrupted_at_line(number: int) -> Iterator[None]:
    """In the block, raise before the line with this number, counted as lines of the process store are run."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if PROCESS_STORE not in frame.f_code.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def interrupted_after_call(number: int) -> AbstractContextManager[None]:
    """In the block, raise as a signal handler would: when a function of the process store begins, or when a built-in
    function that one has called returns.
    """
    return interrupted_at_event(
        number,
        lambda frame, event: event in {"call", "c_return"} and PROCESS_STORE in frame.f_code.co_filename,
    )


def acquire(limits: LimitSet) -> None:
    """Acquire, and release."""
    limits.try_acquire({"x": 5}).release()


def settle(limits: LimitSet) -> None:
    """Release less than was acquired."""
    with limits.try_acquire({"x": 5}) as acquired:
        acquired.update({"x": 1})


def look(limits: LimitSet) -> None:
    """Read the statistics."""
    limits.get_stats()


def change(limits: LimitSet) -> None:
    """Reset, and make limits stale."""
    limits.store.reset([limits.scoped[0].scope.key])
    limits.store.advance_version()


def wait(limits: LimitSet) -> None:
    """Wait for a permit until the time is over."""
    held = [limits.try_acquire({"x": 1}) for _ in range(2)]
    with suppress(LimitTimeout):
        limits.acquire({"x": 1}, timeout=0.001)
    for one in held:
        one.release()


def start(limits: LimitSet) -> None:
    """Acquire with a file that is closed."""
    limits.store.close()  # type: ignore[attr-defined]
    acquire(limits)


DEEDS: dict[str, Callable[[LimitSet], None]] = {
    "acquire": acquire,
    "settle": settle,
    "look": look,
    "change": change,
    "wait": wait,
    "start": start,
}


@pytest.mark.parametrize("interrupted", [interrupted_at_line, interrupted_after_call], ids=["lines", "calls"])
@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_the_store_can_be_used_after_an_interruption_at_any_point(
    tmp_path: Path, deed: Callable[[LimitSet], None], interrupted: Callable[[int], Any]
) -> None:
    with closing(ProcessStore(tmp_path, map_megabytes=1)) as store, ThreadPoolExecutor(1) as executor:
        limits = limits_of(store, *LIMITS)
        acquire(limits)
        for number in range(1, 5000):
            try:
                with interrupted(number):
                    deed(limits)
            except Interrupted:
                assert is_usable(store, executor)
            else:
                break
        assert 10 < number < 4999


def is_usable(store: Store, executor: ThreadPoolExecutor) -> bool:
    """Whether this thread and another one can use all of the store; an interrupted holder may keep its permit."""
    fresh = limits_of(store, *LIMITS, entity="another")

    def use() -> bool:
        with fresh.acquire({"x": 5}, timeout=PATIENCE) as acquired:
            acquired.update({"x": 1})
            return bool(acquired)

    return use() and executor.submit(use).result(PATIENCE) and holders(fresh) == 0


@pytest.mark.parametrize("interrupted", [interrupted_at_line, interrupted_after_call], ids=["lines", "calls"])
def test_a_release_that_is_interrupted_at_any_point_is_settled_exactly_once(
    tmp_path: Path, interrupted: Callable[[int], Any]
) -> None:
    with closing(ProcessStore(tmp_path, map_megabytes=1, clock=lambda: 10**15)) as store:
        limits = limits_of(store, RateLimit("x", 10**6, 3600), ResourceLimit("db", 2))
        expected = 0
        for number in range(1, 1000):
            acquired = limits.try_acquire({"x": 5})
            acquired.update({"x": 2})
            expected += 2
            try:
                with interrupted(number):
                    acquired.release()
            except Interrupted:
                acquired.release()
            else:
                break
            assert (used(limits, "x"), holders(limits)) == (expected, 0)
        assert 10 < number < 999


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what an interruption left open
def test_signals_that_raise_at_random_points_leave_the_store_usable(tmp_path: Path) -> None:
    copy_context().run(interrupt_at_random, tmp_path)


def interrupt_at_random(tmp_path: Path) -> None:
    """Interrupt releases and acquisitions for two seconds; blocks that were interrupted are left with the context."""
    assert current_thread() is main_thread()
    random, deadline, interruptions = Random(1), monotonic() + 2, 0

    def handler(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with closing(ProcessStore(tmp_path, map_megabytes=4)) as store, ThreadPoolExecutor(1) as executor:
            limits = limits_of(store, *LIMITS)
            while monotonic() < deadline:
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.001))
                    for _ in range(100):  # an exception within a finalizer is lost
                        acquire(limits)
                        settle(limits)
                except Interrupted:
                    interruptions += 1
                if interruptions % 50 == 0:
                    assert is_usable(store, executor)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interruptions > 100
