"""A ledger: how often the store may have charged and counted each request of a client, to be compared with its state.

Each request has a decimal digit of its own in the amounts of the client: request number 3 asks for 1000 or a few times
as much. So the used amount, and the counted one, show what each of them was charged.
"""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Final

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import CountingStore, Store
from limits_app.engine.errors import LimitExceeded, StoreUnavailable
from limits_app.engine.limits import AnyLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import collected
from tests.interrupting import Interrupted
from tests.stores.contract.chaos import Onlooker, attempted, counted, interrupted_at_random, settled
from tests.stores.contract.places import Place

__all__ = ["LIMITS", "Ledger", "amounts_of", "limits_for"]

DAY: Final = 86_400
CAPACITY: Final = 10**12
PERMITS: Final = 3
_DIGITS: Final = 11
_LEASE_SECONDS: Final = 10

LIMITS: Final[dict[str, AnyLimit]] = {
    "quota": QuotaLimit("units", CAPACITY, "day"),
    **{one.value: RateLimit("units", CAPACITY, DAY, one) for one in RateLimitAlgorithm},
}
_REFUNDS: Final = ("quota", RateLimitAlgorithm.TOKEN_BUCKET.value, RateLimitAlgorithm.GCRA.value)


def limits_for(store: Store, entity: str) -> LimitSet:
    """The limits of a client, whose name begins with that of a limit."""
    return counted(store, LIMITS[entity.partition(" ")[0]], ResourceLimit("db", PERMITS), entity=entity)


def amounts_of(store: CountingStore, entity: str) -> list[int]:
    """What was counted of a client's units since the last time, in thousandths; other counts are dropped."""
    return [amount for key, amount in collected(store).items() if (key[1], key[4]) == (entity, "units")]


@dataclass
class Entry:
    """A request: the digits that the store may show for it."""

    number: int
    amount: int
    charged: set[int]
    counted: set[int]

    @property
    def units(self) -> int:
        """What it asks for."""
        return self.amount * 10**self.number


@dataclass
class Held:
    """An acquisition, with the entries of its first amounts and of its extensions."""

    acquisition: Acquisition
    entries: list[Entry]
    permits: int


