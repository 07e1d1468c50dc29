"""The process store on systems that lack functions of this one, and in processes that do not use it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.stores.process import ProcessStore
from limits_app.stores.process import files as files_module
from limits_app.stores.process.presence import is_alive
from limits_app.testing import FakeClock
from tests.stores.support import (
    MULTI_THREADED_FORK,
    PATIENCE,
    entries,
    file_of,
    files,
    holders,
    limits_of,
    running,
    until,
    used,
)

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

MEGABYTE = 1024 * 1024
DB = ResourceLimit("db", 1)
MANY = CallLimit(10**6, 366 * 86_400)


def without_allocation(patch: pytest.MonkeyPatch) -> None:
    """As macOS and Windows are."""
    patch.delattr(os, "posix_fallocate")


def without_pipes(patch: pytest.MonkeyPatch) -> None:
    """As Windows is."""
    patch.delattr(os, "mkfifo")


def without_user_numbers(patch: pytest.MonkeyPatch) -> None:
    """As Windows is."""
    patch.delattr(os, "geteuid")


def with_windows_locks(patch: pytest.MonkeyPatch) -> None:
    """With the locks of Windows, made of those of this system."""
    fcntl = files_module.fcntl
    assert fcntl is not None

    def locking(descriptor: int, mode: int, length: int) -> None:
        assert (mode, length) == (2, 1)
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    patch.setattr(files_module, "fcntl", None)
    patch.setattr(files_module, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))


def without_locks(patch: pytest.MonkeyPatch) -> None:
    """As a system that has neither kind of locks."""
    patch.setattr(files_module, "fcntl", None)
    patch.setattr(files_module, "msvcrt", None)


LACKING: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "posix_fallocate": without_allocation,
    "mkfifo": without_pipes,
    "geteuid": without_user_numbers,
    "fcntl": with_windows_locks,
    "locks": without_locks,
}


@pytest.mark.parametrize("lack", LACKING.values(), ids=LACKING)
def test_processes_share_limits_and_permits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lack: Callable[[pytest.MonkeyPatch], None]
) -> None:
    lack(monkeypatch)
    with closing(ProcessStore(tmp_path, map_megabytes=2)) as store:
        limits = limits_of(store, MANY)
        held = limits_of(store, DB, entity="permits").try_acquire()
        with running(using, tmp_path) as other:
            assert other.hear() is False
            assert limits.try_acquire()
            held.release()
            assert other.hear() is True
            assert other.hear() == 11
            assert other.ended() == 0
        assert holders(limits_of(store, DB, entity="permits")) == 0
    assert files(store, ".alive") == files(store, ".pipe") == []


def using(pipe: Connection, directory: Path) -> None:
    """Use limits, and wait for a permit that another process holds."""
    store = ProcessStore(directory, map_megabytes=2)
    limits = limits_of(store, MANY)
    assert all(limits.try_acquire() for _ in range(10))
    permits = limits_of(store, DB, entity="permits")
    pipe.send(bool(permits.try_acquire()))
    with permits.acquire(timeout=PATIENCE) as held:
        pipe.send(bool(held))
        pipe.send(round(float(str(used(limits)))))
    store.close()


class TestWithoutAllocation:
    @pytest.fixture(autouse=True)
    def _without_allocation(self, monkeypatch: pytest.MonkeyPatch) -> None:
        without_allocation(monkeypatch)

    def test_every_block_of_the_file_is_written_before_it_is_used(self, tmp_path: Path) -> None:
        for megabytes in (2, 3):
            with closing(ProcessStore(tmp_path, map_megabytes=megabytes)) as store:
                data = files_module.data_file(tmp_path / "state").stat()
                assert data.st_size == megabytes * MEGABYTE
                assert data.st_blocks * 512 >= data.st_size
                assert limits_of(store, MANY).try_acquire()
                assert used(limits_of(store, MANY)) == pytest.approx(megabytes - 1, abs=0.01)

    def test_a_full_disk_is_an_error_when_the_store_is_opened_and_not_later(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(ProcessStore(tmp_path, map_megabytes=1)) as store:
            assert limits_of(store, MANY).try_acquire()

        def fsync(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as full:
            full.setattr(os, "fsync", fsync)
            for directory in (tmp_path, tmp_path / "new"):
                with pytest.raises(StoreUnavailable, match=r"3 MB cannot be reserved .*No space left.*MAP_MEGABYTES"):
                    ProcessStore(directory, map_megabytes=3)
        assert files_module.data_file(tmp_path / "state").stat().st_size == MEGABYTE
        for directory, expected in ((tmp_path, 1), (tmp_path / "new", 0)):
            with closing(ProcessStore(directory, map_megabytes=3)) as store:
                assert used(limits_of(store, MANY)) == pytest.approx(expected, abs=0.01)

    def test_a_file_that_is_as_large_already_keeps_its_size_when_its_space_cannot_be_checked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ProcessStore(tmp_path, map_megabytes=2).close()

        def fsync(_: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            ProcessStore(tmp_path, map_megabytes=2)
        assert files_module.data_file(tmp_path / "state").stat().st_size == 2 * MEGABYTE


def test_without_locks_permits_return_when_their_leases_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    without_locks(monkeypatch)
    assert not files_module.try_lock(0)
    with closing(ProcessStore(tmp_path, map_megabytes=1, clock=clock)) as store:
        with running(holding, tmp_path, clock()) as other:
            assert other.hear() is True
            other.kill()
        assert files(store, ".alive") == []
        limits = limits_of(store, DB, entity="permits")
        assert not limits.try_acquire()
        clock.advance(store.lease_us / 1_000_000)
        assert limits.try_acquire()


def test_without_pipes_a_waiter_looks_again_by_itself(
    process_store: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pipes(monkeypatch)
    held = limits_of(process_store, DB).try_acquire()
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits_of(process_store, DB).acquire, None, PATIENCE)
        until(lambda: process_store.line.busy)
        assert entries(process_store, b"watch") == []
        held.release()
        waiter.result(PATIENCE).release()
    assert files(process_store, ".pipe") == []


def holding(pipe: Connection, directory: Path, now: int) -> None:
    """Hold a permit until the end."""
    held = limits_of(ProcessStore(directory, map_megabytes=1, clock=lambda: now), DB, entity="permits").try_acquire()
    pipe.send(bool(held))
    pipe.recv()


def test_the_lock_of_an_opening_process_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = iter([OSError(errno.EDEADLOCK, "locked"), OSError(errno.EDEADLOCK, "locked"), None])

    def locking(_descriptor: int, _mode: int, _length: int) -> None:
        error = next(tries, None)
        if error is not None:
            raise error

    monkeypatch.setattr(files_module, "fcntl", None)
    monkeypatch.setattr(files_module, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    ProcessStore(tmp_path, map_megabytes=1).close()
    assert next(tries, "all were made") == "all were made"


def test_the_default_directory_has_the_name_of_a_user_without_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "somebody")
    without_user_numbers(monkeypatch)
    assert files_module.default_directory().name == "limits_app-somebody"


@pytest.mark.parametrize(
    "module",
    ["acquiring.limit_set", "engine.engine", "acquiring.modes", "acquiring.pool", "acquiring.store", "stores.memory"],
)
def test_lmdb_is_not_needed_without_the_store(module: str) -> None:
    code = f"import sys; sys.modules['lmdb'] = None; import limits_app.{module}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_registry_imports_no_store_that_is_not_opened() -> None:
    code = (
        "import sys; sys.modules['lmdb'] = None; import limits_app.stores.registry; "
        "assert not any(name.startswith('limits_app.stores.') and name.split('.')[2] in "
        "{'process', 'redis', 'database'} for name in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestSymbolicLinks:
    @pytest.mark.parametrize("place", [".", "below", "below/state"])
    def test_a_link_in_place_of_a_directory_is_refused_and_followed_by_nothing(
        self, tmp_path: Path, place: str
    ) -> None:
        target, base = tmp_path / "target", tmp_path / "base"
        target.mkdir()
        target.chmod(0o755)
        link = base / place
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        with pytest.raises(
            StoreUnavailable, match=rf"{link} is a symbolic link to {target}: set LIMITS\['STATE_DIR'\]"
        ):
            ProcessStore(base / "below", map_megabytes=1)
        assert target.stat().st_mode & 0o777 == 0o755
        assert list(target.iterdir()) == []

    def test_a_directory_above_that_all_users_can_write_is_refused(self, tmp_path: Path) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        with pytest.raises(StoreUnavailable, match=r"can be written by all users: .*LIMITS\['STATE_DIR'\]"):
            ProcessStore(shared / "mine", map_megabytes=1)
        shared.chmod(0o1777)
        ProcessStore(shared / "mine", map_megabytes=1).close()


class TestForeignFiles:
    def test_files_of_other_names_are_ignored_with_a_warning(
        self, process_store: ProcessStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        state = process_store.directory / "state"
        foreign = [state / "x.alive", state / "00.alive", state / f"{'AB' * 8}.alive"]
        for path in foreign:
            path.write_text("")
        assert limits_of(process_store, DB).try_acquire()
        assert all(path.exists() for path in foreign)
        assert "x.alive is not a file of the process store, which ignores it: remove it" in caplog.text

    def test_a_directory_in_place_of_the_files_of_a_process_is_an_error_that_names_it(
        self, process_store: ProcessStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("secrets.token_bytes", lambda length: b"\7" * length)
        (process_store.directory / "state" / f"{'07' * 8}.alive").mkdir()
        assert file_of(process_store).environment is not None
        with pytest.raises(StoreUnavailable, match=r"0707070707070707\.alive"):
            limits_of(process_store, RateLimit("x", 5, 60), DB).try_acquire({"x": 1})
        assert used(limits_of(process_store, RateLimit("x", 5, 60), DB), "x") == 0

    def test_error_of_a_presence_file_names_the_cause(self, process_store: ProcessStore) -> None:
        (process_store.directory / "state" / f"{'08' * 8}.alive").mkdir()
        with pytest.raises(StoreUnavailable, match="Is a directory"):
            is_alive(file_of(process_store).directory, b"\10" * 8)
