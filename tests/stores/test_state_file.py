"""The state directory and its file: private, reserved, and never a reason to crash."""

from __future__ import annotations

import errno
import logging
import os
import pwd
import resource
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import Mock

import lmdb
import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.stores.modes import open_store
from limits_app.stores.process import ProcessStore
from limits_app.stores.process.files import default_directory, is_temporary
from limits_app.stores.process.state_file import Txn
from limits_app.testing.conformance.contract import taken
from tests.replacing import temporary_files_in
from tests.stores.support import MULTI_THREADED_FORK, file_of, limits_of, running, used

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

PAGE = 4096
LIMIT = CallLimit(10**6, 366 * 86_400, RateLimitAlgorithm.SLIDING_WINDOW)
NOBODY = 65_534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act for another user")


def cut(length: int) -> Callable[[Path], None]:
    """Keep only the beginning of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[:length]) and None


def overwrite(content: bytes, start: int = 0) -> Callable[[Path], None]:
    """Write over the file from a place to its end."""

    def damage(path: Path) -> None:
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[:start] + (content * (size // len(content) + 1))[: size - start])

    return damage


UNREADABLE = {
    "foreign": lambda path: path.write_bytes(b"SQLite format 3\0" * 1000),
    "foreign_and_short": lambda path: path.write_bytes(b"hello"),
    "truncated_within_its_head": cut(100),
    "zeros": overwrite(b"\0"),
    "noise": overwrite(b"\xa5\x5a\x13"),
}

DAMAGED = {
    "without_anything_but_its_head": cut(2 * PAGE),
    "truncated": cut(5 * PAGE),
    "zeros_after_its_head": overwrite(b"\0", 2 * PAGE),
    "noise_after_its_head": overwrite(b"\xa5\x5a\x13", 2 * PAGE),
}


VERBS: dict[str, Callable[[LimitSet, Acquisition], object]] = {
    "acquire": lambda limits, acquired: limits.try_acquire(),
    "settle": lambda limits, acquired: acquired.release(),
    "peek": lambda limits, acquired: limits.get_stats(),
    "renew": lambda limits, acquired: limits.store.renew([]),
    "reset": lambda limits, acquired: limits.store.reset([limits.scoped[0].scope.key]),
    "version": lambda limits, acquired: limits.store.version(),
    "advance_version": lambda limits, acquired: limits.store.advance_version(),
    "changes_since": lambda limits, acquired: limits.store.changes_since(1),
}


FIRST: dict[str, Callable[[ProcessStore, LimitSet], object]] = {
    "peek": lambda store, limits: limits.get_stats(),
    "version": lambda store, limits: store.version(),
    "advance_version": lambda store, limits: store.advance_version(),
    "changes_since": lambda store, limits: store.changes_since(1),
    "reset": lambda store, limits: store.reset([limits.scoped[0].scope.key]),
    "collect_counts": lambda store, limits: store.collect_counts(),
    "renew": lambda store, limits: store.renew([lost_elsewhere(limits)]),
}


def lost_elsewhere(limits: LimitSet) -> Claim:
    """A claim of a permit, as the store will not know it."""
    return taken(limits_of(MemoryStore(), *limits, ResourceLimit("db", 1)))


def finding_damage(_txn: Txn, _: None) -> None:
    """A step that finds the file damaged."""
    raise lmdb.CorruptedError("a page of another kind")


def beginning_with(pipe: Connection, directory: Path, verb: str) -> None:
    """Use a store for the first time with a verb, and then as usual."""
    logging.getLogger("limits_app").setLevel(logging.ERROR)
    store = ProcessStore(directory, map_megabytes=2)
    limits = limits_of(store, LIMIT)
    FIRST[verb](store, limits)
    assert limits.try_acquire()
    pipe.send(f"used {used(limits)}")


def filled(directory: Path) -> Path:
    """Have another process use the store in a directory; returns its file."""
    with running(using, directory, 200) as process:
        assert process.hear() == "used 200"
        assert process.ended() == 0
    return directory / "state" / "data.mdb"


def taking_turns(pipe: Connection, directory: Path) -> None:
    """Acquire as often as told, and say how much is used."""
    logging.getLogger("limits_app").setLevel(logging.ERROR)
    limits = limits_of(ProcessStore(directory, map_megabytes=2), LIMIT)
    pipe.send(used(limits))
    while (times := pipe.recv()) is not None:
        for _ in range(times):
            assert limits.try_acquire()
        pipe.send(used(limits))


def using(pipe: Connection, directory: Path, times: int) -> None:
    """Use many scopes, and say how it went."""
    logging.getLogger("limits_app").setLevel(logging.ERROR)
    store = ProcessStore(directory, map_megabytes=2)
    limits = limits_of(store, LIMIT)
    for number in range(times):
        assert limits_of(store, RateLimit("x", 5, 86_400), entity=f"{number}").try_acquire({"x": 1})
        assert limits.try_acquire()
    pipe.send(f"used {used(limits)}")


def using_truncated(pipe: Connection, directory: Path, length: int) -> None:
    """Use a store whose file another program truncates in between."""
    logging.getLogger("limits_app").setLevel(logging.ERROR)
    limits = limits_of(ProcessStore(directory, map_megabytes=2), LIMIT)
    assert limits.try_acquire()
    os.truncate(directory / "state" / "data.mdb", length)
    assert limits.try_acquire()
    pipe.send(f"used {used(limits)}")


def test_a_read_only_file_system_is_an_error_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ProcessStore(tmp_path, map_megabytes=1).close()

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StoreUnavailable, match=r"Read-only file system.*LIMITS\['STATE_DIR'\].* on a volume"):
        ProcessStore(tmp_path, map_megabytes=1)


class TestADamagedFile:
    @pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
    def test_unreadable_file_is_set_aside_with_a_warning(
        self, tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        path = filled(tmp_path)
        damage(path)
        content = path.read_bytes()
        store = ProcessStore(tmp_path, map_megabytes=2)
        limits = limits_of(store, LIMIT)
        assert used(limits) == 0
        assert limits.try_acquire()
        store.close()
        (aside,) = path.parent.glob("data.mdb.unreadable-*")
        assert aside.read_bytes() == content
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("limits_app", logging.WARNING)
        assert str(aside) in record.getMessage()

    @pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
    def test_damage_found_later_sets_the_file_aside_too(self, tmp_path: Path, damage: Callable[[Path], None]) -> None:
        path = filled(tmp_path)
        damage(path)
        # In a process of its own, so that a crash would be seen as one.
        with running(using, tmp_path, 20) as process:
            assert process.ended() == 0
            assert process.hear() == "used 20"
        assert list(path.parent.glob("data.mdb.unreadable-*"))

    @pytest.mark.parametrize("length", [0, 5 * PAGE])
    def test_a_file_that_another_program_truncates_while_it_is_used_is_set_aside(
        self, tmp_path: Path, length: int
    ) -> None:
        # In a process of its own, since the kernel ends one that reads behind the end of a file.
        with running(using_truncated, tmp_path, length) as process:
            assert process.hear() == "used 1"
            assert process.ended() == 0
        assert len(list((tmp_path / "state").glob("data.mdb.unreadable-*"))) == 1

    @pytest.mark.parametrize("damage", ["zeros_after_its_head", "noise_after_its_head"])
    @pytest.mark.parametrize("verb", FIRST)
    def test_any_first_verb_sets_a_damaged_file_aside(self, tmp_path: Path, damage: str, verb: str) -> None:
        path = filled(tmp_path)
        DAMAGED[damage](path)
        # In a process of its own, so that a crash would be seen as one.
        with running(beginning_with, tmp_path, verb) as process:
            assert process.hear() == "used 1"
            assert process.ended() == 0
        assert len(list(path.parent.glob("data.mdb.unreadable-*"))) == 1

    @pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
    def test_repeated_damage_is_an_error_that_names_the_file_with_a_hint(
        self, process_store: ProcessStore, write: bool
    ) -> None:
        path = process_store.directory / "state" / "data.mdb"
        with pytest.raises(StoreUnavailable, match=rf"{path} cannot be used .*stop all processes .* and delete it"):
            file_of(process_store).transact(finding_damage, None, write=write)
        assert len(list(path.parent.glob("data.mdb.unreadable-*"))) == 1

    def test_the_file_of_a_step_that_is_under_way_stays(self, process_store: ProcessStore) -> None:
        limits = limits_of(process_store, LIMIT)
        assert limits.try_acquire()

        def looking(txn: Txn, _: None) -> None:
            with pytest.raises(StoreUnavailable, match="within a step"):
                file_of(process_store).transact(finding_damage, None, write=False)
            assert txn.get(b"version") is None

        file_of(process_store).transact(looking, None)
        assert used(limits) == 1

    def test_what_is_known_of_a_file_is_not_taken_for_granted_in_the_next_one(self, tmp_path: Path) -> None:
        store = ProcessStore(tmp_path, map_megabytes=2)
        limits = limits_of(store, LIMIT)
        assert all(limits.try_acquire() for _ in range(3))
        store.close()
        (tmp_path / "state" / "data.mdb").unlink()
        assert all(limits.try_acquire() for _ in range(3))
        assert used(limits_of(store, CallLimit(7, 86400))) == 3
        store.close()

    def test_two_processes_that_find_the_damage_go_on_with_one_file(self, tmp_path: Path) -> None:
        path = filled(tmp_path)
        with running(taking_turns, tmp_path) as one, running(taking_turns, tmp_path) as two:
            assert (one.hear(), two.hear()) == (200, 200)
            with path.open("r+b") as file:
                file.seek(2 * PAGE)
                file.write(b"\xa5\x5a\x13\x77" * (path.stat().st_size // 4 - PAGE // 2))
            for process in (one, two, one, two):
                process.pipe.send(5)
                process.hear()
            for process in (one, two):
                process.pipe.send(0)
                assert process.hear() == 20
                process.pipe.send(None)
                assert process.ended() == 0

    def test_an_empty_file_is_filled(self, tmp_path: Path) -> None:
        filled(tmp_path).write_bytes(b"")
        store = ProcessStore(tmp_path, map_megabytes=2)
        assert limits_of(store, LIMIT).try_acquire()
        store.close()

    @pytest.mark.parametrize("content", [b"", b"x" * 8192])
    def test_a_damaged_lock_file_is_replaced(self, tmp_path: Path, content: bytes) -> None:
        filled(tmp_path).with_name("lock.mdb").write_bytes(content)
        store = ProcessStore(tmp_path, map_megabytes=2)
        assert used(limits_of(store, LIMIT)) in (0, 200)
        assert limits_of(store, LIMIT).try_acquire()
        store.close()

    def test_something_in_the_place_of_the_file_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "state" / "data.mdb").mkdir(parents=True)
        with pytest.raises(StoreUnavailable, match=r"cannot be opened: .*[Dd]irectory"):
            ProcessStore(tmp_path, map_megabytes=2)

    def test_a_file_that_is_larger_already_is_taken_as_it_is(self, tmp_path: Path) -> None:
        large = ProcessStore(tmp_path, map_megabytes=3)
        assert limits_of(large, LIMIT).try_acquire()
        large.close()
        small = ProcessStore(tmp_path, map_megabytes=1)
        assert used(limits_of(small, LIMIT)) == 1
        small.close()
        assert (tmp_path / "state" / "data.mdb").stat().st_size == 3 * 1024 * 1024

    @pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
    def test_a_file_that_another_process_has_made_larger_is_taken_as_it_is(
        self, process_store: ProcessStore, verb: Callable[[LimitSet, Acquisition], object]
    ) -> None:
        with running(crowding, process_store.directory) as process:
            limits = limits_of(process_store, LIMIT)
            acquired = limits.try_acquire({"call_count": 2})
            acquired.update({"call_count": 1})
            process.pipe.send("go")
            assert process.hear() == "crowded"
            verb(limits, acquired)
            assert limits.try_acquire()


def crowding(pipe: Connection, directory: Path) -> None:
    """Make the file larger, and use what was gained."""
    pipe.recv()
    store = ProcessStore(directory, map_megabytes=4)
    with file_of(store).open().begin(write=True) as txn:
        for number in range(2000):
            txn.put(b"something else %d" % number, bytes(1024))
    assert file_of(store).open().info()["last_pgno"] * PAGE > 2.2 * 1024 * 1024
    pipe.send("crowded")
    pipe.recv()


class TestTheDirectory:
    def test_it_is_made_private_with_all_that_is_made_on_the_way(self, tmp_path: Path) -> None:
        store = ProcessStore(tmp_path / "some" / "where", map_megabytes=1)
        assert limits_of(store, LIMIT).try_acquire()
        state = tmp_path / "some" / "where" / "state"
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in state.iterdir()} == {0}
        store.close()

    def test_one_of_another_mode_is_made_private(self, tmp_path: Path) -> None:
        state = tmp_path / "state"
        state.mkdir()
        state.chmod(0o755)
        ProcessStore(tmp_path, map_megabytes=1).close()
        assert stat.S_IMODE(state.stat().st_mode) == 0o700

    @pytest.mark.parametrize("below", ["", "below"])
    def test_a_file_in_its_place_is_named(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "state").write_text("not a directory")
        with pytest.raises(StoreUnavailable, match=r"cannot be used .*set LIMITS\['STATE_DIR'\]"):
            ProcessStore(tmp_path / "state" / below if below else tmp_path, map_megabytes=1)

    @as_root
    @pytest.mark.parametrize("owned", ["state", "."])
    def test_one_of_another_user_or_below_one_is_refused(self, tmp_path: Path, owned: str) -> None:
        (tmp_path / "state").mkdir(mode=0o700)
        os.chown(tmp_path / owned, NOBODY, NOBODY)
        with pytest.raises(StoreUnavailable, match="belongs to another user: set LIMITS"):
            ProcessStore(tmp_path, map_megabytes=1)

    def test_one_that_may_not_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "locked").mkdir(mode=0o500)
        with running(opening_as_nobody, tmp_path / "locked" / "below") as process:
            message = str(process.hear())
        assert "Permission denied" in message
        assert "LIMITS['STATE_DIR']" in message

    @as_root
    def test_symbolic_link_of_another_user_is_not_followed(self, tmp_path: Path) -> None:
        mine, theirs = tmp_path / "mine", tmp_path / "theirs"
        mine.mkdir()
        mine.chmod(0o755)
        theirs.mkdir()
        (theirs / "state").symlink_to(mine)
        os.chown(theirs, NOBODY, NOBODY)
        with pytest.raises(StoreUnavailable):
            ProcessStore(theirs, map_megabytes=1)
        assert stat.S_IMODE(mine.stat().st_mode) == 0o755
        assert list(mine.iterdir()) == []

    def test_the_default_is_in_the_first_directory_that_can_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writable = {"state": tmp_path / "state", "/var/lib": Path("/var/lib"), "temporary": tmp_path / "temporary"}
        temporary_files_in(monkeypatch, writable["temporary"])
        monkeypatch.setenv("XDG_STATE_HOME", str(writable["state"] / "not made"))
        monkeypatch.setattr(os, "access", lambda path, _: Path(path) in writable.values())
        writable["state"].mkdir()
        for name in list(writable):
            directory = default_directory()
            assert directory.is_relative_to(writable[name])
            assert is_temporary(directory) is (name == "temporary")
            del writable[name]

    @pytest.mark.parametrize("value", [None, "", "relative/path"])
    def test_without_a_variable_the_default_is_in_the_home_of_the_user(
        self, monkeypatch: pytest.MonkeyPatch, value: str | None
    ) -> None:
        monkeypatch.delenv("XDG_STATE_HOME")
        if value is not None:
            monkeypatch.setenv("XDG_STATE_HOME", value)
        monkeypatch.setenv("HOME", "/elsewhere")
        monkeypatch.setattr(os, "access", lambda *_: True)
        home = Path(pwd.getpwuid(os.geteuid()).pw_dir).resolve()
        assert default_directory().parent == home / ".local" / "state"

    def test_the_default_is_of_the_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        directory = default_directory()
        assert directory.parent == tmp_path
        assert str(os.geteuid()) in directory.name
        store = open_store("process")
        assert open_store("process") is store
        assert isinstance(store, ProcessStore)
        store.close()

    @as_root
    def test_there_is_a_default_where_nothing_can_be_written(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o700)
        with running(naming_the_default_as_nobody, tmp_path) as process:
            assert process.hear() == [str(Path("/tmp").resolve()), True]  # noqa: S108 - nothing is written there


def naming_the_default_as_nobody(pipe: Connection, directory: Path) -> None:
    """Name the default directory of a user who may write to no directory, and whether it is temporary."""
    os.setuid(NOBODY)
    os.environ["XDG_STATE_HOME"] = str(directory / "closed" / "state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", None)
        patch.setattr(os, "open", Mock(side_effect=PermissionError))
        default = default_directory()
        pipe.send([str(default.parent), is_temporary(default)])


def opening_as_nobody(pipe: Connection, directory: Path) -> None:
    """Open a store without being root."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    try:
        ProcessStore(directory, map_megabytes=1)
    except StoreUnavailable as error:
        pipe.send(str(error))


