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

from limits_app.core.acquisition import Acquisition
from limits_app.core.errors import InvalidRequest, LimitExceeded, LimitTimeout, StaleConfiguration, StoreUnavailable
from limits_app.core.keys import scope_of
from limits_app.core.limit_pool import LimitPool
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import Blocked, CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.plan import Amounts, Bucket, Claim, ScopedLimits
from limits_app.core.record import schema_of
from limits_app.core.waiting import Waiter, WaitingLine
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.core.sets import DB, limit_set, reported, used, used_up
from tests.core.watched import Caller, WatchedStore

TEN = RateLimit("tpm", 10, 10)
"""One unit per second."""


@pytest.fixture
def store(clock: FakeClock) -> WatchedStore:
    return WatchedStore(clock=clock)


# ---------------------------------------------------------------------------------------------- until when


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_a_waiter_is_admitted_at_the_very_moment_and_not_before(
    algorithm: RateLimitAlgorithm, store: WatchedStore, clock: FakeClock
) -> None:
    limits = limit_set(store, RateLimit("tpm", 10, 10, algorithm))
    used_up(limits, "tpm")
    told = limits.try_acquire({"tpm": 3}).outcome.retry_after
    assert told is not None
    start = clock.now_us
    waiter = Caller(limits.acquire, {"tpm": 3})
    store.until_waiting(1)
    clock.move(round(told * 1_000_000) - 1)
    store.until_refused()
    clock.move(1)
    assert waiter.result().decided_at == start + round(told * 1_000_000)
    store.until_waiting(0)
    assert not store.line.busy


def test_a_waiter_asks_when_its_time_has_come_and_not_all_the_time(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 10})
    store.until_waiting(1)
    for _ in range(9):
        clock.advance(1)
        store.until_refused()
    assert len(store.refused) <= 1 + 9 + 2, "once for each time that somebody woke it"
    clock.advance(1)
    waiter.result()


def test_time_is_up(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 6}, timeout=5)
    store.until_waiting(1)
    clock.move(4_999_999)
    store.until_refused()
    clock.move(1)
    with pytest.raises(TimeoutError, match="'tpm' has 5 of 10 left, 6 requested: retry in 1 s") as caught:
        waiter.result()
    assert isinstance(caught.value, LimitTimeout)
    assert caught.value.outcome.retry_after == 1
    assert used(limits) == {"tpm": 5}
    assert not store.line.busy


def test_time_is_up_for_somebody_who_never_had_a_turn(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    first = Caller(limits.acquire, {"tpm": 9})
    store.until_waiting(1)
    second = Caller(limits.acquire, {"tpm": 1}, timeout=5)
    store.until_waiting(2)
    clock.advance(5)
    with pytest.raises(LimitTimeout) as caught:
        second.result()
    assert caught.value.outcome.as_dict()["allowed"] is True, "there would be enough, but others were first"
    clock.advance(4)
    assert first.result()


def test_a_limit_that_frees_itself_in_time_is_no_timeout(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 5}, timeout=5)
    store.until_waiting(1)
    clock.advance(5)
    assert waiter.result()


