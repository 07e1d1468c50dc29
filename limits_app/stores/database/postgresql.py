"""PostgreSQL: steps take two round trips, and one where nobody else has changed the row meanwhile."""

from __future__ import annotations

import os
from functools import cache, partial
from math import ceil
from socket import socket
from struct import pack
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from limits_app.stores.database import statements
from limits_app.stores.database.links import Failure, Link, Promise

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from django.db.backends.base.base import BaseDatabaseWrapper

    from limits_app.stores.database.links import LinkOptions
    from limits_app.stores.database.statements import Change

    Answering = Generator[int, int, object]

__all__ = ["PostgresLink"]

_TRANSIENT: Final = {"40001", "40P01"}
"""Serialization failure and deadlock."""
_MISSING: Final = {"42P01", "42703"}
"""There is no such table, or no such column."""
_CLOCK: Final = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
_TOLERANCE_US: Final = 1_000_000
_PATIENCE: Final = 0.09
"""Seconds after which a server that has not answered is asked whether it lives; the driver looks ten times a second."""
_KNOCK: Final = pack("!ii", 8, 80877103)
"""A message of eight bytes, which asks whether connections can be encrypted; the least that every server answers."""


class PostgresLink(Link):
    """A connection to PostgreSQL, by psycopg."""

    begins = "BEGIN ISOLATION LEVEL READ COMMITTED"
    clock = _CLOCK

    @classmethod
    def configure(cls, wrapper: BaseDatabaseWrapper, options: LinkOptions) -> None:
        """Links are pooled by the store, and put values into statements themselves, which then travel together."""
        given = wrapper.settings_dict["OPTIONS"]
        given.pop("pool", None)
        given.pop("server_side_binding", None)
        # In whole seconds; what takes longer than wanted is waited for no more.
        given["connect_timeout"] = max(ceil(options.connect_timeout), 2)
        # For what the network swallows, in milliseconds; what takes too long on the server, that stops itself.
        given["tcp_user_timeout"] = 1000 * given["connect_timeout"]

    def prepare(self) -> None:
        """Wait for nothing for long, nor let others wait; prepare what is asked all the time."""
        self._is_silent = False
        self._raw.wait = partial(self._wait, self._raw.wait)
        timeouts = {
            "lock_timeout": self.options.lock_timeout,
            "statement_timeout": self.options.statement_timeout,
            "idle_in_transaction_session_timeout": self.options.idle_timeout,
        }
        self.batch([(f"SET {name} = {round(seconds * 1000)}", ()) for name, seconds in timeouts.items()])
        self._raw.prepare_threshold = 0
        self._prepared: Any = self.driver.Cursor(self._raw)

    def meaning(self, error: Exception) -> Failure:
        """By the code of the error, which only a server that lives sends."""
        code = getattr(error, "sqlstate", None)
        lost = code is None or self._raw.closed
        return Failure(code in _TRANSIENT, lost=lost, silent=self._is_silent, unmigrated=code in _MISSING)

    def batch(self, batch: Sequence[tuple[str, Sequence[object]]]) -> list[list[Any]]:
        """All statements in one message."""
        cursor = self.cursor
        cursor.execute("; ".join([sql for sql, _ in batch]), [value for _, values in batch for value in values])
        results = [cursor.fetchall() if cursor.description else []]
        while cursor.nextset():
            results.append(cursor.fetchall() if cursor.description else [])
        return results

    def swap(
        self, change: Change, stamp: int, *, now: int, version: int | None, conclude: Callable[[], None]
    ) -> int | None:
        """One statement, which looks after everything itself."""
        logs = [] if change.logs is None else [change.logs]
        right = [] if version is None else [version]
        right += [now, now + _TOLERANCE_US] if self.options.reads_clock else []
        sql = _swap(logs=bool(logs), version=version is not None, moment=self.options.reads_clock)
        self.promise = Promise(change.scope, self.number, stamp, conclude)
        self._prepared.execute(sql, [change.states, stamp, *logs, change.scope, change.old, *right], prepare=True)
        written = self._prepared.fetchone()
        self.promise = None
        if written is None:
            return None
        conclude()
        return int(written[0])

    def _wait(self, wait: Callable[..., object], answering: Answering, *args: Any, **options: Any) -> object:
        """The driver's way of waiting, which has no end of its own."""
        return wait(self._in_time(answering), *args, **options)

    def _in_time(self, answering: Answering) -> Answering:
        """What the driver does to get an answer, given up when there is none in time."""
        started, patience = monotonic(), _PATIENCE
        try:
            needed = next(answering)
            while True:
                ready = yield needed
                waited = monotonic() - started
                if not ready and waited > patience:
                    if waited > self.options.reply_timeout or not self._lives():
                        self._is_silent = True
                        raise self.driver.OperationalError(f"no answer within {waited:.1f} seconds")
                    patience = 2 * waited
                needed = answering.send(ready)
        except StopIteration as end:
            return end.value

    def _lives(self) -> bool:
        """Whether the server answers whoever knocks: then it is the statement that takes long, or waits for a lock."""
        try:
            with socket(fileno=os.dup(self._raw.fileno())) as own, socket(own.family) as another:
                another.settimeout(self.options.connect_timeout)
                another.connect(own.getpeername())
                another.sendall(_KNOCK)
                return bool(another.recv(1))
        except OSError:
            return False


@cache
def _swap(*, logs: bool, version: bool, moment: bool) -> str:
    """Changes a row, if everything is still as the writer thinks."""
    return f"""
        UPDATE limits_app_state SET states = %s, stamp = %s{", logs = %s" if logs else ""}
        WHERE scope = %s AND stamp = %s
        {f"AND {statements.VERSION} = %s" if version else ""}
        {f"AND {_CLOCK} BETWEEN %s AND %s" if moment else ""}
        RETURNING {_CLOCK}
    """  # noqa: S608 - clauses only; values are passed
