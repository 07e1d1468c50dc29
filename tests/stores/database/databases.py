"""Databases for tests: an alias that is there for a while, with the tables of the database store or all of the app."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections
from django.db.models import Model
from django.test import override_settings

from limits_app.acquiring.store import Store
from limits_app.stores import steps
from limits_app.stores.database import DatabaseStore, open_database_store
from tests.opened import forget_opened
from tests.servers.shared import mariadb_database, postgres_database

ALIAS = "limits"
PATIENT = {"connect_timeout": 30.0}
"""For stores on machines that are busy with other tests."""
VENDORS = ("sqlite", "postgres", "mariadb")
_LOCK_SECONDS = 60.0
"""For sixteen threads on two cores that stand in line for a lock."""
Settings = dict[str, Any]
_PREPARED: set[str] = set()


def use(settings: Settings) -> None:
    """Let the alias mean this database, in this process."""
    if settings["ENGINE"].endswith("mysql"):
        import pymysql

        pymysql.install_as_MySQLdb()
    django.setup()
    forget()
    connections.settings[ALIAS] = connections.configure_settings({"default": {}, ALIAS: settings.copy()})[ALIAS]


def forget() -> None:
    """Let the alias mean nothing, also to a store that was opened for it."""
    forget_opened()
    opened = steps._OPENED
    for place in [place for place in opened if place[:2] == ("database", ALIAS)]:
        del opened[place]
    if ALIAS in connections.settings:
        with suppress(ImproperlyConfigured):  # of no database that Django can open
            connections[ALIAS].close()
        del connections[ALIAS]
        del connections.settings[ALIAS]


def models() -> list[type[Model]]:
    """The models whose tables the store uses."""
    from limits_app.models import LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch

    return [LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch]


def empty() -> None:
    """Take everything out of the tables."""
    connection = connections[ALIAS]
    deletions = [f"DELETE FROM {model._meta.db_table}" for model in models()]  # noqa: S608 - names of tables
    with connection.cursor() as cursor:
        for sql in ["; ".join(deletions)] if connection.vendor == "postgresql" else deletions:
            cursor.execute(sql)
    connection.close()


@contextmanager
def database(settings: Settings, *, bare: bool = False, emptied: bool = True) -> Iterator[None]:
    """The alias means this database, in which the store's tables are, and nothing in them (bare: no tables).

    Who empties them himself need not have them `emptied`.
    """
    use(settings)
    if bare:
        pass
    elif str(settings) in _PREPARED:
        if emptied:
            empty()
    else:
        _PREPARED.add(str(settings))
        with connections[ALIAS].schema_editor() as editor:
            for model in models():
                editor.create_model(model)
        connections[ALIAS].close()  # so that no forked process gets it
    try:
        yield
    finally:
        forget()


@contextmanager
def served(vendor: str, directory: Path) -> Iterator[Settings]:
    """An empty database: a file in the directory, or one on a server of this process that the block has for itself."""
    match vendor:
        case "sqlite":
            yield sqlite_in(directory)
        case "postgres":
            with postgres_database() as settings:
                yield settings
        case _:
            with mariadb_database() as settings:
                yield settings


@contextmanager
def migrated(settings: Settings, *app: str) -> Iterator[str]:
    """The alias means this database, which has all tables, or those of one app; gives Django's word for its kind."""
    use(settings)
    try:
        call_command("migrate", *app, database=ALIAS, verbosity=0)
        yield connections[ALIAS].vendor
    finally:
        forget()


class There:
    """Routes everything to the alias."""

    def db_for_read(self, model: type[Model], **hints: object) -> str:
        return ALIAS

    db_for_write = db_for_read


@contextmanager
def site_on(vendor: str, directory: Path) -> Iterator[None]:
    """All that the app stores is in a database to which each thread has a connection of its own."""
    with served(vendor, directory) as settings:
        if vendor == "sqlite":
            settings["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        with migrated(settings, "limits_app"), override_settings(DATABASE_ROUTERS=[There()]):
            yield


def opened(settings: Settings) -> DatabaseStore:
    """The store in a database, in whatever process."""
    use(settings)
    return open_database_store(ALIAS, **PATIENT)


class PatientStores:
    """Opens stores that wait for their turn as long as it takes; those of this process are closed after the block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._opened: list[DatabaseStore] = []

    def __call__(self) -> Store:
        use(self._settings)
        self._opened.append(DatabaseStore(ALIAS, lock_timeout=_LOCK_SECONDS, **PATIENT))
        return self._opened[-1]

    def __enter__(self) -> PatientStores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for store in self._opened:
            store.close()


@contextmanager
def patient_stores(vendor: str) -> Iterator[PatientStores]:
    """Stores in a database of their own."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    with (
        TemporaryDirectory() as directory,
        served(vendor, Path(directory)) as settings,
        database(settings),
        PatientStores(settings) as opener,
    ):
        yield opener


def count_entries() -> int:
    """How many rows there are, and how much stands in them: a lease takes 40 bytes."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT LENGTH(states) FROM limits_app_state")
        lengths = [length for (length,) in cursor.fetchall()]
    connections[ALIAS].close()
    return sum(1 + length // 40 for length in lengths)


def sqlite_in(directory: Path) -> Settings:
    """A database in a file."""
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(directory / "limits.sqlite3"),
        "OPTIONS": {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"},
    }


def in_step(store: DatabaseStore, do: Callable[..., Any]) -> Any:
    """Do something in a step of a store: in one transaction, and again where that fails for a moment."""
    return store._runner.run(do)
