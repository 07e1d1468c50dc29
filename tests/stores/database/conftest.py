"""Stores on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.stores.database import DatabaseStore
from limits_app.testing import FakeClock
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy, proxy
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.support import Loser

Open = Callable[..., DatabaseStore]


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Each database."""
    found = request.getfixturevalue(request.param)
    return found if isinstance(found, dict) else found.settings


@pytest.fixture
def open_store(settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[Open]:
    """Opens stores in the database, each as if it were in a process of its own."""
    opened: list[DatabaseStore] = []

    def open_one(**options: object) -> DatabaseStore:
        opened.append(DatabaseStore(ALIAS, **{**PATIENT, **options}))  # type: ignore[arg-type]  # as the store has them
        return opened[-1]

    with django_db_blocker.unblock(), database(settings):
        yield open_one
        for store in opened:
            store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def loser() -> Loser:
    return Loser(b"COMMIT\0")


@pytest.fixture
def on_postgres(postgres: PostgresServer, django_db_blocker: DjangoDbBlocker) -> Iterator[PostgresServer]:
    """PostgreSQL, under the alias."""
    with django_db_blocker.unblock(), database(postgres.settings):
        yield postgres


@pytest.fixture
def lossy(on_postgres: PostgresServer, loser: Loser) -> Iterator[Proxy]:
    """A way to PostgreSQL on which replies get lost."""
    with proxy(on_postgres.port, loser) as made:
        yield made


@pytest.fixture
def lossy_store(postgres: PostgresServer, lossy: Proxy) -> Iterator[DatabaseStore]:
    """A store that goes that way."""
    settings: Settings = {**postgres.settings, "PORT": str(lossy.port)}
    connections[ALIAS].settings_dict.update(settings)
    store = DatabaseStore(ALIAS, **PATIENT)
    yield store
    store.close()
