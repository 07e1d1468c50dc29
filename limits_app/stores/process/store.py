"""The process store's verbs: each is one transaction on the shared file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import as_clock, system_us
from limits_app.core.counting import Batch
from limits_app.core.errors import NotShareable
from limits_app.core.forking import lock_over_forks
from limits_app.core.keys import short_key
from limits_app.core.layout import LEASE_US, lease_us_of
from limits_app.core.parts import Amounts
from limits_app.core.renewal import Renewer
from limits_app.stores.process.deciding import Deciding, advance_version_in, version_in
from limits_app.stores.process.housekeeping import Housekeeping
from limits_app.stores.process.leasing import Leasing
from limits_app.stores.process.records import Records
from limits_app.stores.process.state_file import StateFile
from limits_app.stores.process.tallying import Tallying
from limits_app.stores.process.watching import Watching

__all__ = ["ProcessStore", "open_process_store"]

C = TypeVar("C", bound=Claim)

_POLL_US: Final = (250_000, 250_000)
_SECOND: Final = 1_000_000


class ProcessStore:
    """Keeps state in a file that all processes of a machine share, which may fork and be killed at any time.

    `directory` gets a subdirectory that only the user may enter; `map_megabytes` are reserved there at once.
    `clock` returns microseconds, the same in all processes.
    Open it through `open_process_store`: a process must not open one file twice.
    Raises StoreUnavailable when the directory or the space cannot be had.
    """

    remote = False
    counting = True
    poll_us: tuple[int, int] | None = _POLL_US

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
        self.lease_us = lease_us_of(lease_seconds)
        self._now = clock
        self._map_megabytes = map_megabytes
        self._records = Records()
        self._file = StateFile(self.directory, map_megabytes, self._make_room, self._records.begin_anew)
        self._leasing = Leasing(self._file.identity, self._file.is_alive)
        self._tallying = Tallying(self._records)
        self._housekeeping = Housekeeping(self._records, self._leasing, self._tallying, self._file.is_crowded)
        self._watching = Watching(self._file)
        parts = (self._records, self._leasing, self._tallying, self._housekeeping)
        self._deciding = Deciding(*parts, clock=clock, do_later=self._file.do_later)
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
        decided = self._file.transact(self._deciding.decide, claim, claim.amounts)
        return self.acquire(claim) if decided is None else decided

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`."""
        return self._file.transact(partial(self._deciding.decide_first, failover=failover), claims, emptiest_first)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`."""
        if self._file.is_stepping():
            self._file.do_later(partial(self._settle_now, claim, changes))
            return
        others = self._file.transact(self._deciding.settle, claim, changes)
        if others or self.line.busy:
            self._watching.tell(claim.plan.scopes, others)

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False  # whoever released it takes it as done already
        self.settle(claim, changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        return self._file.write(lambda txn: self._leasing.renew_all(txn, claims, self._now()))

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        self._file.read(lambda txn: self._deciding.look(txn, claim))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        shorts = [short_key(scope) for scope in scopes]
        others = self._file.write(lambda txn: self._deciding.reset(txn, shorts, keys))
        self._watching.tell(scopes, others)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        return self._file.write(lambda txn: self._tallying.collect(txn, self._now()))

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        self._file.write(lambda txn: self._tallying.forget(txn, name))

    def version(self) -> int:
        """See `Store.version`."""
        return self._file.read(version_in)

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        version, others = self._file.write(advance_version_in)
        self.line.notify_all()
        self._watching.tell((), others)
        return version

    def close(self) -> None:
        """Close the file; what is used again opens it anew."""
        self._file.close()

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
            more = self._file.write(lambda txn: self._housekeeping.make_room(txn, now), mending=False)


_OPENED: Final[dict[str, ProcessStore]] = {}
_OPENING: Final = lock_over_forks()


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
