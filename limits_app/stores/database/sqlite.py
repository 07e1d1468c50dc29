"""SQLite: one writer at a time, and the system clock of the machine."""

from __future__ import annotations

import re
from functools import cache
from random import random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured

from limits_app.core.errors import StoreBlocked
from limits_app.stores.database import statements
from limits_app.stores.database.callers import check_caller
from limits_app.stores.database.links import Failure, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from limits_app.stores.database.links import LinkOptions
    from limits_app.stores.database.statements import Change

__all__ = ["SQLiteLink"]

_BUSY: Final = {5, 6}
"""SQLITE_BUSY and SQLITE_LOCKED: another connection is in the way."""
_MISSING: Final = re.compile("no such (table|column)|has no column named")
_LONGEST_NAP: Final = 0.002


class SQLiteLink(Link):
    """A connection to a database file.

    What it was asked has happened or has not when it answers, so it keeps no notes.
    """

    begins = "BEGIN IMMEDIATE"
    locks = ""
    has_clock = False
    is_far = False
    keeps_notes = False
    takes_turns = True

    @classmethod
    def configure(cls, wrapper: BaseDatabaseWrapper, options: LinkOptions) -> None:
        """Only files will do: what is in memory belongs to one connection, or is locked by the others."""
        if wrapper.is_in_memory_db():  # type: ignore[attr-defined]  # SQLite's wrapper has it
            raise ImproperlyConfigured(
                f"the database {wrapper.alias!r} is in memory, where nobody can have a connection of his own: "
                "keep limits in a file (in tests: TEST['NAME']), or in a store of kind 'memory'"
            )
        wrapper.settings_dict["OPTIONS"]["timeout"] = options.lock_timeout

    check_caller = staticmethod(check_caller)

    def prepare(self) -> None:
        """Wait for others by looking again soon: SQLite's own way of waiting lets some wait for ever."""
        self.run("PRAGMA busy_timeout = 0")

    def meaning(self, error: Exception) -> Failure:
        """A file is never lost, and needs no second try; what a statement names is told by the text alone."""
        return Failure(transient=False, lost=False, unmigrated=_MISSING.search(str(error)) is not None)

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Run one statement, once no other connection is in the way; its rows."""
        sql = _marked(sql)
        deadline = 0.0
        while True:
            try:
                self.cursor.execute(sql, values)
                return self.cursor.fetchall() if self.cursor.description else []
            except self.error as error:
                now = monotonic()
                if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _BUSY or now > (deadline or now):
                    raise
                if not deadline:
                    deadline = now + self.options.lock_timeout
                    self._check_caller()
            sleep(random() * _LONGEST_NAP)

    def _check_caller(self) -> None:
        try:
            check_caller(self.alias)
        except StoreBlocked:
            self.promise = None  # the commit has failed, which nobody needs to ask about
            raise

    def rollback(self) -> None:
        """End the transaction, if there is one."""
        if self._raw.in_transaction:
            self.run("ROLLBACK")

    def swap(
        self, change: Change, stamp: int, *, now: int, version: int | None, conclude: Callable[[], None]
    ) -> int | None:
        """One statement; as there is one clock only, the time is right."""
        sql, values = statements.change(change, stamp)
        sql, values = f"{sql} AND stamp = %s", [*values, change.old]
        if version is not None:
            sql, values = f"{sql} AND {statements.VERSION} = %s", [*values, version]
        self.run(sql, values)
        if self.cursor.rowcount == 0:
            return None
        conclude()
        return now


@cache
def _marked(sql: str) -> str:
    """The statement with the marks that sqlite3 knows."""
    return sql.replace("%s", "?")
