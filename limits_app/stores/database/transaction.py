"""One transaction of the store: it locks the rows of scopes, reads them as records, and saves the changed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from limits_app import engine
from limits_app.engine import Clock, namespace_digest, new_record
from limits_app.engine.errors import StaleConfiguration
from limits_app.stores.database.connections import insert_sql, namespace_id
from limits_app.stores.database.records import (
    COLUMNS,
    COUNT,
    COUNT_COLUMNS,
    NEXT_ROWS,
    ROW,
    RecordTable,
    StoredRecord,
    change_rows,
    next_counting_sql,
    rows_sql,
)
from limits_app.stores.database.versions import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from limits_app.engine import Claim, Record, RequestPlan
    from limits_app.stores.database.connections import StoreConnection

_DRIFT: Final = 1024
"""A machine's clock may be faster than the server's by one part in so many, and still give no later time."""
_IF_CURRENT: Final = f" AND {VERSION} = %s"


class DatabaseClock(Clock):
    """The last known time of the server, and the time that has passed here since; never ahead of the server."""

    def __init__(self, read: Callable[[], int]) -> None:
        super().__init__(read)
        self._known: tuple[int, int] | None = None

    def __call__(self) -> int:
        """Return the time in microseconds; reads the server's when it is not known yet."""
        reading = self._known
        if reading is None:
            reading = self.set(super().__call__())
        server, here = reading
        passed = max(monotonic_ns() // 1000 - here, 0)
        return server + passed - passed // _DRIFT

    def set(self, now: int) -> tuple[int, int]:
        """Note what time it was on the server just now; returns that, and the time here."""
        self._known = reading = now, monotonic_ns() // 1000
        return reading


class RowExistsError(Exception):
    """Another process has created a row meanwhile: the rows have to be locked again."""


class Transaction:
    """One attempt to do some work, on one connection; rolled back unless the work commits it.

    `now` (microseconds) and `version` are those of the store once rows are locked or read. `added` is how many rows
    were created, `counted` whether counts were added.
    """

    def __init__(self, connection: StoreConnection, table: RecordTable, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock
        self.now = 0
        self.version = 0
        self.added = 0
        self.counted = False
        self.is_open = False
        """Whether it has begun, and not ended."""
        self.is_committing = False
        """Whether it waits for the reply to its COMMIT: then it may have taken effect."""
        self._table = table
        self._namespace_id = 0
        """Whose version is read."""
        self._checked_version: int | None = None
        """The version that must be current while rows are saved."""
        self._stored: dict[bytes, StoredRecord] = {}
        self._unreadable: set[bytes] = set()

    def begin(self) -> None:
        """Begin the transaction; each statement before that is a transaction."""
        self.is_open = True
        self.connection.execute(self.connection.begin_sql)

    def commit(self) -> None:
        """Commit the transaction."""
        self.is_committing = True
        self.connection.execute("COMMIT")
        self.is_committing = self.is_open = False

    def is_lost(self, error: Exception) -> bool:
        """Return whether it may have taken effect although the driver has raised an error."""
        failure = self.connection.failure(error)
        return self.is_committing and failure.lost and not failure.transient

    def server_time(self) -> int:
        """Return the time of the database in microseconds."""
        return int(self.connection.execute(f"SELECT {self.connection.clock_sql}")[0][0])

    def lock(self, plans: Sequence[RequestPlan]) -> None:
        """Begin, and lock the scopes of some plans."""
        for plan in plans:
            for schema in plan.shape.schemas:
                self._table.define(self.connection, schema)
        self.begin()
        self._load({key for plan in plans for key in plan.short_keys()}, self.connection.lock_sql, plans[0].namespace)

    def check(self, claim: Claim) -> None:
        """Raise StaleConfiguration for a claim of another version.

        A server has read the version before it waited for locks, so that it is compared again when rows are saved.
        """
        if claim.version is not None and claim.version != self.version:
            raise StaleConfiguration
        if not self.connection.is_local:
            self._checked_version = claim.version

    def records(self, plan: RequestPlan, *, migrated: bool = True) -> list[Record]:
        """Return the records of a plan's scopes, `migrated` to its schemas or those that they were written under."""
        records = []
        for key, scope, schema in zip(plan.short_keys(), plan.scopes, plan.shape.schemas, strict=True):
            stored = self._stored.get(key)
            if stored is None:
                is_new = key not in self._unreadable
                stored = self._stored[key] = StoredRecord(key, new_record(schema), None, is_new=is_new)
                stored.record.changed = not is_new
            elif migrated and stored.record.schema is not schema:
                stored.record = engine.carry_over(stored.record, schema, self.now)
            stored.scope = scope
            records.append(stored.record)
        return records

    def lock_rows(self, keys: Iterable[bytes]) -> list[StoredRecord]:
        """Begin, and lock the rows that some scopes have."""
        self.begin()
        self._load(keys, self.connection.lock_sql)
        return list(self._stored.values())

    def lock_next(self, key: bytes, number: int) -> list[tuple[bytes, StoredRecord | None]]:
        """Begin, and lock the next rows in the order of keys, but for locked ones; None for unreadable ones."""
        self.begin()
        rows = self.connection.execute(NEXT_ROWS + self.connection.skip_locked_sql, (key, number))
        return [(bytes(row[0]), self._table.read(self.connection, row)) for row in rows]

    def lock_counting(
        self, namespace: int, places: tuple[int, int], number: int
    ) -> tuple[dict[bytes, int], list[StoredRecord]]:
        """Begin, and lock the next rows of a namespace that count, but for locked ones.

        Returns the place of each, and those that can be read. They are after the first of the `places`, up to the
        second one; `namespace` is its number.
        """
        self.begin()
        connection = self.connection
        columns = f"scope, states, logs, kept, {connection.clock_sql}, counting, label"
        sql = next_counting_sql(columns, connection.by_place_sql) + connection.skip_locked_sql
        rows = connection.execute(sql, (namespace, *places, number))
        if rows:
            self._set_time(max([int(row[COLUMNS]) for row in rows]))
        self._keep(rows)
        for key, *_, label in rows:
            if (stored := self._stored.get(bytes(key))) is not None:
                stored.label = bytes(label), namespace
        return {bytes(row[0]): int(row[COLUMNS + 1]) for row in rows}, list(self._stored.values())

    def read(self, claim: Claim) -> list[Record]:
        """Return the records of a claim's scopes, as they are at one moment, without a lock."""
        self._load(claim.plan.short_keys(), "", claim.plan.namespace)
        self.check(claim)
        return self.records(claim.plan)

    def write(self) -> bool:
        """Write the records that have changed, and return whether there are any.

        Raises RowExistsError when another process has created one of the rows meanwhile, and StaleConfiguration when
        the version has changed since the rows were locked.
        """
        changed = sorted([stored for stored in self._stored.values() if stored.record.changed], key=_key)
        self.change(changed)
        counts = [value for stored in changed for value in stored.counts()]
        if counts:
            self.connection.execute(insert_sql(*COUNT, rows=len(counts) // COUNT_COLUMNS), counts)
            self.counted = True
        return bool(changed)

    def save(self) -> None:
        """Write the records that have changed, and commit."""
        if self.write():
            self.commit()

    def change(self, changed: Iterable[StoredRecord]) -> None:
        """Write records that have changed: rows that change in the same columns by one statement."""
        together = dict[tuple[tuple[str, bool], ...], list[tuple[bytes, dict[str, object]]]]()
        for stored in changed:
            codec = self._table.codec(stored.record)
            if stored.is_new:
                if not self.connection.insert(*ROW, stored.new_row(codec)):
                    raise RowExistsError
                self.added += 1
            else:
                changes = stored.changes(codec)
                columns = tuple([(column, value is None) for column, value in changes.items()])
                together.setdefault(columns, []).append((stored.key, changes))
        for rows in together.values():
            self._update(*change_rows(*zip(*rows, strict=True)))

    def _update(self, sql: str, values: Sequence[object]) -> None:
        connection = self.connection
        if self._checked_version is None:
            connection.execute(sql, values)
            return
        connection.execute(sql + _IF_CURRENT, (*values, self._namespace_id, self._checked_version))
        if not connection.cursor.rowcount:
            raise StaleConfiguration
        self._checked_version = None  # all rows are locked, so that one comparison is enough

    def _load(self, keys: Iterable[bytes], lock_sql: str, namespace: str = "") -> None:
        """Read the rows of some scopes, and lock them; and the time and the version."""
        connection, rows, in_order = self.connection, [], sorted(keys)
        self._namespace_id = _namespace_id(namespace)
        read = f"{connection.clock_sql}, {VERSION}"
        if in_order:
            rows = connection.execute(rows_sql(len(in_order), read) + lock_sql, (self._namespace_id, *in_order))
        times = [row[COLUMNS:] for row in rows] or connection.execute(f"SELECT {read}", (self._namespace_id,))
        # A row is read again after a wait for its lock: the latest time is that of the last lock.
        now, self.version = max([int(row[0]) for row in times]), int(times[0][1])
        self._set_time(now)
        self._keep(rows)

    def _set_time(self, now: int) -> None:
        """Set the time, which is that of the server, or of another clock."""
        if isinstance(self.clock, DatabaseClock):
            self.clock.set(now)
            self.now = now
        else:
            self.now = self.clock()

    def _keep(self, rows: Iterable[Sequence[Any]]) -> None:
        self._stored.clear()
        self._unreadable.clear()
        for row in rows:
            stored = self._table.read(self.connection, row)
            if stored is None:
                self._unreadable.add(bytes(row[0]))
            else:
                self._stored[stored.key] = stored


@lru_cache(maxsize=1024)
def _namespace_id(namespace: str) -> int:
    return namespace_id(namespace_digest(namespace))


def _key(stored: StoredRecord) -> bytes:
    return stored.key
