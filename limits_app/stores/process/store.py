"""The process store's verbs: each is one transaction on the shared file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from time import monotonic, time_ns
from typing import Final

import lmdb

from limits_app.core.claim import Claim
from limits_app.core.clock import as_clock
from limits_app.core.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.core.keys import short_key
from limits_app.core.forking import on_fork
from limits_app.core.layout import LEASE_US
from limits_app.core.plan import Charges, Plan
from limits_app.core.renewal import Renewer
from limits_app.core.waiting import WaitingLine
from limits_app.stores.process import watching
from limits_app.stores.process.files import open_environment, private_directory
from limits_app.stores.process.housekeeping import Housekeeping
from limits_app.stores.process.leasing import Leasing
from limits_app.stores.process.presence import Presence, is_alive
from limits_app.stores.process.records import Records
from limits_app.stores.settling import settled

__all__ = ["ProcessStore"]

_VERSION: Final = b"version"
_PATIENCE_US: Final = 250_000
_SECONDS_BETWEEN_LOOKS: Final = 0.1
_MOST_LOOKED: Final = 1024

_INHERITED: Final[list[object]] = []
"""Open files of parent processes: closing one here would take locks away from this process."""


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
        self.line = WaitingLine(self._watch, self._unwatch)
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self._now = clock
        self._map_megabytes = map_megabytes
        self._state = private_directory(self.directory)
        self.after_fork()
        self._open()
        on_fork(self)

    def after_fork(self) -> None:
        """A child opens the file anew; what its parent has open must stay as it is."""
        _INHERITED.append((getattr(self, "_env", None), getattr(self, "_presence", None)))
        self._env: lmdb.Environment | None = None
        self._presence: Presence | None = None
        self._opening = RLock()
        self._records = Records()
        self._housekeeping = Housekeeping(self._records)
        self._leasing = Leasing(self._identity, self._is_alive)
        self._watched: dict[bytes, str] = {}
        self._looked: dict[bytes, float] = {}

    def __reduce__(self) -> tuple[object, ...]:
        if self._now is not system_us:
            raise NotShareable("a store with a clock of its own cannot be sent to another process: leave clock= out")
        from limits_app.stores.process import _restored  # noqa: PLC0415 - the package imports this module

        return _restored, (str(self.directory), self._map_megabytes, self.lease_us / 1_000_000)

    def __repr__(self) -> str:
        return f"ProcessStore({str(self.directory)!r})"

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        try:
            return self._acquire(claim)
        except lmdb.Error as error:
            self._recover(error)
        with self._failing_clearly():
            return self._acquire(claim)

    def _acquire(self, claim: Claim) -> bool:
        plan, after, records = claim.plan, [], self._records
        txn = (self._env or self._open()).begin(write=True)
        try:
            if plan.version is not None:
                self._check(txn, plan)
            now = self._now()
            for part, charges in claim.charges:
                codec, states = records.states(txn, part, now)
                charged = states.copy()
                for ask, amount in charges:
                    state = ask.take(states[ask.index], now, amount)
                    if state is None:
                        return self._refused(txn, claim, now)
                    charged[ask.index] = state
                after.append((part.short_key, charged, codec))
            for scope, charged, codec in after:
                records.write(txn, scope, codec, charged)
            if plan.permits:
                self._leasing.lend(txn, claim, now)
            if records.newcomer:
                self._housekeeping.step(txn, now)
            txn.commit()
        except BaseException:
            txn.abort()
            records.forget_writes()
            raise
        claim.admitted, claim.decided_at, claim.records = True, now, after
        return True

    def settle(self, claim: Claim, changes: Charges) -> None:
        """See `Store.settle`."""
        try:
            watching = self._settle(claim, changes)
        except lmdb.Error as error:
            self._recover(error)
            with self._failing_clearly():
                watching = self._settle(claim, changes)
        if self.line.busy:
            self.line.notify(part.key for part, _ in changes)
        if watching:
            self._call(watching)

    def _settle(self, claim: Claim, changes: Charges) -> list[watching.Watcher]:
        with self._writing() as txn:
            if claim.settled:
                return []
            now = self._now()
            for part, row in changes:
                codec, states = self._records.stored(txn, part.short_key) or self._records.states(txn, part, now)
                kept = [
                    (ask, change)
                    for ask, change in row
                    if ask.lease_key is None or self._leasing.take_back(txn, part, ask, claim)
                ]
                after = settled(codec.layout, states, kept, part.layout, now)
                self._records.write(txn, part.short_key, codec, after)
            claim.settled = True
            return watching.watchers(txn, [part.short_key for part, _ in changes])

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        with self._failing_clearly(), self._writing() as txn:
            now = self._now()
            return [claim for claim in claims if not self._leasing.renew(txn, claim, now)]

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        with self._failing_clearly(), (self._env or self._open()).begin() as txn:
            self._check(txn, claim.plan)
            now = self._now()
            records = []
            for part in claim.plan.parts:
                codec, states = self._records.states(txn, part, now)
                for ask, _ in part.permits:
                    states[ask.index] = self._leasing.living(txn, part, ask, states[ask.index], now)
                codec.load_logs(states)
                records.append((part.short_key, states))
            claim.decided_at, claim.records = now, records

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        with self._failing_clearly(), self._writing() as txn:
            for scope in map(short_key, scopes):
                stored = self._records.stored(txn, scope)
                if stored is not None:
                    codec, states = stored
                    fresh = [
                        state if rule.is_permit or (keys is not None and rule.key not in keys) else rule.start
                        for rule, state in zip(codec.layout.rules, states, strict=True)
                    ]
                    self._records.write(txn, scope, codec, fresh)
            watching_them = watching.watchers(txn, map(short_key, scopes))
        self.line.notify(scopes)
        self._call(watching_them)

    def version(self) -> int:
        """See `Store.version`."""
        with self._failing_clearly(), (self._env or self._open()).begin() as txn:
            return _version(txn)

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        with self._failing_clearly(), self._writing() as txn:
            version = _version(txn) + 1
            txn.put(_VERSION, version.to_bytes(8))
            everybody = watching.watchers(txn)
        self.line.notify_all()
        self._call(everybody)
        return version

    def close(self) -> None:
        """Close the file and leave; what is used again opens it anew."""
        with self._opening:
            if self._presence is not None:
                self._presence.leave()
                self._presence = None
            if self._env is not None:
                self._env.close()
                self._env = None

    def _open(self) -> lmdb.Environment:
        with self._opening:
            if self._env is None:
                self._env = open_environment(self._state, self._map_megabytes)
            return self._env

    @contextmanager
    def _writing(self) -> Iterator[lmdb.Transaction[bytes]]:
        try:
            with (self._env or self._open()).begin(write=True) as txn:
                yield txn
        except BaseException:
            self._records.forget_writes()
            raise

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError as error:
            raise StoreUnavailable(
                f"all {self._map_megabytes} MB of {self._state} are in active use: raise LIMITS['MAP_MEGABYTES']"
            ) from error
        except lmdb.Error as error:
            raise StoreUnavailable(f"the state file in {self._state} cannot be used: {error}") from error

    def _recover(self, error: lmdb.Error) -> None:
        """After a full map, forget what is idle; after anything else there is nothing to be done but to try again."""
        if isinstance(error, lmdb.MapFullError):
            self._housekeeping.start_over()
            with suppress(lmdb.MapFullError):
                more = True
                while more:
                    with self._writing() as txn:
                        more = self._housekeeping.make_room(txn, self._now())

    def _check(self, txn: lmdb.Transaction[bytes], plan: Plan) -> None:
        if plan.version is not None and plan.version != _version(txn):
            raise StaleConfiguration

    def _refused(self, txn: lmdb.Transaction[bytes], claim: Claim, now: int) -> bool:
        """Take lost permits back and ask again, or note the refusal."""
        if claim.plan.permits and self._reclaimed(txn, claim.plan, now):
            txn.commit()
            return self._acquire(claim)
        records = []
        for part in claim.plan.parts:
            codec, states = self._records.states(txn, part, now)
            codec.load_logs(states)
            records.append((part.short_key, states))
        txn.abort()
        claim.admitted, claim.decided_at, claim.records = False, now, records
        return False

    def _reclaimed(self, txn: lmdb.Transaction[bytes], plan: Plan, now: int) -> bool:
        """Take back permits that have expired or whose process is gone; says whether anything has changed."""
        changed = False
        for part in plan.parts:
            codec, states = self._records.states(txn, part, now)
            for ask, _ in part.permits:
                held, _, _, earliest = state = states[ask.index]
                if held and (earliest <= now or self._look_due(part.short_key)):
                    states[ask.index] = self._leasing.reclaim(txn, part, ask, state, now)
                    if states[ask.index] != state:
                        self._records.write(txn, part.short_key, codec, states)
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

    def _identity(self) -> bytes:
        with self._opening:
            if self._presence is None:
                self._presence = Presence(self._state)
            return self._presence.identity

    def _is_alive(self, process: bytes) -> bool:
        return is_alive(self._state, process)

    def _watch(self, scope: str) -> None:
        short, identity = short_key(scope), self._identity()
        self._watched[short] = scope
        if self._presence is not None:
            self._presence.listen(self._told)
        with self._failing_clearly(), self._writing() as txn:
            watching.watch(txn, short, identity)

    def _unwatch(self, scope: str) -> None:
        short, identity = short_key(scope), self._identity()
        with self._failing_clearly(), self._writing() as txn:
            watching.unwatch(txn, short, identity)
        self._watched.pop(short, None)

    def _told(self, scope: bytes) -> None:
        watched = self._watched.get(scope)
        if watched is not None:
            self.line.notify([watched])

    def _call(self, watching_them: list[watching.Watcher]) -> None:
        own = None if self._presence is None else self._presence.identity
        gone = watching.call(self._state, watching_them, own)
        if gone:
            with self._failing_clearly(), self._writing() as txn:
                for scope, process in gone:
                    watching.unwatch(txn, scope, process)


def _version(txn: lmdb.Transaction[bytes]) -> int:
    return int.from_bytes(txn.get(_VERSION) or b"")
