"""Rows that are added to where they are there already, in one statement for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from django.db import connections, models

__all__ = ["ADD", "EARLIEST", "LATEST", "upsert"]

_MOST_PARAMETERS: Final = 900
"""SQLite takes a thousand."""

ADD: Final = "{old} + {new}"
EARLIEST: Final = "CASE WHEN {new} < {old} THEN {new} ELSE {old} END"
LATEST: Final = "CASE WHEN {new} > {old} THEN {new} ELSE {old} END"


def upsert(
    model: type[models.Model], rows: Sequence[Mapping[str, Any]], merge: Mapping[str, str], *, using: str
) -> None:
    """Insert rows, which all have the same fields; where one is there already, `merge` says what becomes of a field.

    What is not merged tells rows apart: together it is a unique constraint of the model.
    Rows are written in the order of that, so that two who write at once never wait for each other.
    """
    if not rows:
        return
    names = list(rows[0])
    fields = [cast("models.Field[Any, Any]", model._meta.get_field(name)) for name in names]
    unique = [name for name in names if name not in merge]
    rows = sorted(rows, key=lambda row: [str(row[name]) for name in unique])
    connection = connections[using]
    quote = connection.ops.quote_name
    statement = _Statement(quote(model._meta.db_table), [quote(name) for name in names], connection.vendor)
    conflict = statement.conflict([quote(name) for name in unique], {quote(name): how for name, how in merge.items()})
    step = _MOST_PARAMETERS // len(names)
    with connection.cursor() as cursor:
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            values = [
                field.get_db_prep_save(row[name], connection)
                for row in chunk
                for name, field in zip(names, fields, strict=True)
            ]
            cursor.execute(f"{statement.insert(len(chunk))} {conflict}", values)


class _Statement:
    """INSERT ... or else UPDATE, as each database says it; all names are quoted already."""

    def __init__(self, table: str, names: Sequence[str], vendor: str) -> None:
        self._table, self._names, self._is_mysql = table, names, vendor == "mysql"

    def insert(self, rows: int) -> str:
        """The first half, for so many rows."""
        row = f"({', '.join(['%s'] * len(self._names))})"
        names, values = ", ".join(self._names), ", ".join([row] * rows)
        return f"INSERT INTO {self._table} ({names}) VALUES {values}"  # noqa: S608 - names of the model, quoted

    def conflict(self, unique: Sequence[str], merge: Mapping[str, str]) -> str:
        """The second half."""
        new = "VALUES({})" if self._is_mysql else "excluded.{}"
        merged = [
            f"{name} = {how.format(old=f'{self._table}.{name}', new=new.format(name))}" for name, how in merge.items()
        ]
        start = "ON DUPLICATE KEY UPDATE" if self._is_mysql else f"ON CONFLICT ({', '.join(unique)}) DO UPDATE SET"
        return f"{start} {', '.join(merged)}"
