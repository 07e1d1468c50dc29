"""The memory store: records in a dictionary under one lock, for tests and for sites with one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import TypeVar

from limits_app.acquiring.leases import Renewer
from limits_app.acquiring.runtime import AtFork
from limits_app.acquiring.waiting import WaitingLine
from limits_app.engine import engine, mypyc_attr
from limits_app.engine.algorithms import State
from limits_app.engine.changes import ALL, Change, ChangeLog, Changes
from limits_app.engine.clock import as_clock, system_us
from limits_app.engine.counting import Batch
from limits_app.engine.errors import NotShareable, StaleConfiguration
from limits_app.engine.keys import Scope, slices_key
from limits_app.engine.plan import Amounts, Claim, Plan
from limits_app.engine.record import (
    LEASE_US,
    FinishedUsage,
    HourlyUsage,
    KeptUse,
    Lease,
    LeaseId,
    Record,
    Schema,
    lease_us_of,
    new_record,
)
from limits_app.stores.steps import CHECKS_PER_NEW_SCOPE, InStep, acquire_patiently, first_admitted, is_idle
from limits_app.stores.usage_counts import UsageCounts

R = TypeVar("R")

_Before = tuple[Record, list[State], tuple[FinishedUsage, ...], KeptUse, HourlyUsage | None, list[int] | None]
"""A record, and what it held before a step, as far as a step changes it."""

_HeldLease = tuple[MutableMapping[LeaseId, Lease], LeaseId, Lease | None]
"""The leases of a record, the identifier of one of them, and this lease; None where there is none."""


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryStore:
    """Keeps state in this process; `clock` is a callable that returns microseconds (default: the system's clock).

    Idle scopes are removed while new ones are added, so that memory is bounded by the scopes that are active.
    A step reads or changes records under the lock. A finalizer or a signal handler may call the store within a step of
    the same thread: `settle` is then done after the step, and verbs that read or change records raise StoreUnavailable.
    """

    remote = False
    counting = True
    poll_us: tuple[int, int] | None = None

    def __init__(self, *, clock: Callable[[], int] = system_us, lease_seconds: float = LEASE_US / 1e6) -> None:
        self.clock = as_clock(clock)
        self.lease_us = lease_us_of(lease_seconds)
        self.line = WaitingLine()
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self._now = clock
        self._logs: dict[str, ChangeLog] = {}
        """The version with the log of changes, by namespace."""
        self._unchanged = ChangeLog()
        """That of all other namespaces."""
        self._records: dict[str, Record] = {}
        self._to_check: deque[str] = deque()
        """All scopes, in the order in which they are next checked for being idle."""
        self._counts = UsageCounts()
        self._deferred: deque[Callable[[], None]] = deque()
        self.after_fork()
        self._at_fork = AtFork(self.after_fork)

    def after_fork(self) -> None:
        """Continue in a child process with a copy of the state, and with a new lock."""
        self._lock = RLock()
        self._in_step = False
        self._unsaved = False
        """Whether a step uses records that are not stored yet, because they are new or migrated."""

    def __reduce__(self) -> tuple[object, ...]:
        raise NotShareable(
            "a limit set in memory cannot be sent to another process: "
            "make it with shared=True, mode='process' (or another store that processes share)"
        )

    def __len__(self) -> int:
        """Return how many scopes have state, and how many leases are held."""
        return len(self._records) + sum([len(record.leases) for record in self._records.values()])

    def acquire(self, claim: Claim) -> bool:
        return self._step(engine.charge, claim, is_new=True)

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        # The lock is held all the time, so that no other thread charges in between.
        with self._lock:
            return first_admitted(claims, self.acquire, self.peek, emptiest_first=emptiest_first, failover=failover)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        if claim.settled:
            return
        kept_leases = True
        try:
            kept_leases = self._step(partial(_settle_once, changes), claim, is_new=False)
        except InStep:
            self._deferred.append(partial(self.settle, claim, changes))
        finally:  # also after an interruption, which may have come when the claim was settled
            if self.line.busy:
                self.line.notify(claim.plan.scope_keys)
        if not kept_leases:
            claim.lose_lease()

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        return [claim for claim in claims if not self._step(engine.renew, claim, is_new=False)]

    def peek(self, claim: Claim) -> None:
        self._step(engine.peek, claim, is_new=True, saves=False)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        with self._exclusive_step():
            for scope in scopes:
                record = self._records.get(scope)
                if record is not None:
                    engine.reset(record, keys, self._now(), self._records.get(slices_key(scope)))
        self.line.notify(scopes)

    def clear(self) -> None:
        """Forget all state and all counts, as a new store has none, and make all limits that were compiled stale."""
        with self._exclusive_step():
            self._records.clear()
            self._to_check.clear()
            self._counts = UsageCounts()
            self._make_stale()
        self.line.notify_all()

    def collect_counts(self, namespace: str = "") -> Batch | None:
        with self._exclusive_step():
            return self._counts.collect(self._records, self._now(), namespace)

    def forget_counts(self, name: str, namespace: str = "") -> None:
        with self._exclusive_step():
            self._counts.forget(name, namespace)

    def version(self, namespace: str = "") -> int:
        return self._log_of(namespace).version

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        with self._exclusive_step():
            log = self._logs[namespace] = self._log_of(namespace).advanced(changes)
        self.line.notify_all()
        return log.version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        return self._log_of(namespace).since(version)

    def make_stale(self) -> None:
        """Make all limits stale that were compiled before now, in all namespaces."""
        with self._exclusive_step():
            self._make_stale()
        self.line.notify_all()

    def _make_stale(self) -> None:
        self._logs = {namespace: log.advanced((ALL,)) for namespace, log in self._logs.items()}
        self._unchanged = self._unchanged.advanced((ALL,))

    def _log_of(self, namespace: str) -> ChangeLog:
        return self._logs.get(namespace, self._unchanged)

    def _step(
        self, work: Callable[[Claim, list[Record], int], R], claim: Claim, *, is_new: bool, saves: bool = True
    ) -> R:
        """Call `work` with a claim, the records of its scopes and the time while no other thread is in a step.

        A claim that `is_new` is not admitted yet: it must be of the current version, and its records are migrated to
        the schemas of its plan.
        With `saves`, new and migrated records that have changed are stored afterwards.
        """
        lock = self._lock
        try:
            if not lock.acquire(False):
                acquire_patiently(lock)
            if self._in_step:
                raise InStep
            if (
                is_new
                and claim.version is not None
                and claim.version != self._logs.get(claim.plan.namespace, self._unchanged).version
            ):
                raise StaleConfiguration
            try:
                self._in_step = True
                return self._work(work, claim, is_new, saves)
            finally:
                self._in_step = False
        finally:
            try:  # noqa: SIM105 - a signal handler that raises within `suppress` would leave the lock acquired
                lock.release()
            except RuntimeError:  # an interruption came before the lock was acquired
                pass
            if self._deferred:
                self._make_deferred_calls()

    def _work(self, work: Callable[[Claim, list[Record], int], R], claim: Claim, is_new: bool, saves: bool) -> R:
        """Do the work of a step completely or not at all, also when a signal handler raises meanwhile.

        Without `saves`, the work changes nothing.
        """
        plan, shape, now, settled = claim.plan, claim.shape, self._now(), claim.settled
        records, before = [], []
        for key, schema in plan.schemas:
            record = self._records.get(key)
            if record is None or record.schema is not schema:
                record = self._new_or_migrated(record, schema, now if is_new else None)
            records.append(record)
            usage = record.usage
            amounts = None if usage is None else usage.amounts[:]
            before.append((record, record.states[:], record.finished, record.kept, usage, amounts))
        if not saves:
            return work(claim, records, now)
        leases = _leases_of(claim, records) if shape.permits else ()
        is_done = False
        try:
            result = work(claim, records, now)
            is_done = True
            if self._unsaved or (shape.counts_usage and claim.admitted and _has_moved_usage(before)):
                self._save(plan, records, now)
        except BaseException:
            if is_done:  # what was saved already stays as it is
                self._save(plan, records, now)
            else:
                claim.settled = settled
                _restore(before, leases)
            raise
        return result

    @contextmanager
    def _exclusive_step(self) -> Iterator[None]:
        """Run the block as a step: no other thread is in one meanwhile."""
        with self._lock:
            if self._in_step:
                raise InStep
            try:
                self._in_step = True
                yield
            finally:
                self._in_step = False
        if self._deferred:
            self._make_deferred_calls()

    def _new_or_migrated(self, record: Record | None, schema: Schema, now: int | None) -> Record:
        """Return a new record, or one of another schema: migrated with `now`, unchanged without."""
        self._unsaved = True
        if record is None:
            return new_record(schema)
        return record if now is None else engine.migrate(record, schema, now)

    def _save(self, plan: Plan, records: list[Record], now: int) -> None:
        """Store records that are new or migrated and have changed, and take over their usage."""
        self._unsaved = False
        for place, record in enumerate(records):
            if record.changed:
                if self._records.get(plan.scope_keys[place]) is not record:
                    self._insert(plan.scopes[place], record, now)
                self._counts.add(plan.scopes[place], record, now)

    def _insert(self, scope: Scope, record: Record, now: int) -> None:
        """Store the record of a scope that is new or has a new schema."""
        if scope.key not in self._records:
            for _ in range(min(CHECKS_PER_NEW_SCOPE, len(self._to_check))):
                self._remove_if_idle(self._to_check.popleft(), now)
            self._to_check.append(scope.key)
        self._records[scope.key] = record

    def _remove_if_idle(self, key: str, now: int) -> None:
        record = self._records.get(key)
        if record is None:  # an interrupted step did not store it
            return
        if is_idle(record, now):
            self._counts.close(key, record, now)
            del self._records[key]
        else:
            self._to_check.append(key)

    def _make_deferred_calls(self) -> None:
        """Do what finalizers and signal handlers requested within a step."""
        while not self._in_step:
            try:
                call = self._deferred.popleft()
            except IndexError:
                return
            call()


def _leases_of(claim: Claim, records: list[Record]) -> list[_HeldLease]:
    """Return the leases of a claim, one for each of its resource limits."""
    leases = []
    for limit in claim.shape.permits:
        held, lease_id = records[limit.scope_index].leases, (limit.rule.key, claim.holder)
        leases.append((held, lease_id, held.get(lease_id)))
    return leases


def _has_moved_usage(before: Sequence[_Before]) -> bool:
    """Return whether a step has finished usage of a record, or begun to count an hour."""
    for record, _, finished, _, usage, _ in before:
        if record.usage is not usage or record.finished is not finished:
            return True
    return False


def _restore(before: Sequence[_Before], leases: Sequence[_HeldLease]) -> None:
    """Restore what an interrupted step may have changed in records."""
    for record, states, finished, kept, usage, amounts in before:
        record.states, record.finished, record.kept, record.usage = states, finished, kept, usage
        if usage is not None and amounts is not None:
            usage.amounts = amounts
    for held, lease_id, lease in leases:
        held.pop(lease_id, None)
        if lease is not None:
            held[lease_id] = lease


def _settle_once(changes: Amounts, claim: Claim, records: list[Record], now: int) -> bool:
    """Settle a claim unless it is settled already; False when a lease had run out."""
    if claim.settled:
        return True
    # First, so that a release that is interrupted is never settled twice.
    claim.settled = True
    return engine.settle(claim, records, now, changes)
