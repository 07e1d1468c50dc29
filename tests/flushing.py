"""What a test has committed is taken away again, without making content types and permissions anew.

Django makes them each time, which takes longer than most tests do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Model
from django.test import TransactionTestCase

__all__ = ["made_once", "number_users_apart", "quick_flushes", "rows_of"]

Rows = Mapping[type[Model], list[tuple[Any, ...]]]

_MADE: Final[tuple[type[Model], ...]] = (ContentType, Permission)
_WRITTEN_OUT: Final = 1_000_000
"""No test writes out the number of a user that is as large."""


@contextmanager
def quick_flushes(rows: Mapping[str, Rows]) -> Iterator[None]:
    """Tests with real transactions leave these rows, by database and model."""

    def flush(self: TransactionTestCase) -> None:
        for alias in self._databases_names(include_mirrors=False):
            # As Django does, which also leaves the sequences: who comes next is nobody who was there before.
            options = {"interactive": False, "reset_sequences": False, "inhibit_post_migrate": True}
            call_command("flush", verbosity=0, database=alias, **options)
            _restore(alias, rows[alias])

    with patch.object(TransactionTestCase, "_fixture_teardown", flush):
        yield


def rows_of(alias: str) -> Rows:
    """What Django has made in a database."""
    return {model: [*model._base_manager.using(alias).order_by("pk").values_list(*_names(model))] for model in _MADE}


def number_users_apart(alias: str) -> None:
    """Users who sign in have other numbers than `user:1` and its like, of whom tests only tell."""
    User.objects.using(alias).create(pk=_WRITTEN_OUT, username="the one before").delete()


_SAVED: Final[dict[str, list[str]]] = {}
"""The tables of the app that had rows, by the name under which these were saved."""


def made_once(name: str, make: Callable[[], object]) -> None:
    """Make rows of the app in an empty database, and insert the same ones in later tests, which is much quicker."""
    connection = connections[DEFAULT_DB_ALIAS]
    if name not in _SAVED:
        make()
        models = apps.get_app_config("limits_app").get_models()
        _SAVED[name] = [model._meta.db_table for model in models if model._base_manager.exists()]
        statements = [f"CREATE TEMP TABLE {name}_{table} AS SELECT * FROM {table}" for table in _SAVED[name]]  # noqa: S608 - our names
    else:
        statements = [f"INSERT INTO {table} SELECT * FROM {name}_{table}" for table in _SAVED[name]]  # noqa: S608 - our names
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _restore(alias: str, rows: Rows) -> None:
    connection = connections[alias]
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        for model, values in rows.items():
            columns = ", ".join(connection.ops.quote_name(field.column) for field in model._meta.concrete_fields)
            places = ", ".join(["%s"] * len(model._meta.concrete_fields))
            cursor.executemany(f"INSERT INTO {model._meta.db_table} ({columns}) VALUES ({places})", values)  # noqa: S608 - names of Django's


def _names(model: type[Model]) -> list[str]:
    return [field.attname for field in model._meta.concrete_fields]
