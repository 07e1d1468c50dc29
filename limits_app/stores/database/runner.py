"""Runs work in transactions: again after deadlocks and lost connections, but never after a COMMIT without a reply."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import local
from time import sleep
from typing import TYPE_CHECKING, Final, TypeVar

from limits_app.acquiring import RetryAlgorithm, delay, jittered, on_fork
from limits_app.engine.errors import StaleConfiguration, StoreFull, StoreUnavailable
from limits_app.stores.database.transaction import RowExistsError, Transaction
from limits_app.stores.steps import InStep, LateReleases

if TYPE_CHECKING:
    from limits_app.engine import Amounts, Claim, Clock
    from limits_app.stores.database.connections import ThreadConnections
    from limits_app.stores.database.housekeeping import RowHousekeeping
    from limits_app.stores.database.records import RecordTable

T = TypeVar("T")

Work = Callable[[Transaction], T]

_ATTEMPTS: Final = 20
_FIRST_PAUSE: Final = 0.001
"""Seconds."""


class _RepeatError(Exception):
    """The transaction had no effect, and may succeed now."""


class _ThreadState(local):
    """Whether the thread is in a step."""

    is_running = False


class TransactionRunner:
    """Runs the work of one store in this process, each time on the connection of the calling thread.

    A finalizer or a signal handler may call the store within a step of its thread. `settle` is then called after it.
    `pause` is called with the seconds between two attempts.
    """

    def __init__(
        self,
        connections: ThreadConnections,
        table: RecordTable,
        housekeeping: RowHousekeeping,
        clock: Clock,
        *,
        settle: Callable[[Claim, Amounts], object],
        pause: Callable[[float], object] = sleep,
    ) -> None:
        self._connections = connections
        self._table = table
        self._housekeeping = housekeeping
        self.clock = clock
        self._settle = settle
        self._pause = pause
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child process continues no transaction of its parent, and settles nothing for it."""
        self._thread = _ThreadState()
        self._late = LateReleases(self._settle)
        self.has_turn = False
        """Whether a thread is in a step in a file, which has one writer."""

    def is_running(self) -> bool:
        """Whether the calling thread is in a step: the caller is a finalizer or a signal handler."""
        return self._thread.is_running

    def settle_later(self, claim: Claim, changes: Amounts) -> None:
        """Settle a claim after the step of the calling thread."""
        self._late.waiting.append((claim, changes))

    def run(self, work: Work[T]) -> T:
        """Return the result of `work`, called with a transaction.

        Raises StoreUnavailable when it cannot be done, or when it is unknown whether it was done.
        """
        thread, connections = self._thread, self._connections
        if thread.is_running:
            raise InStep
        if self.has_turn:  # a thread that has to wait for the caller's transaction
            connections.kind.check_caller(connections.alias)
        try:
            thread.is_running = True
            with self._turn():
                result = self._with_room(work)
        finally:
            thread.is_running = False
            if self._late.waiting:
                self._late.settle_all()
        if self._housekeeping.is_due():
            with suppress(StoreUnavailable):  # it is due again with the next new rows
                self.run(self._housekeeping.clean)
        return result

    def _turn(self) -> AbstractContextManager[object]:
        return self._connections.fork_lock if self._connections.kind.is_local else nullcontext()

    def _with_room(self, work: Work[T]) -> T:
        """Return the result of `work`, which is called again when the database was full and has made room."""
        try:
            self.has_turn = self._connections.kind.is_local
            try:
                return self._attempts(work)
            except StoreFull:
                if not self._attempts(self._housekeeping.make_room):
                    raise
            return self._attempts(work)
        finally:
            self.has_turn = False

    def _attempts(self, work: Work[T]) -> T:
        failure: BaseException | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(work)
            except _RepeatError as error:
                failure = error.__cause__
            pause = delay(attempt, first=_FIRST_PAUSE, algorithm=RetryAlgorithm.LINEAR)
            self._pause(jittered(pause, below=pause))
        raise StoreUnavailable(
            f"the database {self._connections.alias!r} failed {_ATTEMPTS} times in a row: {failure}"
        ) from failure

    def _attempt(self, work: Work[T]) -> T:
        """Call `work` once. Its transaction has ended afterwards, whatever is raised."""
        connection = self._connections.current()
        transaction = Transaction(connection, self._table, self.clock)
        try:
            connection.is_clean = False
            result = work(transaction)
            self._end(transaction)
        except connection.error as error:
            self._explain(transaction, error)
            raise _RepeatError from error
        except (RowExistsError, StaleConfiguration, StoreUnavailable) as error:  # none comes within a statement
            self._try_to_end(transaction)
            if isinstance(error, RowExistsError):
                raise _RepeatError from error
            raise
        finally:
            if not connection.is_clean:
                connection.close()
        self._housekeeping.note(transaction)
        return result

    def _end(self, transaction: Transaction) -> None:
        """Roll back a transaction that was not committed."""
        if transaction.is_open:
            transaction.connection.rollback()
        transaction.connection.is_clean = True

    def _try_to_end(self, transaction: Transaction) -> None:
        with suppress(transaction.connection.error):  # then the connection is closed
            self._end(transaction)

    def _explain(self, transaction: Transaction, error: Exception) -> None:
        """Raise StoreUnavailable for an error of the driver, unless another attempt makes sense."""
        connection, alias = transaction.connection, self._connections.alias
        failure = connection.failure(error)
        if failure.lost:
            if failure.silent:
                raise StoreUnavailable(f"the database {alias!r} does not reply: {error}") from error
            if transaction.is_lost(error):
                raise StoreUnavailable(
                    f"the database {alias!r} did not reply to a COMMIT, which may have taken effect: {error}"
                ) from error
            return
        self._try_to_end(transaction)
        if failure.full:
            raise StoreFull(f"the database {alias!r} has no space for more state: {error}") from error
        if connection.is_clean and not failure.transient:
            advice = f"; run `manage.py migrate --database {alias}`" if failure.unmigrated else ""
            if failure.pooled:
                advice = "; a pooler such as PgBouncer must pool sessions for the store, not transactions"
            reason = str(error).partition("\n")[0]  # the statement follows
            raise StoreUnavailable(f"the database {alias!r} failed: {reason}{advice}") from error
