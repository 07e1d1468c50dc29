"""Databases without space: known scopes are decided, counts and idle rows make room, and new scopes are an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from unittest.mock import Mock

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.engine.errors import StoreFull
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.stores.database import DatabaseStore, housekeeping
from limits_app.stores.database.connections import Failure
from limits_app.stores.database.servers import MySQLConnection
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import counting, total
from tests.servers.postgres import PostgresServer
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.support import limits_of, used

MINUTE = CallLimit(7, 60)


@pytest.fixture
def sqlite_store(sqlite: Settings, clock: FakeClock, django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseStore]:
    """A store in a file that has at most 60 pages."""
    options = {**sqlite.get("OPTIONS", {}), "init_command": "PRAGMA max_page_count = 60"}
    with django_db_blocker.unblock(), database(sqlite):
        connections[ALIAS].settings_dict["OPTIONS"] = options
        store = DatabaseStore(ALIAS, clock=clock, **PATIENT)
        yield store
        store.close()


@pytest.fixture
def _search_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for idle rows whenever a new scope finds no room."""
    monkeypatch.setattr(housekeeping, "_SECONDS_BETWEEN_SEARCHES", 0)


def finds_room(store: DatabaseStore, entity: str) -> bool:
    """Whether a new scope finds room."""
    with suppress(StoreFull):
        return bool(limits_of(store, MINUTE, entity=entity).try_acquire())
    return False


def fill(store: DatabaseStore) -> int:
    """Use new scopes until 30 in a row find no room, as pages are filled unevenly; returns how many found some."""
    admitted = rejected = 0
    for number in count():
        has_room = finds_room(store, f"{number}")
        admitted, rejected = admitted + has_room, 0 if has_room else rejected + 1
        if rejected == 30:
            break
    return admitted


@pytest.mark.usefixtures("_search_each_time")
def test_known_scopes_are_decided_in_a_full_file_and_idle_ones_make_room(
    sqlite_store: DatabaseStore, clock: FakeClock
) -> None:
    known = limits_of(sqlite_store, RateLimit("x", 7, 1000), QuotaLimit("q", 5, "month"), entity="known")
    assert known.try_acquire({"x": 3, "q": 1})
    number = fill(sqlite_store)
    assert number > 50
    for _ in range(3):
        with pytest.raises(StoreFull, match="the database 'limits' has no space for more state: "):
            limits_of(sqlite_store, MINUTE, entity="new").try_acquire()
    assert known.try_acquire({"x": 4, "q": 4})
    assert not known.try_acquire({"x": 1})
    assert used(limits_of(sqlite_store, MINUTE, entity="new")) == 0
    clock.advance(61)
    assert all(finds_room(sqlite_store, f"later {later}") for later in range(number // 2))
    assert not known.try_acquire({"q": 1})


@pytest.mark.usefixtures("_search_each_time")
def test_nearly_idle_scopes_make_room_where_none_is_idle(sqlite_store: DatabaseStore, clock: FakeClock) -> None:
    quota = limits_of(sqlite_store, QuotaLimit("q", 5, "month"), entity="known")
    assert quota.try_acquire({"q": 5})
    fill(sqlite_store)
    clock.advance(60 / 7 * 15 / 16 - 0.1)
    assert not any(finds_room(sqlite_store, f"early {number}") for number in range(30))
    clock.advance(0.2)
    assert all(finds_room(sqlite_store, f"late {number}") for number in range(20))
    assert not quota.try_acquire({"q": 1})


def test_the_oldest_counts_make_room_in_a_full_file(sqlite_store: DatabaseStore, clock: FakeClock) -> None:
    for number in range(30):
        assert counting(sqlite_store, CallLimit(5, 86_400), entity=f"counted {number}").try_acquire()
    clock.advance(3600)
    for number in range(30):  # moves the counts of the first hour
        assert counting(sqlite_store, CallLimit(5, 86_400), entity=f"counted {number}").try_acquire()
    fill(sqlite_store)
    assert total(sqlite_store) == 30_000
    assert all(
        round(float(str(used(counting(sqlite_store, CallLimit(5, 86_400), entity=f"counted {number}"))))) == 2
        for number in range(30)
    )


_FULL_DISK = """
    CREATE FUNCTION disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT count(*) FROM limits_app_state) >= 20 THEN
            RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER disk_is_full BEFORE INSERT ON limits_app_state FOR EACH ROW EXECUTE FUNCTION disk_is_full()
"""


@pytest.mark.usefixtures("_search_each_time")
def test_known_scopes_are_decided_on_a_full_disk_of_postgresql(on_postgres: PostgresServer, clock: FakeClock) -> None:
    store = DatabaseStore(ALIAS, clock=clock, **PATIENT)
    try:
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(_FULL_DISK)
        known = limits_of(store, CallLimit(5, 86_400), entity="known")
        assert known.try_acquire()
        fill(store)
        with pytest.raises(StoreFull, match="No space left on device"):
            limits_of(store, MINUTE, entity="new").try_acquire()
        assert known.try_acquire()
        assert used(known) == 2
        clock.advance(61)
        assert limits_of(store, MINUTE, entity="new").try_acquire()
    finally:
        store.close()
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("DROP FUNCTION IF EXISTS disk_is_full CASCADE")


@pytest.mark.parametrize("number", [1021, 1114])
def test_mysql_and_mariadb_report_a_full_disk_or_table_by_number(number: int) -> None:
    failure = MySQLConnection.failure(Mock(MySQLConnection), Exception(number, "full"))
    assert failure == Failure(transient=False, lost=False, full=True)
