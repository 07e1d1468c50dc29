"""Connections of the store, beside those of the site's requests: one for each thread, made as Django makes its own.

The store runs short transactions on its own connections, so that a request that is rolled back, by
ATOMIC_REQUESTS for example, does not roll its counts back.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from threading import local
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from weakref import finalize

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished, request_started
from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from limits_app.acquiring import WeakRegistry, around_fork
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.locks import RLock

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

_ROUNDS: Final = 5
"""How often two connections are compared; a pooler may give them different sessions by chance."""
_REPLY_SLACK_SECONDS: Final = 0.5
_MIN_IDLE_SECONDS: Final = 0.5
"""What a process on a busy machine may need between two statements."""

_WHOLE_SITE_ID: Final = 1
"""The number of the empty namespace."""

_INHERITED: Final[list[object]] = []
"""Connections of parent processes: closing one in the child would end the parent's."""


class ConnectionOptions(NamedTuple):
    """How long to wait for locks and for a new connection, in seconds."""

    lock_timeout: float
    connect_timeout: float

    @property
    def idle_timeout(self) -> float:
        """How long a transaction may be idle before the server ends it, since others wait for its locks."""
        return max(self.lock_timeout / 2, _MIN_IDLE_SECONDS)

    @property
    def statement_timeout(self) -> float:
        """How long the server works on a statement, which may wait for several locks."""
        return 2 * self.lock_timeout

    @property
    def reply_timeout(self) -> float:
        """How long to wait for a reply: a server that works has ended the statement before."""
        return self.statement_timeout + _REPLY_SLACK_SECONDS


class Failure(NamedTuple):
    """The meaning of a driver's error.

    `transient`: the transaction was rolled back, and may succeed now. `lost`: the connection is closed or useless.
    `silent`: the server did not reply in time, and another try would wait as long. `unmigrated`: a table or a column
    of the store is missing. `full`: there is no space for more rows. `pooled`: the session is that of another client,
    since a pooler gives each transaction any of its connections.
    """

    transient: bool
    lost: bool
    silent: bool = False
    unmigrated: bool = False
    full: bool = False
    pooled: bool = False


class StoreConnection(ABC):
    """The connection of one thread. Subclasses know one kind of database each.

    It belongs to the thread until it ends, and is opened again where it was closed or has failed meanwhile.
    """

    begin_sql: ClassVar[str] = "BEGIN"
    lock_sql: ClassVar[str] = " FOR UPDATE"
    clock_sql: ClassVar[str] = "0"
    by_place_sql: ClassVar[str] = ""
    """What makes the database look for rows that count from a place on, rather than from the first one on."""
    is_local: ClassVar[bool] = False
    """Whether this process writes the file itself: it has one writer, no replies to lose, and the machine's clock."""
    session_sql: ClassVar[str | None] = None
    """The SQL for what only one session of the server has; None where no pooler shares sessions among clients."""

    def __init__(self, wrapper: BaseDatabaseWrapper, options: ConnectionOptions) -> None:
        self.wrapper = wrapper
        self.options = options
        self.is_clean = True
        """Whether no step is running, and none was interrupted in the middle of a transaction or of a statement."""
        self._pid = os.getpid()
        site = wrapper.settings_dict
        driver_options = self.django_options(site["OPTIONS"])
        driver_options.pop("pool", None)  # a request that has taken one of its connections would wait for another one
        # Another dictionary, as that of the alias belongs to the connections of the site.
        wrapper.settings_dict = {**site, "AUTOCOMMIT": True, "OPTIONS": driver_options}
        driver: Any = wrapper.Database  # type: ignore[attr-defined]  # every wrapper has it
        self.error: type[Exception] = driver.Error
        # A weak reference calls before all finalizers of a cycle, of which that of the driver warns if it is open.
        finalize(self, _discard, wrapper, self.error, self._pid).atexit = False  # type: ignore[misc]  # a property

    @abstractmethod
    def django_options(self, site: Mapping[str, object]) -> dict[str, object]:
        """Return the OPTIONS for Django, from those of the site."""

    @staticmethod  # noqa: B027 - servers have no such callers
    def check_caller(alias: str) -> None:
        """Raise StoreBlocked where the store would wait for a transaction of its caller."""

    @abstractmethod
    def prepare(self) -> None:
        """Set the timeouts of a new session."""

    @abstractmethod
    def failure(self, error: Exception) -> Failure:
        """Return the meaning of a driver's error."""

    def ensure_open(self) -> None:
        """Open the connection unless it is open and of use. Raises StoreUnavailable."""
        if not self.is_clean:
            self.close()
        if self.wrapper.connection is not None:
            return
        try:
            self.wrapper.connect()
            raw: Any = self.wrapper.connection
            self.raw, self.cursor = raw, raw.cursor()
            can_skip = self.wrapper.features.has_select_for_update_skip_locked
            self.skip_locked_sql = self.lock_sql + " SKIP LOCKED" if can_skip else self.lock_sql
            self.prepare()
        except BaseException as error:
            self.close()
            if isinstance(error, Error | self.error):
                raise StoreUnavailable(f"the database {self.wrapper.alias!r} cannot be reached: {error}") from error
            raise

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute one statement, and return its rows."""
        self.send(sql, values)
        return self.cursor.fetchall() if self.cursor.description else []

    def send(self, sql: str, values: Sequence[object]) -> None:
        """Send a statement, and wait for the reply."""
        self.cursor.execute(sql, values)

    def insert(self, table: str, columns: str, values: Sequence[object]) -> bool:
        """Create a row unless it exists, and return whether it is new."""
        self.execute(self.ignore_existing(insert_sql(table, columns)), values)
        return bool(self.cursor.rowcount)

    def ignore_existing(self, insert: str) -> str:
        """Return an INSERT that does nothing where the row exists."""
        return f"{insert} ON CONFLICT DO NOTHING"

    def rollback(self) -> None:
        """End the transaction without effect."""
        self.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connection, which ends its transaction."""
        _close(self.wrapper, self.error)
        self.is_clean = True

    def close_if_old(self) -> None:
        """Close the connection if CONN_MAX_AGE is over, as each of Django's when a request begins or ends."""
        # Not by the wrapper, which asks the database, where tests may forbid it. The store notices errors itself.
        close_at: float | None = self.wrapper.close_at
        if close_at is not None and monotonic() >= close_at:
            self.close()

    def discard(self) -> None:
        """Close the connection for good; one of a parent process is left alone."""
        _discard(self.wrapper, self.error, self._pid)


