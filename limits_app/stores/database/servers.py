"""PostgreSQL, MySQL and MariaDB, by the drivers that Django uses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from socket import SHUT_RDWR, socket
from time import monotonic
from typing import Final

from limits_app.acquiring import on_fork
from limits_app.engine import Clock, monotonic_us
from limits_app.engine.locks import RLock
from limits_app.stores.background import BackgroundTask
from limits_app.stores.database.connections import Failure, StoreConnection

_INTERVAL_US: Final = 200_000
"""How exact the timeouts are."""
_PG_TRANSIENT: Final = {"40001", "40P01", "25P03"}
"""Serialization failure, deadlock, and a transaction that was idle for too long."""
_PG_MISSING: Final = {"42P01", "42703"}
"""Undefined table and undefined column."""
_PG_POOLED: Final = {"26000", "42P05"}
"""A prepared statement is missing, or is there although this connection has not prepared it."""
_PG_PREPARE_AFTER: Final = 5
"""After how many times psycopg prepares a statement."""
_PG_FULL: Final = "53100"
"""Disk full."""

_MYSQL_TRANSIENT: Final = {1020, 1213}
"""A row that has changed since it was read, and deadlock."""
_MYSQL_CLIENT_ERRORS: Final = range(2000, 3000)
"""Errors of the client library: the server is gone, or was not reached."""
_MYSQL_MISSING: Final = {1054, 1146}
"""Unknown column and unknown table."""
_MYSQL_FULL: Final = {1021, 1114}
"""Disk full and table full."""
_MYSQL_IDLE: Final = 4031
"""The server has closed a connection that was idle for too long."""
_MYSQL_CLOSED: Final = {1053, 1927, _MYSQL_IDLE}
"""The server is shutting down, or has closed the connection."""


class ReplyTimer:
    """Interrupts connections whose reply is late.

    psycopg has no timeout for reading, and a server that is stopped or swapped out acknowledges packets, so that the
    timeouts of TCP do not apply either. One thread in each process shuts the socket of such a connection down, and the
    thread that waits gets the driver's error for a lost connection. It looks every `interval_us` at the latest.
    """

    def __init__(self, interval_us: int = _INTERVAL_US) -> None:
        self._interval_us = interval_us
        # Where the system has no thread to give, replies have no timeout until it has.
        self._task = BackgroundTask(self.check, interval_us, clock=Clock(monotonic_us))
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child process waits for no reply of its parent."""
        self.closing = RLock()
        """Held while a connection is interrupted, and by those who close one."""
        self._deadlines: dict[PostgreSQLConnection, float] = {}

    def start(self, connection: PostgreSQLConnection, seconds: float) -> None:
        """Interrupt a connection unless `stop` is called within so many seconds."""
        self._deadlines[connection] = monotonic() + seconds
        self._task.start()

    def stop(self, connection: PostgreSQLConnection) -> None:
        """A reply has arrived."""
        self._deadlines.pop(connection, None)

    def check(self) -> int | None:
        """Interrupt the connections whose time is up; returns when to look again, None without any."""
        now = monotonic()
        with self.closing:
            for connection, deadline in self._deadlines.copy().items():
                if deadline <= now:
                    self._deadlines.pop(connection, None)
                    connection.interrupt()
        return self._interval_us if self._deadlines else None


REPLY_TIMER: Final = ReplyTimer()
"""The timer of this process."""


class PostgreSQLConnection(StoreConnection):
    """A connection to PostgreSQL, by psycopg 3."""

    begin_sql = "BEGIN ISOLATION LEVEL READ COMMITTED"
    clock_sql = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"
    session_sql = "SELECT pg_backend_pid()"
    _is_late = False

    def django_options(self, site: Mapping[str, object]) -> dict[str, object]:
        """With timeouts in whole seconds and at least two; frequent statements are prepared unless the site does not.

        The session is the store's own: a pooler must not pool transactions.
        """
        seconds = max(ceil(self.options.connect_timeout), 2)
        prepared = {"server_side_binding": True, "prepare_threshold": _PG_PREPARE_AFTER}
        return {**prepared, **site, "connect_timeout": seconds, "tcp_user_timeout": 1000 * seconds}

    def prepare(self) -> None:
        self._is_late = False
        timeouts = {
            "lock_timeout": self.options.lock_timeout,
            "statement_timeout": self.options.statement_timeout,
            "idle_in_transaction_session_timeout": self.options.idle_timeout,
        }
        sets = [f"set_config('{name}', '{round(seconds * 1000)}', false)" for name, seconds in timeouts.items()]
        self.execute(f"SELECT {', '.join(sets)}")

    def failure(self, error: Exception) -> Failure:
        """By the SQLSTATE, which only a server sends."""
        code: str | None = getattr(error, "sqlstate", None)
        return Failure(
            code in _PG_TRANSIENT,
            lost=code is None or bool(self.raw.closed),
            silent=self._is_late,
            unmigrated=code in _PG_MISSING,
            full=code == _PG_FULL,
            pooled=code in _PG_POOLED,
        )

    def send(self, sql: str, values: Sequence[object]) -> None:
        REPLY_TIMER.start(self, self.options.reply_timeout)
        try:
            # Nothing is gained where there are no values.
            self.cursor.execute(sql, values, prepare=None if values else False)
        finally:
            REPLY_TIMER.stop(self)

    def interrupt(self) -> None:
        """End the wait for a reply that is late: the driver finds its connection closed."""
        self._is_late = True
        with suppress(OSError, self.error), socket(fileno=os.dup(self.raw.fileno())) as duplicate:
            duplicate.shutdown(SHUT_RDWR)

    def close(self) -> None:
        with REPLY_TIMER.closing:
            super().close()


class MySQLConnection(StoreConnection):
    """A connection to MySQL or MariaDB."""

    begin_sql = "START TRANSACTION"
    clock_sql = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
    by_place_sql = "FORCE INDEX (limits_app_state_counting) "

    def django_options(self, site: Mapping[str, object]) -> dict[str, object]:
        """With timeouts in whole seconds; rows are locked, but not the gaps between them."""
        reply = max(ceil(self.options.reply_timeout), 2)
        return {
            **site,
            "connect_timeout": ceil(self.options.connect_timeout),
            "read_timeout": reply,
            "write_timeout": reply,
            "isolation_level": "read committed",
        }

    def prepare(self) -> None:
        idle = ceil(self.options.idle_timeout)
        lock = max(round(self.options.lock_timeout), idle + 1)
        # The hour that comes twice when summer time ends is two hours here. MySQL has no timeout for idle transactions,
        # and skips the comment that MariaDB reads.
        self.execute(
            f"SET SESSION innodb_lock_wait_timeout = {lock}, time_zone = '+00:00'"
            f" /*M!100300 , idle_transaction_timeout = {idle} */"
        )

    def ignore_existing(self, insert: str) -> str:
        return insert.replace("INSERT", "INSERT IGNORE", 1)

    def failure(self, error: Exception) -> Failure:
        """By the number of the error."""
        number = error.args[0] if error.args else 0
        return Failure(
            number in _MYSQL_TRANSIENT or number == _MYSQL_IDLE,
            lost=number == 0 or number in _MYSQL_CLIENT_ERRORS or number in _MYSQL_CLOSED,
            silent=isinstance(error.__context__, TimeoutError),
            unmigrated=number in _MYSQL_MISSING,
            full=number in _MYSQL_FULL,
        )
