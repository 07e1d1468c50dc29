"""Databases for the tests of the database store: an alias that is there for a while, with the tables of the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import django
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.models import Model

from limits_app.stores.database import DatabaseStore, open_database_store

ALIAS = "limits"
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
    """Let the alias mean nothing."""
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
    for model in models():
        model._default_manager.using(ALIAS).all().delete()
    connections[ALIAS].close()


@contextmanager
def database(settings: Settings, *, bare: bool = False) -> Iterator[None]:
    """The alias means this database, in which the store's tables are, and nothing in them (bare: no tables)."""
    use(settings)
    if bare:
        pass
    elif str(settings) in _PREPARED:
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


def opened(settings: Settings) -> DatabaseStore:
    """The store in a database, in whatever process."""
    use(settings)
    return open_database_store(ALIAS)


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
