"""Waking across processes: a waiter hears at once what another process gives back or changes."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.waiting import ThreadWaiter
from limits_app.engine.errors import LimitTimeout, StaleConfiguration, StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.stores.process import ProcessStore, waking
from limits_app.stores.process.presence import ID_LENGTH, MESSAGE_LENGTH, Presence, is_alive, wake
from tests.stores.support import (
    MULTI_THREADED_FORK,
    PATIENCE,
    Lookout,
    entries,
    file_of,
    limits_of,
    running,
    until,
    waking_of,
    watching,
)
from tests.threads import no_more_threads

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

DAY = 86_400
TPM = RateLimit("tpm", 10, DAY)
DB = ResourceLimit("db", 1)


def waiting(pipe: Connection, directory: Path, limit: RateLimit | ResourceLimit, timeout: float) -> None:
    """Wait, and say how it ended and when."""
    clock = Lookout()
    store = clock.store = ProcessStore(directory, map_megabytes=2, clock=clock)
    # So that nothing but a wake-up ends its sleep.
    store.poll_us = None
    limits = limits_of(store, limit, version=store.version())
    requested = {"tpm": 5} if isinstance(limit, RateLimit) else None
    with ThreadPoolExecutor(1) as executor:
        future: Future[Acquisition] = executor.submit(limits.acquire, requested, timeout)
        assert clock.somebody_waits.wait(PATIENCE)
        pipe.send("waits")
        try:
            with future.result(PATIENCE) as acquired:
                acquired.update({"tpm": 0} if requested else {})
                pipe.send((bool(acquired), monotonic()))
        except (LimitTimeout, StaleConfiguration) as error:
            pipe.send((type(error).__name__, monotonic()))
        pipe.send(len(entries(store, b"watch")))


class TestAWaiterInAnotherProcess:
    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_a_release_wakes_it(self, process_store: ProcessStore, method: str) -> None:
        held = limits_of(process_store, DB).try_acquire()
        with running(waiting, process_store.directory, DB, PATIENCE, method=method) as waiter:
            assert waiter.hear() == "waits"
            held.release()
            assert self.woken(waiter.hear()) is True
            assert waiter.hear() == 0

    @pytest.mark.parametrize(("by", "answer"), [("refund", True), ("reset", True), ("version", "StaleConfiguration")])
    def test_a_change_wakes_it(self, process_store: ProcessStore, by: str, answer: object) -> None:
        acquired = limits_of(process_store, TPM).try_acquire({"tpm": 10})
        with running(waiting, process_store.directory, TPM, PATIENCE) as waiter:
            assert waiter.hear() == "waits"
            match by:
                case "refund":
                    acquired.update({"tpm": 3})
                    acquired.release()
                case "reset":
                    process_store.reset([acquired.limit_set.scoped[0].scope.key])
                case _:
                    process_store.advance_version()
            assert self.woken(waiter.hear()) == answer

    def test_release_of_another_entity_does_not_wake(self, process_store: ProcessStore) -> None:
        assert limits_of(process_store, TPM).try_acquire({"tpm": 10})
        with running(waiting, process_store.directory, TPM, 0.2) as waiter:
            assert waiter.hear() == "waits"
            with limits_of(process_store, DB, entity="somebody else").try_acquire() as held:
                assert held
            assert self.woken(waiter.hear()) == "LimitTimeout"
            assert waiter.hear() == 0

    def test_several_waiters_are_all_woken_in_turn(self, process_store: ProcessStore) -> None:
        held = limits_of(process_store, DB).try_acquire()
        with (
            running(waiting, process_store.directory, DB, PATIENCE) as one,
            running(waiting, process_store.directory, DB, PATIENCE) as two,
        ):
            assert (one.hear(), two.hear()) == ("waits", "waits")
            held.release()
            assert self.woken(one.hear()) is True
            assert self.woken(two.hear()) is True

    def woken(self, answer: object) -> object:
        """What a waiter has said, provided that it said so at once."""
        assert isinstance(answer, tuple)
        result, when = answer
        assert monotonic() - when < PATIENCE / 2
        return result


class TestWaitersOfOneProcess:
    def test_a_watcher_is_registered_while_a_request_waits(self, watched_store: ProcessStore, lookout: Lookout) -> None:
        held = limits_of(watched_store, DB).try_acquire()
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(limits_of(watched_store, DB).acquire, None, PATIENCE)
            until(lambda: len(entries(watched_store, b"watch:")) == 1)
            held.release()
            assert future.result(PATIENCE)
        assert entries(watched_store, b"watch") == []

    def test_a_watcher_is_registered_once(self, watched_store: ProcessStore, lookout: Lookout) -> None:
        held = limits_of(watched_store, DB).try_acquire()
        with file_of(watched_store).open().begin(write=True) as txn:
            note_watcher(txn, held.limit_set.scoped[0].scope.key, file_of(watched_store).identity())
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(limits_of(watched_store, DB).acquire, None, PATIENCE)
            assert lookout.somebody_waits.wait(PATIENCE)
            held.release()
            assert future.result(PATIENCE)
        assert entries(watched_store, b"watch") == []

    def test_messages_for_scopes_without_waiters_are_ignored(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        held = limits.try_acquire()
        with ThreadPoolExecutor(1) as executor:
            future = executor.submit(limits.acquire, None, PATIENCE)
            until(lambda: entries(process_store, b"watch:"))
            assert wake(file_of(process_store).directory, file_of(process_store).identity(), b"?" * 16)
            assert process_store.line.busy
            held.release()
            assert future.result(PATIENCE)

    def test_a_watch_that_an_interrupted_waiter_has_left_ends_with_the_next_message(
        self, process_store: ProcessStore
    ) -> None:
        scope = limits_of(process_store, DB).scoped[0].scope.key
        with watching(process_store, scope):
            waking_of(process_store)._watched.clear()
            assert wake(file_of(process_store).directory, file_of(process_store).identity(), short_key(scope))
            until(lambda: entries(process_store, b"watch") == [])

    def test_a_watch_that_begins_again_meanwhile_goes_on(self, process_store: ProcessStore) -> None:
        scope = limits_of(process_store, DB).scoped[0].scope.key
        with watching(process_store, scope):
            file_of(process_store).transact(waking_of(process_store)._forget, short_key(scope))
            assert len(entries(process_store, b"watch:")) == 1

    def test_a_message_after_the_store_was_closed_does_not_open_it(self, process_store: ProcessStore) -> None:
        process_store.close()
        waking_of(process_store)._receive(b"?" * 16)
        assert file_of(process_store).environment is None

    def test_a_watcher_that_is_gone_is_forgotten(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        scope = limits.scoped[0].scope.key
        with file_of(process_store).open().begin(write=True) as txn:
            note_watcher(txn, scope, b"\1" * ID_LENGTH)
            note_watcher(txn, "v1:elsewhere:-", b"\2" * ID_LENGTH)
        with limits.try_acquire() as held:
            assert held
        assert len(entries(process_store, b"watch")) == 2
        process_store.advance_version()
        assert entries(process_store, b"watch") == []
        # Nobody is forgotten twice.
        file_of(process_store).transact(waking.delete_watchers, [(b"?" * 16, b"\1" * ID_LENGTH)])
        assert entries(process_store, b"watch") == []

    def test_a_message_about_a_scope_wakes_the_first_of_its_line(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, DB)
        with limits.acquire():
            waiter = ThreadWaiter()
            scope = limits.scoped[0].scope.key
            process_store.line.enqueue(waiter, [(scope, "db")])
            assert wake(file_of(process_store).directory, file_of(process_store).identity(), short_key(scope))
            waiter.sleep(PATIENCE)
            assert process_store.line.busy
            process_store.line.leave(waiter)
        assert entries(process_store, b"watch") == []


class TestPresence:
    def test_a_process_is_alive_as_long_as_another_one_sees_its_lock(self, tmp_path: Path) -> None:
        with running(present, tmp_path) as process:
            identity = process.hear()
            assert isinstance(identity, bytes)
            assert is_alive(tmp_path, identity)
            assert wake(tmp_path, identity, b"!" * MESSAGE_LENGTH)
            assert process.hear() == b"!" * MESSAGE_LENGTH
            process.kill()
            assert not wake(tmp_path, identity, b"!" * MESSAGE_LENGTH)
            assert not is_alive(tmp_path, identity)
            assert not is_alive(tmp_path, identity)
        assert [path.name for path in tmp_path.iterdir() if path.suffix in {".alive", ".pipe"}] == []

    def test_a_pipe_that_is_full_will_wake_anyway(self, tmp_path: Path) -> None:
        identity = b"\3" * ID_LENGTH
        path = tmp_path / f"{identity.hex()}.pipe"
        os.mkfifo(path)
        reader = os.open(path, os.O_RDWR)
        for _ in range(65_536 // MESSAGE_LENGTH + 10):
            assert wake(tmp_path, identity, b"!" * MESSAGE_LENGTH)
        os.close(reader)

    def test_a_pipe_that_cannot_be_used_is_an_error(self, tmp_path: Path) -> None:
        identity = b"\4" * ID_LENGTH
        (tmp_path / f"{identity.hex()}.pipe").mkdir()
        with pytest.raises(StoreUnavailable, match=r"Is a directory.*LIMITS\['STATE_DIR'\]"):
            wake(tmp_path, identity, b"!" * MESSAGE_LENGTH)

    def test_it_listens_once_and_leaves_nothing(self, tmp_path: Path) -> None:
        presence, heard = Presence(tmp_path), list[bytes]()
        presence.listen(heard.append)
        presence.listen(heard.append)
        messages = [bytes([number]) * MESSAGE_LENGTH for number in range(100)]
        for message in messages:
            assert wake(tmp_path, presence.identity, message)
        until(lambda: len(heard) == 100)
        assert heard == messages
        presence.leave()
        presence.leave()
        assert [path.name for path in tmp_path.iterdir() if path.suffix in {".alive", ".pipe"}] == []


def present(pipe: Connection, directory: Path) -> None:
    """Be there, and repeat what is heard."""
    presence = Presence(directory)
    presence.listen(pipe.send)
    pipe.send(presence.identity)
    pipe.recv()


def note_watcher(txn: Any, scope: str, process: bytes) -> None:
    """Write down that a process watches a scope."""
    waking.add_watcher(txn, (short_key(scope), process))


def test_a_permit_that_changes_hands_between_processes_is_never_held_twice(process_store: ProcessStore) -> None:
    with (
        running(passing_on, process_store.directory) as one,
        running(passing_on, process_store.directory) as two,
        running(passing_on, process_store.directory) as three,
    ):
        counts = [process.hear() for process in (one, two, three)]
    assert counts == [50, 50, 50]
    assert (process_store.directory / "held").read_text() == ""


def passing_on(pipe: Connection, directory: Path) -> None:
    """Take a permit again and again, and see that nobody else has it."""
    limits = limits_of(ProcessStore(directory, map_megabytes=2), DB)
    mark = directory / "held"
    times = 0
    for _ in range(50):
        with limits.acquire(timeout=PATIENCE):
            assert not mark.exists() or mark.read_text() == ""
            mark.write_text(f"{os.getpid()}")
            times += 1
            assert mark.read_text() == f"{os.getpid()}"
            mark.write_text("")
    pipe.send(times)


def test_calls_are_spaced_over_processes(process_store: ProcessStore) -> None:
    with running(calling, process_store.directory) as one, running(calling, process_store.directory) as two:
        first, second = one.hear(), two.hear()
    assert isinstance(first, list)
    assert isinstance(second, list)
    moments = sorted([*first, *second])
    assert len(moments) == 20
    # One per 10 ms; a clock is read before the call is let in, so the first and the last may be a little closer.
    assert moments[-1] - moments[0] >= 19 * 10_000 - 1000


def calling(pipe: Connection, directory: Path) -> None:
    """Wait for calls that are evenly spaced, and say when each was admitted."""
    limits = limits_of(ProcessStore(directory, map_megabytes=2), CallLimit(100, 1, burst=1))
    pipe.send([limits.acquire(timeout=PATIENCE).claim.decided_at for _ in range(10)])


def test_waiting_works_without_a_thread_and_the_next_waiter_is_woken(
    process_store: ProcessStore, tmp_path: Path
) -> None:
    told: list[bytes] = []
    presence = Presence(tmp_path)
    with no_more_threads():
        presence.listen(told.append)
    assert not wake(tmp_path, presence.identity, bytes(MESSAGE_LENGTH))
    presence.listen(told.append)
    assert wake(tmp_path, presence.identity, bytes(MESSAGE_LENGTH))
    until(lambda: told == [bytes(MESSAGE_LENGTH)])
    presence.leave()
    held = limits_of(process_store, DB).try_acquire()
    with ThreadPoolExecutor(1) as executor, no_more_threads():
        waiter = executor.submit(limits_of(process_store, DB).acquire)
        until(lambda: process_store.line.busy)
        held.release()
        waiter.result(PATIENCE).release()
