"""The process store's verbs: each is one transaction on the shared file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from time import monotonic, time_ns
from typing import Any, Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import as_clock
from limits_app.core.counting import Batch, hour_ends, in_time
from limits_app.core.errors import NotShareable, StaleConfiguration
from limits_app.core.keys import short_key
from limits_app.core.layout import LEASE_US
from limits_app.core.plan import Amounts, Part, Plan
from limits_app.core.renewal import Renewer
from limits_app.core.unrolled import Record
from limits_app.stores.process.housekeeping import Housekeeping
from limits_app.stores.process.leasing import Leasing
from limits_app.stores.process.records import Records
from limits_app.stores.process.state_file import StateFile, Txn
from limits_app.stores.process.tallying import Tallying
from limits_app.stores.process.watching import Watcher, Watching, is_watched, watchers
from limits_app.stores.settling import settled_under

__all__ = ["ProcessStore", "open_process_store"]

C = TypeVar("C", bound=Claim)

_VERSION: Final = b"version"
_NOBODY: Final[Sequence[Watcher]] = ()
_PATIENCE_US: Final = 250_000
_SECONDS_BETWEEN_LOOKS: Final = 0.1
_MOST_LOOKED: Final = 1024
_SECOND: Final = 1_000_000


def system_us() -> int:
    """Microseconds of the machine's clock, which all its processes share."""
    return time_ns() // 1000