@pytest.mark.parametrize("timeout", [0, 0.0, -0.0, 1e-9, 1, 5.5, 1e12, 1e300, 10**30, 10**400, float("inf"), None])
def test_what_a_timeout_may_be(timeout: float | None, store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    assert limits.acquire({"tpm": 10}, timeout)


@pytest.mark.parametrize(
    "timeout", [-1, -0.001, float("-inf"), float("nan"), True, False, "5", b"5", [5], Decimal(5), 1j, object()]
)
def test_what_a_timeout_may_not_be(timeout: Any, store: WatchedStore) -> None:
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


# -------------------------------------------------------------------------------------------------- turns


def test_first_come_first_served(store: WatchedStore, clock: FakeClock) -> None:
    limits, admitted = limit_set(store, TEN), []
    used_up(limits, "tpm")

    def wait(name: int) -> None:
        limits.acquire({"tpm": 1})
        admitted.append(name)

    waiters = []
    for name in range(6):
        waiters.append(Caller(wait, name))
        store.until_waiting(name + 1)
    for name in range(6):
        clock.advance(1)
        store.until_waiting(5 - name)
        waiters[name].result()
        assert admitted == list(range(name + 1))


def test_a_big_request_is_not_starved_by_small_ones(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    start = clock.now_us
    big = Caller(limits.acquire, {"tpm": 10})
    store.until_waiting(1)
    small = [Caller(limits.acquire, {"tpm": 1}) for _ in range(3)]
    store.until_waiting(4)
    for _ in range(10):
        assert big.is_alive()
        clock.advance(1)
    assert big.result().decided_at == start + 10_000_000
    clock.advance(3)
    assert all(one.result().decided_at == start + 13_000_000 for one in small)


def test_waiters_for_something_else_are_not_held_up(store: WatchedStore) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 10), DB)
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 1, "db": 1})
    store.until_waiting(1)
    store.until_refused()
    for _ in range(3):
        with limits.acquire({"rpm": 1, "db": 1}) as acquisition:
            acquisition.update({"rpm": 1})
    store.reset([limits.scoped[0].scope.key], ["tpm"])
    waiter.result().release()


def test_waiters_of_other_scopes_are_not_held_up(store: WatchedStore, clock: FakeClock) -> None:
    one, other = limit_set(store, TEN), limit_set(store, TEN)
    used_up(one, "tpm")
    waiter = Caller(one.acquire, {"tpm": 1})
    store.until_waiting(1)
    assert other.acquire({"tpm": 10})
    clock.advance(1)
    waiter.result()


def test_a_waiter_for_two_limits_stands_only_in_the_lines_that_refused_it(
    store: WatchedStore, clock: FakeClock
) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 100))
    used_up(limits, "tpm")
    both = Caller(limits.acquire, {"tpm": 2, "rpm": 10})
    store.until_waiting(1)
    store.until_refused()
    assert limits.acquire({"rpm": 1})
    clock.advance(2)
    store.until_refused()
    assert both.is_alive(), "now it is the other limit that has too little"
    clock.advance(8)
    assert both.result()


def test_whoever_waited_longest_comes_first_in_every_line_that_he_joins(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN, RateLimit("rpm", 10, 10))
    used_up(limits, "tpm")
    older = Caller(limits.acquire, {"tpm": 1, "rpm": 5})
    store.until_waiting(1)
    store.until_refused()
    used_up(limits, "rpm")
    younger = Caller(limits.acquire, {"rpm": 5})
    store.until_waiting(2)
    start = clock.now_us
    clock.advance(1)
    store.until_waiting(2, "rpm")
    clock.advance(4)
    assert older.result().decided_at == start + 5_000_000
    clock.advance(5)
    assert younger.result().decided_at == start + 10_000_000


def test_a_try_does_not_wait_for_those_who_do(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 5})
    store.until_waiting(1)
    clock.advance(1)
    assert limits.try_acquire({"tpm": 1})
    assert limits.acquire({"tpm": 0}, timeout=0)
    clock.advance(5)
    assert waiter.result()


# ------------------------------------------------------------------------------------------------- wake-up


def held_up(store: WatchedStore, limits: LimitSet, requested: dict[str, float] | None) -> Caller:
    """Somebody who waits."""
    caller = Caller(limits.acquire, requested)
    store.until_waiting(1)
    store.until_refused()
    return caller


def test_a_release_wakes_the_first(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, DB)
    held = limits.acquire({"db": 3})
    waiter = held_up(store, limits, {"db": 2})
    held.release()
    assert waiter.result().decided_at == clock.now_us
    assert used(limits) == {"db": 2}


def test_each_release_lets_one_in(store: WatchedStore) -> None:
    limits = limit_set(store, ResourceLimit("db", 1))
    held, waiters = limits.acquire(), []
    for number in range(5):
        waiters.append(Caller(limits.acquire, {"db": 1}))
        store.until_waiting(number + 1)
    for waiter in waiters:
        held.release()
        held = waiter.result()
        assert used(limits) == {"db": 1}


