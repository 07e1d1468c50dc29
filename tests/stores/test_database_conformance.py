"""The database store passes the conformance suite, on every database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.core.store import Store
from limits_app.stores.database import DatabaseStore
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance import StoreOperations
from limits_app.testing.conformance.counting import Counting
from tests.servers.mariadb import MariaDBServer
from tests.servers.postgres import PostgresServer
from tests.stores.database.databases import ALIAS, PATIENT, Settings, count_entries, database, empty, opened
from tests.stores.support import OnlyForked

PATIENCE = 30.0
"""Seconds for a lock: with a thread switch every microsecond whoever has it may take a second to go on."""


class _OnADatabase:
    """Stores on one kind of database."""

    @pytest.fixture(autouse=True)
    def _database(self, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
        self.settings = settings
        with django_db_blocker.unblock(), database(settings, emptied=False):  # as `make_store` does
            yield

    def make_store(self, clock: FakeClock) -> DatabaseStore:
        empty()
        return DatabaseStore(ALIAS, clock=clock, lock_timeout=PATIENCE, **PATIENT)

    def close_store(self, store: Store) -> None:
        assert isinstance(store, DatabaseStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        return count_entries()

    def open_store(self) -> Callable[[], Store]:
        return partial(opened, self.settings)


class TestSQLite(_OnADatabase, StoreConformance, Counting):
    """Everything; what differs on the servers below is what their statements and locks do, and no arithmetic."""

    @pytest.fixture
    def settings(self, sqlite: Settings) -> Settings:
        return sqlite


class TestPostgreSQL(OnlyForked, _OnADatabase, StoreOperations, Counting):
    @pytest.fixture
    def settings(self, postgres: PostgresServer) -> Settings:
        return postgres.settings


class TestMariaDB(OnlyForked, _OnADatabase, StoreOperations, Counting):
    @pytest.fixture
    def settings(self, mariadb: MariaDBServer) -> Settings:
        return mariadb.settings
