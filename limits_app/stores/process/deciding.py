"""Deciding: what a claim takes from and gives back to the records of the file, within one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import monotonic, time_ns
from typing import Final, Literal, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import system_us
from limits_app.core.counting import hour_ends, in_time
from limits_app.core.errors import StaleConfiguration
from limits_app.core.parts import Amounts, Part
from limits_app.core.plan import Plan
from limits_app.core.unrolled import Record
from limits_app.core.version import next_version
from limits_app.stores.process.housekeeping import Housekeeping
from limits_app.stores.process.leasing import Leasing
from limits_app.stores.process.one_scope import OneScope, Way
from limits_app.stores.process.records import Records
from limits_app.stores.process.state_file import Txn
from limits_app.stores.process.tallying import Tallying
from limits_app.stores.process.watching import Watcher, is_watched, watchers
from limits_app.stores.settling import settled_under

__all__ = ["VERSION", "Deciding", "advance_version_in", "version_in"]

C = TypeVar("C", bound=Claim)

VERSION: Final = b"version"
"""Where the version of the configuration stands."""

_NOBODY: Final[Sequence[Watcher]] = ()
_SECONDS_BETWEEN_LOOKS: Final = 0.1
_MOST_LOOKED: Final = 1024


class Deciding:
    """The steps of a process store; `clock` returns microseconds, and `do_later` does something after the step.

    Those that change something commit what they did themselves.
    """

    def __init__(
        self,
        records: Records,
        leasing: Leasing,
        tallying: Tallying,
        housekeeping: Housekeeping,
        *,
        clock: Callable[[], int],
        do_later: Callable[[Callable[[], None]], None],
    ) -> None:
        self._records = records
        self._leasing = leasing
        self._tallying = tallying
        self._housekeeping = housekeeping
        self._now = clock
        self._is_system = clock is system_us
        self._do_later = do_later
        self._one_scope = OneScope(records, leasing.identity)
        self._looked: dict[bytes, float] = {}

    def look(self, txn: Txn, claim: Claim) -> None:
        """Fill in the states of this moment."""
        _check(txn, claim.plan)
        now = self._now()
        records = []
        for part in claim.plan.parts:
            record = list(self._records.record(txn, part, now))
            for index, lease_key in part.leases:
                record[index] = self._leasing.counted(txn, lease_key, record[index], now)
            record[-1].load_logs(record)
            records.append(record)
        claim.decided_at, claim.records = now, records

    def decide(self, txn: Txn, claim: Claim, amounts: Amounts) -> bool | None:
        """Decide and commit; None when permits were taken back instead, and another transaction is to decide."""
        plan = claim.plan
        now = time_ns() // 1000 if self._is_system else self._now()  # without a call
        way = plan.memo
        if not isinstance(way, Way) or way.owner is not self._one_scope:
            way = self._one_scope.way(plan)
        if plan.version is not None and txn.get(VERSION) != way.version:  # to read numbers takes longer
            _check(txn, plan)
        after: Sequence[Record] | Literal[False] | None = way.charge(txn, now, claim)
        if after is None:
            after = self._charge(txn, claim, amounts, now)
        if after is None or after is False:
            return self._refused(txn, claim, now)
        txn.commit()
        claim.decided_at, claim.records = now, after
        claim.admitted = True
        return True

    def _refused(self, txn: Txn, claim: Claim, now: int) -> Literal[False] | None:
        if claim.plan.permits and self._reclaimed(txn, claim.plan, now):
            txn.commit()
            return None
        if self._refuse(txn, claim, now):
            txn.commit()
        return False

    def decide_first(self, txn: Txn, claims: Sequence[C], emptiest_first: bool, *, failover: bool) -> C | None:
        """Decide about one after the other, until one is admitted, and commit."""
        if emptiest_first:
            for claim in claims:
                self.look(txn, claim)
            claims = sorted(claims, key=Claim.load)
        now, changed = self._now(), False
        for claim in claims if failover else claims[:1]:
            _check(txn, claim.plan)
            after = self._charge(txn, claim, claim.amounts, now)
            if after is None and claim.plan.permits and self._reclaimed(txn, claim.plan, now):
                changed = True
                after = self._charge(txn, claim, claim.amounts, now)
            if after is not None:
                txn.commit()
                claim.decided_at, claim.records = now, after
                claim.admitted = True
                return claim
            changed = self._refuse(txn, claim, now) or changed
        if changed:
            txn.commit()
        return None

    def _charge(self, txn: Txn, claim: Claim, amounts: Amounts, now: int) -> Sequence[Record] | None:
        """Write the states with the amounts charged; None, and nothing written, when one of them does not fit."""
        plan, after, records = claim.plan, [], self._records
        begins: list[Part] = []
        records.newcomer, records.rebased = False, []
        for part in plan.parts:
            # What is charged is a copy from the file, so a refusal further on loses it.
            record = records.record(txn, part, now)
            if part.counts and now >= record[-2]:
                begins.append(part)
                record = part.layout.recounting(record, hour_ends(now))
            charged = part.take(record, now, amounts)
            if charged is None:
                return None
            after.append(charged)
        if begins or records.rebased:
            self._tallying.begin(txn, begins, records.rebased, now)
        self._write(txn, claim, after, now)
        return after

    def _write(self, txn: Txn, claim: Claim, after: Sequence[Record], now: int) -> None:
        plan, records = claim.plan, self._records
        for part, charged in zip(plan.parts, after, strict=True):
            records.write(txn, part.short_key, charged)
        if plan.lent:
            self._leasing.lend(txn, claim, now)
        if records.newcomer:
            self._housekeeping.step(txn, now)

    def settle(self, txn: Txn, claim: Claim, changes: Amounts) -> Sequence[Watcher]:
        """Settle and commit, unless that was done before; gives who wants to hear about it."""
        if claim.settled:
            return _NOBODY
        plan = claim.plan
        if self._one_scope.known(plan).settle(txn, claim, changes) is None:
            self._settle_parts(txn, claim, changes)
        others = watchers(txn, [part.short_key for part in plan.parts]) if is_watched(txn) else _NOBODY
        txn.commit()
        claim.settled = True
        return others

    def _settle_parts(self, txn: Txn, claim: Claim, changes: Amounts) -> None:
        plan, records, now = claim.plan, self._records, self._now()
        records.newcomer = False
        kept = self._leasing.take_back(txn, claim, changes) if plan.lent else changes
        if kept is not changes:
            changes = kept
            self._do_later(claim.lapse)
        for part in plan.parts:
            record = records.current(txn, part, now)
            layout = record[-1].layout
            if part.counts and (layout is not part.layout or not in_time(record[-2], claim.decided_at)):
                self._tallying.add(txn, part, changes, taken_at=claim.decided_at, now=now)
            if layout is part.layout:
                record = part.settle(record, now, changes, claim.decided_at)
            else:
                record = settled_under(layout, record, part, changes=changes, now=now, taken_at=claim.decided_at)
            records.write(txn, part.short_key, record)
        if records.newcomer:
            self._housekeeping.step(txn, now)

    def reset(self, txn: Txn, scopes: Sequence[bytes], keys: Collection[str] | None) -> Sequence[Watcher]:
        """Forget what was used in scopes; gives who wants to hear about it."""
        for scope in scopes:
            record = self._records.stored(txn, scope)
            if record is not None:
                self._records.write(txn, scope, record[-1].layout.forgetful(record, keys))
        return watchers(txn, scopes)

    def _refuse(self, txn: Txn, claim: Claim, now: int) -> bool:
        """Note the refusal; says whether anything was written."""
        rebased = self._records.rebased = []
        records = []
        for part in claim.plan.parts:
            record = self._records.record(txn, part, now)
            record[-1].load_logs(record)
            records.append(record)
        if rebased:
            # A changed definition counts from when it is seen first, whatever is decided then.
            self._tallying.begin(txn, (), rebased, now)
            for part, record in zip(claim.plan.parts, records, strict=True):
                self._records.write(txn, part.short_key, record)
        claim.admitted, claim.decided_at, claim.records = False, now, records
        return bool(rebased)

    def _reclaimed(self, txn: Txn, plan: Plan, now: int) -> bool:
        """Take back permits that have expired or whose process is gone; says whether anything has changed."""
        changed = False
        rebased = self._records.rebased = []
        for part in plan.parts:
            record = list(self._records.record(txn, part, now))
            for index, lease_key in part.leases:
                held, _, _, earliest = state = record[index]
                if held and (earliest <= now or self._look_due(part.short_key)):
                    record[index] = self._leasing.reclaim(txn, lease_key, state, now)
                    if record[index] != state:
                        self._tallying.begin(txn, (), [one for one in rebased if one is part], now)
                        self._records.write(txn, part.short_key, record)
                        changed = True
        return changed

    def _look_due(self, scope: bytes) -> bool:
        """Whether it is time again to see if the holders in a scope still live."""
        now = monotonic()
        if now - self._looked.get(scope, 0) < _SECONDS_BETWEEN_LOOKS:
            return False
        if len(self._looked) >= _MOST_LOOKED:
            self._looked.clear()
        self._looked[scope] = now
        return True


def version_in(txn: Txn) -> int:
    """The version of the configuration."""
    return int.from_bytes(txn.get(VERSION) or b"")  # as `Way.version` has it


def advance_version_in(txn: Txn) -> tuple[int, Sequence[Watcher]]:
    """Write the next version of the configuration; gives it, and everybody who wants to hear about anything."""
    version = next_version(version_in(txn))
    txn.put(VERSION, version.to_bytes(8))
    return version, watchers(txn)


def _check(txn: Txn, plan: Plan) -> None:
    if plan.version is not None and plan.version != version_in(txn):
        raise StaleConfiguration
