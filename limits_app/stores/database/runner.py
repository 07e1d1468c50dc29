"""Runs work in transactions: tried again after deadlocks and lost connections, with effect once.

After transactions that have added rows, idle rows are deleted, and once an hour old counts and commits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from threading import local
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final, TypeVar, cast

from limits_app.acquiring.backoff import RetryAlgorithm, delay, jittered
from limits_app.acquiring.runtime import on_fork
from limits_app.engine.clock import lasts
from limits_app.engine.counting import HOUR_US, KEPT_HOURS, hour_of
from limits_app.engine.errors import StaleConfiguration, StoreFull, StoreUnavailable
from limits_app.engine.record import Record
from limits_app.stores.database import commit_log
from limits_app.stores.database.commit_log import AlreadyCommittedError, Doubts
from limits_app.stores.database.connections import marks
from limits_app.stores.database.transaction import RowExistsError, Transaction
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, GRACE_US, is_idle

if TYPE_CHECKING:
    from limits_app.engine.clock import Clock
    from limits_app.engine.plan import Claim
    from limits_app.stores.database.connections import ConnectionPool
    from limits_app.stores.database.records import RecordTable

T = TypeVar("T")

Work = Callable[[Transaction], T]

_ATTEMPTS: Final = 20
_BETWEEN_STATEMENTS: Final = (AlreadyCommittedError, RowExistsError, StaleConfiguration, StoreUnavailable)
"""Errors that the store raises while its connection is not executing a statement."""
_FIRST_PAUSE: Final = 0.001
"""Seconds."""
_FORGET_COUNTS: Final = "DELETE FROM limits_app_count WHERE hour < %s"
_NEW_ROWS_PER_ROUND: Final = 16
_OLDEST_COUNTS: Final = "SELECT id FROM limits_app_count ORDER BY hour, id LIMIT %s"
_ROWS_THAT_GIVE_WAY: Final = 256
_SECONDS_BETWEEN_SEARCHES: Final = 0.1
"""In a full database."""


class _ThreadState(local):
    """Whether the thread is in a transaction, and what it does after it."""

    def __init__(self) -> None:
        self.is_running = False
        self.later: list[Callable[[], None]] = []


class TransactionRunner:
    """Runs the work of one store in this process, each time on a connection from the pool."""

    def __init__(self, pool: ConnectionPool, table: RecordTable, housekeeping: Housekeeping, clock: Clock) -> None:
        self._pool = pool
        self._table = table
        self._housekeeping = housekeeping
        self.clock = clock
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child process continues no transaction of its parent."""
        self._thread = _ThreadState()
        self.doubts = Doubts()

    def is_running(self) -> bool:
        """Whether the calling thread is in a transaction: the caller is a finalizer or a signal handler."""
        return self._thread.is_running

    def do_later(self, action: Callable[[], None]) -> None:
        """Call `action` after the transaction of the calling thread."""
        self._thread.later.append(action)

    def run(self, work: Work[T], claims: Sequence[Claim] = (), verb: str = "") -> T:
        """Return the result of `work`, called with a transaction.

        For `claims` the verb takes effect once, also when a reply is lost and the same verb is called again.
        Raises StoreUnavailable when it cannot be done, or when it is unknown whether it was done.
        """
        thread = self._thread
        if thread.is_running:
            raise StoreUnavailable("the store cannot be used within one of its transactions")
        if self._pool.is_busy:  # a thread that has to wait for the caller's transaction
            self._pool.kind.check_caller(self._pool.alias)
        try:
            thread.is_running = True
            with self._pool.turn:
                result = self._with_room(work, claims, verb)
        finally:
            thread.is_running = False
            while thread.later:
                thread.later.pop(0)()
        if self._housekeeping.is_due():
            with suppress(StoreUnavailable):  # it is due again with the next new rows
                self.run(self._housekeeping.clean)
        return result

    def _with_room(self, work: Work[T], claims: Sequence[Claim], verb: str) -> T:
        """Return the result of `work`, which is called again when the database was full and has made room."""
        try:
            return self._attempts(work, claims, verb)
        except StoreFull:
            if not self._attempts(self._housekeeping.make_room, (), ""):
                raise
        return self._attempts(work, claims, verb)

    def _attempts(self, work: Work[T], claims: Sequence[Claim], verb: str) -> T:
        failure: Exception | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            connection = self._pool.take()
            doubt = self.doubts.get((claims[0], verb)) if claims else None
            transaction = Transaction(connection, self._table, self.clock, doubt)
            try:
                result = work(transaction)
            except (connection.error, RowExistsError) as error:
                self._failed(transaction, error, claims, verb)
                failure = error
                pause = delay(attempt, first=_FIRST_PAUSE, algorithm=RetryAlgorithm.LINEAR)
                sleep(jittered(pause, below=pause))
                continue
            except BaseException as error:
                self._interrupted(transaction, error, claims, verb)
                if doubt is None or not isinstance(error, AlreadyCommittedError):
                    raise
                result = cast("T", doubt.result)
            else:
                self._pool.give(connection)
            if doubt is not None:
                for claim in claims:
                    self.doubts.pop((claim, verb), None)
            self._housekeeping.note(transaction)
            return result
        raise StoreUnavailable(
            f"the database {self._pool.alias!r} failed {_ATTEMPTS} times in a row: {failure}"
        ) from failure

    def _failed(self, transaction: Transaction, error: Exception, claims: Sequence[Claim], verb: str) -> None:
        """Handle an error of the driver; raise StoreUnavailable unless another attempt makes sense."""
        if isinstance(error, RowExistsError):
            self._interrupted(transaction, error, claims, verb)
            return
        connection, alias = transaction.connection, self._pool.alias
        failure = connection.failure(error)
        if failure.lost or not connection.is_alive():
            self._lost(transaction, claims, verb)
            if failure.silent:
                raise StoreUnavailable(f"the database {alias!r} does not reply: {error}") from error
            return
        self._pool.give(connection)
        if failure.full:
            raise StoreFull(f"the database {alias!r} has no space for more state: {error}") from error
        if not failure.transient:
            advice = f"; run `manage.py migrate --database {alias}`" if failure.unmigrated else ""
            if failure.pooled:
                advice = "; a pooler such as PgBouncer must pool sessions for the store, not transactions"
            reason = str(error).partition("\n")[0]  # the statement follows
            raise StoreUnavailable(f"the database {alias!r} failed: {reason}{advice}") from error

    def _interrupted(self, transaction: Transaction, error: BaseException, claims: Sequence[Claim], verb: str) -> None:
        """Roll back after an error of the store; after others the connection may be in the middle of a statement."""
        connection = transaction.connection
        if isinstance(error, _BETWEEN_STATEMENTS) and connection.is_alive():
            self._pool.give(connection)
        else:
            self._lost(transaction, claims, verb)

    def _lost(self, transaction: Transaction, claims: Sequence[Claim], verb: str) -> None:
        if transaction.in_doubt is not None:
            for claim in claims:
                self.doubts.add(claim, verb, transaction.in_doubt)
        self._pool.drop(transaction.connection)


