"""Waiting in threads: in turn, exactly as long as needed, and without leaving anything behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from threading import Event, Thread
from time import time_ns
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.acquiring.waiting import Waiter, WaitingLine
from limits_app.engine.claims import Claim
from limits_app.engine.errors import InvalidRequest, LimitExceeded, LimitTimeout, StoreUnavailable
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import Blocked, CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.plan import Amounts
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import DB, limit_set, reported, used, used_up
from tests.acquiring.watched import PATIENCE_SECONDS, Caller, WatchedLine, WatchedStore

TEN = RateLimit("tpm", 10, 10)
"""One unit per second."""


@pytest.fixture
def store(clock: FakeClock) -> WatchedStore:
    return WatchedStore(clock=clock)


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_a_waiter_is_admitted_in_time(
    algorithm: RateLimitAlgorithm, store: WatchedStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "limits_app")
    limits = limit_set(store, RateLimit("tpm", 10, 10, algorithm))
    used_up(limits, "tpm")
    told = limits.try_acquire({"tpm": 3}).outcome.retry_after
    assert told is not None
    start = clock.now_us
    waiter = store.waiting(limits.acquire, {"tpm": 3})
    clock.move(round(told * 1_000_000) - 1)
    store.until_refused()
    clock.move(1)
    assert waiter.result().claim.decided_at == start + round(told * 1_000_000)
    store.until_waiting(0)
    assert not store.line.busy
    assert caplog.messages == []


def test_waiter_asks_only_at_its_time(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = store.waiting(limits.acquire, {"tpm": 10})
    for _ in range(9):
        clock.advance(1)
        store.until_refused()
    assert len(store.refused) <= 1 + 9 + 2, "once for each time that somebody woke it"
    clock.advance(1)
    waiter.result()


def test_time_is_up(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = store.waiting(limits.acquire, {"tpm": 6}, timeout=5)
    clock.move(4_999_999)
    store.until_refused()
    clock.move(1)
    with pytest.raises(TimeoutError, match="'tpm' has 5 of 10 left, 6 requested: retry in 1 s") as caught:
        waiter.result()
    assert isinstance(caught.value, LimitTimeout)
    assert caught.value.outcome.retry_after == 1
    assert used(limits) == {"tpm": 5}
    assert not store.line.busy


def test_a_request_that_never_had_a_turn_times_out(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    first = store.waiting(limits.acquire, {"tpm": 9})
    second = store.waiting(limits.acquire, {"tpm": 1}, timeout=5)
    clock.advance(5)
    with pytest.raises(LimitTimeout) as caught:
        second.result()
    assert caught.value.outcome.as_dict()["allowed"] is True, "there would be enough, but others were first"
    clock.advance(4)
    assert first.result()


@pytest.mark.parametrize("timeout", [0, 0.0, -0.0, 1e-9, 1, 5.5, 1e12, 1e300, 10**30, 10**400, float("inf"), None])
def test_valid_timeouts(timeout: float | None, store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    assert limits.acquire({"tpm": 10}, timeout)


@pytest.mark.parametrize(
    "timeout", [-1, -0.001, float("-inf"), float("nan"), True, False, "5", b"5", [5], Decimal(5), 1j, object()]
)
def test_invalid_timeouts_are_errors(timeout: Any, store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    with pytest.raises(InvalidRequest, match="timeout must be None or seconds, 0 or more, not ") as caught:
        limits.acquire({"tpm": 1}, timeout)
    assert isinstance(caught.value, ValueError)
    assert used(limits) == {"tpm": 0}


@pytest.mark.parametrize("timeout", [1e12, 1e300, None])
def test_a_timeout_may_be_longer_than_any_machine_can_sleep(timeout: float | None) -> None:
    store = WatchedStore()
    limits = limit_set(store, RateLimit("k", 1, 366 * 86_400, burst=10**6))
    held = limits.acquire({"k": 10**6})
    waiters = [Caller(limits.acquire, {"k": amount}, timeout) for amount in (10**6, 1)]
    store.until_waiting(2)
    held.cancel()
    reported(waiters[0].result(), {"k": 0})
    assert waiters[1].result()


def test_a_big_request_is_not_starved_by_small_ones(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    start = clock.now_us
    big = store.waiting(limits.acquire, {"tpm": 10})
    small = [Caller(limits.acquire, {"tpm": 1}) for _ in range(3)]
    store.until_waiting(4)
    for _ in range(10):
        assert big.is_alive()
        clock.advance(1)
    assert big.result().claim.decided_at == start + 10_000_000
    clock.advance(3)
    assert all(one.result().claim.decided_at == start + 13_000_000 for one in small)


def test_waiters_for_something_else_are_not_held_up(store: WatchedStore) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 10), DB)
    used_up(limits, "tpm")
    waiter = store.waiting(limits.acquire, {"tpm": 1, "db": 1})
    store.until_refused()
    for _ in range(3):
        with limits.acquire({"rpm": 1, "db": 1}, timeout=0) as acquisition:
            acquisition.update({"rpm": 1})
    store.reset([limits.scoped[0].scope.key], ["tpm"])
    with waiter.result() as acquisition:
        assert acquisition.claim.decided_at is not None
        acquisition.update({"tpm": 1})


def test_a_waiter_queues_only_for_limits_that_rejected_it(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 100))
    used_up(limits, "tpm")
    both = store.waiting(limits.acquire, {"tpm": 2, "rpm": 10})
    store.until_refused()
    assert limits.acquire({"rpm": 1})
    clock.advance(2)
    store.until_refused()
    assert both.is_alive(), "now it is the other limit that has too little"
    clock.advance(8)
    assert both.result()


def test_the_longest_waiting_request_is_first_in_each_line(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 10))
    used_up(limits, "tpm")
    older = store.waiting(limits.acquire, {"tpm": 1, "rpm": 5})
    store.until_refused()
    used_up(limits, "rpm")
    younger = store.waiting(limits.acquire, {"rpm": 5})
    start = clock.now_us
    clock.advance(1)
    store.until_waiting(2, "rpm")
    clock.advance(4)
    assert older.result().claim.decided_at == start + 5_000_000
    clock.advance(5)
    assert younger.result().claim.decided_at == start + 10_000_000


def test_a_try_does_not_wait_for_waiting_requests(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = store.waiting(limits.acquire, {"tpm": 5})
    clock.advance(1)
    assert limits.try_acquire({"tpm": 1})
    assert limits.acquire({"tpm": 0}, timeout=0)
    clock.advance(5)
    assert waiter.result()


def held_up(store: WatchedStore, limits: LimitSet, requested: dict[str, float] | None) -> Caller:
    """A waiter that was refused."""
    caller = store.waiting(limits.acquire, requested)
    store.until_refused()
    return caller


def test_a_release_of_too_little_leaves_the_first_waiting(store: WatchedStore) -> None:
    limits = limit_set(store, DB)
    small, big = limits.acquire({"db": 1}), limits.acquire({"db": 2})
    waiter = held_up(store, limits, {"db": 3})
    before = len(store.refused)
    small.release()
    store.until(lambda: len(store.refused) > before)
    big.release()
    assert waiter.result()


@pytest.mark.parametrize("timeout", [None, 60])
def test_a_blocked_request_does_not_wait(timeout: float | None, store: WatchedStore) -> None:
    scopes = [ScopedLimits(scope_of("api", who), schema_of((TEN, Blocked()))) for who in ("a", "b")]
    blocked = [LimitSet.composed([scope], store) for scope in scopes]
    pool, single = LimitPool(blocked), blocked[0]
    desk = limit_set(store, DB)
    held = desk.acquire({"db": 3})
    waiter = held_up(store, desk, {"db": 1}) if timeout else None
    for ask in (single.acquire, pool.acquire, LimitPool(blocked, failover=False).acquire):
        with pytest.raises(LimitExceeded, match=r"everything for . is blocked") as refused:
            ask({"tpm": 1}, timeout)
        assert not isinstance(refused.value, LimitTimeout)
    for ask_later in (single.aacquire, pool.aacquire):
        with pytest.raises(LimitExceeded, match=r"everything for . is blocked"):
            asyncio.run(ask_later({"tpm": 1}, timeout))
    held.release()
    assert waiter is None or waiter.result()


def test_a_request_that_is_blocked_until_a_date_waits_for_it(store: WatchedStore, clock: FakeClock) -> None:
    limits = LimitSet.composed([ScopedLimits(scope_of("api", "a"), schema_of((Blocked(),)))], store)
    limits.changes_at = 1e9
    waiter = store.waiting(limits.acquire, {}, 5)
    clock.advance(5)
    with pytest.raises(LimitTimeout):
        waiter.result()


class Interrupt(BaseException):
    """What a signal handler may raise."""


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Let a signal interrupt this thread, once; gives what another thread calls for that.

    A signal that comes just before a thread goes to sleep does not wake it, so it is sent until it is seen.
    """
    me, seen = threading.get_ident(), Event()

    def handler(number: int, frame: object) -> None:
        if not seen.is_set():
            seen.set()
            raise Interrupt

    def interrupt() -> None:
        signal.pthread_kill(me, signal.SIGUSR1)
        while not seen.wait(0.05):
            signal.pthread_kill(me, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_thread_that_is_interrupted_leaves_nothing_and_lets_the_next_one_through(store: WatchedStore) -> None:
    limits = limit_set(store, TEN, DB)
    held = limits.acquire({"db": 3})
    next_one = []

    def interrupt_later(interrupt: Callable[[], None]) -> None:
        store.until_waiting(1)
        next_one.append(Caller(limits.acquire, {"db": 2}))
        store.until_waiting(2)
        interrupt()

    with interruptible() as interrupt:
        interrupter = Thread(target=interrupt_later, args=[interrupt])
        interrupter.start()
        with pytest.raises(Interrupt):
            limits.acquire({"tpm": 5, "db": 3})
        interrupter.join()
    held.release()
    next_one[0].result().release()
    assert used(limits) == {"tpm": 0, "db": 0}
    assert not store.line.busy


class Interrupting(WatchedStore):
    """A store whose caller is interrupted when it has just been admitted after a wait."""

    has_interrupted = False

    def acquire(self, claim: Claim) -> bool:
        admitted = super().acquire(claim)
        if admitted and self.refused:
            self.has_interrupted = True
            raise Interrupt
        return admitted


def interrupted_after_a_wait(store: Interrupting, limits: LimitSet) -> None:
    held = limits.acquire({"tpm": 10, "db": 3})
    waiter = Caller(limits.acquire, {"tpm": 4, "db": 2})
    store.until_refused()
    store.until_waiting(1)
    held.cancel()
    with pytest.raises(Interrupt):
        waiter.result()


def test_an_interruption_between_the_admission_and_its_return_gives_everything_back(clock: FakeClock) -> None:
    store = Interrupting(clock=clock)
    limits = limit_set(store, TEN, DB)
    interrupted_after_a_wait(store, limits)
    assert used(limits) == {"tpm": 0, "db": 0}
    assert not store.line.busy


def test_a_failed_refund_hides_no_interruption(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    class OutOfReach(Interrupting):
        """Which cannot be reached any more then."""

        def settle(self, claim: Claim, changes: Amounts) -> None:
            if self.has_interrupted:
                raise StoreUnavailable("out of reach")
            super().settle(claim, changes)

    store = OutOfReach(clock=clock)
    interrupted_after_a_wait(store, limit_set(store, TEN, DB))
    assert "an acquisition could not be refunded after it was interrupted" in caplog.text
    assert not store.line.busy


def test_a_store_that_goes_down_meanwhile_ends_the_wait(clock: FakeClock) -> None:
    class Down(WatchedStore):
        """A store that cannot be reached from some moment on."""

        down = False

        def acquire(self, claim: Claim) -> bool:
            if self.down:
                raise StoreUnavailable("out of reach")
            return super().acquire(claim)

    store = Down(clock=clock)
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 4})
    store.down = True
    clock.advance(1)
    with pytest.raises(StoreUnavailable):
        waiter.result()
    assert not store.line.busy


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_real_time(algorithm: RateLimitAlgorithm) -> None:
    limits = LimitSet([CallLimit(4, 0.06, algorithm)], shared=True, mode="thread")
    admitted: list[Acquisition] = []

    def work() -> None:
        admitted.extend(limits.acquire() for _ in range(3))

    callers = [Caller(work) for _ in range(4)]
    for caller in callers:
        caller.result()
    moments = sorted(one.claim.decided_at for one in admitted)
    assert len(moments) == 12
    spans = [later - earlier for earlier, later in zip(moments, moments[4:], strict=False)]
    if algorithm is RateLimitAlgorithm.SLIDING_WINDOW:
        assert min(spans) >= 60_000
    elif algorithm is RateLimitAlgorithm.FIXED_WINDOW:
        assert moments[-1] - moments[0] >= 2 * 60_000
    else:
        assert all(moments[4 + number] - moments[0] >= 15_000 * (number + 1) for number in range(8))


