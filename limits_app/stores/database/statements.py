"""The statements of the store, as every database understands them; values go where `%s` stands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from limits_app.stores.database.counted import Mark, Tallied

__all__ = [
    "ADVANCE",
    "COMMIT",
    "COUNTING",
    "DEFINITIONS",
    "FENCE",
    "FILL",
    "FORGET",
    "FORGET_OLD",
    "LOGS",
    "NEXT",
    "STATES",
    "TALLIED",
    "VERSION",
    "WAITING",
    "Change",
    "Statement",
    "add",
    "change",
    "define",
    "first_version",
    "hold",
    "moment",
    "remove",
    "remove_counts",
    "rows",
    "rows_with_logs",
    "tally",
]

Statement = tuple[str, Sequence[object]]


class Change(NamedTuple):
    """A row to be written: under `old`, its stamp so far, or anew where that is None; `logs` None leaves them.

    So does `mark`. What is `tallied` goes with it into the table of counts.
    """

    scope: bytes
    old: int | None
    states: bytes
    logs: bytes | None
    mark: Mark | None
    tallied: Sequence[Tallied]


COMMIT: Final[Statement] = ("COMMIT", ())
VERSION: Final = "COALESCE((SELECT version FROM limits_app_version WHERE id = 1), 0)"
LOGS: Final = "SELECT logs FROM limits_app_state WHERE scope = %s"
STATES: Final = "SELECT states FROM limits_app_state WHERE scope = %s FOR UPDATE"
FENCE: Final = "UPDATE limits_app_state SET stamp = %s WHERE scope = %s"
NEXT: Final = "SELECT scope, stamp, states FROM limits_app_state WHERE scope > %s ORDER BY scope LIMIT %s"
ADVANCE: Final = (
    "UPDATE limits_app_version SET version = CASE WHEN version < %s THEN %s ELSE version + 1 END WHERE id = 1"
)
DEFINITIONS: Final = "SELECT definitions FROM limits_app_layout WHERE name = %s"
COUNTING: Final = (
    "SELECT scope, label FROM limits_app_state WHERE counted_until IS NOT NULL ORDER BY counted_until LIMIT %s"
)
TALLIED: Final = "SELECT id, hour, label, amounts FROM limits_app_count ORDER BY id LIMIT %s"
FORGET_OLD: Final = "DELETE FROM limits_app_count WHERE hour < %s"
WAITING: Final = "SELECT name, counts FROM limits_app_batch"
FILL: Final = "UPDATE limits_app_batch SET counts = %s WHERE name = %s"
FORGET: Final = "DELETE FROM limits_app_batch WHERE name = %s"


@cache
def rows(number: int) -> str:
    """Reads so many scopes, in an order in which everybody locks them."""
    return f"SELECT scope, stamp, states FROM limits_app_state WHERE scope IN ({_marks(number)}) ORDER BY scope"  # noqa: S608 - marks only


@cache
def rows_with_logs(number: int) -> str:
    """Reads so many scopes and their logs."""
    return f"SELECT scope, stamp, states, logs FROM limits_app_state WHERE scope IN ({_marks(number)})"  # noqa: S608 - marks only


@cache
def remove(number: int) -> str:
    """Deletes so many rows, unless they have changed."""
    return f"DELETE FROM limits_app_state WHERE {' OR '.join(['scope = %s AND stamp = %s'] * number)}"  # noqa: S608 - marks only


@cache
def moment(clock: str) -> str:
    """Reads the time and the version."""
    return f"SELECT {clock}, {VERSION}"


@cache
def add(insert: str, unless: str) -> str:
    """Creates a row, unless it is there."""
    columns = "scope, stamp, states, logs, counted_until, label"
    return f"{insert} limits_app_state ({columns}) VALUES ({_marks(6)}){unless}"


@cache
def define(insert: str, unless: str) -> str:
    """Creates the definitions of a layout, unless they are there."""
    return f"{insert} limits_app_layout (name, definitions) VALUES (%s, %s){unless}"


@cache
def first_version(insert: str, unless: str) -> str:
    """Creates the version, unless it is there."""
    return f"{insert} limits_app_version (id, version) VALUES (1, 0){unless}"


@cache
def hold(insert: str, unless: str) -> str:
    """Creates the batch, unless it is there."""
    return f"{insert} limits_app_batch (id, name, counts) VALUES (1, %s, %s){unless}"


@cache
def remove_counts(number: int) -> str:
    """Deletes so many counts."""
    return f"DELETE FROM limits_app_count WHERE id IN ({_marks(number)})"  # noqa: S608 - marks only


def tally(all_of_them: Sequence[Tallied]) -> Statement:
    """Adds counts to those that are to be collected."""
    rows = ", ".join(["(%s, %s, %s)"] * len(all_of_them))
    values = [value for one in all_of_them for value in one]
    return f"INSERT INTO limits_app_count (hour, label, amounts) VALUES {rows}", values  # noqa: S608 - marks only


def change(one: Change, stamp: int) -> Statement:
    """Writes a row that is there."""
    values: list[object] = [one.states, stamp]
    values += [] if one.logs is None else [one.logs]
    values += [] if one.mark is None else one.mark
    return _change(logs=one.logs is not None, mark=one.mark is not None), [*values, one.scope]


@cache
def _change(*, logs: bool, mark: bool) -> str:
    more = f"{', logs = %s' if logs else ''}{', counted_until = %s, label = %s' if mark else ''}"
    return f"UPDATE limits_app_state SET states = %s, stamp = %s{more} WHERE scope = %s"  # noqa: S608 - columns only


def _marks(number: int) -> str:
    return ", ".join(["%s"] * number)
