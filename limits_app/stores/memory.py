"""The memory store: records in a dictionary under one lock, for tests and for sites with one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Final

from limits_app import engine
from limits_app.acquiring import AtFork, Renewer, WaitingLine
from limits_app.engine import (
    ALL,
    LEASE_US,
    Amounts,
    Batch,
    Change,
    ChangeLog,
    Changes,
    Claim,
    Record,
    RejectionCounts,
    RequestPlan,
    Scope,
    as_clock,
    lease_us_of,
    mypyc_attr,
    new_record,
    slices_key,
    system_us,
)
from limits_app.engine.errors import NotShareable, StaleConfiguration, StoreFull
from limits_app.stores.steps import (
    CHECKS_PER_NEW_SCOPE,
    FullnessWarnings,
    InStep,
    Steps,
    first_admitted,
    in_step,
    is_idle,
    that_give_way,
)
from limits_app.stores.usage_counts import UsageCounts

MAX_SCOPES: Final = 250_000
_ROOMY: Final = 1 / 8
"""Up to this share of `max_scopes`, idle scopes stay."""
_CHECKED_IN_FULL_STORE: Final = 64
_WARNINGS: Final = {
    3 / 4: "the memory store is %d %% full: raise its MAX_SCOPES before new clients find no room",
    0.99: "the memory store is full (%d %%): counted usage that was not rolled up is dropped, then idle clients; "
    "`on_unavailable` decides for new clients that find no room: raise its MAX_SCOPES",
}


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryStore:
    """Keeps state in this process; `clock` is a callable that returns microseconds (default: the system's clock).

    When an eighth of `max_scopes` is in use, idle scopes are removed while new ones are added, so that memory is
    bounded by the scopes that are active, and by `max_scopes`: then counted usage gives way to new scopes, and idle
    ones or those that are nearly idle. Where there are none of these, StoreFull is raised for a new scope.
    A step reads or changes records under the lock. A finalizer or a signal handler may call the store within a step of
    the same thread: `settle` is then done after the step, and verbs that read or change records raise StoreUnavailable.
    """

    remote = False
    counting = True
    collectors = 1
    poll_us: tuple[int, int] | None = None

    def __init__(
        self,
        *,
        clock: Callable[[], int] = system_us,
        lease_seconds: float = LEASE_US / 1e6,
        max_scopes: int = MAX_SCOPES,
    ) -> None:
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
        self._era = object()
        """Another object whenever records of some scopes were removed or replaced."""
        self._to_check: deque[str] = deque()
        """All scopes, in the order in which they are next checked for being idle."""
        self._max_scopes = max_scopes
        self._counts = UsageCounts(max_scopes)
        self._warnings = FullnessWarnings(_WARNINGS)
        self.steps = self.new_steps()
        self._at_fork = AtFork(self.steps.after_fork)

    def new_steps(self) -> Steps:
        """Return the steps of this store; for subclasses."""
        return Steps(self.settle)

    def __reduce__(self) -> tuple[object, ...]:
        raise NotShareable(
            "a limit set in memory cannot be sent to another process: "
            "make it with shared=True, mode='process' (or another store that processes share)"
        )

    def __len__(self) -> int:
        """Return how many scopes have state, and how many leases are held."""
        return len(self._records) + sum([len(record.leases) for record in self._records.values()])

    @in_step
    def acquire(self, claim: Claim) -> bool:
        plan = claim.plan
        if claim.version is not None and claim.version != self._log_of(plan.namespace).version:
            raise StaleConfiguration
        clock = self._now  # called as a method of the store it would be looked up in the class first
        now = clock()
        try:
            if plan.era is self._era and not claim.shape.counts_usage:
                return engine.charge(claim, plan.records, now)
            records = plan.records if plan.era is self._era else self._load_with_room(claim, now)
            admitted = engine.charge(claim, records, now)
            self._save(plan, records, now)
        except BaseException:  # what it has charged belongs to no caller
            claim.admitted = None
            raise
        return admitted

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        # The lock is held all the time, so that no other thread charges in between.
        with self.steps.lock:
            peek = partial(self.steps.run, self._peek)
            return first_admitted(claims, self.acquire, peek, emptiest_first=emptiest_first, failover=failover)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        kept_leases = True
        try:
            kept_leases = self._settle((claim, changes))
        except InStep:
            self.steps.settle_later(claim, changes)
        finally:  # also after an interruption, which may have come when the claim was settled
            if self.line.busy:
                self.line.notify(claim.plan.scope_keys)
        if not kept_leases:
            claim.lose_lease()

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        return [claim for claim in claims if not self.steps.run(self._renew, claim)]

    def peek(self, claim: Claim) -> None:
        self.steps.run(self._peek, (claim,))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        self.steps.run(self._reset, scopes, keys)
        self.line.notify(scopes)

    def clear(self) -> None:
        """Forget all state and all counts, as a new store has none, and make all limits that were compiled stale."""
        self.steps.run(self._clear)
        self.line.notify_all()

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        self.steps.run(self._counts.add_rejections, rejections, namespace)

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:  # noqa: ARG002 - there is one
        return self.steps.run(self._collect_counts, namespace)

    def forget_counts(self, name: str, namespace: str = "") -> None:
        self.steps.run(self._counts.forget, name, namespace)

    def version(self, namespace: str = "") -> int:
        return self._log_of(namespace).version

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        version = self.steps.run(self._advance_version, changes, namespace)
        self.line.notify_all()
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        return self._log_of(namespace).since(version)

    def make_stale(self) -> None:
        """Make all limits stale that were compiled before now, in all namespaces."""
        self.steps.run(self._make_stale)
        self.line.notify_all()

    # Steps: an exception at any point leaves a limit charged or untouched.

    @in_step
    def _settle(self, release: tuple[Claim, Amounts]) -> bool:
        claim, changes = release
        if claim.settled:
            return True
        claim.settled = True
        plan, clock = claim.plan, self._now
        now = clock()
        if plan.era is self._era and not claim.shape.counts_usage:
            return engine.settle(claim, plan.records, now, changes)
        records = plan.records if plan.era is self._era else self._load(plan)
        kept_leases = engine.settle(claim, records, now, changes)
        self._save(plan, records, now)
        return kept_leases

    def _renew(self, claim: Claim) -> bool:
        return engine.renew(claim, self._load(claim.plan), self._now())

    def _peek(self, claims: Sequence[Claim]) -> None:
        now = self._now()
        for claim in claims:
            plan = claim.plan
            if claim.version is not None and claim.version != self._log_of(plan.namespace).version:
                raise StaleConfiguration
            engine.peek(claim, self._load(plan, now), now)

    def _reset(self, scopes: Collection[str], keys: Collection[str] | None) -> None:
        for scope in scopes:
            record = self._records.get(scope)
            if record is not None:
                engine.reset(record, keys, self._now(), self._records.get(slices_key(scope)))

    def _collect_counts(self, namespace: str) -> Batch | None:
        return self._counts.collect(self._records, self._now(), namespace)

    def _clear(self) -> None:
        self._make_stale()
        self._era = object()
        self._records.clear()
        self._to_check.clear()
        self._counts.clear()

    def _advance_version(self, changes: Collection[Change], namespace: str) -> int:
        log = self._logs[namespace] = self._log_of(namespace).advanced(changes)
        return log.version

    def _make_stale(self) -> None:
        self._unchanged = self._unchanged.advanced((ALL,))
        self._logs = {namespace: log.advanced((ALL,)) for namespace, log in self._logs.items()}

    def _log_of(self, namespace: str) -> ChangeLog:
        return self._logs.get(namespace, self._unchanged)

    def _load(self, plan: RequestPlan, carry_at: int | None = None) -> list[Record]:
        """Return the records of a plan's scopes; those that are new or migrated are not stored yet.

        With a time in microseconds, those of other schemas are migrated to the schemas of the plan.
        Where all are stored under the schemas of the plan, they are kept with it for this era.
        """
        if plan.era is self._era:
            return plan.records
        records, are_stored = [], True
        for key, schema in zip(plan.scope_keys, plan.shape.schemas, strict=True):
            record = self._records.get(key)
            if record is None:
                record, are_stored = new_record(schema), False
            elif record.schema is not schema:
                record, are_stored = record if carry_at is None else engine.carry_over(record, schema, carry_at), False
            records.append(record)
        if are_stored:
            # The era last: an exception in between leaves no records of another era.
            plan.era, plan.records = None, records
            plan.era = self._era
        return records

    def _load_with_room(self, claim: Claim, now: int) -> list[Record]:
        """Return the records that a claim is charged to, after making room for those that are not stored yet."""
        records = self._load(claim.plan, now)
        if claim.plan.era is not self._era:
            self._find_room(claim, records, now)
        return records

    def _save(self, plan: RequestPlan, records: Sequence[Record], now: int) -> None:
        """Store records that are new or migrated and have changed, and take over their usage."""
        for index, record in enumerate(records):
            if not record.changed:
                continue
            scope = plan.scopes[index]
            if record.counted_until and not record.label:
                self._counts.note(scope, record)
            if self._records.get(scope.key) is not record:
                self._insert(scope, record, now)
            if record.finished:
                self._counts.add(scope, record, now)

    def _find_room(self, claim: Claim, records: list[Record], now: int) -> None:
        """Make room for new scopes in a full store; raise StoreFull where that fails, unless a limit rejects."""
        fullness = (len(self._records) + len(self._counts)) / self._max_scopes
        self._warnings.note(fullness)
        if fullness < 1 or all(key in self._records for key in claim.plan.scope_keys) or self._make_room(now):
            return
        engine.peek(claim, records, now)
        if not claim.refusal()[0]:
            raise StoreFull(
                f"all {self._max_scopes} scopes of the memory store are in active use: raise its MAX_SCOPES, "
                "or use another store"
            )

    def _make_room(self, now: int) -> bool:
        """Let counted usage give way, or else some of the scopes; returns whether there is room now."""
        if self._counts.give_way():
            return True
        keys = list(islice(self._to_check, _CHECKED_IN_FULL_STORE))
        records = self._records
        give_way = set(that_give_way({key: records[key] for key in keys if key in records}, now))
        self._era = object()
        for key in keys:
            if key in give_way:
                self._counts.drop(key)
                del records[key]
            if key in records:
                self._to_check.rotate(-1)
            else:
                self._to_check.popleft()
        return bool(give_way)

    def _insert(self, scope: Scope, record: Record, now: int) -> None:
        """Store the record of a scope that is new or has a new schema, after a look whether others are idle."""
        if scope.key not in self._records:
            if len(self._records) >= _ROOMY * self._max_scopes:
                self._remove_idle(now)
            self._to_check.append(scope.key)
        else:
            self._era = object()
        self._records[scope.key] = record

    def _remove_idle(self, now: int) -> None:
        """Check the next scopes, and remove those that are idle."""
        for _ in range(min(CHECKS_PER_NEW_SCOPE, len(self._to_check))):
            if self._remove_if_idle(self._to_check[0], now):
                self._to_check.popleft()
            else:
                self._to_check.rotate(-1)

    def _remove_if_idle(self, key: str, now: int) -> bool:
        """Remove the record of a scope if it is idle; return whether the scope has none any more."""
        record = self._records.get(key)
        if record is None:  # an interrupted step did not store it
            return True
        if not is_idle(record, now):
            return False
        self._counts.close(key, record, now)
        self._era = object()
        del self._records[key]
        return True
