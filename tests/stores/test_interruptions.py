"""Signal handlers that raise at any point: no lock is held afterwards, no flag is left, and no pipe is half made."""

from __future__ import annotations

import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, suppress
from contextvars import copy_context
from pathlib import Path
from random import Random
from threading import current_thread, main_thread
from types import FrameType

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import CountingStore, Store
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected, counting
from tests.interrupting import Interrupted, interrupted_at_event
from tests.stores.support import PATIENCE, holders, limits_of

OURS = ("limits_app/stores", "limits_app/engine/engine")
LIMITS = (CallLimit(10**6, 3600), RateLimit("x", 10**6, 3600), ResourceLimit("db", 2))


def interrupted(number: int) -> AbstractContextManager[None]:
    """In the block, raise as a signal handler would: when a function of a store or of the engine begins, or when a
    built-in function that one has called returns.
    """
    return interrupted_at_event(
        number,
        lambda frame, event: event in {"call", "c_return"} and any(part in frame.f_code.co_filename for part in OURS),
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


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_the_store_can_be_used_after_an_interruption_at_any_point(
    tmp_path: Path, deed: Callable[[LimitSet], None]
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


def test_an_interrupted_acquire_is_charged_and_counted_or_neither(store: CountingStore, clock: FakeClock) -> None:
    limits, number, charged = counting(store, QuotaLimit("x", 10**6, "month"), ResourceLimit("db", 10)), 0, 0
    interruptions = True
    while interruptions:
        number += 1
        claim = limits.prepare({"x": 5}).claim
        try:
            with interrupted(number):
                store.acquire(claim)
            interruptions = False
        except Interrupted:
            pass
        now_charged = round(limits.get_stats()["x"]["used"]) - charged
        charged += now_charged
        assert now_charged == 5 if claim.admitted else now_charged in {0, 5}
        assert sum(amount for key, amount in collected(store).items() if key[-1] == "x") == now_charged * 1000
        if claim.admitted:
            store.settle(claim, [0, -1])
        clock.advance(11)
        assert limits.try_acquire({"x": 0, "db": 10}), "permits are taken after their lease"
        clock.advance(11)
    assert number > 10


def test_the_first_acquire_of_a_client_is_charged_and_counted_or_neither(store: CountingStore) -> None:
    number, interruptions = 0, True
    while interruptions:
        number += 1
        limits = counting(store, QuotaLimit("x", 10**6, "month"), entity=f"client {number}")
        claim = limits.prepare({"x": 5}).claim
        try:
            with interrupted(number):
                store.acquire(claim)
            interruptions = False
        except Interrupted:
            pass
        charged = round(limits.get_stats()["x"]["used"])
        assert charged == 5 if claim.admitted else charged in {0, 5}
        assert sum(collected(store).values()) == charged * 1000
    assert number > 10


def test_an_interrupted_release_refunds_at_most_once_and_returns_permits_with_their_lease(
    store: CountingStore, clock: FakeClock
) -> None:
    limits, number, charged = counting(store, QuotaLimit("x", 10**6, "month"), ResourceLimit("db", 1)), 0, 0
    interruptions = True
    while interruptions:
        number += 1
        acquired = limits.try_acquire({"x": 5})
        acquired.update({"x": 2})
        try:
            with interrupted(number):
                acquired.release()
            interruptions = False
        except Interrupted:
            acquired.release()
        now_charged = round(limits.get_stats()["x"]["used"]) - charged
        charged += now_charged
        assert now_charged in {2, 5}
        assert sum(amount for key, amount in collected(store).items() if key[-1] == "x") == now_charged * 1000
        clock.advance(11)
        assert holders(limits) == 0
    assert number > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what an interruption left open
def test_signals_that_raise_at_random_points_leave_the_store_usable(tmp_path: Path) -> None:
    copy_context().run(interrupt_at_random, tmp_path)


def interrupt_at_random(tmp_path: Path) -> None:
    """Interrupt releases and acquisitions 500 times; blocks that were interrupted are left with the context."""
    assert current_thread() is main_thread()
    random, interruptions = Random(1), 0

    def handler(_signal: int, _frame: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with closing(ProcessStore(tmp_path, map_megabytes=4)) as store, ThreadPoolExecutor(1) as executor:
            limits = limits_of(store, *LIMITS)
            while interruptions < 500:
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