def test_a_refund_wakes_the_first(store: WatchedStore, clock: FakeClock) -> None:
    limits = limit_set(store, TEN)
    taken = used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 4})
    reported(taken, {"tpm": 6})
    assert waiter.result().decided_at == clock.now_us


def test_a_failed_block_wakes_the_first(store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    taken = used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 4})
    with pytest.raises(ZeroDivisionError), taken:
        raise ZeroDivisionError
    assert waiter.result()


def test_a_reset_wakes_the_first(store: WatchedStore) -> None:
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 10})
    store.reset([limits.scoped[0].scope.key])
    assert waiter.result()


def test_a_release_of_too_little_leaves_the_first_waiting(store: WatchedStore) -> None:
    limits = limit_set(store, DB)
    small, big = limits.acquire({"db": 1}), limits.acquire({"db": 2})
    waiter = held_up(store, limits, {"db": 3})
    before = len(store.refused)
    small.release()
    store.until(lambda: len(store.refused) > before)
    big.release()
    assert waiter.result()


def test_a_change_of_the_configuration_ends_the_wait(store: WatchedStore) -> None:
    scoped = [ScopedLimits(scope_of("api", None), schema_of((TEN,)))]
    limits = LimitSet.composed(scoped, store, version=store.version())
    used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 1})
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        waiter.result()
    with pytest.raises(StaleConfiguration):
        limits.try_acquire({"tpm": 1})
    with pytest.raises(StaleConfiguration):
        limits.peek({"tpm": 1})
    assert not store.line.busy
    assert LimitSet.composed([], store, version=store.version()).try_acquire()


@pytest.mark.parametrize("timeout", [None, 60])
def test_whoever_is_blocked_does_not_wait(timeout: float | None, store: WatchedStore) -> None:
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


def test_whoever_is_blocked_until_a_date_waits_for_it(store: WatchedStore, clock: FakeClock) -> None:
    limits = LimitSet.composed([ScopedLimits(scope_of("api", "a"), schema_of((Blocked(),)))], store)
    limits.changes_at = 1e9
    waiter = Caller(limits.acquire, {}, 5)
    store.until_waiting(1)
    clock.advance(5)
    with pytest.raises(LimitTimeout):
        waiter.result()


def test_permits_of_somebody_who_forgot_them_come_back_when_their_lease_ends(
    store: WatchedStore, clock: FakeClock
) -> None:
    limits = limit_set(store, DB)
    limits.acquire({"db": 3})
    gc.collect()
    start = clock.now_us
    waiter = held_up(store, limits, {"db": 1})
    clock.move(9_999_999)
    store.until_refused()
    clock.move(1)
    assert waiter.result().decided_at == start + 10_000_000


# -------------------------------------------------------------------------------------------- interruptions


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


