"""PgBouncer between the store and PostgreSQL: it must pool sessions, and is recognized where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Literal

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit
from limits_app.stores.database import DatabaseStore
from tests.servers.pgbouncer import pgbouncer
from tests.servers.postgres import PostgresServer
from tests.stores.database.databases import ALIAS, PATIENT, database
from tests.stores.support import connections_of, limits_of

pytestmark = pytest.mark.product


@contextmanager
def behind(
    server: PostgresServer, mode: Literal["session", "transaction"], *, size: int = 20, robin: bool = False
) -> Iterator[DatabaseStore]:
    """A store behind a pooler."""
    with pgbouncer(server, mode, size=size, robin=robin) as pooler:
        with database(server.settings):
            pass  # the tables, without the pooler
        with database(pooler.settings, bare=True):
            store = DatabaseStore(ALIAS, **PATIENT)
            yield store
            store.close()


@pytest.mark.parametrize("size", [1, 2, 20])
@pytest.mark.parametrize("robin", [False, True])
def test_pooled_transactions_are_recognized(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker, size: int, *, robin: bool
) -> None:
    with django_db_blocker.unblock(), behind(postgres, "transaction", size=size, robin=robin) as store:
        assert store.pools_transactions()


def test_pooled_sessions_work(postgres: PostgresServer, django_db_blocker: DjangoDbBlocker) -> None:
    with django_db_blocker.unblock(), behind(postgres, "session") as store:
        assert not store.pools_transactions()
        limits = limits_of(store, CallLimit(20, 86_400))
        with ThreadPoolExecutor(4) as executor:
            assert sum(executor.map(lambda _: bool(limits.try_acquire()), range(40))) == 20


def test_stores_without_a_pooler_have_sessions_of_their_own(open_store: type[DatabaseStore]) -> None:
    store = open_store()
    assert not store.pools_transactions()
    assert limits_of(store, CallLimit(1, 86_400)).try_acquire()


def test_an_error_by_a_session_of_another_client_names_the_pooler(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), behind(postgres, "transaction", size=4) as store:
        limits, barrier = limits_of(store, CallLimit(10**6, 86_400)), Barrier(8)

        def acquire(_: int) -> str:
            barrier.wait()
            try:
                for _ in range(20):
                    limits.try_acquire()
            except StoreUnavailable as error:
                return str(error)
            return ""

        with ThreadPoolExecutor(8) as executor:
            said = set(executor.map(acquire, range(8)))
        assert any("a pooler such as PgBouncer must pool sessions" in error for error in said), said


def test_a_database_that_fails_meanwhile_is_unavailable(
    on_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DatabaseStore(ALIAS, **PATIENT)
    monkeypatch.setattr(connections_of(store).kind, "session_sql", "SELECT pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(StoreUnavailable, match="the database 'limits' failed"):
        store.pools_transactions()
    monkeypatch.undo()
    assert not store.pools_transactions()
    store.close()
