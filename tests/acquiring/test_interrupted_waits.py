"""Waits that are interrupted by exceptions at any point: no lock stays locked, and no waiter stays in the line."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from threading import Event
from types import CodeType, FrameType
from typing import Any

import pytest

import limits_app.acquiring
import limits_app.acquiring.limit_set as limit_set_module
import limits_app.engine
from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.pool import LimitPool
from limits_app.engine import locks
from limits_app.engine.claims import Claim
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import limit_set, used
from tests.acquiring.watched import PATIENCE_SECONDS, Caller, WatchedStore
from tests.interruptions import interrupt_anywhere
from tests.replacing import at_next_call

CORE = tuple([str(Path(package.__file__).parent) for package in (limits_app.acquiring, limits_app.engine)])
DB = ResourceLimit("db", 1)
TPM = RateLimit("tpm", 1000, 3600)
AFTER_THE_LEASE = 11
"""Seconds after which the permit of an acquisition that no caller received is free again."""


class Interruption(BaseException):
    """Raised at any point, as a signal handler may do."""


class Interrupter:
    """A trace function that raises at the n-th call, line or return in `limits_app.acquiring` or `limits_app.engine`.

    It leaves out locks and the ends of `with` blocks: CPython runs no signal handler there.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self.where: str | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(CORE) or file == locks.__file__:
            return None
        ends = block_ends(frame.f_code)

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            if event != "exception" and frame.f_lasti not in ends:
                self.left -= 1
                if self.left == 0:
                    self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
                    raise Interruption(self.where)
            return trace

        return trace(frame, event, None)


@cache
def block_ends(code: CodeType) -> frozenset[int]:
    """Where `with` blocks end: the instructions that load `None, None, None` for `__exit__`."""
    found = list(dis.get_instructions(code))
    loads = [one.opname == "LOAD_CONST" and one.argval is None for one in found]
    return frozenset(one.offset for index, one in enumerate(found) if loads[index : index + 3] == [True] * 3)


def interrupted(acquire: Callable[[], Acquisition], number: int) -> str | None:
    """Acquire in this thread, interrupted at one point; where that was, or None where it ended before."""
    interrupter = Interrupter(number)
    sys.settrace(interrupter)
    try:
        acquired = acquire()
    except Interruption:
        return interrupter.where
    finally:
        sys.settrace(None)
    # Python ignores exceptions in the finalizer of a generator, so the wait may have gone on.
    acquired.cancel()
    return interrupter.where


class ReleasingStore(WatchedStore):
    """A store whose permit is released by another thread as soon as a waiter was refused."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.limits = limit_set(self, TPM, DB)
        self.held = self.limits.acquire({"db": 1})

    def acquire(self, claim: Claim) -> bool:
        admitted = super().acquire(claim)
        if not admitted:
            Caller(self.held.release).result()
        return admitted


def use(stores: list[ReleasingStore]) -> None:
    """Take and release what each store has."""
    for store in stores:
        store.limits.acquire({"tpm": 1, "db": 1}, timeout=60).cancel()


def of_a_set(stores: list[ReleasingStore]) -> Callable[[], Acquisition]:
    """Wait for a set."""
    return lambda: stores[0].limits.acquire({"tpm": 1, "db": 1}, timeout=60)


def of_a_pool(stores: list[ReleasingStore]) -> Callable[[], Acquisition]:
    """Wait for a pool of two stores, whose sets have compiled the plan before: with it there are twice the points."""
    for store in stores:
        store.limits.peek({"tpm": 1, "db": 1})
    pool = LimitPool([store.limits for store in stores])
    return lambda: pool.acquire({"tpm": 1, "db": 1}, timeout=60)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("waiting", [of_a_set, pytest.param(of_a_pool, marks=pytest.mark.release)])
def test_a_wait_that_is_interrupted_at_any_point_leaves_nothing(
    waiting: Callable[[list[ReleasingStore]], Callable[[], Acquisition]],
) -> None:
    for number in count(1):
        clock = FakeClock()
        stores = [ReleasingStore(clock), ReleasingStore(clock)]
        where = Caller(interrupted, waiting(stores), number).result()
        if where is None:
            break
        for store in stores:
            assert store.line.scopes() == [], where
            store.held.release()
        clock.advance(AFTER_THE_LEASE)
        again = Caller(use, stores)
        again.join(3)
        assert not again.is_alive(), where
        again.result()
        assert not any(store.line.busy for store in stores), where
    assert number > 100


def test_a_charged_call_is_refunded(store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = limit_set(store, CallLimit(1, 3600, RateLimitAlgorithm.TOKEN_BUCKET))

    def interrupted(_leave: object, waiter: Any) -> None:
        raise Interruption

    at_next_call(monkeypatch, store.line, "leave", interrupted)
    monkeypatch.setattr(limit_set_module, "must_wait", lambda _acquisition: True)
    with pytest.raises(Interruption):
        limits.acquire(timeout=60)
    assert used(limits)["call_count"] == 0


@pytest.mark.slow
def test_waits_that_signals_interrupt_leave_nothing() -> None:
    store = MemoryStore(lease_seconds=0.5)
    limits = limit_set(store, ResourceLimit("db", 2))
    done = Event()

    def contend() -> None:
        while not done.is_set():
            limits.acquire(timeout=PATIENCE_SECONDS).release()

    contenders = [Caller(contend) for _ in range(3)]
    try:
        interrupted = interrupt_anywhere(
            lambda: limits.acquire({"db": 2}, timeout=20).release(), times=6_000, within_us=1999
        )
        assert interrupted > 100
    finally:
        done.set()
    for contender in contenders:
        contender.result()
    limits.acquire({"db": 2}, timeout=PATIENCE_SECONDS).release()
    assert store.line.scopes() == []
    assert not store.line.busy
