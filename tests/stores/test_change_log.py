"""The change log in stores that processes share: announcers that are killed, gaps, and states of another time."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker
from redis import Redis

from limits_app.acquiring.store import Store
from limits_app.engine import change_log
from limits_app.engine.change_log import ALL, ENTRY, MOST_CHANGES, Change
from limits_app.stores.process import open_process_store
from limits_app.stores.redis import RedisStore, open_redis_store
from limits_app.testing.conformance.change_log import check_agreement
from tests.stores.database.databases import ALIAS, VENDORS, PatientStores, database
from tests.stores.redis.support import PATIENT, cluster_client, names_of, prefix
from tests.stores.support import MULTI_THREADED_FORK, file_of, running

pytestmark = pytest.mark.filterwarnings(MULTI_THREADED_FORK)

Row = tuple[int | None, bytes | None]
"""The version and the log as they are stored; None where there is none."""

PROCESSES = 8
EACH = 12
ONE, TWO, THREE = (Change.of_client(bytes([place]) * 8) for place in (1, 2, 3))


@dataclass
class Shared:
    """A store, how any process opens it, and how its version and log are read and written behind its back."""

    open: Callable[[], Store]
    read: Callable[[], Row]
    write: Callable[[Row], None]
    store: Store


@contextmanager
def in_a_file(directory: Path) -> Iterator[Shared]:
    open_it = partial(open_process_store, directory, map_megabytes=2)
    with closing(open_it()) as store:

        def read() -> Row:
            with file_of(store).open().begin() as txn:
                version, log = txn.get(b"version"), txn.get(b"changes")
            return None if version is None else int.from_bytes(version), log

        def write(row: Row) -> None:
            with file_of(store).open().begin(write=True) as txn:
                for key, value in ((b"version", row[0] and row[0].to_bytes(8)), (b"changes", row[1])):
                    txn.delete(key) if value is None else txn.put(key, value)

        yield Shared(open_it, read, write, store)


@contextmanager
def in_a_database(settings: Any) -> Iterator[Shared]:
    def execute(sql: str, *values: object) -> list[Any]:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(sql, values)
            rows = cursor.fetchall() if cursor.description else []
        connections[ALIAS].close()
        return rows

    def read() -> Row:
        [(version, log)] = execute("SELECT version, log FROM limits_app_version WHERE id = 1")
        return version, log and bytes(log)

    def write(row: Row) -> None:
        if row[0] is None:
            execute("DELETE FROM limits_app_version WHERE id = 1")
        else:
            execute("UPDATE limits_app_version SET version = %s, log = %s WHERE id = 1", *row)

    with database(settings), PatientStores(settings) as opener:
        yield Shared(opener, read, write, opener())


@contextmanager
def on_redis(client: Any, open_it: Callable[[], RedisStore]) -> Iterator[Shared]:
    store = open_it()
    keys = names_of(store).version(names_of(store).tags[0]), names_of(store).changes("")

    def read() -> Row:
        version, log = map(client.get, keys)
        return version and int(version), log

    def write(row: Row) -> None:
        for key, value in zip(keys, row, strict=True):
            client.delete(key) if value is None else client.set(key, value)

    yield Shared(open_it, read, write, store)
    store.close()


@pytest.fixture
def shared(request: pytest.FixtureRequest, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[Shared]:
    """A store of one kind."""
    kind = request.param
    if kind == "process":
        with in_a_file(tmp_path) as shared:
            yield shared
    elif kind in VENDORS:
        server = request.getfixturevalue(kind)
        with django_db_blocker.unblock(), in_a_database(getattr(server, "settings", server)) as shared:
            yield shared
    elif kind == "redis":
        server = request.getfixturevalue("redis")
        with (
            Redis(port=server.port) as client,
            on_redis(client, partial(open_redis_store, url=server.url, prefix=prefix(), **PATIENT)) as shared,
        ):
            yield shared
    else:
        url = request.getfixturevalue("cluster")[0].url
        with (
            cluster_client(url) as client,
            on_redis(client, partial(open_redis_store, url=url, cluster=True, prefix=prefix(), **PATIENT)) as shared,
        ):
            yield shared


in_one_step = pytest.mark.parametrize("shared", ["process", *VENDORS], indirect=True)
"""Stores whose next version is computed within the step that stores it."""
everywhere = pytest.mark.parametrize("shared", ["process", *VENDORS, "redis", "cluster"], indirect=True)


def announcing(pipe: Connection, open_it: Callable[[], Store], number: int) -> None:
    """Announce changes when the parent says so."""
    store = open_it()
    pipe.send("ready")
    pipe.recv()
    own = [Change.of_client(b"by" + number.to_bytes(3) + place.to_bytes(3)) for place in range(EACH)]
    pipe.send([(store.advance_version([change]), change) for change in own])


def announcing_without_end(pipe: Connection, open_it: Callable[[], Store], number: int) -> None:
    """Announce change after change, and report each version."""
    store, place = open_it(), 0
    while True:
        change = Change.of_client(b"by" + number.to_bytes(3) + place.to_bytes(3))
        pipe.send((store.advance_version([change]), change))
        place += 1


def dying_within_the_step(pipe: Connection, open_it: Callable[[], Store]) -> None:
    """End when the next version is computed, as the kernel ends a process."""
    store = open_it()
    store.version()
    change_log.least_version = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment,return-value]
    store.advance_version([TWO])


@everywhere
def test_versions_and_changes_agree_while_processes_announce(shared: Shared) -> None:
    start = shared.store.advance_version()
    announced: list[tuple[int, Change]] = []
    processes = [running(announcing, shared.open, number) for number in range(PROCESSES)]
    entered = [process.__enter__() for process in processes]
    try:
        for process in entered:
            assert process.hear() == "ready"
        for process in entered:
            process.pipe.send("go")
        for process in entered:
            announced += process.hear()  # type: ignore[arg-type]
    finally:
        for process in processes:
            process.__exit__(None, None, None)
    check_agreement(shared.store, announced)
    _, seen = shared.store.changes_since(start) or (0, ())
    assert set(seen) == {change for _, change in announced}


@everywhere
def test_an_announcer_that_is_killed_leaves_version_and_log_in_agreement(shared: Shared) -> None:
    start, reported = shared.store.advance_version(), []
    for number in range(3):
        with running(announcing_without_end, shared.open, number) as process:
            reported += [process.hear() for _ in range(1 + 3 * number)]
            process.kill()
            while process.pipe.poll():
                try:
                    reported.append(process.pipe.recv())
                except EOFError:
                    break
    version, log = shared.read()
    assert log is not None
    assert ENTRY.unpack(log[-ENTRY.size :])[0] == version
    last = shared.store.advance_version([ALL])
    latest, seen = shared.store.changes_since(start) or (0, ())
    assert latest == last
    assert {change for _, change in reported} <= set(seen)  # type: ignore[misc]
    assert len(set(seen) - {ALL}) <= len(reported) + 3, "an announcement of each may have taken effect unreported"


@in_one_step
def test_an_announcement_that_ends_with_its_process_has_no_effect(shared: Shared) -> None:
    start = shared.store.advance_version([ONE])
    with running(dying_within_the_step, shared.open) as process:
        assert process.ended() == -signal.SIGKILL
    assert shared.store.changes_since(start) == (start, ())
    last = shared.store.advance_version([THREE])
    assert shared.store.changes_since(start) == (last, (THREE,))


@everywhere
def test_a_version_without_an_entry_is_a_gap(shared: Shared) -> None:
    first = shared.store.advance_version([ONE])
    version, log = shared.read()
    assert version == first
    shared.write((raised := first + 7, log))
    assert shared.store.version() == raised
    assert shared.store.changes_since(first) is None
    assert shared.store.changes_since(raised) == (raised, ())
    last = shared.store.advance_version([TWO])
    assert shared.store.changes_since(first) is None
    assert shared.store.changes_since(raised) == (last, (TWO,))


@everywhere
def test_a_log_that_was_lost_starts_again(shared: Shared) -> None:
    first, second = shared.store.advance_version([ONE]), shared.store.advance_version([TWO])
    shared.write((second, None))
    assert shared.store.changes_since(first) is None
    assert shared.store.changes_since(second) == (second, ())
    last = shared.store.advance_version([THREE])
    assert shared.store.changes_since(first) is None
    assert shared.store.changes_since(second) == (last, (THREE,))


@everywhere
def test_deleted_state_has_no_earlier_version(shared: Shared) -> None:
    earlier = [0, shared.store.advance_version([ONE]), shared.store.advance_version([TWO])]
    for row in ((None, None), (None, shared.read()[1])):  # all of it, or the version alone
        shared.write(row)
        assert shared.store.version() == 0
        assert [shared.store.changes_since(version) for version in earlier[1:]] == [None] * len(earlier[1:])
        first = shared.store.advance_version([THREE])
        assert [shared.store.changes_since(version) for version in earlier] == [None] * len(earlier)
        last = shared.store.advance_version([ONE])
        assert shared.store.changes_since(first) == (last, (ONE,))
        earlier += [first, last]


@everywhere
def test_restored_state_has_no_later_version(shared: Shared) -> None:
    first = shared.store.advance_version([ONE])
    backup = shared.read()
    lost = [shared.store.advance_version([TWO]) for _ in range(3)]
    shared.write(backup)
    assert [shared.store.changes_since(version) for version in [first, *lost]] == [(first, ()), None, None, None]
    last = shared.store.advance_version([THREE])
    assert last > first
    assert shared.store.changes_since(first) == (last, (THREE,))
    assert [shared.store.changes_since(version) for version in lost] == [None] * 3


@everywhere
def test_the_stored_log_is_bounded(shared: Shared) -> None:
    sizes = []
    for start in range(0, 2 * MOST_CHANGES, 50):
        shared.store.advance_version(
            [Change.of_client(b"\1" + place.to_bytes(7)) for place in range(start, start + 50)]
        )
        sizes.append(len(shared.read()[1] or b""))
    assert max(sizes) <= 20_000
    assert min(sizes[-10:]) >= MOST_CHANGES * ENTRY.size
