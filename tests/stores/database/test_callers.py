"""Those who ask a store in an SQLite file from within a transaction of their own on that file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from django.db import connections, transaction
from pytest_django import DjangoDbBlocker

from limits_app.engine.errors import StoreBlocked, StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.models import StoreVersion
from limits_app.stores.database import DatabaseStore, sqlite
from tests.stores.database.databases import ALIAS, Settings, database, sqlite_in
from tests.stores.support import limits_of, used

YEAR = 366 * 86_400
UNITS = RateLimit("units", 10, YEAR, RateLimitAlgorithm.FIXED_WINDOW)


@pytest.fixture(params=["WAL", "DELETE"])
def journal(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(tmp_path: Path, journal: str) -> Settings:
    return {**sqlite_in(tmp_path), "OPTIONS": {"init_command": f"PRAGMA journal_mode={journal}"}}


@pytest.fixture
def store(file: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseStore]:
    """A store that would wait for ever."""
    with django_db_blocker.unblock(), database(file):
        store = DatabaseStore(ALIAS, lock_timeout=3600)
        yield store
        store.close()


def write() -> None:
    StoreVersion._default_manager.using(ALIAS).update_or_create(id=7, defaults={"version": 0})


def read() -> None:
    StoreVersion._default_manager.using(ALIAS).count()


def test_a_caller_that_has_written_is_rejected_immediately_and_charged_nothing(store: DatabaseStore) -> None:
    limits = limits_of(store, UNITS)
    for expected in (1, 2):
        assert limits.try_acquire({"units": 1})
        with transaction.atomic(using=ALIAS):
            write()
            with pytest.raises(StoreBlocked, match=f"database '{ALIAS}', which the transaction of the caller has"):
                limits.try_acquire({"units": 1})
        assert used(limits, "units") == expected
    assert limits.try_acquire({"units": 8})


@pytest.mark.parametrize("mode", ["IMMEDIATE", "EXCLUSIVE"])
def test_a_transaction_that_locks_when_it_begins_is_in_the_way_from_then_on(store: DatabaseStore, mode: str) -> None:
    limits = limits_of(store, CallLimit(2, YEAR))
    assert limits.try_acquire()
    connections[ALIAS].close()
    connections[ALIAS].settings_dict["OPTIONS"]["transaction_mode"] = mode
    with transaction.atomic(using=ALIAS), pytest.raises(StoreBlocked):
        limits.try_acquire()
    assert limits.try_acquire()


def test_a_reader_is_rejected_only_where_readers_block_writers(store: DatabaseStore, journal: str) -> None:
    limits = limits_of(store, CallLimit(2, YEAR))
    assert limits.try_acquire()
    with transaction.atomic(using=ALIAS):
        read()
        if journal == "WAL":
            assert limits.try_acquire()
        else:
            with pytest.raises(StoreBlocked):
                limits.try_acquire()
    assert bool(limits.try_acquire()) is (journal != "WAL")


def test_an_unrelated_lock_is_waited_for(store: DatabaseStore, file: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = limits_of(store, CallLimit(2, YEAR))
    assert limits.try_acquire()
    with closing(sqlite3.connect(file["NAME"], isolation_level=None)) as other, transaction.atomic(using=ALIAS):
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(sqlite, "sleep", lambda _seconds: other.execute("ROLLBACK"))
        assert limits.try_acquire()
        assert not other.in_transaction


def test_an_alias_of_the_same_file_is_the_same(store: DatabaseStore, file: Settings) -> None:
    limits = limits_of(store, CallLimit(2, YEAR))
    assert limits.try_acquire()
    connections.settings["twin"] = connections.settings[ALIAS]
    try:
        with transaction.atomic(using="twin"):
            StoreVersion._default_manager.using("twin").update_or_create(id=7, defaults={"version": 0})
            with pytest.raises(StoreBlocked):
                limits.try_acquire()
    finally:
        connections["twin"].close()
        del connections["twin"], connections.settings["twin"]


def test_nested_callers_do_not_deadlock(store: DatabaseStore) -> None:
    limits = limits_of(store, CallLimit(2, YEAR))
    assert limits.try_acquire()
    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic(using=ALIAS):
            write()
            waiting = threads.submit(limits.try_acquire)
            while not store._runner.has_turn:
                pass
            with pytest.raises(StoreBlocked):
                limits.try_acquire()
        assert waiting.result(60)


def test_another_file_that_is_locked_is_ignored(store: DatabaseStore, tmp_path: Path) -> None:
    elsewhere = {"NAME": str(tmp_path / "other.sqlite3"), "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
    connections.settings["twin"] = {**connections.settings[ALIAS], **elsewhere}
    impatient = DatabaseStore(ALIAS, lock_timeout=0.01)
    limits = limits_of(impatient, CallLimit(2, YEAR))
    assert limits.try_acquire()
    try:
        with closing(sqlite3.connect(tmp_path / "limits.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with transaction.atomic(using="twin"), pytest.raises(StoreUnavailable, match="locked") as caught:
                limits.try_acquire()
        assert type(caught.value) is StoreUnavailable
    finally:
        impatient.close()
        connections["twin"].close()
        del connections["twin"], connections.settings["twin"]
