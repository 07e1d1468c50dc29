"""Connections of the store, beside those of the site's requests.

The store runs short transactions on its own connections, so that a request that is rolled back, by
ATOMIC_REQUESTS for example, does not roll its counts back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, lru_cache
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from weakref import WeakSet, finalize

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections
from django.utils.connection import ConnectionDoesNotExist

from limits_app.acquiring.runtime import around_fork
from limits_app.engine.clock import lasts
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import namespace_digest
from limits_app.stores.connection_limit import ConnectionLimit
from limits_app.stores.database.commit_log import CommitLog

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from limits_app.stores.connection_limit import Checkout

Statement = tuple[str, Sequence[object]]
"""SQL and its values, which are passed for `%s`."""

_ROUNDS: Final = 5
"""How often two connections are compared; a pooler may give them different sessions by chance."""
_IDLE_SECONDS: Final = 60.0
_MAX_AGE_SECONDS: Final = 3600.0
_REPLY_SLACK_SECONDS: Final = 0.5
_MIN_IDLE_SECONDS: Final = 0.5
"""What a process on a busy machine may need between two statements."""

_WHOLE_SITE_ID: Final = 1
"""The number of the empty namespace."""

_INHERITED: Final[list[StoreConnection]] = []
"""Connections of parent processes that were in use at a fork: closing one in the child would end the parent's."""


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

    `transient`: it may succeed now. `lost`: the connection is closed or useless. `silent`: the server did not
    reply in time, and another try would wait as long. `unmigrated`: a table or a column of the store is missing.
    `pooled`: the session is that of another client, since a pooler gives each transaction any of its connections.
    `full`: there is no space for more rows.
    """

    transient: bool
    lost: bool
    silent: bool = False
    unmigrated: bool = False
    pooled: bool = False
    full: bool = False


class StoreConnection(ABC):
    """One connection, used by one thread at a time. Subclasses know one kind of database each."""

    begin_sql: ClassVar[str] = "BEGIN"
    lock_sql: ClassVar[str] = " FOR UPDATE"
    clock_sql: ClassVar[str] = "0"
    is_local: ClassVar[bool] = False
    """Whether this process writes the file itself: it has one writer, no replies to lose, and the machine's clock."""
    session_sql: ClassVar[str | None] = None
    """The SQL for what only one session of the server has; None where no pooler shares sessions among clients."""
    checkout: Checkout
    """The right to use the connection, while a thread does."""

    def __init__(self, wrapper: BaseDatabaseWrapper, options: ConnectionOptions) -> None:
        self.alias = wrapper.alias
        self.options = options
        self.driver: Any = wrapper.Database  # type: ignore[attr-defined]  # every wrapper has it
        self.error: type[Exception] = self.driver.Error
        self.log = CommitLog()
        self.opened_at = self.used_at = monotonic()
        try:
            wrapper.connect()
            self.raw: Any = wrapper.connection
            self.cursor: Any = self.raw.cursor()
            can_skip = wrapper.features.has_select_for_update_skip_locked
            self.skip_locked_sql = self.lock_sql + " SKIP LOCKED" if can_skip else self.lock_sql
            self.prepare()
        except BaseException:
            if wrapper.connection is not None:
                with suppress(self.error):
                    wrapper.connection.close()
            raise

    @classmethod
    @abstractmethod
    def configure(cls, wrapper: BaseDatabaseWrapper, options: ConnectionOptions) -> None:
        """Change the settings of a connection that is not open yet."""

    @staticmethod  # noqa: B027 - servers have no such callers
    def check_caller(alias: str) -> None:
        """Raise StoreBlocked where the store would wait for a transaction of its caller."""

    @abstractmethod
    def prepare(self) -> None:
        """Set the timeouts of the session."""

    @abstractmethod
    def failure(self, error: Exception) -> Failure:
        """Return the meaning of a driver's error."""

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Execute one statement, and return its rows."""
        self.cursor.execute(sql, values)
        return self.cursor.fetchall() if self.cursor.description else []

    def execute_all(self, batch: Sequence[Statement]) -> list[list[Any]]:
        """Execute statements in as few round trips as the driver can, and return the rows of each."""
        return [self.execute(sql, values) for sql, values in batch]

    def insert(self, table: str, columns: str, values: Sequence[object]) -> bool:
        """Create a row unless it exists, and return whether it is new."""
        self.execute(self.ignore_existing(insert_sql(table, columns)), values)
        return bool(self.cursor.rowcount)

    def ignore_existing(self, insert: str) -> str:
        """Return an INSERT that does nothing where the row exists."""
        return f"{insert} ON CONFLICT DO NOTHING"

    def time(self) -> int:
        """Return the time of the database in microseconds."""
        return int(self.execute(time_and_version_sql(self.clock_sql))[0][0])

    def commit(self, batch: Sequence[Statement] = ()) -> None:
        """Execute statements and commit."""
        self.execute_all([*batch, ("COMMIT", ())])

    def rollback(self) -> None:
        """End the transaction without effect."""
        self.execute("ROLLBACK")

    def is_alive(self) -> bool:
        """Return whether the connection works; ends the transaction."""
        try:
            self.rollback()
        except self.error:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        with suppress(self.error):
            self.raw.close()


class ConnectionPool:
    """The connections of one process to one of the site's databases: one for each thread in a transaction.

    There are at most MOST_CONNECTIONS; further threads wait for one. Connections that were not used for a minute are
    closed. Raises ImproperlyConfigured for an alias that is missing in DATABASES, or a database of another kind than
    `kinds`.
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
        self.fork_lock = RLock()
        self._limit = ConnectionLimit()
        self._idle: deque[StoreConnection] = deque()
        # Weak, so that a connection is closed when a signal handler raises before it is returned.
        self._busy: WeakSet[StoreConnection] = WeakSet()
        # Also those that a renewal has opened after the store was closed.
        finalize(self, _close_all, self._idle)
        around_fork(self)

    @property
    def turn(self) -> AbstractContextManager[object]:
        """Held in each transaction: where there is only one writer, one thread at a time has a transaction."""
        return self.fork_lock if self.kind.is_local else nullcontext()

    @property
    def is_busy(self) -> bool:
        """Whether a thread is in a transaction."""
        return len(self._busy) > 0

    def take(self) -> StoreConnection:
        """Return a connection for one transaction; StoreUnavailable when none can be opened or becomes free."""
        checkout = self._limit.check_out(self.options.reply_timeout)
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._open()
        except BaseException as error:
            if isinstance(error, StoreUnavailable):
                self._limit.silent()
            self._limit.check_in(checkout)
            raise
        connection.checkout = checkout
        self._busy.add(connection)
        return connection

    def give(self, connection: StoreConnection) -> None:
        """Return a connection that works, outside of a transaction."""
        self._limit.answered()
        checkout = self._end(connection)
        connection.used_at = now = monotonic()
        if not lasts(connection.opened_at, _MAX_AGE_SECONDS, now):
            connection.close()
        else:
            self._idle.append(connection)
        self._limit.check_in(checkout)
        with suppress(IndexError):  # another thread may take it
            if not lasts(self._idle[0].used_at, _IDLE_SECONDS, now):
                self._idle.popleft().close()

    def drop(self, connection: StoreConnection) -> None:
        """Close a connection that failed, and the idle ones, which have probably failed for the same reason."""
        checkout = self._end(connection)
        connection.close()
        self.close()
        self._limit.silent()
        self._limit.check_in(checkout)

    def pools_transactions(self) -> bool:
        """Return whether a pooler gives each transaction any of its connections, so that a session is nobody's.

        Then two connections have one session, or a connection has another one in its next transaction.
        """
        sql = self.kind.session_sql
        if sql is None:
            return False
        first, second = self.take(), self.take()
        try:
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
            for connection in (first, second):
                self.drop(connection)
        return False

    def close(self) -> None:
        """Close all idle connections."""
        _close_all(self._idle)

    def before_fork(self) -> None:
        """Acquire `fork_lock` and close idle connections, which no child may use."""
        self.fork_lock.acquire()
        self.close()

    def after_fork(self) -> None:
        """A child process opens its own connections."""
        _INHERITED.extend(self._busy)
        self._idle.clear()
        self._busy = WeakSet()
        self.fork_lock = RLock()

    def _end(self, connection: StoreConnection) -> Checkout:
        """Note that the thread uses the connection no more; return its right to use one."""
        self._busy.discard(connection)
        checkout = connection.checkout
        del connection.checkout
        return checkout

    def _open(self) -> StoreConnection:
        wrapper = connections[self.alias].copy()
        wrapper.settings_dict["AUTOCOMMIT"] = True
        self.kind.configure(wrapper, self.options)
        driver: Any = wrapper.Database  # type: ignore[attr-defined]  # every wrapper has it
        try:
            return self.kind(wrapper, self.options)
        except (Error, driver.Error) as error:
            raise StoreUnavailable(f"the database {self.alias!r} cannot be reached: {error}") from error


def _close_all(idle: deque[StoreConnection]) -> None:
    while idle:
        with suppress(IndexError):  # another thread may take it
            idle.pop().close()


@cache
def insert_sql(table: str, columns: str, rows: int = 1) -> str:
    """Return the SQL that inserts rows."""
    row = f"({marks(columns.count(',') + 1)})"
    return f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * rows)}"  # noqa: S608 - marks only


def namespace_id(digest: bytes) -> int:
    """Return the number of a namespace, which is given by its digest; rows are found by it."""
    return int.from_bytes(digest[:8]) >> 1 if digest else _WHOLE_SITE_ID


@lru_cache(maxsize=1024)
def time_and_version_sql(clock: str, namespace: str = "") -> str:
    """Return the SQL that reads the time of the database, in microseconds, and the version of the configuration."""
    row = namespace_id(namespace_digest(namespace))
    return f"SELECT {clock}, COALESCE((SELECT version FROM limits_app_version WHERE id = {row}), 0)"  # noqa: S608 - numbers


def marks(number: int) -> str:
    """Return so many placeholders."""
    return ", ".join(["%s"] * number)