class Housekeeping:
    """Goes through the table in the order of keys, two rows for each that is created, so that few rows are idle."""

    def __init__(self) -> None:
        self._new_rows = 0
        self._position = os.urandom(16)
        """Random, so that processes do not look at the same rows."""
        self._counted_hour = self._cleaned_hour = 0
        self._searched_at = -inf

    def note(self, transaction: Transaction) -> None:
        """Note the rows and counts that a transaction has added."""
        self._new_rows += transaction.added
        if transaction.counted:
            self._counted_hour = hour_of(transaction.now)

    def is_due(self) -> bool:
        """Whether there are enough new rows for a round, or counts of another hour than at the last one."""
        return self._new_rows >= _NEW_ROWS_PER_ROUND or self._counted_hour != self._cleaned_hour

    def clean(self, transaction: Transaction) -> None:
        """Delete the next rows that have been unused for a minute, and once an hour old counts and commits."""
        connection = transaction.connection
        now, clock = connection.time(), transaction.clock()
        if self._counted_hour != self._cleaned_hour:
            self._cleaned_hour = self._counted_hour
            connection.execute(_FORGET_COUNTS, (hour_of(clock) - KEPT_HOURS,))
            connection.execute(commit_log.FORGET_COMMITS, (now - commit_log.KEPT_US,))
        if self._new_rows:
            number, self._new_rows = self._new_rows * CHECKS_PER_NEW_SCOPE, 0
            rows = transaction.lock_next(self._position, number)
            self._position = rows[-1][0] if len(rows) == number else b""
            idle = [key for key, stored in rows if stored is None or _is_unused(stored.record, clock)]
            remove = f"DELETE FROM limits_app_state WHERE scope IN ({marks(len(idle))})"  # noqa: S608 - marks only
            # States that were written before the clock was set back are idle some time after they were moved.
            moved = [transaction.change(stored) for key, stored in rows if stored is not None and key not in idle]
            connection.commit([*filter(None, moved), *([(remove, idle)] if idle else [])])

    def make_room(self, transaction: Transaction) -> bool:
        """Delete the oldest counts, or where there are none the next idle rows; returns whether there were any."""
        connection = transaction.connection
        counts = [row[0] for row in connection.execute(_OLDEST_COUNTS, (_ROWS_THAT_GIVE_WAY,))]
        if counts:
            connection.execute(f"DELETE FROM limits_app_count WHERE id IN ({marks(len(counts))})", counts)  # noqa: S608
            return True
        if lasts(self._searched_at, _SECONDS_BETWEEN_SEARCHES, monotonic()):
            return False
        self._searched_at, clock = monotonic(), transaction.clock()
        deleted = 0
        for _ in range(2):  # the second time from the beginning, where there are few rows behind the position
            rows = transaction.lock_next(self._position, _ROWS_THAT_GIVE_WAY)
            self._position = rows[-1][0] if len(rows) == _ROWS_THAT_GIVE_WAY else b""
            idle = [key for key, stored in rows if stored is None or is_idle(stored.record, clock, grace_us=0)]
            remove = f"DELETE FROM limits_app_state WHERE scope IN ({marks(len(idle))})"  # noqa: S608 - marks only
            connection.commit([(remove, idle)] if idle else [])
            deleted += len(idle)
            if self._position:
                break
        return deleted > 0


def _is_unused(record: Record, now: int) -> bool:
    """Whether a row is idle, and has no usage that will still be collected."""
    until = 0 if record.usage is None else record.usage.until
    return is_idle(record, now) and (not until or until + KEPT_HOURS * HOUR_US + GRACE_US <= now)
