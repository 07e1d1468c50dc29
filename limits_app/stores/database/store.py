"""The database store: state in tables of one of the site's databases, for machines that share it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from limits_app.core.claim import Claim
from limits_app.core.clock import Clock, as_clock, system_us
from limits_app.core.counting import Batch
from limits_app.core.errors import NotShareable, StoreUnavailable
from limits_app.core.forking import lock_over_forks, on_fork
from limits_app.core.keys import short_key
from limits_app.core.layout import LEASE_US, lease_us_of
from limits_app.core.parts import Amounts
from limits_app.core.renewal import Renewer
from limits_app.core.waiting import WaitingLine
from limits_app.stores.database.choosing import Choice, charge_first
from limits_app.stores.database.clock import ServerClock
from limits_app.stores.database.deciding import (
    admitted,
    charged,
    check,
    forgotten,
    refused,
    renewed,
    seen,
    settled,
    without_lost,
)
from limits_app.stores.database.ledger import Decide, Ledger, Page
from limits_app.stores.database.links import Link, LinkOptions, new_stamp
from limits_app.stores.database.pool import LinkPool
from limits_app.stores.database.records import Record
from limits_app.stores.database.steps import Steps
from limits_app.stores.database.tallying import Tallying
from limits_app.stores.in_thread import AskedInThread
from limits_app.stores.once import Settling

__all__ = ["DatabaseStore", "open_database_store"]

C = TypeVar("C", bound=Claim)
T = TypeVar("T")

_POLL_US: Final = (5_000, 250_000)
_RENEWED_TOGETHER: Final = 100


class DatabaseStore(AskedInThread):
    """Keeps state in the site's database `using`, on connections of its own.

    What a request rolls back, whether by ATOMIC_REQUESTS or by itself, takes no count with it.
    Locks are waited for up to `lock_timeout` seconds, and connections up to `connect_timeout`.
    `clock` returns microseconds, the same everywhere; without it, time is the database's.
    Open it through `open_database_store`, so that one process has one of a kind.
    Raises ImproperlyConfigured for a database that is not there, or cannot be used.
    """

    remote = True
    counting = True
    poll_us: tuple[int, int] | None = _POLL_US

    def __init__(
        self,
        using: str = "default",
        *,
        clock: Callable[[], int] | None = None,
        lock_timeout: float = 1.0,
        connect_timeout: float = 0.2,
        lease_seconds: float = LEASE_US / 1e6,
    ) -> None:
        self.lease_us = lease_us_of(lease_seconds)
        options = {"lock_timeout": lock_timeout, "connect_timeout": connect_timeout, "lease_seconds": lease_seconds}
        self._restorable = None if clock is not None else (using, options)
        self._pool = LinkPool(using, LinkOptions(lock_timeout, connect_timeout, reads_clock=clock is None))
        self._steps = Steps(self._pool)
        self.clock = self._chosen_clock(clock)
        self._ledger = Ledger(self.clock)
        self._tallying = Tallying(self._ledger, self._step)
        self._settling = Settling()
        self.line = WaitingLine()
        self.renewer = Renewer(self.clock, self.lease_us, self.renew)
        self.clock.attach(self.line)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A process tells its leases from those of others by where it starts to count."""
        self._process = new_stamp()
        self._ledger.after_fork()

    def __reduce__(self) -> tuple[object, ...]:
        if self._restorable is None:
            raise NotShareable("a store with a clock of its own cannot be sent to another process: leave clock= out")
        return _restored, self._restorable

    def __repr__(self) -> str:
        return f"DatabaseStore({self._pool.alias!r})"

    def acquire(self, claim: Claim) -> bool:
        """See `Store.acquire`."""
        self._step(partial(self._acquire, claim), claim)
        return claim.admitted is True

    def acquire_first(self, claims: Sequence[C], *, emptiest_first: bool = False, failover: bool = True) -> C | None:
        """See `Store.acquire_first`."""
        if not claims:
            return None
        choice = Choice(emptiest_first, failover)
        self._step(partial(charge_first, claims, choice, self._process, self._ledger), claims[0])
        return next((claim for claim in claims if claim.admitted), None)

    def settle(self, claim: Claim, changes: Amounts) -> None:
        """See `Store.settle`."""
        if self._steps.is_stepping():
            self._steps.do_later(partial(self._settle_now, claim, changes))
            return
        if self._settling.begin(claim):
            try:
                self._step(partial(self._settle, claim, changes), claim)
            finally:
                self._settling.end(claim)
        if self.line.busy:
            self.line.notify(claim.plan.scopes)

    def _settle_now(self, claim: Claim, changes: Amounts) -> None:
        claim.settled = False  # whoever released it takes it as done already
        self.settle(claim, changes)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        """See `Store.renew`."""
        lost: list[Claim] = []
        for start in range(0, len(claims), _RENEWED_TOGETHER):
            lost += self._step(partial(self._renew, claims[start : start + _RENEWED_TOGETHER])) or ()
        return lost

    def peek(self, claim: Claim) -> None:
        """See `Store.peek`."""
        self._step(partial(self._peek, claim))

    def reset(self, scopes: Collection[str], keys: Collection[str] | None = None) -> None:
        """See `Store.reset`."""
        self._step(partial(self._reset, sorted({short_key(scope) for scope in scopes}), keys))
        self.line.notify(scopes)

    def collect_counts(self) -> Batch | None:
        """See `CountingStore.collect_counts`."""
        return self._tallying.collect()

    def forget_counts(self, name: str) -> None:
        """See `CountingStore.forget_counts`."""
        self._tallying.forget(name)

    def version(self) -> int:
        """See `Store.version`."""
        return self._step(lambda link: link.version()) or 0

    def advance_version(self) -> int:
        """See `Store.advance_version`."""
        version = self._step(lambda link: link.advance_version()) or 0
        self.line.notify_all()
        return version

    def close(self) -> None:
        """Close the connections that nobody uses; what is used again opens new ones."""
        self._pool.close()

    def _chosen_clock(self, clock: Callable[[], int] | None) -> Clock:
        if clock is not None:
            return as_clock(clock)
        if self._pool.kind.has_clock:
            return ServerClock(lambda: self._steps.take(lambda link: link.now()) or 0)
        return Clock(system_us)

    def _step(self, work: Callable[[Link], T], claim: Claim | None = None) -> T | None:
        """Take a step, and then do what has come up in it."""
        done = self._steps.take(work, claim)
        self._steps.catch_up()
        if self._ledger.housekeeping.is_due():
            with suppress(StoreUnavailable):  # it was for others, and will be for those who come next
                self._steps.take(lambda link: self._ledger.housekeeping.look(link, self.clock()))
        return done

    def _acquire(self, claim: Claim, link: Link) -> None:
        plan = claim.plan
        decide: Decide = partial(charged, claim, self._process)
        wrote = partial(admitted, claim)
        if self._ledger.swap(link, plan.parts, plan.version, decide=decide, conclude=wrote):
            return
        done = False
        while not done:
            page = self._ledger.open(link, plan.parts)
            check(plan, page.version)
            after = decide(page.records, page.now)
            if after is None and plan.permits:
                page = page.without_expired()
                after = decide(page.records, page.now)
            if after is None:
                page.load_logs()
                # A changed definition counts from when it is seen first, whatever is decided then.
                done = self._ledger.write(link, page, page.carried, partial(_refused, claim, page))
            else:
                done = self._ledger.write(link, page, after, wrote)

    def _settle(self, claim: Claim, changes: Amounts, link: Link) -> None:
        parts = claim.plan.parts
        decide: Decide = partial(settled, claim, self._process, changes)
        done = self._ledger.swap(link, parts, None, decide=decide, conclude=partial(_concluded, claim))
        while not done:
            page, concluded = self._ledger.open(link, parts, as_stored=True), partial(_concluded, claim)
            after = decide(page.records, page.now)
            if after is None:
                kept, concluded = (
                    without_lost(claim, self._process, changes, page.records),
                    partial(self._lapsed, claim),
                )
                after = settled(claim, self._process, kept, page.records, page.now)
            done = self._ledger.write(link, page, after or (), concluded)

    def _lapsed(self, claim: Claim, _: Sequence[Record], __: int) -> None:
        claim.settled = True
        self._steps.do_later(claim.lapse)

    def _renew(self, claims: Sequence[Claim], link: Link) -> list[Claim]:
        scopes = {ask.part.short_key for claim in claims for _, ask in claim.plan.leases}
        page = self._ledger.open_rows(link, sorted(scopes))
        after = {record.scope: record for record in page.records}
        lost = [claim for claim in claims if not renewed(claim, self._process, after, page.now)]
        self._ledger.write(link, page, list(after.values()), _nothing)
        return lost

    def _peek(self, claim: Claim, link: Link) -> None:
        page = self._ledger.look(link, claim.plan.parts)
        check(claim.plan, page.version)
        seen(claim, page.records, page.now)

    def _reset(self, scopes: Sequence[bytes], keys: Collection[str] | None, link: Link) -> None:
        page = self._ledger.open_rows(link, scopes)
        self._ledger.write(link, page, [forgotten(record, keys) for record in page.records], _nothing)


def _refused(claim: Claim, page: Page, _: Sequence[Record], now: int) -> None:
    refused(claim, page.records, now)


def _concluded(claim: Claim, _: Sequence[Record], __: int) -> None:
    claim.settled = True


def _nothing(_: Sequence[Record], __: int) -> None:
    """Nobody has to be told."""


_OPENED: Final[dict[tuple[object, ...], DatabaseStore]] = {}
_OPENING: Final = lock_over_forks()


def open_database_store(
    using: str = "default",
    *,
    lock_timeout: float = 1.0,
    connect_timeout: float = 0.2,
    lease_seconds: float = LEASE_US / 1e6,
) -> DatabaseStore:
    """Open the store in a database, or give the one that this process has opened there before with these options."""
    key = (using, lock_timeout, connect_timeout, lease_seconds)
    with _OPENING:
        store = _OPENED.get(key)
        if store is None:
            store = _OPENED[key] = DatabaseStore(
                using, lock_timeout=lock_timeout, connect_timeout=connect_timeout, lease_seconds=lease_seconds
            )
        return store


def _restored(using: str, options: Mapping[str, float]) -> DatabaseStore:
    return open_database_store(using, **options)
