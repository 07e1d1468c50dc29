"""The database store: state in tables of one of the site's databases, for machines that share it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from os import urandom
from typing import Final

from limits_app import engine
from limits_app.acquiring import MOST_COLLECTORS, Renewer, WaitingLine, on_fork
from limits_app.engine import (
    ALL,
    HOLDER_LENGTH,
    LEASE_US,
    Amounts,
    Batch,
    Change,
    Changes,
    Claim,
    Clock,
    RejectionCounts,
    as_clock,
    is_token_holder,
    lease_us_of,
    new_record,
    short_key,
    slices_key,
    system_us,
)
from limits_app.engine.errors import NotShareable, StoreUnavailable
from limits_app.stores.database import counts, versions
from limits_app.stores.database.connections import ConnectionOptions, ThreadConnections
from limits_app.stores.database.housekeeping import RowHousekeeping
from limits_app.stores.database.records import RecordTable
from limits_app.stores.database.runner import TransactionRunner
from limits_app.stores.database.servers import MySQLConnection, PostgreSQLConnection
from limits_app.stores.database.sqlite import SQLiteConnection
from limits_app.stores.database.transaction import DatabaseClock, Transaction
from limits_app.stores.in_thread import AskedInThread, keep_unsettled
from limits_app.stores.steps import first_admitted, open_once

_KINDS: Final = {"postgresql": PostgreSQLConnection, "mysql": MySQLConnection, "sqlite": SQLiteConnection}
_POLL_US: Final = (5_000, 250_000)
_CLAIMS_PER_RENEWAL: Final = 100


class DatabaseStore(AskedInThread):
    """Keeps state in the site's database `using`, on its own connections.

    A request that is rolled back, by ATOMIC_REQUESTS for example, does not roll its counts back.
    `lock_timeout` and `connect_timeout` are how many seconds to wait for locks and for a new connection. The drivers
    connect in whole seconds: PostgreSQL's waits for two at least, MySQL's for one.
    `clock` returns microseconds, the same in all processes; without it, time is the database's.
    Open it with `open_database_store`, so that a process has one of a kind.
    Raises ImproperlyConfigured for an alias that is missing in DATABASES, and for an unsupported kind of database.
    """

    remote = True
    counting = True
    poll_us: tuple[int, int] | None = _POLL_US

    def __init__(
        self,
        using: str = "default",
        *,
        clock: Callable[[], int] | None = None,
        lock_timeout: float = 1.0,
        connect_timeout: float = 0.2,
        lease_seconds: float = LEASE_US / 1e6,
    ) -> None:
        self.lease_us = lease_us_of(lease_seconds)
        options = {"lock_timeout": lock_timeout, "connect_timeout": connect_timeout, "lease_seconds": lease_seconds}
        self._open_again = None if clock is not None else partial(open_database_store, using, **options)
        self._connections = ThreadConnections(using, ConnectionOptions(lock_timeout, connect_timeout), _KINDS)
        self._runner = TransactionRunner(
            self._connections, RecordTable(), RowHousekeeping(), self._clock(clock), settle=self._settle_after_step
        )
        self.clock = self._runner.clock
        self.collectors = 1 if self._connections.kind.is_local else MOST_COLLECTORS
        self.line = WaitingLine()
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Choose a random number for this process, to which the number of a claim is added for its holder in leases."""
        self._first_holder = int.from_bytes(urandom(8))
        self._rounds = counts.CollectorRounds()

    def __reduce__(self) -> tuple[object, ...]:
        if self._open_again is None:
            raise NotShareable("a store with its own clock cannot be sent to another process: leave clock= out")
        return self._open_again, ()

    def __repr__(self) -> str:
        return f"DatabaseStore({self._connections.alias!r})"

    def acquire(self, claim: Claim) -> bool:
        return self.acquire_first((claim,)) is not None

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        if not claims:
            return None
        charge = partial(self._charge_first, claims, emptiest_first, failover)
        try:
            return self._runner.run(charge)
        except BaseException:
            for claim in claims:
                claim.admitted = None
            raise

    def settle(self, claim: Claim, changes: Amounts) -> None:
        if self._runner.is_running():  # called by a finalizer or a signal handler
            self._runner.settle_later(claim, changes)
            return
        if claim.settled:
            return
        kept_leases = True
        try:
            kept_leases = self._runner.run(partial(self._settle, claim, changes))
        finally:  # also after an interruption, which may have come when the claim was settled
            if self.line.busy:
                self.line.notify(claim.plan.scope_keys)
        if not kept_leases:
            claim.lose_lease()

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        lost: list[Claim] = []
        for start in range(0, len(claims), _CLAIMS_PER_RENEWAL):
            lost += self._runner.run(partial(self._renew, claims[start : start + _CLAIMS_PER_RENEWAL]))
        return lost

    def peek(self, claim: Claim) -> None:
        self._runner.run(partial(_peek, claim))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:

        slices = {short_key(scope): short_key(slices_key(scope)) for scope in scopes}

        def forget(transaction: Transaction) -> None:
            records = {stored.key: stored.record for stored in transaction.lock_rows({*slices, *slices.values()})}
            for key, record in records.items():
                if key in slices:
                    engine.reset(record, keys, transaction.now, records.get(slices[key]))
            transaction.save()

        self._runner.run(forget)
        self.line.notify(scopes)

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        counts.add_rejections(self._runner, rejections, namespace)

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:
        return counts.collect(self._runner, self._rounds, namespace, collector)

    def forget_counts(self, name: str, namespace: str = "") -> None:  # noqa: ARG002 - the name of a batch is unique
        counts.forget(self._runner, name)

    def version(self, namespace: str = "") -> int:
        return self._runner.run(partial(versions.version, namespace))

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        version = self._runner.run(partial(versions.advance, changes, namespace))
        self.line.notify_all()
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        return self._runner.run(partial(versions.read, namespace)).since(version)

    def pools_transactions(self) -> bool:
        """Return whether a pooler such as PgBouncer gives each transaction any of its connections.

        Then statements that were prepared, and timeouts that were set, are those of other clients.
        """
        return self._connections.pools_transactions()

    def close(self) -> None:
        """Close the connection of the calling thread; a store that is used again opens a new one."""
        self._connections.close()

    def _clock(self, clock: Callable[[], int] | None) -> Clock:
        if clock is not None:
            return as_clock(clock)
        if self._connections.kind.is_local:
            return Clock(system_us)
        return DatabaseClock(lambda: self._runner.run(Transaction.server_time))

    def _charge_first(
        self, claims: Sequence[Claim], emptiest_first: bool, failover: bool, transaction: Transaction
    ) -> Claim | None:
        transaction.lock([claim.plan for claim in claims])

        def charge(claim: Claim) -> bool:
            if not is_token_holder(claim.holder):
                claim.holder = ((self._first_holder + claim.number) % 2**64).to_bytes(HOLDER_LENGTH, "little")
            return engine.charge(claim, transaction.records(claim.plan), transaction.now)

        def peek(claims: Sequence[Claim]) -> None:
            for claim in claims:
                engine.peek(claim, transaction.records(claim.plan), transaction.now)

        for claim in claims:
            transaction.check(claim)
            claim.admitted = None
        chosen = first_admitted(claims, charge, peek, emptiest_first=emptiest_first, failover=failover)
        transaction.save()
        return chosen

    def _settle(self, claim: Claim, changes: Amounts, transaction: Transaction) -> bool:
        transaction.lock([claim.plan])
        if claim.settled:  # by another thread, while this one waited for the rows
            return True
        records = transaction.records(claim.plan, migrated=False)
        kept_leases = engine.settle(claim, records, transaction.now, changes)
        has_changes = transaction.write()
        claim.settled = True
        try:
            if has_changes:
                transaction.commit()
        except transaction.connection.error as error:
            claim.unanswered = claim.unanswered or transaction.is_lost(error)
            claim.settled = False
            raise
        return kept_leases

    def _settle_after_step(self, claim: Claim, changes: Amounts) -> None:
        try:
            self.settle(claim, changes)
        except StoreUnavailable as error:
            keep_unsettled(self, claim, changes, error)

    def _renew(self, claims: Sequence[Claim], transaction: Transaction) -> list[Claim]:
        keys = {claim.plan.short_keys()[limit.scope_index] for claim in claims for limit in claim.shape.permits}
        records = {stored.key: stored.record for stored in transaction.lock_rows(keys)}
        lost = []
        for claim in claims:
            claimed = [
                records.get(key) or new_record(schema)
                for key, schema in zip(claim.plan.short_keys(), claim.shape.schemas, strict=True)
            ]
            if not engine.renew(claim, claimed, transaction.now):
                lost.append(claim)
        transaction.save()
        return lost


def _peek(claim: Claim, transaction: Transaction) -> None:
    engine.peek(claim, transaction.read(claim), transaction.now)


def open_database_store(
    using: str = "default",
    *,
    lock_timeout: float = 1.0,
    connect_timeout: float = 0.2,
    lease_seconds: float = LEASE_US / 1e6,
) -> DatabaseStore:
    """Return the store in a database; the same object whenever it is opened with the same options."""

    def make() -> DatabaseStore:
        return DatabaseStore(
            using, lock_timeout=lock_timeout, connect_timeout=connect_timeout, lease_seconds=lease_seconds
        )

    return open_once(("database", using, lock_timeout, connect_timeout, lease_seconds), make)