def test_what_a_store_does_not_take_back_hides_no_interruption(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    class OutOfReach(Interrupting):
        """Which cannot be reached any more then."""

        def settle(self, claim: Claim, changes: Amounts) -> None:
            if self.has_interrupted:
                raise StoreUnavailable("out of reach")
            super().settle(claim, changes)

    store = OutOfReach(clock=clock)
    interrupted_after_a_wait(store, limit_set(store, TEN, DB))
    assert "what was waited for could not be given back" in caplog.text
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


# -------------------------------------------------------------------------------------- on the real clock


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_real_time(algorithm: RateLimitAlgorithm) -> None:
    limits = LimitSet([CallLimit(4, 0.06, algorithm)], shared=True, mode="thread")
    admitted: list[Acquisition] = []

    def work() -> None:
        admitted.extend(limits.acquire() for _ in range(3))

    callers = [Caller(work) for _ in range(4)]
    for caller in callers:
        caller.result()
    moments = sorted(one.decided_at for one in admitted)
    assert len(moments) == 12
    spans = [later - earlier for earlier, later in zip(moments, moments[4:], strict=False)]
    if algorithm is RateLimitAlgorithm.SLIDING_WINDOW:
        assert min(spans) >= 60_000
    elif algorithm is RateLimitAlgorithm.FIXED_WINDOW:
        assert moments[-1] - moments[0] >= 2 * 60_000
    else:
        assert all(moments[4 + number] - moments[0] >= 15_000 * (number + 1) for number in range(8))


def test_real_time_is_up() -> None:
    limits = LimitSet([RateLimit("k", 1, 3600)])
    limits.acquire({"k": 1})
    start = limits.store.clock()
    with pytest.raises(LimitTimeout):
        limits.acquire({"k": 1}, timeout=0.05)
    assert 50_000 <= limits.store.clock() - start < 5_000_000


def test_a_clock_that_is_set_back_makes_no_timeout_longer() -> None:
    back_us = 0
    store = WatchedStore(clock=lambda: time_ns() // 1000 - back_us)
    limits = limit_set(store, RateLimit("tpm", 1, 3600))
    used_up(limits, "tpm")
    waiter = Caller(limits.acquire, {"tpm": 1}, 0.3)
    store.until_waiting(1)
    back_us = 3_600_000_000
    store.line.notify_all()
    with pytest.raises(LimitTimeout):
        waiter.result()


def test_real_waiters_for_a_permit_ask_again_when_the_store_says_so() -> None:
    class Impatient(MemoryStore):
        """A store that cannot tell its waiters when a holder has died."""

        patience_us = 5000

        asked = 0

        def acquire(self, claim: Claim) -> bool:
            self.asked += 1
            return super().acquire(claim)

    store = Impatient()
    limits = limit_set(store, DB)
    held = limits.acquire({"db": 3})
    with pytest.raises(LimitTimeout):
        limits.acquire({"db": 1}, timeout=0.25)
    assert 3 <= store.asked <= 80
    held.release()


# ------------------------------------------------------------------------------------------------ the line


class Somebody:
    """A waiter that remembers who woke it."""

    def __init__(self, ticket: int) -> None:
        self.ticket = ticket
        self.standing: tuple[tuple[str, str], ...] = ()
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def gone(self) -> bool:
        return self.woken < 0


def test_stores_are_told_when_the_first_comes_and_the_last_goes() -> None:
    told: list[str] = []
    line = WaitingLine(lambda scope: told.append(f"+{scope}"), lambda scope: told.append(f"-{scope}"))
    one, other = Somebody(1), Somebody(2)
    line.stand(one, [("a", "tpm"), ("b", "tpm")])
    line.stand(other, [("a", "tpm"), ("a", "rpm")])
    assert line.watched() == ["a", "b"]
    line.stand(one, [("a", "tpm")])
    line.stand(one, ())
    assert line.busy
    line.stand(other, [("a", "tpm")])
    line.stand(other, ())
    assert told == ["+a", "+b", "-b", "-a"]
    assert line.watched() == []
    assert not line.busy


@pytest.mark.parametrize("verb", ["+", "-"])
def test_who_comes_or_goes_while_a_store_is_told_is_told_of_in_the_end(verb: str) -> None:
    told: list[str] = []
    one, other = Somebody(1), Somebody(2)

    def tell(sign: str) -> None:
        if sign == verb and sign not in told:
            told.append(sign)
            meanwhile()
        told.append(sign)

    def meanwhile() -> None:
        if verb == "-":
            line.stand(other, [("a", "tpm")])
        else:
            line.stand(one, ())

    line = WaitingLine(lambda scope: tell("+"), lambda scope: tell("-"))
    line.stand(one, [("a", "tpm")])
    line.stand(one, ())
    assert told[-1] == ("+" if line.watched() else "-")
    assert line.watched() == (["a"] if verb == "-" else [])


def test_a_scope_that_the_dead_have_deserted_is_watched_for_who_comes_next() -> None:
    told: list[str] = []
    line = WaitingLine(lambda scope: told.append("+"), lambda scope: told.append("-"))
    line.stand(Somebody(1), [("a", "tpm")])
    gc.collect()
    alive = Somebody(2)
    line.stand(alive, [("a", "tpm")])
    assert told[-1] == "+"
    assert line.watched() == ["a"]


def test_who_leaves_does_not_mind_that_a_store_cannot_be_told(caplog: pytest.LogCaptureFixture) -> None:
    def unwatch(scope: str) -> None:
        raise StoreUnavailable(f"out of reach: {scope}")

    line, one = WaitingLine(unwatch=unwatch), Somebody(1)
    line.stand(one, [("a", "tpm"), ("b", "tpm")])
    line.stand(one, ())
    assert not line.busy
    assert len(caplog.records) == 2


def test_an_interruption_while_leaving_the_line_gives_back_what_was_admitted(
    store: WatchedStore, caplog: pytest.LogCaptureFixture
) -> None:
    def unwatch(_scope: str) -> None:
        raise Interrupt

    limits, watching = limit_set(store, TEN, DB), store.line._unwatch
    held = limits.acquire({"db": 3})
    waiter = Caller(limits.acquire, {"tpm": 4, "db": 2})
    store.until_waiting(1)
    store.line._unwatch = unwatch
    held.release()
    with pytest.raises(Interrupt):
        waiter.result()
    store.line._unwatch = watching
    assert used(limits) == {"tpm": 0, "db": 0}
    assert not store.line.busy


def test_only_the_first_of_a_line_is_woken() -> None:
    line, crowd = WaitingLine(), [Somebody(ticket) for ticket in range(4)]
    for one in reversed(crowd):
        line.stand(one, [("a", "tpm")])
    line.stand(crowd[3], [("a", "tpm"), ("b", "tpm")])
    assert line.ahead(crowd[0], [("a", "tpm")]) == []
    assert line.ahead(crowd[2], [("a", "tpm"), ("b", "tpm"), ("c", "tpm")]) == [("a", "tpm")]
    line.notify(["a", "nobody"])
    assert [one.woken for one in crowd] == [1, 0, 0, 0]
    line.notify_all()
    assert [one.woken for one in crowd] == [2, 0, 0, 1]
    line.moved(0)
    assert [one.woken for one in crowd] == [3, 1, 1, 3]


def test_whoever_becomes_the_first_is_woken() -> None:
    line, crowd = WaitingLine(), [Somebody(ticket) for ticket in range(4)]
    for one in crowd:
        line.stand(one, [("a", "tpm")])
    line.stand(crowd[2], ())
    assert [one.woken for one in crowd] == [0, 0, 0, 0]
    line.stand(crowd[0], ())
    assert [one.woken for one in crowd] == [0, 1, 0, 0]
    line.stand(crowd[1], ())
    assert [one.woken for one in crowd] == [0, 1, 0, 1]


def test_those_who_are_gone_without_leaving_are_passed_over() -> None:
    told: list[str] = []
    line = WaitingLine(unwatch=told.append)
    crowd = [Somebody(ticket) for ticket in range(4)]
    for one in crowd[:3]:
        line.stand(one, [("a", "tpm"), ("b", "tpm")])
    crowd[0].woken = crowd[1].woken = -100
    line.notify(["b"])
    assert crowd[2].woken > 0
    assert crowd[3].woken == 0
    crowd[2].woken = -100
    assert line.ahead(crowd[3], [("a", "tpm")]) == []
    assert not line.busy
    line.stand(crowd[3], [("c", "tpm")])
    line.stand(crowd[2], ())
    assert told == ["a", "b"]
    assert line.watched() == ["c"]
    crowd[3].woken = -100
    line.notify_all()
    assert line.watched() == []


def test_those_who_died_in_line_are_taken_out_and_the_next_is_woken() -> None:
    told: list[str] = []
    line = WaitingLine(unwatch=told.append)
    crowd = [Somebody(ticket) for ticket in range(3)]
    for one in crowd[:2]:
        line.stand(one, [("a", "tpm"), ("b", "tpm")])
    line.stand(crowd[2], [("a", "tpm")])
    del one
    del crowd[0]
    assert [one.woken for one in crowd] == [2, 0], "it is the first of two lines now"
    assert line.ahead(crowd[1], [("a", "tpm")]) == [("a", "tpm")]
    del crowd[0]
    assert crowd[0].woken == 1
    assert line.watched() == ["a"]
    last = crowd.pop()
    line.stand(last, ())
    assert not line.busy
    assert sorted(told) == ["a", "b"]


def test_who_dies_while_others_are_at_the_lines_is_taken_out_after_that() -> None:
    line, crowd = WaitingLine(), [Somebody(ticket) for ticket in range(3)]
    for one in crowd[:2]:
        line.stand(one, [("a", "tpm")])
    del one

    class Dying(Somebody):
        """Somebody in whose place in line another one dies."""

        def gone(self) -> bool:
            if len(crowd) == 3:
                del crowd[0]
            return False

    dying = Dying(-1)
    line.stand(dying, [("a", "tpm")])
    assert line.ahead(crowd[-1], [("a", "tpm")]) == [("a", "tpm")]
    assert len(crowd) == 2
    line.stand(dying, ())
    assert crowd[0].woken == 1
    line.stand(crowd[0], ())
    assert line.watched() == []


def test_who_dies_while_all_are_woken_is_passed_over() -> None:
    line, crowd = WaitingLine(), [Somebody(2), Somebody(3)]

    class Killing(Somebody):
        """Somebody who takes another one along when woken."""

        def wake(self) -> None:
            super().wake()
            del crowd[0]

    killing = Killing(1)
    for one in (killing, *crowd):
        line.stand(one, [("a", "tpm")])
    del one
    line.moved(0)
    assert (killing.woken, [one.woken for one in crowd]) == (1, [1])


def test_the_dead_at_the_head_of_a_line_are_never_the_first() -> None:
    line, crowd = WaitingLine(), [Somebody(1), Somebody(2)]
    for one in crowd:
        line.stand(one, [("a", "tpm")])
    del one
    with line._alone():  # so that nobody takes the dead out
        del crowd[0]
        assert line._first("a", "tpm") is crowd[0]


def test_one_may_leave_lines_in_which_one_does_not_stand() -> None:
    line, one, other = WaitingLine(), Somebody(1), Somebody(2)
    line.stand(other, [("a", "tpm")])
    one.standing = (("a", "tpm"), ("b", "tpm"))
    line.stand(one, ())
    assert line.watched() == ["a"]


@pytest.mark.parametrize("moment", range(3))
def test_an_interrupt_while_leaving_the_line_holds_up_nobody(moment: int) -> None:
    class Interrupted(WaitingLine):
        """A line that one cannot leave undisturbed."""

        left = 0

        def stand(self, waiter: Waiter, buckets: Iterable[Bucket]) -> None:
            if buckets:
                super().stand(waiter, buckets)
                return
            self.left += 1
            if self.left == 1 and moment == 0:
                raise KeyboardInterrupt
            if self.left == 1 and moment == 1:
                waiter.standing = ()  # as if it had not been noted yet
                raise KeyboardInterrupt
            super().stand(waiter, buckets)
            if self.left == 1:
                raise KeyboardInterrupt

    store = MemoryStore()
    store.line = Interrupted()
    limits = limit_set(store, DB)
    held = limits.acquire({"db": 3})
    with pytest.raises(KeyboardInterrupt):
        limits.acquire({"db": 1}, timeout=0.01)
    held.release()
    assert not store.line.busy
    limits.acquire({"db": 3}, timeout=0).release()


def test_waiting_is_not_logged(store: WatchedStore, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "limits_app")
    limits = limit_set(store, TEN)
    used_up(limits, "tpm")
    waiter = held_up(store, limits, {"tpm": 1})
    clock.advance(1)
    waiter.result()
    assert caplog.messages == []
