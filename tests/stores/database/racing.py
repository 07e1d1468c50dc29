"""Database stores for races, in whatever process takes part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from limits_app.core.store import Store
from limits_app.stores.database import DatabaseStore
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database, sqlite_in, use

__all__ = ["PatientStores", "mariadb", "postgres", "sqlite"]

_PATIENCE = 60.0
"""Seconds for a lock, for which sixteen threads on two cores stand in line."""


class PatientStores:
    """Opens stores that wait for their turn as long as it takes; those of this process are closed after the block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: list[DatabaseStore] = []

    def __call__(self) -> Store:
        use(self._settings)
        self._opened.append(DatabaseStore(ALIAS, lock_timeout=_PATIENCE, **PATIENT))
        return self._opened[-1]

    def __enter__(self) -> PatientStores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for store in self._opened:
            store.close()


@contextmanager
def postgres() -> Iterator[Callable[[], Store]]:
    """Stores on a PostgreSQL server of their own."""
    with postgres_server() as server, _stores(server.settings) as opener:
        yield opener


@contextmanager
def mariadb() -> Iterator[Callable[[], Store]]:
    """Stores on a MariaDB server of their own."""
    with mariadb_server() as server, _stores(server.settings) as opener:
        yield opener


@contextmanager
def sqlite() -> Iterator[Callable[[], Store]]:
    """Stores in a file."""
    with TemporaryDirectory() as directory, _stores(sqlite_in(Path(directory))) as opener:
        yield opener


@contextmanager
def _stores(settings: Settings) -> Iterator[Callable[[], Store]]:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    with database(settings), PatientStores(settings) as opener:
        yield opener
