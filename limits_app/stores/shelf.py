"""The shelf of a memory store: the records of all scopes, and what becomes of those that changed or are idle."""

from __future__ import annotations

from collections import deque
from itertools import islice, repeat

from limits_app.core.claim import Claim
from limits_app.core.layout import Layout
from limits_app.core.parts import Part
from limits_app.core.plan import Plan
from limits_app.core.unrolled import Record
from limits_app.stores.idleness import GRACE_US, LOOKS_PER_NEWCOMER
from limits_app.stores.lending import Lending
from limits_app.stores.tally import Tally

__all__ = ["Shelf"]


class Shelf:
    """Records by scope; whoever uses it holds the store's lock. `waits` are those that may be idle one day."""

    def __init__(self, lending: Lending, tally: Tally) -> None:
        self.records: dict[str, Record] = {}
        self.waits: deque[str] = deque()
        self._lending = lending
        self._tally = tally

    def seen(self, part: Part, now: int) -> Record:
        """The states of a scope as the part's layout sees them; stores nothing."""
        record = self.records.get(part.key, part.start)
        if record[-1] is part.layout:
            return record
        states = part.layout.carried(record[-1], record, now)
        for index, key in part.layout.permits:
            # Permits outlive a limit that was taken away and came back.
            states[index] = self._lending.counted(part.key, key, states[index], now)
        return (*states, *part.layout.blank[len(states) :], part.layout)

    def rebased(self, part: Part, now: int) -> Record:
        """The same; a changed definition counts from when it is seen first, whatever is decided then."""
        record = self.seen(part, now)
        if self.records.get(part.key, record) is not record:
            self._recounted(part.key, part.layout, record, now)
        return record

    def alive(self, plan: Plan, now: int) -> list[Record]:
        """The records of a plan without expired leases; stores nothing."""
        return [self._living(part.key, part.layout, self.seen(part, now), now) for part in plan.parts]

    def load(self, claim: Claim, now: int) -> float:
        """See `Claim.load`, for this moment."""
        parts = claim.plan.parts
        return max(map(Part.load, parts, self.alive(claim.plan, now), repeat(now)), default=0.0)

    def reclaimed(self, plan: Plan, now: int) -> bool:
        """Take back what has expired in the scopes of a plan; says whether anything was looked through."""
        looked = False
        for part in plan.parts:
            record = self.seen(part, now)
            living = self._living(part.key, part.layout, record, now)
            if living is not record:
                looked = True
                self._recounted(part.key, part.layout, living, now)
        return looked

    def enter(self, now: int) -> None:
        """Note the scopes that are new, and look whether some that came earlier are idle by now."""
        for scope in list(islice(reversed(self.records), len(self.records) - len(self.waits))):
            for _ in range(min(LOOKS_PER_NEWCOMER, len(self.waits))):
                self._look(self.waits.popleft(), now)
            self.waits.append(scope)

    def _recounted(self, scope: str, layout: Layout, record: Record, now: int) -> None:
        """Store a record that counts living leases only, and forget the others: their late release finds nothing."""
        stored = self.records[scope]
        if stored[-1] is not layout:
            self._tally.close(scope, stored, now)
        self.records[scope] = record
        for _, key in layout.permits:
            self._lending.drop_expired(scope, key, now)

    def _living(self, scope: str, layout: Layout, record: Record, now: int) -> Record:
        """The record without expired leases; itself when none can have expired."""
        living = record
        for index, key in layout.permits:
            held, _, _, earliest = record[index]
            if held and earliest <= now:
                counted = self._lending.counted(scope, key, record[index], now)
                living = (*living[:index], counted, *living[index + 1 :])
        return living

    def _look(self, scope: str, now: int) -> None:
        record = self.records[scope]
        layout: Layout = record[-1]
        record = self._living(scope, layout, record, now)
        self._recounted(scope, layout, record, now)
        if layout.restored_at(record) + GRACE_US <= now:
            self._tally.close(scope, record, now)
            del self.records[scope]
        else:
            self.waits.append(scope)
