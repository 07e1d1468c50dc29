"""Copies of rows, written by the database itself, since the services need milliseconds for each row."""

from __future__ import annotations

from typing import Any

__all__ = ["copy_row"]


def copy_row(original: Any, copies: int, **columns: str) -> None:
    """Copy a row of a model; some columns are SQL expressions of the `number` of the copy, which begins with 1."""
    from django.db import connection

    table = original._meta.db_table
    names = [field.column for field in original._meta.concrete_fields if not field.primary_key]
    names += [name for name in columns if name not in names]  # a primary key that the caller chooses
    values = [columns.get(name, f'{table}."{name}"') for name in names]
    quoted = ", ".join(f'"{name}"' for name in names)
    copy = (
        "WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < %s) "  # noqa: S608 - the names are those of a model
        f"INSERT INTO {table} ({quoted}) SELECT {', '.join(values)} FROM numbers, {table} WHERE {table}.id = %s "
        "ORDER BY numbers.number"
    )
    with connection.cursor() as cursor:
        cursor.execute(copy, [copies, original.pk])
