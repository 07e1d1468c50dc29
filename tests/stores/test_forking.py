"""Forking: a child goes on with the same state, and has nothing of what its parent holds."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event

import django
import pytest
from django.test import override_settings

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.runtime import LeaseHolder, install, present
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from tests.stores.support import (
    MULTI_THREADED_FORK,
    PATIENCE,
    Lookout,
    files,
    holders,
    limits_of,
    running,
    used,
)

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

MANY = CallLimit(10**6, 366 * 86_400, RateLimitAlgorithm.FIXED_WINDOW)
TWO = ResourceLimit("db", 2)


@pytest.fixture
def large_store(tmp_path: Path) -> Iterator[ProcessStore]:
    """A process store with room for all that is written while somebody reads slowly."""
    store = ProcessStore(tmp_path, map_megabytes=16)
    yield store
    store.close()


def acquiring(pipe: Connection, limits: LimitSet, times: int) -> None:
    """Acquire some times."""
    pipe.send(sum(bool(limits.try_acquire()) for _ in range(times)))


def looking(pipe: Connection, limits: LimitSet) -> None:
    """Take a permit too, and say who holds how many."""
    held = limits_of(limits.store, limits["db"]).try_acquire()
    pipe.send((bool(held), holders(limits), limits.store.line.busy))


def releasing(pipe: Connection, limits: LimitSet, held: Acquisition) -> None:
    """Release what the parent holds, and let go of it; says who holds something, and how much was lost."""
    lost: list[LeaseHolder] = []
    install(replace(present(), lease_lost=lost.append))
    held.release()
    del held
    gc.collect()
    pipe.send((holders(limits), len(lost)))


def refunding(pipe: Connection, limits: LimitSet, held: Acquisition) -> None:
    """Release amounts that the parent took, in part unused; says how much is used."""
    held.update({"tpm": 0})
    held.release()
    pipe.send(used(limits, "tpm"))


def much_later(pipe: Connection, limits: LimitSet, clock: FakeClock) -> None:
    """Hold a permit for a long time, and then take what is free."""
    mine = limits_of(limits.store, TWO).try_acquire()
    clock.advance(100)
    before = holders(limits)
    other = limits_of(limits.store, TWO).try_acquire()
    pipe.send((bool(mine), before, bool(other)))


class TestAChildOfAProcessStore:
    def test_it_counts_in_the_same_state(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, MANY)
        assert acquiring_here(limits) == 10
        for children in range(1, 4):
            with running(acquiring, limits, 10) as child:
                assert child.hear() == 10
                assert child.ended() == 0
            assert acquiring_here(limits) == 10
            assert used(limits) == 10 + 20 * children

    def test_grandchildren_do_too(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, MANY)
        assert acquiring_here(limits) == 10
        with running(with_a_child, limits) as child:
            assert child.hear() == 30
        assert used(limits) == 40

    def test_it_is_another_holder(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, TWO)
        held = limits.try_acquire()
        with running(looking, limits) as child:
            assert child.hear() == (True, 2, False)
            assert child.ended() == 0
        assert not held.claim.settled
        assert limits_of(process_store, TWO).try_acquire()
        assert not limits_of(process_store, TWO).try_acquire()

    def test_its_end_frees_nothing_that_its_parent_holds(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, ResourceLimit("db", 1))
        held = limits.try_acquire()
        for _ in range(3):
            with running(acquiring, limits, 1) as child:
                child.hear()
                assert child.ended() == 0
            assert holders(limits) == 1
            assert not limits_of(process_store, ResourceLimit("db", 1)).try_acquire()
        held.release()
        assert holders(limits) == 0

    def test_child_process_neither_releases_nor_loses_permits_of_its_parent(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, TWO)
        held = limits.try_acquire()
        with running(releasing, limits, held) as child:
            assert child.hear() == (1, 0)
        assert holders(limits) == 1
        held.release()
        assert holders(limits) == 0

    def test_it_refunds_nothing_that_its_parent_took(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, RateLimit("tpm", 10, 366 * 86_400))
        held = limits.try_acquire({"tpm": 8})
        held.update({"tpm": 2})
        with running(refunding, limits, held) as child:
            assert child.hear() == pytest.approx(8, abs=0.1)
        held.release()
        assert used(limits, "tpm") == pytest.approx(2, abs=0.1)

    def test_child_process_does_not_renew_permits_of_its_parent(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        clock = FakeClock()
        store = ProcessStore(tmp_path_factory.mktemp("renewing"), clock=clock, map_megabytes=1)
        limits = limits_of(store, TWO)
        held = limits.try_acquire()
        with running(much_later, limits, clock) as child:
            assert child.hear() == (True, 1, True)
        assert held
        store.close()

    def test_it_does_not_take_over_the_waiting_of_its_parent(
        self, watched_store: ProcessStore, lookout: Lookout
    ) -> None:
        limits = limits_of(watched_store, ResourceLimit("db", 1))
        held = limits.try_acquire()
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(limits.acquire, timeout=PATIENCE)
            assert lookout.somebody_waits.wait(PATIENCE)
            with running(looking, limits) as child:
                assert child.hear() == (False, 1, False)
            held.release()
            assert future.result(PATIENCE)

    def test_it_shows_itself_under_a_name_of_its_own(self, process_store: ProcessStore) -> None:
        held = limits_of(process_store, TWO).try_acquire()
        assert len(files(process_store, ".alive")) == 1
        with running(showing, process_store) as child:
            assert child.hear() == 2
        assert held

    def test_forks_in_the_midst_of_traffic_neither_hang_nor_lose_anything(self, large_store: ProcessStore) -> None:
        limits, stop = limits_of(large_store, MANY), Event()
        rates = limits_of(large_store, RateLimit("x", 10**9, 1), entity="somebody else")

        def acquire() -> int:
            count = 0
            while not stop.is_set():
                count += bool(limits.try_acquire())
            return count

        def settle() -> int:
            while not stop.is_set():
                with rates.try_acquire({"x": 5}) as acquired:
                    acquired.update({"x": 1})
            return 0

        def look() -> int:
            while not stop.is_set():
                limits.get_stats()
            return 0

        expected = 0
        with ThreadPoolExecutor(4) as executor:
            futures = [executor.submit(work) for work in (acquire, acquire, settle, look)]
            try:
                for _ in range(25):
                    with running(acquiring, limits, 5) as child:
                        heard = child.hear()
                        assert heard == 5
                        expected += 5
                        assert child.ended() == 0
            finally:
                stop.set()
            expected += sum(future.result(PATIENCE) for future in futures)
        assert used(limits) == expected


def with_a_child(pipe: Connection, limits: LimitSet) -> None:
    """Acquire, and have a child acquire."""
    count = acquiring_here(limits)
    with running(acquiring, limits, 10) as child:
        heard = child.hear()
        assert isinstance(heard, int)
        count += heard
    pipe.send(count + acquiring_here(limits))


def showing(pipe: Connection, store: ProcessStore) -> None:
    """Hold a permit, and count who shows itself."""
    held = limits_of(store, TWO).try_acquire()
    assert held
    pipe.send(len(files(store, ".alive")))


def acquiring_here(limits: LimitSet) -> int:
    """Acquire ten times."""
    return sum(bool(limits.try_acquire()) for _ in range(10))


class TestAChildOfAMemoryStore:
    def test_it_goes_on_with_a_copy(self) -> None:
        limits = limits_of(MemoryStore(), CallLimit(15, 3600))
        assert acquiring_here(limits) == 10
        with running(acquiring, limits, 10) as child:
            assert child.hear() == 5
        assert acquiring_here(limits) == 5

    def test_it_does_not_inherit_a_lock_that_another_thread_holds(self) -> None:
        limits, stop = limits_of(MemoryStore(), CallLimit(10**9, 1)), Event()

        def hot() -> None:
            while not stop.is_set():
                limits.try_acquire()

        with ThreadPoolExecutor(3) as executor:
            futures = [executor.submit(hot) for _ in range(3)]
            try:
                for _ in range(20):
                    with running(acquiring, limits, 3) as child:
                        assert child.hear() == 3
            finally:
                stop.set()
            for future in futures:
                future.result(PATIENCE)

    def test_its_descriptors_are_as_many_as_its_parents(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, MANY)
        assert limits.try_acquire()
        before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
        for _ in range(5):
            with running(acquiring, limits, 1) as child:
                assert child.hear() == 1
            assert limits.try_acquire()
        after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0  # noqa: PTH112, PTH208
        assert after <= before + 2


def opening_while_another_forks(pipe: Connection, kind: str, options: dict[str, str]) -> None:
    """Open the first store of a kind through the settings, once another thread is about to fork."""
    django.setup()
    registry = import_module("limits_app.stores.registry")
    opening, forking = Event(), Event()
    os.register_at_fork(before=forking.set)  # it is called after what is registered later
    module, name = import_module(f"limits_app.stores.{kind}"), f"open_{kind}_store"
    open_store = getattr(module, name)

    def open_later(*args: object, **given: object) -> object:
        opening.set()
        forking.wait()
        return open_store(*args, **given)

    setattr(module, name, open_later)
    limits = {"STORE": "new", "STORES": {"new": {"KIND": kind, **options}}}
    with override_settings(LIMITS=limits), ThreadPoolExecutor(1) as executor:
        opened = executor.submit(registry.store)
        pipe.send(opening.wait(PATIENCE))
        child = os.fork()
        if child == 0:
            os._exit(0 if registry.store() else 1)
        pipe.send((os.waitpid(child, 0)[1], registry.store() is opened.result()))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("redis", {"URL": "redis://127.0.0.1:1/0"}, id="redis"),
        pytest.param("database", {}, id="database"),
    ],
)
def test_a_thread_that_opens_a_store_and_one_that_forks_do_not_wait_for_each_other(
    kind: str, options: dict[str, str]
) -> None:
    with running(opening_while_another_forks, kind, options, method="spawn") as process:
        assert process.hear() is True
        assert process.hear(10) == (0, True)
