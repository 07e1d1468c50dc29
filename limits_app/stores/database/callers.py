"""Transactions of those who ask: one that has locked the file of a store would have the store wait for itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from os.path import realpath
from typing import Any, Final

from django.db import connections

from limits_app.core.errors import StoreBlocked

__all__ = ["check_caller"]

_LOCKED: Final = 6
"""SQLITE_LOCKED: the connection itself is in the way."""


def check_caller(alias: str) -> None:
    """Raise StoreBlocked where a transaction of this thread keeps all others from writing to an SQLite database."""
    file = _file(connections[alias])
    for connection in connections.all(initialized_only=True):
        if connection.vendor == "sqlite" and _file(connection) == file and _keeps_others_out(connection.connection):
            raise StoreBlocked(
                f"the store is in the database {alias!r}, which the transaction of the caller has locked: ask before "
                "it begins, or keep the store in a file of its own (USING); with a write-ahead log, before it writes"
            )


def _file(connection: Any) -> str:
    return str(realpath(connection.settings_dict["NAME"]))


def _keeps_others_out(raw: Any) -> bool:
    if raw is None or not raw.in_transaction:
        return False
    ((journal,),) = raw.execute("PRAGMA journal_mode").fetchall()
    return _is_writing(raw) if journal == "wal" else _has_read(raw)


def _has_read(raw: Any) -> bool:
    """Whether a connection holds a lock: with a journal, that of a reader is enough.

    Without a write-ahead log there is nothing to checkpoint, so all that comes of it is an error in a transaction.
    """
    try:
        raw.execute("PRAGMA wal_checkpoint").fetchall()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF == _LOCKED
    return False


def _is_writing(raw: Any) -> bool:
    """Whether a connection has the lock of the one who writes: then no copy is made of what it has, not even begun."""
    told: list[int] = []

    def stop(status: int, *_: int) -> None:
        told.append(status)
        raise _EnoughError

    with closing(sqlite3.connect(":memory:")) as nowhere, suppress(_EnoughError):
        raw.backup(nowhere, pages=1, progress=stop)
    return told == [sqlite3.SQLITE_BUSY]


class _EnoughError(Exception):
    """Ends a copy after its first page."""