class TestSpace:
    def test_it_is_reserved_before_anything_is_written(self, process_store: ProcessStore) -> None:
        data = process_store.directory / "state" / "data.mdb"
        assert data.stat().st_size == 2 * 1024 * 1024
        assert data.stat().st_blocks * 512 >= 2 * 1024 * 1024

    def test_a_file_beyond_the_size_limit_is_an_error_immediately(self, tmp_path: Path) -> None:
        with running(opening_under_a_limit, tmp_path) as process:
            assert "File too large" in str(process.hear())
            assert process.hear() == "opened"

    @pytest.fixture
    def tiny(self) -> Iterator[Path]:
        """A directory on a file system in memory, which says at once how much it can hold."""
        shared = Path("/dev/shm")  # noqa: S108 - a file system in memory, where there is one
        if not shared.is_dir():
            pytest.skip("there is no file system in memory")
        path = Path(tempfile.mkdtemp(dir=shared))
        yield path
        shutil.rmtree(path)

    def test_a_full_disk_is_an_immediate_error_with_a_hint(self, tiny: Path) -> None:
        total = shutil.disk_usage(tiny).total
        with pytest.raises(StoreUnavailable, match=r"cannot be reserved .*No space left.*MAP_MEGABYTES"):
            ProcessStore(tiny, map_megabytes=2 * total // 1024**2)
        store = ProcessStore(tiny, map_megabytes=1)
        assert limits_of(store, LIMIT).try_acquire()
        store.close()

    def test_a_store_that_could_not_be_made_larger_goes_on_as_it_was(self, tiny: Path) -> None:
        total = shutil.disk_usage(tiny).total
        before = ProcessStore(tiny, map_megabytes=1)
        assert limits_of(before, LIMIT).try_acquire()
        before.close()
        with pytest.raises(StoreUnavailable, match="cannot be reserved"):
            ProcessStore(tiny, map_megabytes=2 * total // 1024**2)
        store = ProcessStore(tiny, map_megabytes=1)
        assert used(limits_of(store, LIMIT)) == 1
        store.close()


def opening_under_a_limit(pipe: Connection, directory: Path) -> None:
    """Open a store that is larger than a file may be, and one that is not."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, resource.RLIM_INFINITY))
    try:
        ProcessStore(directory, map_megabytes=4)
    except StoreUnavailable as error:
        pipe.send(str(error))
    store = ProcessStore(directory / "small", map_megabytes=1)
    assert limits_of(store, LIMIT).try_acquire()
    pipe.send("opened")
