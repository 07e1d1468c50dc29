"""Holders of permits that are killed or frozen, and machines whose clocks are wrong, on every database."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from time import monotonic, monotonic_ns

import pytest

from limits_app.core.hooks import HOOKS
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, ResourceLimit
from limits_app.stores.database import DatabaseStore, clock
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, Settings, use
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, Running, holders, limits_of, running, until, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

LEASE = 2.0
DB = ResourceLimit("db", 1)
HOUR = 3600


def holding(pipe: Connection, settings: Settings) -> None:
    """Hold a permit until told to give it back; tell when it was lost, too."""
    HOOKS.lease_lost.append(lambda claim: pipe.send("lost"))
    use(settings)
    held = limits_of(DatabaseStore(ALIAS, lease_seconds=LEASE), DB).acquire(timeout=PATIENCE)
    pipe.send("holds")
    pipe.recv()
    held.release()
    pipe.send("released")
    pipe.recv()


@pytest.fixture
def limits(open_store: Open) -> LimitSet:
    """A permit, on a store with short leases."""
    return limits_of(open_store(lease_seconds=LEASE), DB)


@pytest.fixture
def holder(limits: LimitSet, settings: Settings) -> Iterator[Running]:
    """Another process, which holds the permit."""
    with running(holding, settings) as holder:
        assert holder.hear() == "holds"
        yield holder


def signalled(holder: Running, what: signal.Signals) -> None:
    assert holder.process.pid is not None
    os.kill(holder.process.pid, what)


def test_the_permit_of_a_killed_holder_is_back_within_the_lease(holder: Running, limits: LimitSet) -> None:
    assert not limits.try_acquire()
    killed = holder.kill()
    with limits.acquire(timeout=PATIENCE):
        assert monotonic() - killed < LEASE + 1


def test_a_holder_that_was_frozen_past_its_lease_has_lost_it_and_takes_nothing_back(
    holder: Running, limits: LimitSet
) -> None:
    signalled(holder, signal.SIGSTOP)
    with limits.acquire(timeout=PATIENCE) as mine:
        signalled(holder, signal.SIGCONT)
        assert holder.hear() == "lost"
        assert not limits.try_acquire({"db": 1})
        holder.pipe.send("give it back")
        assert holder.hear() == "released"
        assert holders(limits) == 1
        assert not limits.try_acquire({"db": 1})
        assert limits.store.renew([mine]) == []
    assert holders(limits) == 0


def test_a_permit_that_another_process_gives_back_reaches_who_waits_for_it(holder: Running, limits: LimitSet) -> None:
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(limits.acquire, timeout=PATIENCE)
        until(lambda: limits.store.line.busy)
        holder.pipe.send("give it back")
        assert holder.hear() == "released"
        started = monotonic()
        with waiting.result(PATIENCE):
            assert monotonic() - started < 1


@pytest.mark.parametrize("seconds", [-HOUR, HOUR], ids=["an_hour_back", "an_hour_forward"])
def test_a_machine_whose_clock_jumps_gets_nothing_more_and_decides_no_later(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    right, wrong = (limits_of(open_store(), CallLimit(10, 600)) for _ in range(2))
    for _ in range(5):  # then it goes by what it has written, without reading
        assert wrong.try_acquire({"call_count": 2})
    with monkeypatch.context() as patched:
        patched.setattr(clock, "monotonic_ns", lambda: monotonic_ns() + seconds * 10**9)
        for _ in range(3):
            assert not wrong.try_acquire()
    assert not right.try_acquire()
    assert used(right) == pytest.approx(10, abs=0.5)
