"""The connections of a store: one for each thread that uses it, closed as Django closes its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier, Thread

import psycopg
import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connections
from pytest_django import DjangoDbBlocker

from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.keys import short_key
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from limits_app.stores.database import DatabaseStore
from limits_app.stores.database.connections import ConnectionOptions, ThreadConnections
from limits_app.stores.database.servers import PostgreSQLConnection
from tests.forking import exit_code_of_child
from tests.servers.postgres import PostgresServer
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, connections_of, limits_of, until, used

LIMIT = CallLimit(10**6, 366 * 86_400, RateLimitAlgorithm.FIXED_WINDOW)


@pytest.fixture
def watcher(postgres: PostgresServer) -> Iterator[psycopg.Connection[tuple[int]]]:
    where = f"host=127.0.0.1 port={postgres.port} user=limits dbname=postgres"
    with psycopg.connect(where, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(on_postgres: PostgresServer) -> Iterator[DatabaseStore]:
    connections[ALIAS].settings_dict["OPTIONS"] = {"application_name": "limits under test"}
    store = DatabaseStore(ALIAS, **PATIENT)
    yield store
    store.close()


@contextmanager
def max_age(seconds: int | None) -> Iterator[None]:
    """Django closes connections that are so old."""
    settings = connections[ALIAS].settings_dict
    before = settings["CONN_MAX_AGE"]
    settings["CONN_MAX_AGE"] = seconds
    yield
    settings["CONN_MAX_AGE"] = before


def number(watcher: psycopg.Connection[tuple[int]]) -> int:
    """How many connections the server has for the store."""
    row = watcher.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'limits under test'")
    return row.fetchone()[0]  # type: ignore[index]  # one row


def test_each_thread_has_one_connection_until_it_ends(
    store: DatabaseStore, watcher: psycopg.Connection[tuple[int]]
) -> None:
    limits, inside, done = limits_of(store, LIMIT), Barrier(4), Barrier(4)

    def acquire() -> None:
        for _ in range(3):
            limits.try_acquire()
        inside.wait(PATIENCE)
        done.wait(PATIENCE)

    threads = [Thread(target=acquire) for _ in range(3)]
    for thread in threads:
        thread.start()
    inside.wait(PATIENCE)
    assert number(watcher) == 3
    done.wait(PATIENCE)
    for thread in threads:
        thread.join(PATIENCE)
    until(lambda: number(watcher) == 0)


@pytest.mark.parametrize(("seconds", "left"), [(0, 0), (60, 1), (None, 1)])
@pytest.mark.parametrize("signal", [request_started, request_finished])
def test_connections_are_closed_with_those_of_the_request(
    store: DatabaseStore,
    watcher: psycopg.Connection[tuple[int]],
    signal: type[request_finished],
    seconds: int | None,
    left: int,
) -> None:
    with max_age(seconds):
        limits = limits_of(store, LIMIT)
        for _ in range(2):
            assert limits.try_acquire()
            assert number(watcher) == 1
            signal.send(sender=None)
            until(lambda: number(watcher) == left)


@pytest.mark.parametrize("seconds", [0, 60, None])
def test_requests_ask_no_database_for_the_age_of_a_connection(
    open_store: Open, seconds: int | None, django_db_blocker: DjangoDbBlocker
) -> None:
    with max_age(seconds):
        limits = limits_of(open_store(), LIMIT)
        assert limits.try_acquire()
        with django_db_blocker.block():
            for signal in (request_started, request_finished):
                responses = dict(signal.send_robust(sender=None))
                responses.pop(close_old_connections)  # Django's, of connections of its own
                assert [response for response in responses.values() if response is not None] == []
        assert limits.try_acquire()
    assert used(limits) == 2


def test_a_store_that_is_not_referenced_any_more_leaves_no_connection(
    on_postgres: PostgresServer, watcher: psycopg.Connection[tuple[int]]
) -> None:
    connections[ALIAS].settings_dict["OPTIONS"] = {"application_name": "limits under test"}
    store = DatabaseStore(ALIAS, **PATIENT)
    store.version()
    assert number(watcher) == 1
    del store
    gc.collect()
    until(lambda: number(watcher) == 0)
    request_finished.send(sender=None)


class Onlooker:
    """Part of a cycle, like a store that it refers to."""

    def __init__(self, closed: list[bool]) -> None:
        self.closed, self.cycle = closed, self
        self.store: ThreadConnections | None = None
        self.raw: psycopg.Connection[tuple[int]] | None = None

    def __del__(self) -> None:
        if self.raw is not None:
            self.closed.append(self.raw.closed)


def test_a_connection_is_closed_before_the_finalizers_of_its_cycle(on_postgres: PostgresServer) -> None:
    closed: list[bool] = []
    onlooker = Onlooker(closed)  # older than the connection, so its finalizer is called first
    store = ThreadConnections(ALIAS, ConnectionOptions(30, 30), {"postgresql": PostgreSQLConnection})
    onlooker.store, onlooker.raw = store, store.current().wrapper.connection
    del onlooker, store
    gc.collect()
    assert closed == [True]


def test_the_options_of_the_site_stay_as_they_are(store: DatabaseStore) -> None:
    assert store.version() == 0
    assert connections[ALIAS].settings_dict["OPTIONS"] == {"application_name": "limits under test"}


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
def test_a_child_leaves_the_connections_of_other_threads_of_its_parent_alone(open_store: Open) -> None:
    limits = limits_of(open_store(), LIMIT)
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(limits.try_acquire).result(PATIENCE)
        assert limits.try_acquire()

        def acquire() -> int:
            acquired = limits.try_acquire()
            gc.collect()
            return not acquired

        for _ in range(3):
            assert exit_code_of_child(acquire) == 0
        assert executor.submit(limits.try_acquire).result(PATIENCE)
        assert limits.try_acquire()
    assert used(limits) == 7


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_limits_that_change_while_a_request_waits_for_its_row_are_not_used(
    server: str, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> None:
    settings: Settings = request.getfixturevalue(server).settings
    with django_db_blocker.unblock(), database(settings):
        store = DatabaseStore(ALIAS, lock_timeout=PATIENCE, **PATIENT)
        limits = limits_of(store, LIMIT, version=store.version())
        assert limits.try_acquire()
        key = short_key(limits.scoped[0].scope.key)
        waits = {
            "postgres": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
            "mariadb": "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
        }
        other = connections.create_connection(ALIAS)
        with ThreadPoolExecutor(1) as executor, other.cursor() as locks, connections[ALIAS].cursor() as watches:
            locks.execute("BEGIN")
            locks.execute("SELECT 1 FROM limits_app_state WHERE scope = %s FOR UPDATE", [key])
            waiting = executor.submit(limits.try_acquire)

            def is_waiting() -> bool:
                watches.execute(waits[server])
                return watches.fetchone() == (1,)

            until(is_waiting, pause_seconds=0.2)  # InnoDB shows what it knew at the last look, if that is recent
            store.advance_version()
            locks.execute("ROLLBACK")
            with pytest.raises(StaleConfiguration):
                waiting.result(PATIENCE)
        assert used(limits_of(store, LIMIT)) == 1
        other.close()
        store.close()


def test_a_connection_ends_with_its_thread_even_where_something_refers_to_it(open_store: Open) -> None:
    store = open_store()
    with ThreadPoolExecutor(1) as executor:
        kept = executor.submit(connections_of(store).current).result()
        assert kept.wrapper.connection is not None
    assert kept.wrapper.connection is None
