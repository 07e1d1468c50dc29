"""Stores on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.stores.database import DatabaseStore
from limits_app.testing import FakeClock
from tests.stores.database.databases import ALIAS, Settings, database

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
        opened.append(DatabaseStore(ALIAS, **options))  # type: ignore[arg-type]  # as the store has them
        return opened[-1]

    with django_db_blocker.unblock(), database(settings):
        yield open_one
        for store in opened:
            store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
