"""What a test has committed is taken away again, without making content types and permissions anew.

Django makes them each time, which takes longer than most tests do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.core.management.color import no_style
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import Model
from django.test import TransactionTestCase

from limits_app.models.changes import Touched, announce
from limits_app.models.namespaces import write_alias

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
            _flush(alias, rows[alias])

    with patch.object(TransactionTestCase, "_fixture_teardown", flush):
        yield


def rows_of(alias: str) -> Rows:
    """What Django has made in a database."""
    rows: dict[type[Model], list[tuple[Any, ...]]] = {}
    with connections[alias].cursor() as cursor:
        for model in _MADE:
            cursor.execute(f"SELECT {_columns(model, alias)} FROM {model._meta.db_table} ORDER BY id")  # noqa: S608 - names of Django's
            rows[model] = cursor.fetchall()
    return rows


def number_users_apart(alias: str) -> None:
    """Users who sign in have other numbers than `user:1` and its like, of whom tests only tell."""
    User.objects.using(alias).create(pk=_WRITTEN_OUT, username="the one before").delete()


_SAVED: Final[dict[Hashable, list[str]]] = {}
"""The statements that insert what was made, by what it is."""


def made_once(what: Hashable, make: Callable[[], object]) -> None:
    """Make rows of the app; where it has none yet, later tests insert the same ones, which is much quicker."""
    connection = connections[DEFAULT_DB_ALIAS]
    models = [model for model in apps.get_app_config("limits_app").get_models() if model._meta.managed]
    tables = {model._meta.db_table for model in models}
    is_empty = write_alias() == DEFAULT_DB_ALIAS and connection.vendor == "sqlite" and not tables & {*_filled()}
    if what not in _SAVED or not is_empty:
        make()
        if is_empty:
            _SAVED[what] = [*_inserts(tables)]
        return
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in _SAVED[what]:
            cursor.execute(statement)
        announce(DEFAULT_DB_ALIAS, Touched(is_everything=True))


def _inserts(tables: Collection[str]) -> Iterator[str]:
    """Statements that insert the rows that tables have now."""
    connection = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        for table in [table for table in _filled() if table in tables]:
            columns = [column.name for column in connection.introspection.get_table_description(cursor, table)]
            values = " || ', ' || ".join(f'quote("{column}")' for column in columns)
            cursor.execute(f"SELECT 'INSERT INTO {table} VALUES (' || {values} || ')' FROM {table}")  # noqa: S608 - our names
            yield from [statement for (statement,) in cursor.fetchall()]


def _flush(alias: str, rows: Rows) -> None:
    """Empty the tables that have rows, which are few.

    As Django does, this leaves the sequences: a new row has no number that another had before.
    """
    ops = connections[alias].ops
    changed = {model: rows[model] for model, values in rows_of(alias).items() if values != rows[model]}
    unchanged = {model._meta.db_table for model in rows if model not in changed}
    tables = [table for table in _filled(alias) if table not in unchanged]
    ops.execute_sql_flush(ops.sql_flush(no_style(), tables, reset_sequences=False, allow_cascade=False))
    _restore(alias, changed)


def _filled(alias: str = DEFAULT_DB_ALIAS) -> list[str]:
    """The tables of models that have rows."""
    connection = connections[alias]
    tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
    query = " UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table})" for table in tables)  # noqa: S608 - names of models
    with connection.cursor() as cursor:
        cursor.execute(query)
        return [table for (table,) in cursor.fetchall()]


def _restore(alias: str, rows: Rows) -> None:
    connection = connections[alias]
    with transaction.atomic(using=alias), connection.cursor() as cursor:
        for model, values in rows.items():
            places = ", ".join(["%s"] * len(model._meta.concrete_fields))
            table = model._meta.db_table
            cursor.executemany(f"INSERT INTO {table} ({_columns(model, alias)}) VALUES ({places})", values)  # noqa: S608 - names of Django's


def _columns(model: type[Model], alias: str) -> str:
    quote = connections[alias].ops.quote_name
    return ", ".join(quote(field.column) for field in model._meta.concrete_fields)