@dataclass
class Ledger:
    """The requests of one client of a store, in one round of chaos."""

    place: Place
    store: ResilientStore
    looking: CountingStore
    clock: FakeClock
    random: Random
    onlooker: Onlooker
    entity: str
    entries: list[Entry] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    lost_permits: int = 0
    """How many permits may be taken by callers that hold nothing."""

    def __post_init__(self) -> None:
        self.limits = limits_for(self.store, self.entity)
        self.seen = limits_for(self.looking, self.entity)
        self.refunds = self.entity.startswith(_REFUNDS)

    def run(self, steps: int) -> None:
        """Take so many steps, each with a fault or without, and compare what the store has then."""
        print(f"{self.place.name}, {self.entity}")  # noqa: T201 - pytest shows it with a failure
        for _ in range(steps):
            self._step()
            permits = sum(held.permits for held in self.held)
            assert permits <= PERMITS, "more permits were admitted than there are"
        while self.held:
            self._release(self.held[0], nullcontext(), "nothing")
        settled(self.store)
        gc.collect(1)
        self._compare()
        self._becomes_full()

    def _step(self) -> None:
        verb = self.random.choice((self._acquire, self._acquire, self._extend, self._release_one))
        kind = self.random.choice(("none", "interruption", "interruption", "way" if self.place.ways else "none"))
        fault: AbstractContextManager[None] = nullcontext()
        if kind == "interruption":
            fault = interrupted_at_random(self.random)
        elif kind == "way":
            fault = self.place.fault(self.random)
        verb(fault, is_unsure=kind == "way")
        if kind != "none" and self.random.random() < 0.5:
            self.onlooker.check(self.seen, self.entity, self.clock())

    def _entry(self, *digits: int) -> Entry | None:
        number = len(self.entries)
        if number >= _DIGITS:
            return None
        amount = self.random.randint(1, 3)
        self.entries.append(Entry(number, amount, {0, amount}, {0, amount}))
        return self.entries[-1]

    def _note(self, *words: object) -> None:
        print(*words)  # noqa: T201 - pytest shows it with a failure

    def _acquire(self, fault: AbstractContextManager[None], *, is_unsure: bool) -> None:
        entry = self._entry()
        if entry is None:
            return
        permits = self.random.randint(0, 2)
        acquired: Acquisition | None = None
        try:
            with fault:
                acquired = self.limits.try_acquire({"units": entry.units, "db": permits})
        except (Interrupted, StoreUnavailable) as error:
            self._note("acquire", entry.number, entry.amount, permits, type(error).__name__)
        if acquired is None:
            self.lost_permits += permits
            return
        self._note("acquire", entry.number, entry.amount, permits, bool(acquired))
        digit = entry.amount if acquired else 0
        entry.charged, entry.counted = {digit}, {digit}
        if acquired:
            self.held.append(Held(acquired, [entry], permits))

    def _extend(self, fault: AbstractContextManager[None], *, is_unsure: bool) -> None:
        if not self.held or (entry := self._entry()) is None:
            return
        held, permits = self.random.choice(self.held), self.random.randint(0, 1)
        requested = {"units": entry.units, **({"db": 1} if permits else {})}
        digit, before = None, sum(one.units for one in held.entries)
        is_interrupted = False
        try:
            with fault:
                held.acquisition.extend(requested)
                digit = entry.amount
        except LimitExceeded:
            digit = 0
        except Interrupted:
            is_interrupted = True
        except StoreUnavailable:
            assert held.acquisition.acquisitions["units"].requested == before, "the acquisition is not as before"
        # As with any call, the exception may come when all is done.
        if is_interrupted and held.acquisition.acquisitions["units"].requested > before:
            digit = entry.amount
        self._note("extend", held.entries[0].number, entry.number, entry.amount, permits, digit)
        if digit is None:
            self.lost_permits += permits
            return
        entry.charged, entry.counted = {digit}, {digit}
        if digit:
            held.entries.append(entry)
            held.permits += permits

    def _release_one(self, fault: AbstractContextManager[None], *, is_unsure: bool) -> None:
        if self.held:
            held = self.random.choice(self.held)
            usage = self.random.choice(
                ("nothing", "all", "more", "cancel", *(["less"] if len(held.entries) == 1 else []))
            )
            self._release(held, fault, usage, is_unsure=is_unsure)

    def _release(self, held: Held, fault: AbstractContextManager[None], usage: str, *, is_unsure: bool = False) -> None:
        """Release an acquisition that has used nothing that it says, all, more, or less of it; or cancel it."""
        self.held.remove(held)
        change, is_interrupted = self._report(held, usage), False
        release = held.acquisition.cancel if usage == "cancel" else held.acquisition.release
        try:
            with fault:
                release()
        except (Interrupted, StoreUnavailable):
            is_interrupted = True
            self.lost_permits += held.permits
        first = held.entries[0]
        self._note("release", first.number, usage, change, "unsure" * is_unsure, "interrupted" * is_interrupted)
        for _ in range(1 if is_interrupted else self.random.randint(0, 2)):  # changes nothing more
            attempted(release)
        is_sure = not (is_unsure or is_interrupted)
        if usage == "cancel":
            for entry in held.entries:
                self._refunded(entry, entry.amount, is_sure=is_sure)
        elif change < 0:
            self._refunded(first, -change, is_sure=is_sure)
        elif change > 0:
            self._indebted(first, change, is_sure=is_sure, is_delivered=not is_interrupted)

    def _report(self, held: Held, usage: str) -> int:
        """Report the usage; return by how much it differs from the amount of the first request, in its digit."""
        if usage in {"nothing", "cancel"}:
            return 0
        first, more = held.entries[0], self.random.randint(1, 3)
        change = {"all": 0, "more": more, "less": -min(more, first.amount)}[usage]
        total = sum(entry.units for entry in held.entries) + change * 10**first.number
        held.acquisition.update({"units": total})
        return change

    def _refunded(self, entry: Entry, refund: int, *, is_sure: bool) -> None:
        """A refund, which may be lost; what the algorithm does not refund may be counted or not."""
        before, after = entry.amount, entry.amount - refund
        entry.charged = {after} if is_sure and self.refunds else {before, after} if self.refunds else {before}
        entry.counted = {after} if is_sure and self.refunds else {before, after}

    def _indebted(self, entry: Entry, debt: int, *, is_sure: bool, is_delivered: bool) -> None:
        """A debt, which arrives, unless the caller was interrupted; it may be charged twice, never counted twice."""
        before, after = entry.amount, entry.amount + debt
        entry.charged = {after} if is_sure else {after, after + debt} if is_delivered else {before, after}
        if self.place.ways and not is_delivered:
            entry.charged.add(after + debt)
        entry.counted = {after} if is_sure else {before, after}

    def _compare(self) -> None:
        stats = self.seen.get_stats()
        assert stats["db"]["used"] <= self.lost_permits, "permits were released and are taken"
        used = round(stats["units"]["used"])
        milli = sum(amounts_of(self.looking, self.entity))
        assert milli % 1000 == 0
        for entry in self.entries:
            charged, counts = used // 10**entry.number % 10, milli // 1000 // 10**entry.number % 10
            assert charged in entry.charged, f"request {entry.number} was charged {charged}, not {entry.charged}"
            assert counts in entry.counted, f"request {entry.number} was counted {counts}, not {entry.counted}"
            assert counts <= charged, f"request {entry.number} was charged {charged} and counted {counts}"
            if self.refunds and len(entry.charged) > 1 and charged <= entry.amount:
                assert counts == charged, f"request {entry.number} was charged {charged} and counted {counts}"
        assert used < 10 ** len(self.entries)
        assert milli // 1000 < 10 ** len(self.entries)

    def _becomes_full(self) -> None:
        """The permits are free when the leases end, and the rest when the limit has refilled."""
        self.clock.advance(_LEASE_SECONDS + 1)
        permits = self.seen.try_acquire({"units": 0, "db": PERMITS})
        assert permits, "permits are taken after their lease"
        permits.release()
        self.clock.advance(2 * DAY)
        everything = self.seen.try_acquire({"units": CAPACITY, "db": PERMITS})
        assert everything, "a limit is not full after its refill time"
        everything.release()
        assert not self.seen.try_acquire({"units": 1})
