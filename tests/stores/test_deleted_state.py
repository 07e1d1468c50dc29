"""State that another program deletes while processes use it: no limit changes, and holders keep their permits."""

from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.process import ProcessStore, opened_file
from limits_app.testing.conformance.contract import counting, total
from tests.stores.support import limits_of, running, used

DAY = 86_400
LIMIT = RateLimit("x", 9, DAY, RateLimitAlgorithm.SLIDING_WINDOW)
DB = ResourceLimit("db", 3)


def delete_directory(state: Path) -> None:
    """Delete the directory with all that is in it."""
    shutil.rmtree(state)


def delete_files(state: Path) -> None:
    """Delete the files as a program does that cleans up: those that are old."""
    for path in state.iterdir():
        path.unlink()


def delete_data(state: Path) -> None:
    """Delete the data alone."""
    (state / "data.mdb").unlink()


DELETIONS: list[Callable[[Path], None]] = [delete_directory, delete_files, delete_data]


def using(pipe: Connection, directory: Path) -> None:
    """Acquire as much as the parent says, one at a time; report what was admitted and how many warnings were logged."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("limits_app").addHandler(handler)
    store = ProcessStore(directory, map_megabytes=2)
    held = [limits_of(store, DB, entity="db").try_acquire()]
    pipe.send(bool(held[0]))
    while (times := pipe.recv()) is not None:
        admitted = sum(bool(limits_of(store, LIMIT).try_acquire({"x": 1})) for _ in range(times))
        pipe.send((admitted, len(warnings)))
    held[0].release()


@pytest.mark.parametrize("delete", DELETIONS)
def test_processes_share_one_limit_after_a_deletion(
    process_store: ProcessStore, delete: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    state, mine = process_store.directory / "state", limits_of(process_store, LIMIT)
    assert all(mine.try_acquire({"x": 1}) for _ in range(2))
    with running(using, process_store.directory) as old:
        assert old.hear()
        delete(state)
        old.pipe.send(3)
        assert old.hear() == (3, 1)
        with running(using, process_store.directory) as new:
            assert new.hear()
            new.pipe.send(2)
            assert new.hear() == (2, 0)
            assert sum(bool(mine.try_acquire({"x": 1})) for _ in range(9)) == 2
            assert used(limits_of(process_store, DB, entity="db"), "db") == 2
            new.pipe.send(None)
        old.pipe.send(None)
        assert old.ended() == 0
    assert caplog.records == []
    assert {path.name for path in state.iterdir()} >= {"data.mdb", "lock.mdb"}


@pytest.mark.parametrize("delete", DELETIONS)
def test_content_is_added_to_a_file_that_a_new_process_has_made(
    process_store: ProcessStore, delete: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    mine = limits_of(process_store, LIMIT)
    assert all(mine.try_acquire({"x": 1}) for _ in range(4))
    assert counting(process_store, CallLimit(5, DAY), entity="counted").try_acquire()
    held = limits_of(process_store, DB, entity="db").try_acquire()
    delete(process_store.directory / "state")
    with running(using, process_store.directory, method="spawn") as new:  # a fork would close the file
        assert new.hear()
        new.pipe.send(3)
        assert new.hear() == (3, 0)
        assert used(mine, "x") == 4 + 3
        assert used(limits_of(process_store, DB, entity="db"), "db") == 2
        assert sum(bool(mine.try_acquire({"x": 1})) for _ in range(9)) == 2
        new.pipe.send(9)
        assert new.hear() == (0, 0)
        held.release()
        new.pipe.send(None)
        assert new.ended() == 0
    assert used(limits_of(process_store, DB, entity="db"), "db") == 0
    assert total(process_store) == 1000
    (record,) = caplog.records
    assert "were deleted while they were in use" in record.getMessage()


def test_a_holder_whose_file_was_deleted_keeps_its_permits(process_store: ProcessStore) -> None:
    single, store = ResourceLimit("db", 1), process_store
    with running(using, store.directory) as holder:
        assert holder.hear()
        for path in (store.directory / "state").glob("*.alive"):
            path.unlink()
        assert not limits_of(store, single, entity="db").try_acquire()
        assert used(limits_of(store, single, entity="db"), "db") == 1


def test_a_lock_that_was_deleted_is_shared_again_within_a_second(
    process_store: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = limits_of(process_store, LIMIT)
    assert all(mine.try_acquire({"x": 1}) for _ in range(4))
    (process_store.directory / "state" / "lock.mdb").unlink()
    with running(using, process_store.directory) as new:
        assert new.hear()  # it has waited until the processes with the old lock look again
        new.pipe.send(3)
        assert sum(bool(mine.try_acquire({"x": 1})) for _ in range(9)) + new.hear()[0] == 5  # type: ignore[index]
        new.pipe.send(9)
        assert new.hear() == (0, 0)
    assert used(mine, "x") == 9


def test_a_directory_that_was_moved_is_noticed_after_a_second(
    process_store: ProcessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(opened_file, "monotonic", lambda: now[0])
    mine, state = limits_of(process_store, LIMIT), process_store.directory / "state"
    process_store.close()
    assert all(mine.try_acquire({"x": 1}) for _ in range(4))
    state.rename(state.with_name("elsewhere"))
    now[0] = 0.9
    assert used(mine, "x") == 4
    now[0] = 1.0
    assert used(mine, "x") == 0
    assert state.is_dir()


@contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Files cannot be written beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("delete", DELETIONS)
def test_state_that_cannot_be_written_again_is_kept_until_it_can(
    process_store: ProcessStore, delete: Callable[[Path], None]
) -> None:
    limits, state = limits_of(process_store, LIMIT), process_store.directory / "state"
    assert limits.try_acquire({"x": 7})
    delete(state)
    with full_disk(8192):
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="File too large"):
                limits.try_acquire({"x": 1})
    assert [bool(limits.try_acquire({"x": 1})) for _ in range(3)] == [True, True, False]
    assert not list(state.glob("*.copy"))


def test_content_is_kept_where_the_file_of_another_program_cannot_be_read(process_store: ProcessStore) -> None:
    limits, state = limits_of(process_store, LIMIT), process_store.directory / "state"
    assert limits.try_acquire({"x": 7})
    content = bytearray((state / "data.mdb").read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    delete_data(state)
    (state / "data.mdb").write_bytes(content)
    with pytest.raises(StoreUnavailable, match="cannot be written again"):
        limits.try_acquire({"x": 1})
    assert [bool(limits.try_acquire({"x": 1})) for _ in range(3)] == [True, True, False]
    assert len(list(state.glob("data.mdb.unreadable-*"))) == 1


def test_content_is_added_to_a_file_that_was_restored_from_a_backup(process_store: ProcessStore) -> None:
    limits, state = limits_of(process_store, LIMIT), process_store.directory / "state"
    assert limits.try_acquire({"x": 3})
    backup = (state / "data.mdb").read_bytes()
    assert limits.try_acquire({"x": 1})
    delete_data(state)
    (state / "data.mdb").write_bytes(backup)
    assert [bool(limits.try_acquire({"x": 1})) for _ in range(3)] == [True, True, False], "the use in both files"
