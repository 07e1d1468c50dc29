"""The SQL for rows, as all databases understand it; values are passed for `%s`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

__all__ = ["COMMIT", "LOGS", "NEXT_ROWS", "UPDATE", "Statement", "change_row", "insert", "marks", "moment", "rows"]

Statement = tuple[str, Sequence[object]]
"""SQL and its values."""

COMMIT: Final[Statement] = ("COMMIT", ())
UPDATE: Final = "UPDATE limits_app_state SET states = %s WHERE scope = %s"
LOGS: Final = "SELECT logs FROM limits_app_state WHERE scope = %s"
NEXT_ROWS: Final = "SELECT scope, states FROM limits_app_state WHERE scope > %s ORDER BY scope LIMIT %s"


@cache
def moment(clock: str) -> str:
    """Read the time of the database, in microseconds, and the version of the configuration."""
    return f"SELECT {clock}, COALESCE((SELECT version FROM limits_app_version WHERE id = 1), 0)"  # noqa: S608 - an expression of this package


@cache
def rows(number: int, *, logs: bool = False) -> str:
    """Read the rows of `number` scopes, in the order in which all processes lock them."""
    columns = "scope, states, logs" if logs else "scope, states"
    condition = "= %s" if number == 1 else f"IN ({marks(number)}) ORDER BY scope"
    return f"SELECT {columns} FROM limits_app_state WHERE scope {condition}"  # noqa: S608 - marks only


@cache
def change_row(*, logs: bool, mark: bool) -> str:
    """Save the states of a row, and its logs and its mark where they have changed."""
    more = f"{', logs = %s' if logs else ''}{', counted_until = %s, label = %s' if mark else ''}"
    return UPDATE.replace(" WHERE", f"{more} WHERE")


@cache
def insert(table: str, columns: str, *, rows: int = 1) -> str:
    """Insert rows."""
    row = f"({marks(columns.count(',') + 1)})"
    return f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - marks only


def marks(number: int) -> str:
    """Return so many placeholders."""
    return ", ".join(["%s"] * number)
