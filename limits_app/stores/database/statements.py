"""The SQL of the store, as all databases understand it; values are passed for `%s`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

__all__ = [
    "ADD_COMMIT",
    "ADVANCE_VERSION",
    "BATCH",
    "CHANGE_COMMIT",
    "COMMIT",
    "COUNTED",
    "COUNTING",
    "DEFINITIONS",
    "FILL_BATCH",
    "FIND_COMMIT",
    "FORGET_BATCH",
    "FORGET_COMMITS",
    "FORGET_COUNTS",
    "LOGS",
    "NEXT_ROWS",
    "UPDATE",
    "Statement",
    "add_batch",
    "add_counts",
    "add_definitions",
    "add_row",
    "add_version",
    "change_row",
    "moment",
    "remove_counts",
    "remove_rows",
    "rows",
    "rows_with_logs",
]

Statement = tuple[str, Sequence[object]]
"""SQL and its values."""

COMMIT: Final[Statement] = ("COMMIT", ())

_VERSION: Final = "COALESCE((SELECT version FROM limits_app_version WHERE id = 1), 0)"

UPDATE: Final = "UPDATE limits_app_state SET states = %s WHERE scope = %s"
LOGS: Final = "SELECT logs FROM limits_app_state WHERE scope = %s"
NEXT_ROWS: Final = "SELECT scope, states FROM limits_app_state WHERE scope > %s ORDER BY scope LIMIT %s"

ADD_COMMIT: Final = "INSERT INTO limits_app_commit (number, connection) VALUES (%s, %s)"
CHANGE_COMMIT: Final = "UPDATE limits_app_commit SET number = %s WHERE connection = %s"
FIND_COMMIT: Final = "SELECT number FROM limits_app_commit WHERE connection = %s"
FORGET_COMMITS: Final = "DELETE FROM limits_app_commit WHERE number < %s"

DEFINITIONS: Final = "SELECT definitions FROM limits_app_layout WHERE name = %s"
ADVANCE_VERSION: Final = (
    "UPDATE limits_app_version SET version = CASE WHEN version < %s THEN %s ELSE version + 1 END WHERE id = 1"
)

COUNTING: Final = (
    "SELECT scope, label FROM limits_app_state WHERE counted_until IS NOT NULL ORDER BY counted_until LIMIT %s"
)
COUNTED: Final = "SELECT id, hour, label, amounts FROM limits_app_count ORDER BY id LIMIT %s"
FORGET_COUNTS: Final = "DELETE FROM limits_app_count WHERE hour < %s"
BATCH: Final = "SELECT name, counts FROM limits_app_batch"
FILL_BATCH: Final = "UPDATE limits_app_batch SET counts = %s WHERE name = %s"
FORGET_BATCH: Final = "DELETE FROM limits_app_batch WHERE name = %s"


@cache
def rows(number: int) -> str:
    """Read the rows of `number` scopes, in the order in which all processes lock them."""
    if number == 1:
        return "SELECT scope, states FROM limits_app_state WHERE scope = %s"
    return f"SELECT scope, states FROM limits_app_state WHERE scope IN ({_marks(number)}) ORDER BY scope"  # noqa: S608 - marks only


@cache
def rows_with_logs(number: int) -> str:
    """Read the rows of `number` scopes with their logs."""
    return f"SELECT scope, states, logs FROM limits_app_state WHERE scope IN ({_marks(number)})"  # noqa: S608 - marks only


@cache
def remove_rows(number: int) -> str:
    """Delete the rows of `number` scopes."""
    return f"DELETE FROM limits_app_state WHERE scope IN ({_marks(number)})"  # noqa: S608 - marks only


@cache
def change_row(*, logs: bool, mark: bool) -> str:
    """Save the states of a row, and its logs and its mark where they have changed."""
    if not logs and not mark:
        return UPDATE
    more = f"{', logs = %s' if logs else ''}{', counted_until = %s, label = %s' if mark else ''}"
    return f"UPDATE limits_app_state SET states = %s{more} WHERE scope = %s"  # noqa: S608 - columns only


@cache
def moment(clock: str) -> str:
    """Read the time of the database, in microseconds, and the version of the configuration."""
    return f"SELECT {clock}, {_VERSION}"


@cache
def add_row(insert: str, unless_exists: str) -> str:
    """Create the row of a scope, unless it exists."""
    columns = "scope, states, logs, counted_until, label"
    return f"{insert} limits_app_state ({columns}) VALUES ({_marks(5)}){unless_exists}"


@cache
def add_definitions(insert: str, unless_exists: str) -> str:
    """Create the definitions of a schema, unless they exist."""
    return f"{insert} limits_app_layout (name, definitions) VALUES (%s, %s){unless_exists}"


@cache
def add_version(insert: str, unless_exists: str) -> str:
    """Create the version of the configuration, unless it exists."""
    return f"{insert} limits_app_version (id, version) VALUES (1, 0){unless_exists}"


@cache
def add_batch(insert: str, unless_exists: str) -> str:
    """Create the batch, unless it exists."""
    return f"{insert} limits_app_batch (id, name, counts) VALUES (1, %s, %s){unless_exists}"


def add_counts(number: int) -> str:
    """Add `number` counts: hour, label and amounts of each."""
    values = ", ".join(["(%s, %s, %s)"] * number)
    return f"INSERT INTO limits_app_count (hour, label, amounts) VALUES {values}"  # noqa: S608 - marks only


@cache
def remove_counts(number: int) -> str:
    """Delete `number` counts."""
    return f"DELETE FROM limits_app_count WHERE id IN ({_marks(number)})"  # noqa: S608 - marks only


def _marks(number: int) -> str:
    return ", ".join(["%s"] * number)
