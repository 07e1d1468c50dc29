"""Waits in greenlets; `test_greenlets.py` runs these tests in a process that gevent has patched."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep

import pytest
from gevent import monkey
from pytest_django import DjangoDbBlocker

from limits_app.acquiring.store import Store
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from tests.stores.races import STORES, Opener
from tests.stores.support import PATIENCE, limits_of

TICK_SECONDS = 0.01
HELD_SECONDS = 0.3


SHARED = ["process", "redis", "sqlite", "postgres"]
HOLD = """
import os, pickle, sys, time
from pathlib import Path
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
import django
django.setup()
from tests.stores.in_greenlets import hold
hold(pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2]))
"""


@pytest.fixture(params=["process", "redis"])
def open_store(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[Opener]:
    """Opens a store whose waiters other processes wake."""
    with django_db_blocker.unblock(), STORES[request.param]() as open_store:
        yield open_store


@pytest.fixture(params=["memory", *SHARED])
def store(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[Store]:
    """Each store."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with django_db_blocker.unblock(), STORES[request.param]() as open_store:
        yield open_store()


@contextmanager
def others_run(least_ticks: int) -> Iterator[None]:
    """Check that another greenlet runs during the block, so many times at least."""
    ticks: list[float] = []
    ends = False

    def tick() -> None:
        while not ends:
            ticks.append(monotonic())
            sleep(TICK_SECONDS)

    thread = Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        ends = True
        thread.join()
    assert len(ticks) >= least_ticks, f"only {len(ticks)} steps of another greenlet"


def test_threads_are_greenlets() -> None:
    assert monkey.is_module_patched("threading")
    assert "gevent" in sys.modules


@pytest.mark.parametrize("limit", [ResourceLimit("db", 1), CallLimit(1, 3600)], ids=["permit", "rate"])
def test_a_wait_that_times_out_lets_others_run(store: Store, limit: ResourceLimit | CallLimit) -> None:
    limits = limits_of(store, limit)
    held = limits.try_acquire()
    assert held
    started = monotonic()
    with others_run(5), pytest.raises(LimitTimeout):
        limits.acquire(timeout=HELD_SECONDS)
    assert HELD_SECONDS <= monotonic() - started < PATIENCE


def test_a_release_in_another_greenlet_ends_the_wait(store: Store) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    order: list[int] = []

    def work(number: int) -> None:
        with limits.acquire(timeout=PATIENCE):
            order.append(number)
            sleep(TICK_SECONDS)

    threads = [Thread(target=work, args=(number,)) for number in range(8)]
    with others_run(3):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(order) == list(range(8))


def test_a_release_in_another_process_ends_the_wait(open_store: Opener, tmp_path: Path) -> None:
    limits = limits_of(open_store(), ResourceLimit("db", 1))
    ready = tmp_path / "ready"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, pickle.dumps(open_store).hex(), str(ready)])
    while not ready.exists():
        assert holder.poll() is None
        sleep(TICK_SECONDS)
    with others_run(3), limits.acquire(timeout=PATIENCE):
        pass
    assert holder.wait(PATIENCE) == 0


def hold(open_store: Opener, ready: Path) -> None:
    """Hold the permit for a while, in another process."""
    with limits_of(open_store(), ResourceLimit("db", 1)).acquire(timeout=PATIENCE):
        ready.touch()
        sleep(HELD_SECONDS)


@pytest.mark.parametrize("kind", ["memory", "process"])
def test_leases_are_renewed_while_greenlets_run(kind: str, tmp_path: Path) -> None:
    lease_seconds = 0.6
    store = (
        MemoryStore(lease_seconds=lease_seconds)
        if kind == "memory"
        else ProcessStore(tmp_path, lease_seconds=lease_seconds, map_megabytes=2)
    )
    limits = limits_of(store, ResourceLimit("db", 1))
    lost: list[object] = []
    held = limits.acquire()
    held.lose_lease = lambda: lost.append(held)  # type: ignore[method-assign]
    with others_run(20), pytest.raises(LimitTimeout):
        limits.acquire(timeout=3 * lease_seconds)
    held.release()
    assert not lost
    assert limits.try_acquire()
