"""The memory store: state in a dictionary under one lock, for tests and for single processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import RLock
from time import monotonic_ns, time_ns
from typing import Final, TypeVar

from limits_app.core.at_once import Loans
from limits_app.core.claim import Claim
from limits_app.core.clock import as_clock
from limits_app.core.counting import Batch, hour_ends, hour_of, in_time
from limits_app.core.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.core.layout import LEASE_US, lease_us_of
from limits_app.core.parts import Amounts
from limits_app.core.plan import Plan
from limits_app.core.renewal import Renewer
from limits_app.core.unrolled import Record
from limits_app.core.version import next_version
from limits_app.core.waiting import WaitingLine
from limits_app.stores.lending import Lending
from limits_app.stores.locking import acquire_patiently, unlock
from limits_app.stores.settling import settled_under
from limits_app.stores.shelf import Shelf
from limits_app.stores.tally import Tally

__all__ = ["MemoryStore"]

C = TypeVar("C", bound=Claim)

_SINCE_1970_US: Final = (time_ns() - monotonic_ns()) // 1000


def monotonic_us() -> int:
    """Microseconds since 1970 by a clock that never goes back: the system's says where it starts, and no more."""
    return monotonic_ns() // 1000 + _SINCE_1970_US


class MemoryStore:
    """Keeps state in this process; `clock` is a callable that returns microseconds (default: monotonic).

    Idle scopes are forgotten while new ones come, so that memory is bounded by what is active.
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
        self._has_own_clock = clock is monotonic_us
        self._version = 0
        self._lending = Lending()
        self._later: list[Callable[[], None]] = []
        self._tally = Tally()
        self._shelf = Shelf(self._lending, self._tally)
        self._records: dict[str, Record] = self._shelf.records  # asked for all the time
        self._loans: Loans = self._lending.loans
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child goes on with a copy of the state, and a lock of its own."""
        self._lock = RLock()
        self._stepping = False

    def __reduce__(self) -> tuple[object, ...]:
        raise NotShareable(
            "a limit set in memory cannot be sent to another process: "
            "make it with shared=True, mode='process' (or another store that processes share)"
        )

    def __len__(self) -> int:
        """How many scopes have state, and how many leases run."""
        return len(self._records) + len(self._lending)

    def acquire(self, claim: Claim) -> bool:  # noqa: PLR0912, PLR0915 - in pieces it would take a tenth longer
        """See `Store.acquire`."""
        lock = self._lock
        try:
            if not lock.acquire(False):  # a keyword costs more
                acquire_patiently(lock)
            if self._stepping:
                raise StoreUnavailable("nobody can ask in the middle of a step")  # noqa: TRY301 - unlocked below
            self._stepping = True
            try:
                plan = claim.plan
                now = monotonic_ns() // 1000 + _SINCE_1970_US if self._has_own_clock else self._now()  # without a call
                if plan.version is not None and plan.version != self._version:
                    raise StaleConfiguration
                charged = (plan.take or plan.write_out())(self._records, self._loans, now, claim)
                if charged is None:  # something is not as it is most of the time
                    self._decide(claim)
                elif charged is False:
                    self._refused(claim, now)
                else:
                    claim.decided_at, claim.records, claim.admitted = now, charged, True
            finally:
                self._stepping = False
        except BaseException:
            unlock(lock)
            raise
        lock.release()
        if self._later:
            self._catch_up()
        return claim.admitted is True

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`."""
        lock = self._lock
        try:
            if not lock.acquire(False):  # a keyword costs more
                acquire_patiently(lock)
            # The lock is held all the time, so nobody asks in between.
            if emptiest_first:
                claims = self._by_load(claims)
            admitted = next(filter(self.acquire, claims if failover else claims[:1]), None)
        except BaseException:
            unlock(lock)
            raise
        lock.release()
        return admitted

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`."""
        lock = self._lock
        try:
            if not lock.acquire(False):  # a keyword costs more
                acquire_patiently(lock)
            if self._stepping:
                self._later.append(partial(self._settle_now, claim, changes))
            elif not claim.settled:
                self._stepping = True
                try:
                    settle = claim.plan.settle
                    if settle is None or not settle(self._records, self._loans, claim, changes):
                        self._settle(claim, changes)
                    claim.settled = True
                finally:
                    self._stepping = False
        except BaseException:
            unlock(lock)
            raise
        lock.release()
        if self.line.busy:
            self.line.notify(claim.plan.scopes)
        if self._later:
            self._catch_up()

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False  # whoever released it takes it as done already
        self.settle(claim, changes)

    def _catch_up(self) -> None:
        """Do what came up in the middle of a step: finalizers and signal handlers settle, and leases were lost."""
        while (deed := self._next_deed()) is not None:
            deed()

    def _next_deed(self) -> Callable[[], None] | None:
        with self._lock:
            return self._later.pop(0) if self._later and not self._stepping else None

    def _decide(self, claim: Claim) -> bool:
        plan, amounts, records, after = claim.plan, claim.amounts, self._records, []
        self._check(plan)
        now = self._now()
        begins = []
        for part in plan.parts:
            record = records.get(part.key)
            if record is None or record[-1] is not part.layout:  # a call costs more
                record = self._shelf.rebased(part, now)
            if part.counts and now >= record[-2]:
                begins.append((part, record))
                record = part.layout.recounting(record, hour_ends(now))
            charged = part.take(record, now, amounts)
            if charged is None:
                return self._refused(claim, now)
            after.append(charged)
        for part, record in begins:
            self._tally.close(part.key, record, now)
            self._tally.begin(part.scoped.scope)
        records.update(zip(plan.scopes, after, strict=True))
        for part in plan.lending:
            self._lending.lend(part, claim, now)
        if len(records) > len(self._shelf.waits):
            self._shelf.enter(now)
        claim.decided_at = now
        claim.records = after
        claim.admitted = True
        return True

    def _settle(self, claim: Claim, changes: Amounts) -> None:
        plan, records, taken_at, now = claim.plan, self._records, claim.decided_at, self._now()
        kept = changes
        for part in plan.lending:
            kept = self._lending.take_back(part, claim, kept)
        if kept is not changes:
            changes = kept
            self._later.append(claim.lapse)
        for part in plan.parts:
            record = records.get(part.key, part.start)
            if record[-1] is part.layout:
                records[part.key] = part.settle(record, now, changes, taken_at)
            else:
                records[part.key] = settled_under(record[-1], record, part, changes=changes, now=now, taken_at=taken_at)
            if part.counts and (record[-1] is not part.layout or not in_time(record[-2], taken_at)):
                self._tally.add(part.scoped.scope, hour_of(taken_at), part.counted(changes), now)
            if record is part.start:
                self._shelf.enter(now)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        with self._lock:
            now = self._now()
            return [claim for claim in claims if not self._lending.renew(claim, now)]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        with self._lock:
            self._check(claim.plan)
            claim.decided_at = now = self._now()
            claim.records = self._shelf.alive(claim.plan, now)

    def _by_load(self, claims: Sequence[C]) -> list[C]:
        """The claims in the order of their loads at this moment."""
        for claim in claims:
            self._check(claim.plan)
        now = self._now()
        return sorted(claims, key=lambda claim: self._shelf.load(claim, now))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        with self._lock:
            for scope in scopes:
                record = self._records.get(scope)
                if record is not None:
                    self._records[scope] = record[-1].forgetful(record, keys)
        self.line.notify(scopes)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        with self._lock:
            return self._tally.collect(self._records, self._now())

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        with self._lock:
            self._tally.forget(name)

    def version(self) -> int:
        """See `Store.version`."""
        return self._version

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        with self._lock:
            self._version = next_version(self._version)
        self.line.notify_all()
        return self._version

    def _check(self, plan: Plan) -> None:
        if plan.version is not None and plan.version != self._version:
            raise StaleConfiguration

    def _refused(self, claim: Claim, now: int) -> bool:
        """Take expired permits back and ask again, or note the refusal."""
        plan = claim.plan
        if plan.permits and self._shelf.reclaimed(plan, now):
            return self._decide(claim)
        claim.admitted = False
        claim.decided_at = now
        claim.records = found = []
        for part in plan.parts:
            record = self._records.get(part.key)
            if record is None or record[-1] is not part.layout:  # a call costs more
                # As of now, a changed definition counts in every scope, whichever has refused.
                record = self._shelf.rebased(part, now)
            found.append(record)
        return False
