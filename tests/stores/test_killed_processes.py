"""Processes that are killed: what they held comes back, what they used stays used, and the others go on."""

from __future__ import annotations

import math
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.clock import system_us
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.process import ProcessStore
from tests.stores.support import (
    MULTI_THREADED_FORK,
    PATIENCE,
    Lookout,
    Running,
    count_entries,
    entries,
    files,
    holders,
    limits_of,
    running,
    until,
    used,
)

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

DAY = 86_400
DB = ResourceLimit("db", 1)
MANY = 10**6


def many(algorithm: RateLimitAlgorithm) -> CallLimit:
    """A limit that takes a while to use up, and gives nothing back meanwhile."""
    return CallLimit(MANY, 366 * DAY, algorithm)


def holding(pipe: Connection, directory: Path, limit: ResourceLimit = DB) -> None:
    """Hold a permit until the end."""
    held = limits_of(ProcessStore(directory, map_megabytes=2), limit).acquire(timeout=PATIENCE)
    pipe.send(bool(held))
    pipe.recv()


def extending(pipe: Connection, directory: Path) -> None:
    """Hold a permit and two of an extension, with amounts of a rate, until the end."""
    limits = limits_of(ProcessStore(directory, map_megabytes=2), ResourceLimit("db", 3), RateLimit("x", 10, 366 * DAY))
    held = limits.try_acquire({"x": 1})
    held.extend({"db": 2, "x": 4})
    pipe.send(bool(held))
    pipe.recv()


def hot(pipe: Connection, directory: Path, algorithm: RateLimitAlgorithm) -> None:
    """Acquire as fast as possible, and say so each time."""
    limits = limits_of(ProcessStore(directory, map_megabytes=2), many(algorithm))
    output = pipe.fileno()
    while limits.try_acquire():
        os.write(output, b".")


def waiting(pipe: Connection, directory: Path) -> None:
    """Wait for a permit for ever."""
    clock = Lookout()
    clock.store = ProcessStore(directory, map_megabytes=2, clock=clock)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(limits_of(clock.store, DB).acquire)
        assert clock.somebody_waits.wait(PATIENCE)
        pipe.send("waits")


class Fatal:
    """A clock that kills its process when it is read, once that is wanted."""

    wanted = False

    def __call__(self) -> int:
        if self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return system_us()


def dying_inside(pipe: Connection, directory: Path, verb: str) -> None:
    """Die in the middle of a transaction."""
    clock = Fatal()
    limits = limits_of(ProcessStore(directory, map_megabytes=2, clock=clock), CallLimit(1000, DAY))
    acquired = limits.try_acquire({"call_count": 2})
    clock.wanted = True
    match verb:
        case "acquire":
            limits.try_acquire()
        case "settle":
            acquired.update({"call_count": 1})
            acquired.release()
        case "peek":
            limits.get_stats()
        case _:
            limits.store.renew([acquired])


def short_lived(pipe: Connection, directory: Path) -> None:
    """Use a permit, and end as programs end."""
    store = ProcessStore(directory, map_megabytes=2)
    with limits_of(store, ResourceLimit("db", 50)).try_acquire() as held:
        pipe.send(bool(held))


