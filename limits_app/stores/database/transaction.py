"""One transaction of the store: it locks the rows of scopes, reads them as records, and saves the changed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from limits_app.engine import engine
from limits_app.engine.clock import Clock
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.record import new_record
from limits_app.stores.database.commit_log import AlreadyCommittedError, Doubt, was_committed
from limits_app.stores.database.connections import insert_sql, time_and_version_sql
from limits_app.stores.database.records import COUNT, COUNT_COLUMNS, NEXT_ROWS, ROW, RecordTable, StoredRecord, rows_sql

if TYPE_CHECKING:
    from collections.abc import Callable

    from limits_app.engine.plan import Claim, Plan
    from limits_app.engine.record import Record
    from limits_app.stores.database.connections import Statement, StoreConnection

_DRIFT: Final = 1024
"""A machine's clock may be faster than the server's by one part in so many, and still give no later time."""


class ServerClock(Clock):
    """The last known time of the server, and the time that has passed here since; never ahead of the server."""

    def __init__(self, read: Callable[[], int]) -> None:
        super().__init__(read)
        self._known: tuple[int, int] | None = None

    def __call__(self) -> int:
        """Return the time in microseconds; reads the server's when it is not known yet."""
        known = self._known
        if known is None:
            known = self.set(super().__call__())
        server, here = known
        passed = max(monotonic_ns() // 1000 - here, 0)
        return server + passed - passed // _DRIFT

    def set(self, now: int) -> tuple[int, int]:
        """Note what time it was on the server just now; returns that, and the time here."""
        self._known = known = now, monotonic_ns() // 1000
        return known


class RowExistsError(Exception):
    """Another process has created a row meanwhile: the rows have to be locked again."""


class Transaction:
    """One attempt to do some work, on one connection.

    `now` (microseconds) and `version` are those of the store once rows are locked or read. `added` is how many rows
    were created, `counted` whether counts were added. `in_doubt` is set while a commit has no reply,
    `is_committed` once a server has replied.
    """

    def __init__(
        self, connection: StoreConnection, table: RecordTable, clock: Clock, doubt: Doubt | None = None
    ) -> None:
        self.connection = connection
        self.clock = clock
        self.now = 0
        self.version = 0
        self.added = 0
        self.counted = False
        self.in_doubt: Doubt | None = None
        self.is_committed = False
        self._table = table
        self._doubt = doubt
        self._server_now = 0
        self._namespace = ""
        """Whose version is read."""
        self._stored: dict[bytes, StoredRecord] = {}
        self._unreadable: set[bytes] = set()

    def lock(self, plans: Sequence[Plan]) -> None:
        """Begin, and lock the scopes of some plans.

        Raises AlreadyCommittedError when an earlier attempt took effect.
        """
        for plan in plans:
            for schema in plan.shape.schemas:
                self._table.define(self.connection, schema)
        self._namespace = plans[0].namespace
        self._begin({key for plan in plans for key in plan.short_keys()}, self.connection.lock_sql)
        if self._doubt is not None and was_committed(self.connection, self._doubt.commit):
            raise AlreadyCommittedError

    def check(self, claim: Claim) -> None:
        """Raise StaleConfiguration for a claim of another version."""
        if claim.version is not None and claim.version != self.version:
            raise StaleConfiguration

    def records(self, plan: Plan, *, migrated: bool = True) -> list[Record]:
        """Return the records of a plan's scopes, `migrated` to its schemas or under those that they were written under.

        Where an earlier attempt may still be about to create rows, they are created here too, so that one waits.
        """
        found = []
        for key, scope, schema in zip(plan.short_keys(), plan.scopes, plan.shape.schemas, strict=True):
            stored = self._stored.get(key)
            if stored is None:
                is_new = key not in self._unreadable
                stored = self._stored[key] = StoredRecord(key, new_record(schema), None, is_new=is_new)
                stored.record.changed = self._doubt is not None or not is_new
            elif migrated and stored.record.schema is not schema:
                stored.record = engine.migrate(stored.record, schema, self.now)
            stored.scope = scope
            found.append(stored.record)
        return found

    def lock_rows(self, keys: Iterable[bytes], *, skip_locked: bool = False) -> list[StoredRecord]:
        """Begin, and lock the rows that some scopes have; with `skip_locked` without those that are locked."""
        self._begin(keys, self.connection.skip_locked_sql if skip_locked else self.connection.lock_sql)
        return list(self._stored.values())

    def lock_next(self, key: bytes, number: int) -> list[tuple[bytes, StoredRecord | None]]:
        """Begin, and lock the next rows in the order of keys, but for locked ones; None for unreadable ones."""
        connection = self.connection
        batch = [(connection.begin_sql, ()), (NEXT_ROWS + connection.skip_locked_sql, (key, number))]
        return [(bytes(row[0]), self._table.read(connection, row)) for row in connection.execute_all(batch)[-1]]

    def change(self, stored: StoredRecord) -> Statement | None:
        """Return the statement that saves a record; None where it has not changed."""
        return stored.change(self._table.codec(stored.record)) if stored.record.changed else None

    def read(self, claim: Claim) -> list[Record]:
        """Return the records of a claim's scopes, as they are at one moment, without a lock."""
        self._namespace = claim.plan.namespace
        self._load([], claim.plan.short_keys(), "")
        self.check(claim)
        return self.records(claim.plan)

    def save(self, result: object = None) -> None:
        """Save the records that have changed, and commit; `result` is that of the work.

        Raises RowExistsError, with nothing saved, when another process has created one of the rows meanwhile.
        """
        connection, added = self.connection, 0
        batch: list[Statement] = []
        counts: list[object] = []
        changed = sorted([stored for stored in self._stored.values() if stored.record.changed], key=_key)
        if not changed:
            connection.rollback()
            return
        for stored in changed:
            codec = self._table.codec(stored.record)
            if not stored.is_new:
                batch.append(stored.change(codec))
            elif connection.insert(*ROW, stored.new_row(codec)):
                added += 1
            else:
                raise RowExistsError
            counts += stored.counts()
        if counts:
            batch.append((insert_sql(*COUNT, rows=len(counts) // COUNT_COLUMNS), counts))
        self._commit(batch, result)
        self.added += added
        self.counted = self.counted or bool(counts)

    def has_committed(self, error: BaseException) -> bool:
        """Return whether `save` took effect although it raised: a signal handler may raise after the commit."""
        connection = self.connection
        if connection.is_local:
            return not isinstance(error, (connection.error, RowExistsError)) and not connection.raw.in_transaction
        return self.is_committed

    def _begin(self, keys: Iterable[bytes], lock_sql: str) -> None:
        self._load([(self.connection.begin_sql, ())], sorted(keys), lock_sql)

    def _load(self, batch: list[Statement], keys: Sequence[bytes], lock_sql: str) -> None:
        """Execute statements, and read the rows of some scopes, the time and the version."""
        if keys:
            batch.append((rows_sql(len(keys)) + lock_sql, keys))
        batch.append((time_and_version_sql(self.connection.clock_sql, self._namespace), ()))
        results: list[list[Any]] = self.connection.execute_all(batch)
        self._server_now, self.version = map(int, results[-1][0])
        self.now = self._server_now if isinstance(self.clock, ServerClock) else self.clock()
        if isinstance(self.clock, ServerClock):
            self.clock.set(self._server_now)
        self._stored.clear()
        self._unreadable.clear()
        for row in results[-2] if keys else ():
            stored = self._table.read(self.connection, row)
            if stored is None:
                self._unreadable.add(bytes(row[0]))
            else:
                self._stored[stored.key] = stored

    def _commit(self, batch: list[Statement], result: object) -> None:
        connection = self.connection
        if connection.is_local:
            connection.commit(batch)
            return
        commit, statement = connection.log.next_commit(self._server_now)
        self.in_doubt = Doubt(commit, result)
        connection.commit([*batch, statement])
        self.is_committed = True
        self.in_doubt = None
        connection.log.committed()


def _key(stored: StoredRecord) -> bytes:
    return stored.key
