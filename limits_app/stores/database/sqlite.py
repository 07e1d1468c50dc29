"""SQLite: a file with one writer at a time, and the machine's clock."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from os.path import realpath
from random import random
from time import monotonic, sleep
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from limits_app.engine.errors import StoreBlocked
from limits_app.stores.database.connections import Failure, StoreConnection

_BUSY: Final = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
"""Another connection has locked the file."""
_MISSING: Final = re.compile("no such (table|column)|has no column named")
_MAX_PAUSE_SECONDS: Final = 0.002


class SQLiteConnection(StoreConnection):
    """A connection to a database file."""

    begin_sql = "BEGIN IMMEDIATE"
    lock_sql = ""
    is_local = True

    def django_options(self, site: Mapping[str, object]) -> dict[str, object]:
        """Require a file: a database in memory belongs to one connection, or is locked by the others."""
        if self.wrapper.is_in_memory_db():  # type: ignore[attr-defined]  # SQLite's wrapper has it
            raise ImproperlyConfigured(
                f"the database {self.wrapper.alias!r} is in memory, where the store cannot have a second connection: "
                "keep limits in a file (in tests: TEST['NAME']), or in a store of kind 'memory'"
            )
        return {**site, "timeout": self.options.lock_timeout}

    def prepare(self) -> None:
        """Retry here: SQLite's own busy handler lets some connections wait indefinitely."""
        self.execute("PRAGMA busy_timeout = 0")

    def failure(self, error: Exception) -> Failure:
        """A file is never lost and needs no retry; the text of the error names a missing table."""
        is_full = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        is_unmigrated = _MISSING.search(str(error)) is not None
        return Failure(transient=False, lost=False, unmigrated=is_unmigrated, full=is_full)

    def send(self, sql: str, values: Sequence[object]) -> None:
        """Execute a statement, for up to `lock_timeout` seconds while other connections have locked the file."""
        sql = _with_question_marks(sql)
        deadline = 0.0
        while True:
            try:
                self.cursor.execute(sql, values)
            except sqlite3.OperationalError as error:
                now = monotonic()
                if error.sqlite_errorcode & 0xFF not in _BUSY or now > (deadline or now):
                    raise
                if not deadline:
                    deadline = now + self.options.lock_timeout
                    self.check_caller(self.wrapper.alias)
            else:
                return
            sleep(random() * _MAX_PAUSE_SECONDS)

    def rollback(self) -> None:
        """End the transaction, if there is one."""
        if self.raw.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        # The statement of a cursor that a signal handler has interrupted would keep the file locked.
        if self.wrapper.connection is not None:
            with suppress(self.error):
                self.cursor.close()
        super().close()

    @staticmethod
    def check_caller(alias: str) -> None:
        """Raise StoreBlocked where a transaction of the calling thread keeps others from writing to the database."""
        file = _file(connections[alias])
        for connection in connections.all(initialized_only=True):
            if connection.vendor == "sqlite" and _file(connection) == file and _blocks_writers(connection.connection):
                raise StoreBlocked(
                    f"the store is in the database {alias!r}, which the transaction of the caller has locked: acquire "
                    "before it begins, or keep the store in a separate file (USING); with a write-ahead log, before it "
                    "writes"
                )


def _file(connection: Any) -> str:
    return str(realpath(connection.settings_dict["NAME"]))


def _blocks_writers(raw: sqlite3.Connection | None) -> bool:
    if raw is None or not raw.in_transaction:
        return False
    ((journal,),) = raw.execute("PRAGMA journal_mode").fetchall()
    return _is_writing(raw) if journal == "wal" else _has_read(raw)


def _has_read(raw: sqlite3.Connection) -> bool:
    """Return whether a connection holds a lock; without a write-ahead log, a reader's lock keeps writers out.

    There is nothing to checkpoint then, so that the statement only fails where the connection is in a transaction.
    """
    try:
        raw.execute("PRAGMA wal_checkpoint").fetchall()
    except sqlite3.OperationalError as error:
        return error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_LOCKED
    return False


def _is_writing(raw: sqlite3.Connection) -> bool:
    """Return whether a connection holds the writer's lock: SQLite does not begin to copy such a database."""
    statuses: list[int] = []

    def stop(status: int, *_: int) -> None:
        statuses.append(status)
        raise _StopCopyError

    with closing(sqlite3.connect(":memory:")) as target, suppress(_StopCopyError):
        raw.backup(target, pages=1, progress=stop)
    return statuses == [sqlite3.SQLITE_BUSY]


class _StopCopyError(Exception):
    """Ends a copy after its first page."""


@cache
def _with_question_marks(sql: str) -> str:
    """Return a statement with the placeholders of sqlite3."""
    return sql.replace("%s", "?")
