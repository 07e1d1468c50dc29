"""The memory store, where it differs from others: its lock, its clock, and interruptions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Event, current_thread

import pytest

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore, monotonic_us
from limits_app.testing import FakeClock
from tests.stores.support import PATIENCE, holders, limits_of, used


class Interrupting:
    """A clock that is interrupted once, as by Ctrl-C in the middle of a step of the thread that made it."""

    def __init__(self) -> None:
        self.wanted = False
        self.now = 10**15
        self.thread = current_thread()

    def __call__(self) -> int:
        if self.wanted and current_thread() is self.thread:
            self.wanted = False
            raise KeyboardInterrupt
        return self.now


def settle_more(acquired: Acquisition) -> None:
    """Release with more used than requested, which is the only settling that asks for the time."""
    acquired.update({"x": 6})
    acquired.release()


VERBS: dict[str, Callable[[LimitSet, Acquisition], object]] = {
    "acquire": lambda limits, acquired: limits.try_acquire({"x": 1}),
    "settle": lambda limits, acquired: settle_more(acquired),
    "peek": lambda limits, acquired: limits.get_stats(),
    "renew": lambda limits, acquired: limits.store.renew([acquired.claim]),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_an_interruption_changes_nothing_and_leaves_the_lock_free(
    verb: Callable[[LimitSet, Acquisition], object],
) -> None:
    clock = Interrupting()
    limits = limits_of(MemoryStore(clock=clock), RateLimit("x", 10, 3600), ResourceLimit("db", 2))
    acquired = limits.try_acquire({"x": 4})
    clock.wanted = True
    with pytest.raises(KeyboardInterrupt):
        verb(limits, acquired)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(used, limits, "x").result(PATIENCE) == 4
        assert executor.submit(holders, limits).result(PATIENCE) == 1


def test_what_was_interrupted_while_it_was_settled_can_be_settled_again() -> None:
    clock = Interrupting()
    limits = limits_of(MemoryStore(clock=clock), RateLimit("x", 10, 3600), ResourceLimit("db", 1))
    acquired = limits.try_acquire({"x": 4})
    clock.wanted = True
    with pytest.raises(KeyboardInterrupt):
        settle_more(acquired)
    acquired.release()
    assert (used(limits, "x"), holders(limits)) == (6, 0)


def test_a_step_waits_for_one_that_takes_long() -> None:
    inside, go_on = Event(), Event()

    def slow() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return monotonic_us()

    go_on.set()
    store = MemoryStore(clock=slow)
    limits = limits_of(store, CallLimit(10, 3600))
    inside.clear()
    go_on.clear()
    with ThreadPoolExecutor(3) as executor:
        first = executor.submit(limits.try_acquire)
        assert inside.wait(PATIENCE)
        others = [executor.submit(limits.try_acquire), executor.submit(limits.get_stats)]
        # Long enough for the others to have given up trying, and to wait.
        assert not Event().wait(0.05)
        assert not any(other.done() for other in others)
        go_on.set()
        assert first.result(PATIENCE)
        assert all(other.result(PATIENCE) for other in others)
    assert used(limits) == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize("interrupts", [False, True])
def test_a_thread_tries_again_when_the_step_of_another_one_has_ended(
    monkeypatch: pytest.MonkeyPatch, interrupts: bool
) -> None:
    inside, go_on, pauses = Event(), Event(), []

    def slow() -> int:
        inside.set()
        assert go_on.wait(PATIENCE)
        return monotonic_us()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if interrupts:
            raise KeyboardInterrupt
        go_on.set()
        assert first.result(PATIENCE)

    go_on.set()
    limits = limits_of(MemoryStore(clock=slow), CallLimit(10, 3600))
    inside.clear()
    go_on.clear()
    monkeypatch.setattr("limits_app.stores.steps.sleep", pause)
    with ThreadPoolExecutor(1) as executor:
        first = executor.submit(limits.try_acquire)
        assert inside.wait(PATIENCE)
        with pytest.raises(KeyboardInterrupt) if interrupts else nullcontext():
            assert limits.try_acquire()
        go_on.set()
        assert first.result(PATIENCE)
    assert pauses == [0]
    assert used(limits) == pytest.approx(1 if interrupts else 2, abs=0.01)


def test_its_own_clock_never_goes_back() -> None:
    moments = [monotonic_us() for _ in range(1000)]
    assert moments == sorted(moments)
    limits = limits_of(MemoryStore(), CallLimit(2, 3600))
    assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]


def test_what_is_released_by_the_garbage_collector_in_the_middle_of_a_step_is_released() -> None:
    clock = Collecting()
    store = MemoryStore(clock=clock)
    limits = limits_of(store, RateLimit("x", 100, 3600), ResourceLimit("db", 2))
    leave_behind(limits)
    clock.wanted = True
    assert limits_of(store, RateLimit("x", 100, 3600), ResourceLimit("db", 2)).try_acquire({"x": 10})
    assert (used(limits, "x"), holders(limits)) == (10, 1)


@pytest.mark.parametrize("verb", ["acquire", "settle"])
def test_who_asks_in_the_middle_of_a_step_is_told_and_the_step_goes_on(store: Store, clock: Nested, verb: str) -> None:
    limits = limits_of(store, RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    acquired = limits.try_acquire({"x": 4})
    clock.deed = lambda: limits.try_acquire({"x": 2})
    if verb == "acquire":
        assert limits.try_acquire({"x": 1})
    else:
        settle_more(acquired)
    assert isinstance(clock.failure, StoreUnavailable)
    assert used(limits, "x") == (5 if verb == "acquire" else 6)
    assert limits.try_acquire({"x": 2})


def test_what_is_settled_in_the_middle_of_a_step_is_settled_once_and_after_it(store: Store, clock: Nested) -> None:
    limits = limits_of(store, RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    acquired = limits.try_acquire({"x": 4})
    clock.deed = acquired.cancel
    assert limits.try_acquire({"x": 1, "db": 0})
    assert clock.failure is None
    acquired.cancel()
    assert (used(limits, "x"), holders(limits)) == (1, 0)


def test_what_is_settled_while_counts_are_collected_is_settled_after_that() -> None:
    clock = Nested()
    limits = limits_of(MemoryStore(clock=clock), RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    acquired = limits.try_acquire({"x": 4})

    def release_and_request() -> None:
        acquired.cancel()
        limits.try_acquire({"x": 1})

    clock.deed = release_and_request
    limits.store.collect_counts()  # type: ignore[attr-defined]
    assert isinstance(clock.failure, StoreUnavailable)
    assert (used(limits, "x"), holders(limits)) == (0, 0)


@pytest.mark.parametrize("verb", ["peek", "renew"])
def test_a_look_or_a_renewal_in_the_middle_of_a_step_is_rejected_and_the_step_continues(verb: str) -> None:
    clock = Nested()
    limits = limits_of(MemoryStore(clock=clock), RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    acquired = limits.try_acquire({"x": 4})
    clock.deed = lambda: limits.get_stats() if verb == "peek" else limits.store.renew([acquired.claim])
    assert limits.try_acquire({"x": 1})
    assert isinstance(clock.failure, StoreUnavailable)
    assert used(limits, "x") == 5


def test_a_release_in_the_middle_of_its_own_release_settles_once(store: Store, clock: Nested) -> None:
    limits = limits_of(store, RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    kept, acquired = limits.try_acquire({"x": 2}), limits.try_acquire({"x": 4})
    clock.deed = acquired.cancel
    acquired.cancel()
    assert kept
    assert clock.failure is None
    assert (used(limits, "x"), holders(limits)) == (2, 1)


class Nested(FakeClock):
    """A clock during whose reading something else is done once, as by a signal handler."""

    deed: Callable[[], object] | None = None
    failure: Exception | None = None

    def __call__(self) -> int:
        deed, self.deed = self.deed, None
        if deed is not None:
            try:
                deed()
            except StoreUnavailable as error:
                self.failure = error
        return super().__call__()


@pytest.fixture
def clock() -> Nested:
    """The clock of both stores."""
    return Nested()


class Collecting(FakeClock):
    """A clock that runs the garbage collector when it is read, once that is wanted."""

    wanted = False

    def __call__(self) -> int:
        if self.wanted:
            self.wanted = False
            gc.collect()
        return super().__call__()


def leave_behind(limits: LimitSet) -> None:
    """A generator that holds something in a block, and that nobody refers to any more, except itself."""

    def holding() -> Iterator[list[object]]:
        with limits.try_acquire({"x": 50}) as acquired:
            assert acquired
            itself: list[object] = []
            yield itself

    gc.collect()
    generator = holding()
    next(generator).append(generator)


def test_it_counts_what_it_keeps() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    assert len(store) == 0
    assert limits_of(store, CallLimit(2, 60)).try_acquire()
    assert len(store) == 1
    with limits_of(store, ResourceLimit("db", 1), entity="holder").try_acquire():
        assert len(store) == 3
    assert len(store) == 2


def test_nobody_but_its_users_keeps_it_alive() -> None:
    store = MemoryStore()
    assert limits_of(store, ResourceLimit("db", 1)).try_acquire()
    reference = weakref.ref(store.line)
    del store
    gc.collect()
    assert reference() is None or reference().busy is False  # type: ignore[union-attr]
