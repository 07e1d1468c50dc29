"""The process store's verbs: each loads records, calls the engine, and saves, in one transaction on the shared file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Any, Final, cast

from limits_app import engine
from limits_app.acquiring import Renewer
from limits_app.engine import (
    ALL,
    LEASE_US,
    SECOND_US,
    Amounts,
    Batch,
    Change,
    ChangeLog,
    Changes,
    Claim,
    Log,
    Record,
    RejectionCounts,
    as_clock,
    is_token_holder,
    lasts,
    lease_us_of,
    namespace_digest,
    short_key,
    slices_key,
    system_us,
)
from limits_app.engine.errors import NotShareable, StaleConfiguration, StoreFull, StoreUnavailable
from limits_app.stores.process.housekeeping import Housekeeping
from limits_app.stores.process.presence import ID_LENGTH
from limits_app.stores.process.records import VERSION_LENGTH, PreparedScopes, Records, file_key, prepared
from limits_app.stores.process.state_file import StateFile, Txn
from limits_app.stores.process.usage import Usage
from limits_app.stores.process.waking import ProcessWaking, Watcher, any_watchers, watchers
from limits_app.stores.steps import InStep, Steps, first_admitted, open_once

_POLL_US: Final = (250_000, 250_000)
_SECONDS_BETWEEN_RECLAIMS: Final = 0.1
_MOST_RECLAIMED: Final = 1024
_NUMBER_LENGTH: Final = 8
_VERSION: Final = b"version"
_CHANGES: Final = b"changes"


class ProcessStore:
    """Keeps state in a file that all processes of a machine share, which may fork and be killed at any time.

    `directory` gets a subdirectory that only the user may enter; `map_megabytes` are reserved there immediately.
    `clock` returns microseconds, the same in all processes. Use `open_process_store`: a process must not open a file
    twice. Raises StoreUnavailable when the directory cannot be used or the space cannot be reserved.
    """

    remote = False
    counting = True
    collectors = 1
    poll_us: tuple[int, int] | None = _POLL_US

    def __init__(
        self,
        directory: str | Path,
        *,
        clock: Callable[[], int] = system_us,
        map_megabytes: int = 48,
        lease_seconds: float = LEASE_US / 1e6,
    ) -> None:
        self.directory = Path(directory)
        self.clock = as_clock(clock)
        self.lease_us = lease_us_of(lease_seconds)
        self._now = clock
        self._map_megabytes = map_megabytes
        self._records = Records()
        self._usage = Usage(self._records, clock)
        self._steps = Steps(self.settle)
        self._file = StateFile(
            self.directory,
            map_megabytes,
            self._steps,
            self._make_room,
            on_open=self._records.forget_definitions,
            transfer=self._transfer,
        )
        self._housekeeping = Housekeeping(self._records, self._usage, self._file, clock)
        self._waking = ProcessWaking(self._file)
        self._reclaimed_at: dict[tuple[str, ...], float] = {}  # when permits of ended processes were, by scopes
        self.line = self._waking.line
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not system_us:
            raise NotShareable("a store with its own clock cannot be sent to another process: leave clock= out")
        options = {"map_megabytes": self._map_megabytes, "lease_seconds": self.lease_us / SECOND_US}
        return partial(open_process_store, str(self.directory), **options), ()

    def __repr__(self) -> str:
        return f"ProcessStore({str(self.directory)!r})"

    def acquire(self, claim: Claim) -> bool:
        try:
            return self._file.transact(self._acquire, claim)
        except BaseException:  # what it has charged, if anything, belongs to no caller
            claim.admitted = None
            raise

    def acquire_first(
        self, claims: Sequence[Claim], *, emptiest_first: bool = False, failover: bool = True
    ) -> Claim | None:
        def acquire_first(txn: Txn, claims: Sequence[Claim]) -> Claim | None:
            def peek(claims: Sequence[Claim]) -> None:
                for claim in claims:
                    self._peek(txn, claim)

            acquire = partial(self._acquire, txn)
            return first_admitted(claims, acquire, peek, emptiest_first=emptiest_first, failover=failover)

        try:
            return self._file.transact(acquire_first, claims)
        except BaseException:
            for claim in claims:
                claim.admitted = None
            raise

    def _acquire(self, txn: Txn, claim: Claim) -> bool:
        plan = prepared(claim.plan)
        _check_version(txn, claim)
        if claim.number:
            self._name_holder(claim)
        now = self._now()
        records = self._records.load(txn, plan, carry_at=now)
        admitted = engine.charge(claim, records, now)
        if not admitted:
            admitted = self._charge_from_ended(claim, records, now)
            _load_logs(claim)
        self._save(txn, plan, records, now)
        return admitted

    def _name_holder(self, claim: Claim) -> None:
        """Name a claim in leases by this process, which is another one after a fork, and by its number there.

        Tokens have their own names.
        """
        if not is_token_holder(claim.holder):
            claim.holder = self._file.identity() + claim.number.to_bytes(_NUMBER_LENGTH)

    def _save(self, txn: Txn, plan: PreparedScopes, records: Sequence[Record], now: int) -> None:
        """Write the records that have changed, and delete idle ones when there are new ones or usage."""
        changed = counts = False
        for index, record in enumerate(records):
            if record.changed:
                key, codec, scope = plan.scopes[index]
                changed = True
                if record.finished or (record.counted_until and not record.label):
                    counts = self._housekeeping.may_count(now)
                    if counts:
                        self._usage.keep(txn, key, scope, record)
                self._records.put(txn, key, record, codec)
        if changed and (counts or self._records.new):
            self._housekeeping.step(txn, now, self._records.new)

    def _charge_from_ended(self, claim: Claim, records: list[Record], now: int) -> bool:
        """Charge with the permits of ended processes, at most ten times a second for the same scopes."""
        scopes, time = claim.plan.scope_keys, monotonic()
        if not claim.shape.permits or lasts(self._reclaimed_at.get(scopes, 0), _SECONDS_BETWEEN_RECLAIMS, time):
            return False
        if len(self._reclaimed_at) >= _MOST_RECLAIMED:
            self._reclaimed_at.clear()
        self._reclaimed_at[scopes] = time
        return engine.charge(claim, records, now, self._is_gone())

    def _is_gone(self) -> engine.IsGone:
        """Returns whether the process of a holder has ended, and looks once for each process."""
        is_gone = cache(self._file.is_gone)
        return lambda holder: not is_token_holder(holder) and is_gone(cast("bytes", holder)[:ID_LENGTH])

    def settle(self, claim: Claim, changes: Amounts) -> None:
        if claim.settled:
            return
        others: Sequence[Watcher] = ()
        is_mine, kept_leases = False, True

        def step(txn: Txn, claim: Claim) -> Sequence[Watcher]:
            nonlocal is_mine, kept_leases
            if claim.settled and not is_mine:
                return ()
            is_mine = claim.settled = True
            kept_leases = self._change(txn, claim, changes)
            return watchers(txn, claim.plan.short_keys()) if any_watchers(txn) else ()

        try:
            others = self._file.transact(step, claim)
        except InStep:
            self._steps.settle_later(claim, changes)
        except StoreUnavailable:  # the transaction had no effect
            claim.settled = claim.settled and not is_mine
            raise
        finally:  # also after an interruption, which may have come when the claim was settled
            if others or self.line.busy:
                self._waking.notify(claim.plan.scope_keys, others)
        if not kept_leases:
            claim.lose_lease()

    def _change(self, txn: Txn, claim: Claim, changes: Amounts) -> bool:
        """Change what a claim has charged; returns whether its leases were there."""
        plan, now = prepared(claim.plan), self._now()
        if claim.number:
            self._name_holder(claim)
        records = self._records.load(txn, plan)
        kept_leases = engine.settle(claim, records, now, changes)
        self._save(txn, plan, records, now)
        return kept_leases

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        return self._file.transact(self._renew, claims)

    def _renew(self, txn: Txn, claims: Sequence[Claim]) -> list[Claim]:
        now, lost = self._now(), []
        for claim in claims:
            plan = prepared(claim.plan)
            self._name_holder(claim)
            records = self._records.load(txn, plan)
            if engine.renew(claim, records, now):
                self._save(txn, plan, records, now)
            else:
                lost.append(claim)
        return lost

    def peek(self, claim: Claim) -> None:
        is_gone = self._is_gone() if claim.shape.permits else None
        self._file.transact(partial(self._peek, is_gone=is_gone), claim, write=False)

    def _peek(self, txn: Txn, claim: Claim, is_gone: engine.IsGone | None = None) -> None:
        plan = prepared(claim.plan)
        _check_version(txn, claim)
        now = self._now()
        engine.peek(claim, self._records.load(txn, plan, carry_at=now), now, is_gone)
        _load_logs(claim)

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:

        def reset(txn: Txn, slices: Mapping[str, str]) -> Sequence[Watcher]:
            for scope, slices_scope in slices.items():
                key = file_key(scope)
                record = self._records.find(txn, key)
                if record is not None:
                    engine.reset(record, keys, self._now(), self._records.find(txn, file_key(slices_scope)))
                    self._records.put(txn, key, record)
            return watchers(txn, [short_key(scope) for scope in slices])

        others = self._file.transact(reset, {scope: slices_key(scope) for scope in scopes})
        self._waking.notify(scopes, others)

    def add_rejections(self, rejections: RejectionCounts, namespace: str = "") -> None:
        self._file.transact(partial(self._usage.add_rejections, namespace=namespace), rejections)

    def collect_counts(self, namespace: str = "", collector: int = 0) -> Batch | None:  # noqa: ARG002 - there is one
        return self._usage.collect(self._file.transact, namespace)

    def forget_counts(self, name: str, namespace: str = "") -> None:
        self._file.transact(partial(self._usage.forget, namespace=namespace), name)

    def version(self, namespace: str = "") -> int:
        return self._file.transact(_version_in, namespace_digest(namespace), write=False)

    def advance_version(self, changes: Collection[Change] = (ALL,), namespace: str = "") -> int:
        """See Store. In a file without room for the log, that is deleted."""
        suffix = namespace_digest(namespace)

        def advance(txn: Txn, keeps_log: bool) -> tuple[int, Sequence[Watcher]]:
            log = _log_in(txn, suffix).advanced(changes)
            txn.put(_VERSION + suffix, log.version.to_bytes(VERSION_LENGTH))
            if keeps_log:
                txn.put(_CHANGES + suffix, log.log)
            else:
                txn.delete(_CHANGES + suffix)
            return log.version, watchers(txn)

        try:
            version, others = self._file.transact(advance, True)
        except StoreFull:
            version, others = self._file.transact(advance, False)
        self.line.notify_all()
        self._waking.notify((), others)
        return version

    def changes_since(self, version: int, namespace: str = "") -> tuple[int, Changes] | None:
        return self._file.transact(_log_in, namespace_digest(namespace), write=False).since(version)

    def close(self) -> None:
        """Close the file; the next call of a verb opens it again."""
        self._file.close()

    def _make_room(self) -> None:
        """Delete what gives way, now that the file is full."""
        self._file.forget_dead_readers()
        self._housekeeping.make_room(partial(self._file.transact, mending=False))

    def _transfer(self, deleted: Txn, present: Txn) -> None:
        """Add the content of a file that was deleted to the one that has replaced it."""
        self._records.forget_definitions()
        self._records.transfer(deleted, present, self._now())


def _check_version(txn: Txn, claim: Claim) -> None:
    """Raise StaleConfiguration when a claim is of another version of the configuration than the file's."""
    if claim.version is not None and claim.version != _version_in(txn, namespace_digest(claim.plan.namespace)):
        raise StaleConfiguration


def _load_logs(claim: Claim) -> None:
    """Read the logs in the states of a claim, which are used after the transaction."""
    for limit, state in zip(claim.shape.limits, claim.states, strict=True):
        if limit.rule.has_log:
            log: Log = state[-1]
            log.arrays()


def _version_in(txn: Txn, suffix: bytes) -> int:
    """The version of the configuration."""
    return int.from_bytes(txn.get(_VERSION + suffix) or b"")


def _log_in(txn: Txn, suffix: bytes) -> ChangeLog:
    """The version and the changes that have led to it."""
    return ChangeLog(_version_in(txn, suffix), txn.get(_CHANGES + suffix) or b"")


def open_process_store(directory: str | Path, **options: Any) -> ProcessStore:
    """Open the store in a directory, or return the one that this process has opened there before.

    `options` are those of ProcessStore, and count when the store is opened first.
    """
    return open_once(("process", os.path.realpath(directory)), partial(ProcessStore, directory, **options))