def test_a_clock_that_is_set_back_makes_no_timeout_longer() -> None:
    back_us = 0
    store = WatchedStore(clock=lambda: time_ns() // 1000 - back_us)
    limits = limit_set(store, RateLimit("tpm", 1, 3600))
    used_up(limits, "tpm")
    waiter = store.waiting(limits.acquire, {"tpm": 1}, 0.3)
    back_us = 3_600_000_000
    store.line.notify_all()
    with pytest.raises(LimitTimeout):
        waiter.result()


@pytest.mark.parametrize(("poll_us", "most"), [((5000, 5000), 110), ((5000, 200_000), 20)])
def test_waiting_requests_poll_a_store_that_asks_for_polling(poll_us: tuple[int, int], most: int) -> None:
    class Polled(MemoryStore):
        """A store that does not wake its waiters when a holder has died."""

        asked = 0

        def acquire(self, claim: Claim) -> bool:
            self.asked += 1
            return super().acquire(claim)

    store = Polled()
    store.poll_us = poll_us
    limits = limit_set(store, DB)
    held = limits.acquire({"db": 3})
    with pytest.raises(LimitTimeout):
        limits.acquire({"db": 1}, timeout=0.25)
    assert 3 <= store.asked <= most
    held.release()


ONE = ResourceLimit("db", 1)
LONGER_THAN_A_POLL_US = 8000


@pytest.fixture
def polled(store: WatchedStore) -> WatchedStore:
    """A store that other processes use, which do not wake its waiters."""
    store.poll_us = (5000, 250_000)
    return store


def with_competitors(store: WatchedStore, clock: FakeClock) -> tuple[LimitSet, Caller, Acquisition]:
    """A waiter that has found two different holders of the permit."""
    limits = limit_set(store, ONE)
    first = limits.try_acquire()
    waiter = held_up(store, limits, {"db": 1})
    # Another process releases the permit without a message, and takes it again.
    store.line.busy = False  # so that the release wakes no waiter
    first.release()
    held = limits.try_acquire({"db": 1})
    clock.move(LONGER_THAN_A_POLL_US)
    store.until_refused()
    store.until(lambda: bool(store.line.competitors))
    return limits, waiter, held


def served_with_competitors(store: WatchedStore, clock: FakeClock) -> LimitSet:
    """A set whose waiter has had the permit for which others compete."""
    limits, waiter, held = with_competitors(store, clock)
    held.release()
    clock.move(LONGER_THAN_A_POLL_US)
    waiter.result().release()
    return limits


def test_a_waiter_with_competitors_waits_for_its_next_poll(polled: WatchedStore, clock: FakeClock) -> None:
    _limits, waiter, held = with_competitors(polled, clock)
    calls = polled.watched.calls
    held.release()
    polled.until(lambda: polled.watched.calls >= calls + 2)
    assert waiter.is_alive()
    clock.move(LONGER_THAN_A_POLL_US)
    assert waiter.result()


@pytest.mark.parametrize(("timeout", "pause_us"), [(None, LONGER_THAN_A_POLL_US), (0.001, 1000)])
def test_a_later_request_with_competitors_starts_with_a_pause_or_with_its_timeout(
    timeout: float | None, pause_us: int, polled: WatchedStore, clock: FakeClock
) -> None:
    limits = served_with_competitors(polled, clock)
    later = polled.waiting(limits.acquire, timeout=timeout)
    assert later.is_alive()
    clock.move(pause_us)
    later.result().release()


def test_a_busy_process_lets_others_try_at_times(polled: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(polled, ONE)
    for pause_us in (0, 100_000, 100_000):
        clock.move(pause_us)
        Caller(limits.acquire).result().release()
    clock.move(100_000)
    waiter = polled.waiting(limits.acquire)
    assert waiter.is_alive()
    clock.move(LONGER_THAN_A_POLL_US)
    waiter.result().release()
    for pause_us in (100_000, 10_000_000):
        clock.move(pause_us)
        Caller(limits.acquire).result().release()


def test_competitors_are_forgotten(polled: WatchedStore, clock: FakeClock) -> None:
    limits = served_with_competitors(polled, clock)
    assert polled.line.competitors
    clock.advance(1)
    limits.acquire(timeout=0.001).release()
    assert not polled.line.competitors


class CountingWaiter:
    """A waiter that counts how often it was woken."""

    def __init__(self, number: int) -> None:
        self.turn = 0, number
        self.woken = 0
        self.active = True

    def wake(self) -> None:
        self.woken += 1

    def is_waiting(self) -> bool:
        return self.active


A, B, C = ("a", "tpm"), ("b", "tpm"), ("c", "tpm")


def waiters(number: int) -> list[CountingWaiter]:
    return [CountingWaiter(index) for index in range(number)]


def woken(some: Iterable[CountingWaiter]) -> list[int]:
    return [one.woken for one in some]


def recording(calls: list[str]) -> WaitingLine:
    """A line that records when scopes are watched and unwatched."""
    return WaitingLine(lambda scope: calls.append(f"+{scope}"), lambda scope: calls.append(f"-{scope}"))


def test_a_scope_is_watched_while_it_has_waiters() -> None:
    calls: list[str] = []
    line, one, other = recording(calls), CountingWaiter(1), CountingWaiter(2)
    line.enqueue(one, [A, B])
    line.enqueue(other, [A, ("a", "rpm")])
    assert line.scopes() == ["a", "b"]
    assert sorted(calls) == ["+a", "+b"]
    line.enqueue(one, [A])
    line.leave(one)
    assert line.busy
    line.enqueue(other, [A])
    line.leave(other)
    assert calls[2:] == ["-b", "-a"]
    assert line.scopes() == []
    assert not line.busy


@pytest.mark.parametrize("verb", ["+", "-"])
def test_a_scope_is_watched_correctly_when_waiters_arrive_or_leave_during_the_call(verb: str) -> None:
    calls: list[str] = []
    one, other = CountingWaiter(1), CountingWaiter(2)

    def call(sign: str) -> None:
        if sign == verb and sign not in calls:
            calls.append(sign)
            meanwhile()
        calls.append(sign)

    def meanwhile() -> None:
        if verb == "-":
            line.enqueue(other, [A])
        else:
            line.leave(one)

    line = WaitingLine(lambda scope: call("+"), lambda scope: call("-"))
    line.enqueue(one, [A])
    line.leave(one)
    assert calls[-1] == ("+" if line.scopes() else "-")
    assert line.scopes() == (["a"] if verb == "-" else [])


def test_a_scope_stays_watched_when_its_only_waiter_died_and_another_one_arrives() -> None:
    calls: list[str] = []
    line = recording(calls)
    line.enqueue(CountingWaiter(1), [A])
    gc.collect()
    alive = CountingWaiter(2)
    line.enqueue(alive, [A])
    assert calls[-1] == "+a"
    assert line.scopes() == ["a"]


def test_a_scope_whose_only_waiter_died_is_unwatched_by_the_next_waiter() -> None:
    calls: list[str] = []
    line, alive = recording(calls), CountingWaiter(2)
    line.enqueue(CountingWaiter(1), [A])
    gc.collect()
    line.enqueue(alive, [B])
    assert sorted(calls) == ["+a", "+b", "-a"]
    assert line.scopes() == ["b"]


def test_leaving_succeeds_when_the_store_cannot_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    def unwatch(scope: str) -> None:
        raise StoreUnavailable(f"out of reach: {scope}")

    line, one = WaitingLine(unwatch=unwatch), CountingWaiter(1)
    line.enqueue(one, [A, B])
    line.leave(one)
    assert not line.busy
    assert len(caplog.records) == 2


def test_a_scope_is_unwatched_after_a_failed_watch_and_watched_for_the_next_waiter() -> None:
    calls: list[str] = []

    def watch(scope: str) -> None:
        calls.append("+")
        if len(calls) == 1:
            raise StoreUnavailable("out of reach")

    line, one, other = WaitingLine(watch, lambda scope: calls.append("-")), CountingWaiter(1), CountingWaiter(2)
    with pytest.raises(StoreUnavailable):
        line.enqueue(one, [A])
    line.leave(one)
    assert calls == ["+", "-"]
    line.enqueue(other, [A])
    assert calls == ["+", "-", "+"]


@pytest.mark.parametrize("verb", ["watch", "unwatch"])
def test_a_call_that_was_interrupted_is_repeated(verb: str) -> None:
    calls: list[str] = []

    def call(name: str) -> None:
        calls.append(name)
        if name == verb and calls.count(name) == 1:
            raise Interrupt

    line = WaitingLine(lambda scope: call("watch"), lambda scope: call("unwatch"))
    one, other = CountingWaiter(1), CountingWaiter(2)
    if verb == "unwatch":
        line.enqueue(one, [A])
    with pytest.raises(Interrupt):
        line.enqueue(one, [A] if verb == "watch" else ())
    line.leave(one)
    assert calls[-1] == "unwatch"
    assert calls.count("unwatch") == (1 if verb == "watch" else 2)
    line.enqueue(other, [A])
    assert calls[-1] == "watch"


def test_interruption_while_leaving_the_line_refunds_the_charge(store: WatchedStore) -> None:
    def unwatch(_scope: str) -> None:
        raise Interrupt

    line = store.line = store.watched = WatchedLine(store.told, unwatch=unwatch)
    limits = limit_set(store, TEN, DB)
    held = limits.acquire({"db": 3})
    waiter = store.waiting(limits.acquire, {"tpm": 4, "db": 2})
    held.release()
    with pytest.raises(Interrupt):
        waiter.result()
    assert used(limits) == {"tpm": 0, "db": 0}
    assert not line.busy


def test_only_the_first_of_a_queue_is_woken() -> None:
    line, some = WaitingLine(), waiters(4)
    for one in reversed(some):
        line.enqueue(one, [A])
    line.enqueue(some[3], [A, B])
    assert line.ahead(some[0], [A]) == []
    assert line.ahead(some[2], [A, B, C]) == [A]
    line.notify(["a", "unknown"])
    assert woken(some) == [1, 0, 0, 0]
    line.notify_all()
    assert woken(some) == [2, 0, 0, 1]
    line.moved(0)
    assert woken(some) == [3, 1, 1, 2]


def test_the_next_first_waiter_is_woken() -> None:
    line, some = WaitingLine(), waiters(4)
    for one in some:
        line.enqueue(one, [A])
    line.leave(some[2])
    assert woken(some) == [0, 0, 0, 0]
    line.leave(some[0])
    assert woken(some) == [0, 1, 0, 0]
    line.leave(some[1])
    assert woken(some) == [0, 1, 0, 1]


def test_leaving_twice_or_without_having_queued_does_nothing() -> None:
    line, some = WaitingLine(), waiters(3)
    for one in some[:2]:
        line.enqueue(one, [A])
    line.leave(some[2])
    line.leave(some[1])
    line.leave(some[1])
    assert line.ahead(some[2], [A]) == [A]
    assert woken(some) == [0, 0, 0]


def test_waiters_that_ended_without_leaving_are_passed_over() -> None:
    calls: list[str] = []
    line, some = recording(calls), waiters(4)
    for one in some[:3]:
        line.enqueue(one, [A, B])
    some[0].active = some[1].active = False
    line.notify(["b"])
    assert some[2].woken > 0
    assert some[3].woken == 0
    some[2].active = False
    assert line.ahead(some[3], [A]) == []
    assert not line.busy
    line.enqueue(some[3], [C])
    line.leave(some[2])
    assert sorted(calls[2:]) == ["+c", "-a", "-b"]
    assert line.scopes() == ["c"]
    some[3].active = False
    line.notify_all()
    assert line.scopes() == []
    line.enqueue(some[3], [A])
    assert line.scopes() == []


def test_waiters_that_died_are_removed_and_the_next_one_is_woken() -> None:
    line, some = WaitingLine(), waiters(3)
    for one in some[:2]:
        line.enqueue(one, [A, B])
    line.enqueue(some[2], [A])
    del one
    del some[0]
    assert min(woken(some)) > 0, "the first of the others removes it"
    assert line.ahead(some[0], [A, B]) == []
    assert line.ahead(some[1], [A]) == [A]
    before = some[1].woken
    del some[0]
    assert some[0].woken > before
    assert line.scopes() == ["a", "b"]
    line.leave(some[0])
    assert line.scopes() == []
    assert not line.busy


def test_a_waiter_that_dies_while_the_lock_is_held_is_removed_later() -> None:
    line, some = WaitingLine(), waiters(3)
    for one in some[:2]:
        line.enqueue(one, [A])
    del one

    class Killing(CountingWaiter):
        """A waiter during whose turn another one dies."""

        def is_waiting(self) -> bool:
            if len(some) == 3:
                del some[0]
            return True

    killing = Killing(-1)
    line.enqueue(killing, [A])
    assert line.ahead(some[-1], [A]) == [A]
    assert len(some) == 2
    line.leave(killing)
    assert some[0].woken > 0
    line.leave(some[0])
    assert line.scopes() == []


def test_a_waiter_that_dies_while_all_are_woken_is_passed_over() -> None:
    line, some = WaitingLine(), [CountingWaiter(2), CountingWaiter(3)]

    class Killing(CountingWaiter):
        """A waiter whose wake-up ends another one."""

        def wake(self) -> None:
            super().wake()
            if len(some) == 2:
                del some[0]

    killing = Killing(1)
    for one in (killing, *some):
        line.enqueue(one, [A])
    del one
    line.moved(0)
    assert killing.woken > 0
    assert min(woken(some)) > 0


def test_a_release_inside_of_the_line_does_not_deadlock() -> None:
    line, other = WaitingLine(), CountingWaiter(2)

    class Notifying(CountingWaiter):
        """A waiter whose wake-up releases something."""

        def wake(self) -> None:
            super().wake()
            if self.woken == 1:
                line.notify(["a", "b"])

    one = Notifying(1)
    line.enqueue(one, [A])
    line.enqueue(other, [B])
    line.notify(["a"])
    assert (one.woken, other.woken) == (2, 1)


def test_a_release_removes_a_waiter_that_does_not_wait_any_more() -> None:
    line, leaving = WaitingLine(), CountingWaiter(1)
    line.enqueue(leaving, [A, B])
    leaving.active = False
    line.notify(["a"])
    assert leaving.woken == 0
    assert line.scopes() == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interruption_while_leaving_delays_no_other_waiter(moment: str) -> None:
    class Interrupted(WaitingLine):
        """A line whose first call of `leave` is interrupted."""

        calls = 0

        def leave(self, waiter: Waiter) -> None:
            self.calls += 1
            if self.calls == 1 and moment == "before":
                raise KeyboardInterrupt
            super().leave(waiter)
            if self.calls == 1:
                raise KeyboardInterrupt

    store = MemoryStore()
    store.line = Interrupted()
    limits = limit_set(store, DB)
    held = limits.acquire({"db": 3})
    with pytest.raises(KeyboardInterrupt):
        limits.acquire({"db": 1}, timeout=0.01)
    held.release()
    limits.acquire({"db": 3}, timeout=PATIENCE_SECONDS).release()
    assert not store.line.busy
