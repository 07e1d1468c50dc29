"""The statements of the store, as every database understands them; values go where `%s` stands."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

__all__ = [
    "ADVANCE",
    "COMMIT",
    "DEFINITIONS",
    "FENCE",
    "LOGS",
    "NEXT",
    "STATES",
    "VERSION",
    "Change",
    "Statement",
    "add",
    "change",
    "define",
    "first_version",
    "moment",
    "remove",
    "rows",
    "rows_with_logs",
]

Statement = tuple[str, Sequence[object]]


class Change(NamedTuple):
    """A row to be written: under `old`, its stamp so far, or anew where that is None; `logs` None leaves them."""

    scope: bytes
    old: int | None
    states: bytes
    logs: bytes | None


COMMIT: Final[Statement] = ("COMMIT", ())
VERSION: Final = "COALESCE((SELECT version FROM limits_app_version WHERE id = 1), 0)"
LOGS: Final = "SELECT logs FROM limits_app_state WHERE scope = %s"
STATES: Final = "SELECT states FROM limits_app_state WHERE scope = %s FOR UPDATE"
FENCE: Final = "UPDATE limits_app_state SET stamp = %s WHERE scope = %s"
NEXT: Final = "SELECT scope, stamp, states FROM limits_app_state WHERE scope > %s ORDER BY scope LIMIT %s"
ADVANCE: Final = "UPDATE limits_app_version SET version = version + 1 WHERE id = 1"
DEFINITIONS: Final = "SELECT definitions FROM limits_app_layout WHERE name = %s"


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
    return f"{insert} limits_app_state (scope, stamp, states, logs) VALUES (%s, %s, %s, %s){unless}"


@cache
def define(insert: str, unless: str) -> str:
    """Creates the definitions of a layout, unless they are there."""
    return f"{insert} limits_app_layout (name, definitions) VALUES (%s, %s){unless}"


@cache
def first_version(insert: str, unless: str) -> str:
    """Creates the version, unless it is there."""
    return f"{insert} limits_app_version (id, version) VALUES (1, 0){unless}"


def change(one: Change, stamp: int) -> Statement:
    """Writes a row that is there."""
    if one.logs is None:
        return "UPDATE limits_app_state SET states = %s, stamp = %s WHERE scope = %s", (one.states, stamp, one.scope)
    return (
        "UPDATE limits_app_state SET states = %s, stamp = %s, logs = %s WHERE scope = %s",
        (one.states, stamp, one.logs, one.scope),
    )


def _marks(number: int) -> str:
    return ", ".join(["%s"] * number)