class ProcessStore:
    """Keeps state in a file that all processes of a machine share, which may fork and be killed at any time.

    `directory` gets a subdirectory that only the user may enter; `map_megabytes` are reserved there at once.
    `clock` returns microseconds, the same in all processes.
    Open it through `open_process_store`: a process must not open one file twice.
    Raises StoreUnavailable when the directory or the space cannot be had.
    """

    remote = False
    counting = True
    patience_us: int | None = _PATIENCE_US

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Callable[[], int] = system_us,
        map_megabytes: int = 64,
        lease_seconds: float = LEASE_US / 1e6,
    ) -> None:
        self.directory = Path(directory)
        self.clock = as_clock(clock)
        self.lease_us = round(lease_seconds * 1_000_000)
        self._now = clock
        self._map_megabytes = map_megabytes
        self._file = StateFile(self.directory, map_megabytes, self._make_room)
        self._records = Records()
        self._leasing = Leasing(self._file.identity, self._file.is_alive)
        self._tallying = Tallying(self._records)
        self._housekeeping = Housekeeping(self._records, self._leasing, self._tallying, self._file.is_crowded)
        self._watching = Watching(self._file)
        self._looked: dict[bytes, float] = {}
        self._swept_at = -_SECOND
        self.line = self._watching.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not system_us:
            raise NotShareable("a store with a clock of its own cannot be sent to another process: leave clock= out")
        return _restored, (str(self.directory), self._map_megabytes, self.lease_us / 1_000_000)

    def __repr__(self) -> str:
        return f"ProcessStore({str(self.directory)!r})"

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        decided = None
        while decided is None:
            decided = self._file.transact(self._decide, claim, claim.amounts)
        return decided

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`."""
        return self._file.transact(partial(self._decide_first, failover=failover), claims, emptiest_first)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`."""
        if self._file.is_stepping():
            self._file.do_later(partial(self._settle_now, claim, changes))
            return
        others = self._file.transact(self._settle, claim, changes)
        if others or self.line.busy:
            self._watching.tell(claim.plan.scopes, others)

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False  # whoever released it takes it as done already
        self.settle(claim, changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        with self._file.writing() as txn:
            now = self._now()
            return [claim for claim in claims if not self._leasing.renew(txn, claim, now)]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        with self._file.reading() as txn:
            self._look(txn, claim)

    def _look(self, txn: Txn, claim: Claim) -> None:
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

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        shorts = [short_key(scope) for scope in scopes]
        with self._file.writing() as txn:
            for short in shorts:
                record = self._records.stored(txn, short)
                if record is not None:
                    self._records.write(txn, short, record[-1].layout.forgetful(record, keys))
            others = watchers(txn, shorts)
        self._watching.tell(scopes, others)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        with self._file.writing() as txn:
            return self._tallying.collect(txn, self._now())

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        with self._file.writing() as txn:
            self._tallying.forget(txn, name)

    def version(self) -> int:
        """See `Store.version`."""
        with self._file.reading() as txn:
            return _version(txn)

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        with self._file.writing() as txn:
            version = _version(txn) + 1
            txn.put(_VERSION, version.to_bytes(8))
            others = watchers(txn)
        self.line.notify_all()
        self._watching.tell((), others)
        return version

    def close(self) -> None:
        """Close the file; what is used again opens it anew."""
        self._file.close()

    def _decide(self, txn: Txn, claim: Claim, amounts: Amounts) -> bool | None:
        """Decide and commit; None when permits were taken back instead, and another transaction is to decide."""
        now = self._now()
        after = self._charge_at_once(txn, claim, amounts, now) or self._charge(txn, claim, amounts, now)
        if after is None:
            if claim.plan.permits and self._reclaimed(txn, claim.plan, now):
                txn.commit()
                return None
            if self._refuse(txn, claim, now):
                txn.commit()
            return False
        txn.commit()
        claim.decided_at, claim.records = now, after
        claim.admitted = True
        return True

    def _decide_first(self, txn: Txn, claims: Sequence[C], emptiest_first: bool, *, failover: bool) -> C | None:
        """Decide about one after the other, until one is admitted, and commit."""
        if emptiest_first:
            for claim in claims:
                self._look(txn, claim)
            claims = sorted(claims, key=Claim.load)
        now, changed = self._now(), False
        for claim in claims if failover else claims[:1]:
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

    def _charge_at_once(self, txn: Txn, claim: Claim, amounts: Amounts, now: int) -> Sequence[Record] | None:
        """Write the states of the one scope that most claims are about; None where that takes more than charging."""
        plan, part = claim.plan, claim.plan.only
        if part is None:
            return None
        if plan.version is not None:
            _check(txn, plan)
        record = self._records.usual(txn, part)
        if record is None or (part.counts and now >= record[-2]):
            return None
        charged = part.take(record, now, amounts)
        if charged is None:
            return None
        self._records.write(txn, part.short_key, charged)
        if plan.lent:
            self._leasing.lend(txn, claim, now)
        return (charged,)

    def _charge(self, txn: Txn, claim: Claim, amounts: Amounts, now: int) -> Sequence[Record] | None:
        """Write the states with the amounts charged; None, and nothing written, when one of them does not fit."""
        plan, after, records = claim.plan, [], self._records
        if plan.version is not None:
            _check(txn, plan)
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

    def _settle(self, txn: Txn, claim: Claim, changes: Amounts) -> Sequence[Watcher]:
        if claim.settled:
            return _NOBODY
        plan, now, records = claim.plan, self._now(), self._records
        records.newcomer = False
        if plan.lent:
            changes = self._leasing.take_back(txn, claim, changes)
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
        others = watchers(txn, [part.short_key for part in plan.parts]) if is_watched(txn) else _NOBODY
        txn.commit()
        claim.settled = True
        return others

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

    def _make_room(self) -> None:
        """Forget what is idle, now that the file is full; at most once a second, since it goes through all of it."""
        now = self._now()
        if 0 <= now - self._swept_at < _SECOND:
            return
        self._swept_at = now
        self._file.forget_dead_readers()
        self._housekeeping.start_over()
        more = True
        while more:
            with self._file.writing() as txn:
                more = self._housekeeping.make_room(txn, now)


def _check(txn: Txn, plan: Plan) -> None:
    if plan.version is not None and plan.version != _version(txn):
        raise StaleConfiguration


def _version(txn: Txn) -> int:
    return int.from_bytes(txn.get(_VERSION) or b"")


_OPENED: Final[dict[str, ProcessStore]] = {}
_OPENING: Final = Lock()
# Held while a process forks, so that no child gets it locked.
os.register_at_fork(before=_OPENING.acquire, after_in_parent=_OPENING.release, after_in_child=_OPENING.release)


def open_process_store(directory: str | Path, **options: Any) -> ProcessStore:
    """Open the store in a directory, or give the one that this process has opened there before.

    `options` are those of ProcessStore, and count at the first opening.
    """
    place = os.path.realpath(directory)
    with _OPENING:
        store = _OPENED.get(place)
        if store is None:
            store = _OPENED[place] = ProcessStore(place, **options)
        return store


def _restored(directory: str, map_megabytes: int, lease_seconds: float) -> ProcessStore:
    return open_process_store(directory, map_megabytes=map_megabytes, lease_seconds=lease_seconds)
