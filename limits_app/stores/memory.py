"""The memory store: state in a dictionary under one lock, for tests and for single processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from threading import RLock
from time import monotonic_ns
from typing import Any, Final

from limits_app.core.claim import Claim
from limits_app.core.clock import as_clock
from limits_app.core.errors import NotShareable, StaleConfiguration
from limits_app.core.forking import on_fork
from limits_app.core.layout import LEASE_US, Layout
from limits_app.core.plan import Ask, Charges, Part, Plan
from limits_app.core.renewal import Renewer
from limits_app.core.waiting import WaitingLine
from limits_app.stores.leases import Lease, counted, lent, renewed
from limits_app.stores.settling import settled

__all__ = ["MemoryStore"]

_GRACE_US: Final = 60_000_000
_LOOKS_PER_NEWCOMER: Final = 2

Record = list[Any]
"""The states of one scope in the order of its layout, and the layout as last item.

Never changed once it is stored: claims keep the record that decided about them.
"""


def monotonic_us() -> int:
    """Microseconds of a clock that never goes back."""
    return monotonic_ns() // 1000


class MemoryStore:
    """Keeps state in this process; `clock` is a callable that returns microseconds (default: monotonic).

    Idle scopes are forgotten while new ones come, so that memory is bounded by what is active.
    """

    patience_us: int | None = None

    def __init__(self, *, clock: Callable[[], int] = monotonic_us, lease_seconds: float = LEASE_US / 1e6) -> None:
        self.clock = as_clock(clock)
        self.lease_us = round(lease_seconds * 1_000_000)
        self.line = WaitingLine()
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self._now = clock
        self._version = 0
        self._records: dict[str, Record] = {}
        self._leases: dict[str, dict[int, Lease]] = {}
        self._hand: deque[str] = deque()
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child goes on with a copy of the state, and a lock of its own."""
        self._lock = RLock()

    def __reduce__(self) -> tuple[object, ...]:
        raise NotShareable(
            "a limit set in memory cannot be sent to another process: "
            "make it with shared=True, mode='process' (or another store that processes share)"
        )

    def __len__(self) -> int:
        """How many scopes have state."""
        return len(self._records)

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        plan, records, after = claim.plan, self._records, []
        with self._lock:
            if plan.version is not None:
                self._check(plan)
            now = self._now()
            for part, charges in claim.charges:
                record = records.get(part.key)
                if record is None or record[-1] is not part.layout:
                    record = self._record(part, now)
                charged = record.copy()
                for ask, amount in charges:
                    state = ask.take(record[ask.index], now, amount)
                    if state is None:
                        return self._refused(claim, now)
                    charged[ask.index] = state
                after.append((part.key, charged))
            for key, charged in after:
                records[key] = charged
            if len(records) > len(self._hand):
                self._entered(now)
            if plan.permits:
                self._lend(claim, now)
        claim.admitted, claim.decided_at, claim.records = True, now, after
        return True

    def settle(self, claim: Claim, changes: Charges) -> None:
        """See `Store.settle`."""
        records = self._records
        with self._lock:
            if claim.settled:
                return
            claim.settled = True
            now = self._now()
            for part, row in changes:
                record = records.get(part.key)
                if record is None or record[-1] is not part.layout:
                    self._settle_changed(claim, part, row, now)
                    continue
                after = record.copy()
                for ask, change in row:
                    if ask.lease_key is None or self._returned(ask.lease_key, claim):
                        after[ask.index] = ask.settle(record[ask.index], now, change)
                records[part.key] = after
        if self.line.busy:
            self.line.notify(part.key for part, _ in changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        with self._lock:
            now = self._now()
            return [claim for claim in claims if not self._renewed(claim, now)]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        with self._lock:
            self._check(claim.plan)
            now = self._now()
            claim.decided_at = now
            claim.records = [(part.key, self._living(part, self._record(part, now), now)) for part in claim.plan.parts]

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        with self._lock:
            for scope in scopes:
                record = self._records.get(scope)
                if record is not None:
                    self._records[scope] = [*record[-1].forgotten(record[:-1], keys), record[-1]]
        self.line.notify(scopes)

    def version(self) -> int:
        """See `Store.version`."""
        return self._version

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        with self._lock:
            self._version += 1
        self.line.notify_all()
        return self._version

    def _check(self, plan: Plan) -> None:
        if plan.version is not None and plan.version != self._version:
            raise StaleConfiguration

    def _record(self, part: Part, now: int) -> Record:
        """The states of a scope as the part's layout sees them; stores nothing."""
        record = self._records.get(part.key)
        if record is None:
            return [*part.layout.start, part.layout]
        if record[-1] is part.layout:
            return record
        changed: Record = [*part.layout.carried(record[-1], record, now), part.layout]
        for index, lease_key in part.layout.lease_keys(part.key):
            # Leases outlive a limit that was taken away and came back.
            changed[index] = counted(changed[index], self._leases.get(lease_key, {}).values())
        return changed

    def _refused(self, claim: Claim, now: int) -> bool:
        """Take expired permits back and ask again, or note the refusal."""
        if claim.plan.permits and self._reclaimed(claim.plan, now):
            return self.acquire(claim)
        claim.admitted, claim.decided_at = False, now
        claim.records = [(part.key, self._record(part, now)) for part in claim.plan.parts]
        return False

    def _reclaimed(self, plan: Plan, now: int) -> bool:
        """Take back what has expired in the scopes of a plan; says whether anything was looked through."""
        looked = False
        for part in plan.parts:
            record = self._record(part, now)
            living = self._living(part, record, now)
            if living is not record:
                looked = True
                self._records[part.key] = living
                for _, lease_key in part.permits:
                    leases = self._leases[lease_key]
                    for number in [number for number, (_, expires, _) in leases.items() if expires <= now]:
                        del leases[number]
        return looked

    def _living(self, part: Part, record: Record, now: int) -> Record:
        """The record without expired leases; itself when none can have expired."""
        living = record
        for ask, lease_key in part.permits:
            held, _, _, earliest = record[ask.index]
            if held and earliest <= now:
                leases = self._leases[lease_key].values()
                living = living.copy()
                living[ask.index] = counted(record[ask.index], [lease for lease in leases if lease[1] > now])
        return living

    def _lend(self, claim: Claim, now: int) -> None:
        for _, charges in claim.charges:
            for ask, amount in charges:
                if ask.lease_key:
                    leases = self._leases.get(ask.lease_key)
                    if leases is None:
                        leases = self._leases[ask.lease_key] = {}
                    leases[claim.number] = lent(ask.rule, amount, now)

    def _returned(self, lease_key: str, claim: Claim) -> bool:
        """Take a lease back; False when it had run out, and others may have the permit."""
        leases = self._leases.get(lease_key)
        if leases is None or leases.pop(claim.number, None) is None:
            return False
        if not leases:
            del self._leases[lease_key]
        return True

    def _renewed(self, claim: Claim, now: int) -> bool:
        for part in claim.plan.parts:
            for ask, lease_key in part.permits:
                leases = self._leases.get(lease_key, {})
                lease = leases.get(claim.number)
                again = None if lease is None else renewed(ask.rule, lease, now)
                if again is None:
                    return False
                leases[claim.number] = again
        return True

    def _settle_changed(self, claim: Claim, part: Part, row: Sequence[tuple[Ask, int]], now: int) -> None:
        """Settle in a scope whose limits have changed, or whose state was forgotten, since the claim was admitted."""
        record = self._records.get(part.key) or [*part.layout.start, part.layout]
        layout: Layout = record[-1]
        kept = [(ask, change) for ask, change in row if ask.lease_key is None or self._returned(ask.lease_key, claim)]
        self._records[part.key] = [*settled(layout, record[:-1], kept, part.layout, now), layout]
        self._entered(now)

    def _entered(self, now: int) -> None:
        """Note the scopes that are new, and look whether some that came earlier are idle by now."""
        for scope in list(islice(reversed(self._records), len(self._records) - len(self._hand))):
            for _ in range(min(_LOOKS_PER_NEWCOMER, len(self._hand))):
                self._look(self._hand.popleft(), now)
            self._hand.append(scope)

    def _look(self, scope: str, now: int) -> None:
        record = self._records[scope]
        if record[-1].restored_at(record) + _GRACE_US <= now:
            del self._records[scope]
        else:
            self._hand.append(scope)