def _close(wrapper: BaseDatabaseWrapper, error: type[Exception]) -> None:
    # Not by the wrapper, which does not release connections that are closed in an event loop or in another thread.
    raw, wrapper.connection = wrapper.connection, None
    if raw is not None:
        with suppress(error):
            raw.close()


def _discard(wrapper: BaseDatabaseWrapper, error: type[Exception], pid: int) -> None:
    if pid == os.getpid():
        _close(wrapper, error)
    else:
        _INHERITED.append(wrapper.connection)


class _ClosedWithThread:
    """Closes the connection of a thread that ends, even where a traceback still refers to the connection."""

    def __init__(self, connection: StoreConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.discard()


class ThreadConnections:
    """The connections of one process to one of the site's databases: one for each thread that uses the store.

    They are closed as Django closes its own: when a request begins or ends and CONN_MAX_AGE is over, and when the
    thread ends. Raises ImproperlyConfigured for an alias that is missing in DATABASES, or a database of another kind
    than `kinds`.
    """

    def __init__(self, alias: str, options: ConnectionOptions, kinds: Mapping[str, type[StoreConnection]]) -> None:
        self.alias = alias
        self.options = options
        try:
            vendor = connections[alias].vendor
        except ConnectionDoesNotExist as error:
            raise ImproperlyConfigured(
                f"USING must be an alias in DATABASES; got {alias!r}: add it, or name another database"
            ) from error
        if vendor not in kinds:
            raise ImproperlyConfigured(f"the database {alias!r} must be one of {', '.join(kinds)}; got {vendor}")
        self.kind = kinds[vendor]
        self._all = WeakRegistry[StoreConnection]()
        self.after_fork()
        around_fork(self)
        request_started.connect(self._close_old)
        request_finished.connect(self._close_old)

    def after_fork(self) -> None:
        """A child process opens its own connections."""
        self._of_thread = local()
        self.fork_lock = RLock()
        """Held in each step where there is only one writer, so that one thread at a time has a transaction."""

    def before_fork(self) -> None:
        """Acquire `fork_lock`, and close the connection of this thread, and all to a file: no child may use them."""
        self.fork_lock.acquire()
        if self.kind.is_local:
            for connection in self._all.all():
                connection.close()
        else:
            self.close()

    def current(self) -> StoreConnection:
        """Return the connection of the calling thread, which is open. Raises StoreUnavailable."""
        connection = self._own()
        if connection is None:
            connection = self._new()
            self._of_thread.closed_at_end = _ClosedWithThread(connection)
            self._all.add(connection)
        connection.ensure_open()
        return connection

    def close(self) -> None:
        """Close the connection of the calling thread."""
        connection = self._own()
        if connection is not None:
            connection.close()

    def pools_transactions(self) -> bool:
        """Return whether a pooler gives each transaction any of its connections, so that sessions are shared.

        Then two connections have one session, or a connection has another one in its next transaction.
        """
        sql = self.kind.session_sql
        if sql is None:
            return False
        first, second = [self._new() for _ in range(2)]
        try:
            first.ensure_open()
            second.ensure_open()
            session = first.execute(sql)
            for _ in range(_ROUNDS):
                second.execute(second.begin_sql)
                is_shared = second.execute(sql) == session
                second.rollback()
                if is_shared or first.execute(sql) != session:
                    return True
        except first.error as error:
            if first.failure(error).pooled:
                return True
            raise StoreUnavailable(f"the database {self.alias!r} failed: {error}") from error
        finally:
            first.close()
            second.close()
        return False

    def _new(self) -> StoreConnection:
        return self.kind(connections.create_connection(self.alias), self.options)

    def _own(self) -> StoreConnection | None:
        """Return the connection of the calling thread, if it has one."""
        closed_at_end: _ClosedWithThread | None = getattr(self._of_thread, "closed_at_end", None)
        return None if closed_at_end is None else closed_at_end.connection

    def _close_old(self, **_: object) -> None:
        connection = self._own()
        if connection is not None:
            connection.close_if_old()


@cache
def insert_sql(table: str, columns: str, rows: int = 1) -> str:
    """Return the SQL that inserts rows."""
    row = f"({marks(columns.count(',') + 1)})"
    return f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - marks only


def namespace_id(digest: bytes) -> int:
    """Return the number of a namespace, which is given by its digest; rows are found by it."""
    return int.from_bytes(digest[:8]) >> 1 if digest else _WHOLE_SITE_ID


def marks(number: int) -> str:
    """Return so many placeholders."""
    return ", ".join(["%s"] * number)
