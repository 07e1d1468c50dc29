"""The memory store: records in a dictionary under one lock, for tests and for sites with one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import RLock
from time import monotonic_ns, time_ns
from typing import Final, TypeVar

from limits_app.core import engine
from limits_app.core.clock import as_clock
from limits_app.core.counting import Batch
from limits_app.core.errors import NotShareable, StaleConfiguration
from limits_app.core.leases import Renewer
from limits_app.core.plan import Amounts, Claim, Plan, ScopedLimits
from limits_app.core.record import LEASE_US, Record, lease_us_of, new_record
from limits_app.core.runtime import on_fork
from limits_app.core.store import next_version
from limits_app.core.waiting import WaitingLine
from limits_app.stores.steps import LOOKS_PER_NEWCOMER, InStep, acquire_patiently, first_admitted, is_idle, unlock
from limits_app.stores.usage_counts import UsageCounts

A = TypeVar("A")
R = TypeVar("R")

_SINCE_1970_US: Final = (time_ns() - monotonic_ns()) // 1000


def monotonic_us() -> int:
    """Return microseconds since 1970 by a clock that never goes back; the system's clock only sets where it starts."""
    return monotonic_ns() // 1000 + _SINCE_1970_US


class MemoryStore:
    """Keeps state in this process; `clock` is a callable that returns microseconds (default: monotonic).

    Idle scopes are removed while new ones are added, so that memory is bounded by the scopes that are active.
    A step reads or changes records under the lock. A finalizer or a signal handler may call the store within a step of
    the same thread: `settle` is then done after the step, and verbs that read or change records raise StoreUnavailable.
    """

    remote = False
    counting = True
    poll_us: tuple[int, int] | None = None

    def __init__(self, *, clock: Callable[[], int] = monotonic_us, lease_seconds: float = LEASE_US / 1e6) -> None:
        self.clock = as_clock(clock)
        self.lease_us = lease_us_of(lease_seconds)
        self.line = WaitingLine()
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self._now = clock
        self._version = 0
        self._records: dict[str, Record] = {}
        self._seen: deque[str] = deque()
        self._counts = UsageCounts()
        self._deferred: deque[Callable[[], None]] = deque()
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Continue in a child process with a copy of the state, and with a new lock."""
        self._lock = RLock()
        self._in_step = False
        self._unsaved = False
        """Whether records were loaded that are not stored as they are."""

    def __reduce__(self) -> tuple[object, ...]:
        raise NotShareable(
            "a limit set in memory cannot be sent to another process: "
            "make it with shared=True, mode='process' (or another store that processes share)"
        )

    def __len__(self) -> int:
        """Return how many scopes have state, and how many leases are held."""
        return len(self._records) + sum([len(record.leases) for record in self._records.values()])

    def acquire(self, claim: Claim) -> bool:
        return self._step(self._acquire, claim)

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
            kept_leases = self._step(self._settle, (claim, changes))
        except InStep:
            self._deferred.append(partial(self._settle_deferred, claim, changes))
        finally:  # also after an interruption, which may have come when the claim was settled
            if self.line.busy:
                self.line.notify(claim.plan.scope_keys)
        if not kept_leases:
            claim.lose_lease()

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        return self._step(self._renew, claims)

    def peek(self, claim: Claim) -> None:
        self._step(self._peek, claim)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        self._step(self._reset, (scopes, keys))
        self.line.notify(scopes)

    def collect_counts(self) -> Batch | None:
        return self._step(self._collect, self._now())

    def forget_counts(self, name: str) -> None:
        self._step(self._counts.forget, name)

    def version(self) -> int:
        return self._version

    def advance_version(self) -> int:
        with self._lock:
            self._version = next_version(self._version)
        self.line.notify_all()
        return self._version

    def _step(self, work: Callable[[A], R], argument: A) -> R:
        """Call `work` while no other thread is in a step; see `limits_app.stores.steps`."""
        lock = self._lock
        try:
            if not lock.acquire(False):
                acquire_patiently(lock)
            if self._in_step:
                raise InStep  # noqa: TRY301 - unlocked below
            try:
                self._in_step = True
                done = work(argument)
            finally:
                self._in_step = False
        except BaseException:
            unlock(lock)
            self._make_deferred_calls()
            raise
        lock.release()
        if self._deferred:
            self._make_deferred_calls()
        return done

    def _acquire(self, claim: Claim) -> bool:
        plan = claim.plan
        if plan.version is not None and plan.version != self._version:
            raise StaleConfiguration
        now = self._now()
        records = self._load(plan, now)
        admitted = engine.charge(claim, records, now)
        if self._unsaved or plan.counts_usage:
            self._save(plan, records, now)
        return admitted

    def _settle(self, settling: tuple[Claim, Amounts]) -> bool:
        """Settle a claim once; False when a lease had run out."""
        claim, changes = settling
        if claim.settled:
            return True
        # First, so that an interrupted release is never settled twice.
        claim.settled = True
        try:
            now, records = self._now(), self._load(claim.plan)
        except BaseException:
            # Nothing was settled: an interrupted release can be repeated.
            claim.settled = False
            raise
        kept_leases = engine.settle(claim, records, changes, now)
        if self._unsaved or claim.plan.counts_usage:
            self._save(claim.plan, records, now)
        return kept_leases

    def _renew(self, claims: Sequence[Claim]) -> list[Claim]:
        now = self._now()
        return [claim for claim in claims if not engine.renew(claim, self._load(claim.plan, now), now)]

    def _peek(self, claim: Claim) -> None:
        if claim.plan.version not in (None, self._version):
            raise StaleConfiguration
        now = self._now()
        engine.peek(claim, self._load(claim.plan, now), now)

    def _reset(self, wanted: tuple[Collection[str], Collection[str] | None]) -> None:
        scopes, keys = wanted
        for scope in scopes:
            record = self._records.get(scope)
            if record is not None:
                engine.reset(record, keys)

    def _collect(self, now: int) -> Batch | None:
        return self._counts.collect(self._records, now)

    def _load(self, plan: Plan, now: int | None = None) -> list[Record]:
        """Return the records of a plan's scopes; stores nothing.

        At a time in microseconds records of older or newer schemas are migrated to the schemas of the plan.
        """
        records = []
        for scope in plan.scopes:
            record = self._records.get(scope.scope.key)
            if record is None:
                record = new_record(scope.schema)
                self._unsaved = True
            elif record.schema is not scope.schema and now is not None:
                record = engine.migrate(record, scope.schema, now)
                self._unsaved = True
            records.append(record)
        return records

    def _save(self, plan: Plan, records: Sequence[Record], now: int) -> None:
        """Store records that are new or migrated and have changed, and take over their usage."""
        self._unsaved = False
        for scope, record in zip(plan.scopes, records, strict=True):
            if record.changed and self._records.get(scope.key) is not record:
                self._insert(scope, record, now)
            if record.usage is not None or record.finished:
                self._counts.add(scope.scope, record, now)

    def _insert(self, scope: ScopedLimits, record: Record, now: int) -> None:
        """Store the record of a scope that is new or has a new schema."""
        if scope.key not in self._records:
            for _ in range(min(LOOKS_PER_NEWCOMER, len(self._seen))):
                self._remove_if_idle(self._seen.popleft(), now)
            self._seen.append(scope.key)
        self._records[scope.key] = record

    def _remove_if_idle(self, key: str, now: int) -> None:
        record = self._records.get(key)
        if record is None:  # an interrupted step did not store it
            return
        if is_idle(record, now):
            self._counts.close(key, record, now)
            del self._records[key]
        else:
            self._seen.append(key)

    def _settle_deferred(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False  # the release that was deferred has marked it
        self.settle(claim, changes)

    def _make_deferred_calls(self) -> None:
        """Do what finalizers and signal handlers requested within a step."""
        while not self._in_step:
            try:
                call = self._deferred.popleft()
            except IndexError:
                return
            call()