class TestAKilledHolder:
    def test_the_permit_of_a_killed_process_is_free_within_a_second_for_a_waiter(
        self, watched_store: ProcessStore, lookout: Lookout
    ) -> None:
        limits = limits_of(watched_store, DB)
        with running(holding, watched_store.directory) as holder, ThreadPoolExecutor(1) as executor:
            assert holder.hear()
            future = executor.submit(limits.acquire, timeout=PATIENCE)
            assert lookout.somebody_waits.wait(PATIENCE)
            killed = holder.kill()
            assert future.result(PATIENCE)
            assert monotonic() - killed < 1
        assert holders(limits) == 1

    def test_the_permit_of_a_killed_process_is_free_within_a_second_for_a_try(
        self, process_store: ProcessStore
    ) -> None:
        limits = limits_of(process_store, DB)
        with running(holding, process_store.directory) as holder:
            assert holder.hear()
            assert not limits.try_acquire()
            killed = holder.kill()
            until(lambda: bool(limits.try_acquire()))
            assert monotonic() - killed < 1

    def test_permits_of_an_extension_are_free_within_a_second_and_its_amounts_stay_spent(
        self, process_store: ProcessStore
    ) -> None:
        limits = limits_of(process_store, ResourceLimit("db", 3), RateLimit("x", 10, 366 * DAY))
        with running(extending, process_store.directory) as holder:
            assert holder.hear()
            assert not limits.try_acquire({"x": 0})
            killed = holder.kill()
            until(lambda: bool(limits.try_acquire({"x": 0, "db": 3})))
            assert monotonic() - killed < 1
        assert round(float(str(used(limits, "x")))) == 5

    def test_its_permit_is_free_at_the_first_try_long_after(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        with running(holding, process_store.directory) as holder:
            assert holder.hear()
            holder.kill()
        assert limits.try_acquire()

    def test_its_permits_are_no_longer_shown_as_held(self, process_store: ProcessStore) -> None:
        three = ResourceLimit("db", 3)
        mine = limits_of(process_store, three).try_acquire()
        with (
            running(holding, process_store.directory, three) as killed,
            running(holding, process_store.directory, three) as living,
        ):
            assert killed.hear()
            assert living.hear()
            assert holders(limits_of(process_store, three)) == 3
            killed.kill()
            assert holders(limits_of(process_store, three)) == 2
        assert mine

    def test_living_processes_keep_their_permits(self, process_store: ProcessStore) -> None:
        three = ResourceLimit("db", 3)
        mine = limits_of(process_store, three).try_acquire()
        with (
            running(holding, process_store.directory, three) as killed,
            running(holding, process_store.directory, three) as living,
        ):
            assert killed.hear()
            assert living.hear()
            assert not limits_of(process_store, three).try_acquire()
            killed.kill()
            until(lambda: bool(limits_of(process_store, three).try_acquire()))
            assert holders(limits_of(process_store, three)) == 3
            assert not limits_of(process_store, three).try_acquire()
        assert mine

    def test_its_files_are_removed_with_its_leases(self, process_store: ProcessStore) -> None:
        with running(holding, process_store.directory) as holder:
            assert holder.hear()
            assert len(files(process_store, ".alive")) == 1
            holder.kill()
        held = limits_of(process_store, DB).try_acquire()
        assert held
        assert len(files(process_store, ".alive")) == 1
        assert len(entries(process_store, b"")) == count_entries(process_store)
        held.release()


class TestKilledWhileAcquiring:
    @pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
    def test_a_kill_loses_at_most_requests_in_flight_and_never_over_admits(
        self, process_store: ProcessStore, algorithm: RateLimitAlgorithm
    ) -> None:
        limits, counted = limits_of(process_store, many(algorithm)), 0
        for kill_after in (1, 2, 7, 50, 120):
            with running(hot, process_store.directory, algorithm) as process:
                told = counted + admissions(process, kill_after)
            counted = taken(limits)
            assert told <= counted <= told + 1
        assert limits.try_acquire({"call_count": MANY - counted})
        assert not limits.try_acquire()

    def test_other_processes_continue_after_a_kill(self, process_store: ProcessStore) -> None:
        limits, told = limits_of(process_store, many(RateLimitAlgorithm.FIXED_WINDOW)), 0
        with running(hot, process_store.directory, RateLimitAlgorithm.FIXED_WINDOW) as survivor:
            for _ in range(5):
                with running(hot, process_store.directory, RateLimitAlgorithm.FIXED_WINDOW) as process:
                    told += admissions(process, 20)
            told += admissions(survivor, 200)
        assert told <= taken(limits) <= told + 6


def taken(limits: LimitSet) -> int:
    """How much was ever taken, as far as next to nothing has come back."""
    return math.ceil(float(str(used(limits))))


def admissions(process: Running, kill_after: int) -> int:
    """Kill a process after some of its admissions; returns how many it has announced by then."""
    descriptor, count = process.pipe.fileno(), 0
    while count < kill_after:
        announced = len(os.read(descriptor, 1))
        assert announced, "the process has ended"
        count += announced
    process.kill()
    while announced := len(os.read(descriptor, 65_536)):
        count += announced
    return count


class TestKilledInsideATransaction:
    @pytest.mark.parametrize("verb", ["acquire", "settle", "peek", "renew"])
    def test_nothing_of_it_is_written_and_the_others_go_on(self, process_store: ProcessStore, verb: str) -> None:
        limits = limits_of(process_store, CallLimit(1000, DAY, RateLimitAlgorithm.FIXED_WINDOW))
        mine = limits_of(process_store, CallLimit(1000, DAY))
        with running(dying_inside, process_store.directory, verb) as process:
            assert process.ended() == -signal.SIGKILL
        assert round(float(str(used(mine)))) == 2
        assert limits.try_acquire()

    def test_a_reader_that_is_killed_does_not_block_the_file(self, tmp_path: Path) -> None:
        store = ProcessStore(tmp_path, map_megabytes=1)
        limits = limits_of(store, RateLimit("x", 10**6, DAY))
        with running(running_dying, tmp_path) as starter:
            assert limits.try_acquire({"x": 1})
            starter.pipe.send("go")
            assert starter.hear() == -signal.SIGKILL
            for _ in range(3000):
                assert limits.try_acquire({"x": 1})
        store.close()


def running_dying(pipe: Connection, directory: Path) -> None:
    """Have a process die while it looks, without having had the file open before."""
    pipe.recv()
    with running(dying_inside, directory, "peek") as process:
        pipe.send(process.ended())


class TestAKilledWaiter:
    def test_it_leaves_nothing_behind(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        with limits.try_acquire() as held:
            assert held
            with running(waiting, process_store.directory) as waiter:
                assert waiter.hear() == "waits"
                assert len(entries(process_store, b"watch")) == 2
                waiter.kill()
        assert entries(process_store, b"watch") == []
        assert limits.try_acquire()

    def test_it_is_not_granted_a_permit(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        with limits.try_acquire() as held, running(waiting, process_store.directory) as waiter:
            assert held
            assert waiter.hear() == "waits"
            waiter.kill()
        assert holders(limits) == 0
        assert limits.try_acquire()

    def test_its_files_are_removed_when_the_next_process_comes(self, process_store: ProcessStore) -> None:
        with limits_of(process_store, DB).try_acquire() as held:
            assert held
            with running(waiting, process_store.directory) as waiter:
                assert waiter.hear() == "waits"
                assert len(files(process_store, ".pipe")) == 1
                waiter.kill()
        with running(short_lived, process_store.directory) as process:
            assert process.hear()
        assert files(process_store, ".pipe") == []


class TestProcessesThatEnd:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_their_files_do_not_pile_up(self, process_store: ProcessStore, method: str) -> None:
        for _ in range(4):
            with running(short_lived, process_store.directory, method=method) as process:
                assert process.hear()
                assert process.ended() == 0
        assert len(files(process_store, ".alive")) <= 1
        with limits_of(process_store, ResourceLimit("db", 50)).try_acquire() as held:
            assert held
            assert len(files(process_store, ".alive")) == 1
        process_store.close()
        assert files(process_store, ".alive") == []
