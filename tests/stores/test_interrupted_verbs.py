"""Signal handlers that raise at any call within a verb, on each store: no lock is held afterwards, and every amount
that is charged or counted belongs to a claim that is known to be admitted.

CPython runs signal handlers where a Python function begins and where a call returns; so does this test.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType

import pytest
from pytest_django import DjangoDbBlocker

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.alternatives import Alternatives
from limits_app.acquiring.blocking import wait_in_thread
from limits_app.acquiring.store import CountingStore
from limits_app.engine.errors import LimitTimeout
from limits_app.engine.limits import RateLimit, ResourceLimit
from limits_app.stores.database import DatabaseStore
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.testing.conformance.contract import counting
from tests.servers.redis import redis_server
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.redis.support import store_on
from tests.stores.support import PATIENCE, holders, used

YEAR = 366 * 86_400
NOW = 1_800_000_000_000_000
LIMITS = (RateLimit("x", 10**6, YEAR), ResourceLimit("db", 2))
OURS = ("limits_app/acquiring", "limits_app/engine", "limits_app/stores", "contextlib.py")


class Interrupted(BaseException):
    """Raised as by the handler of a signal."""


def interrupted(number: int, work: Callable[[], object]) -> bool:
    """Do some work, and raise at the call with this number; returns whether there were so many."""
    left = number

    def raise_at(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in {"call", "c_return"} and any(part in frame.f_code.co_filename for part in OURS):
            left -= 1
            if left == 0:
                raise Interrupted

    before = sys.getprofile()
    sys.setprofile(raise_at)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.setprofile(before)
    return left <= 0


def memory(_: Path) -> Iterator[CountingStore]:
    yield MemoryStore(clock=lambda: NOW)


def process(directory: Path) -> Iterator[CountingStore]:
    with closing(ProcessStore(directory, map_megabytes=1, clock=lambda: NOW)) as store:
        yield store


def redis(_: Path) -> Iterator[CountingStore]:
    with redis_server() as server, closing(store_on(server, clock=lambda: NOW)) as store:
        yield store


@pytest.fixture(scope="module", params=["memory", "process", "sqlite", "redis"])
def store(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    sqlite: Settings,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[CountingStore]:
    """Each store, on a clock that stands still."""
    if request.param == "sqlite":
        with django_db_blocker.unblock(), database(sqlite):
            opened = DatabaseStore(ALIAS, clock=lambda: NOW, **PATIENT)
            yield opened
            opened.close()
        return
    yield from {"memory": memory, "process": process, "redis": redis}[request.param](tmp_path_factory.mktemp("state"))


class Ledger:
    """What a store has handed out, to be compared with what it has charged and counted."""

    def __init__(self, store: CountingStore, entity: str) -> None:
        self.store = store
        self.others = counting(store, *LIMITS, entity=f"other {entity}")
        self.begin(entity)

    def begin(self, entity: str) -> None:
        """Begin with an entity that has used nothing."""
        self.limits = counting(self.store, *LIMITS, entity=entity)
        self.entity = entity
        self.admitted = 0
        self.counted: Counter[str] = Counter()

    def acquire(self) -> Acquisition:
        """An acquisition of 5 and a permit, of which 2 are used."""
        acquired = self.prepare()
        assert self.store.acquire(acquired.claim)
        return acquired

    def prepare(self) -> Acquisition:
        """The same before the store has decided."""
        return self.limits.prepare({"x": 5})

    def release(self, *acquisitions: Acquisition) -> None:
        """Settle what was admitted, once."""
        for acquired in acquisitions:
            if acquired.claim.admitted:
                self.admitted += 1
                if not acquired.claim.settled:
                    acquired.update({"x": 2})
                    acquired.release()

    def use(self) -> bool:
        """Whether a thread can use all of the store; this settles what the store has left open."""
        with self.others.acquire({"x": 5}, timeout=PATIENCE) as acquired:
            acquired.update({"x": 1})
            return bool(acquired)

    def check(self) -> None:
        """Compare what was handed out with what is charged and counted."""
        while (batch := self.store.collect_counts()) is not None:
            for count in batch.counts:
                if count.entity == self.entity:
                    self.counted.update(count.amounts)
            self.store.forget_counts(batch.name)
        assert (used(self.limits, "x"), holders(self.limits)) == (2 * self.admitted, 0)
        assert self.counted["x"] == 2000 * self.admitted
        assert self.counted["db"] >= 1000 * self.admitted, "a permit that was returned unused counts as used"


Verb = Callable[[Ledger, int], tuple[bool, list[Acquisition]]]
"""Is interrupted at the call with a number; returns whether there were so many, and what may be admitted."""


def acquire(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    acquired = ledger.prepare()
    return interrupted(number, lambda: ledger.store.acquire(acquired.claim)), [acquired]


def acquire_first(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    """Charge a scope that has no record; what was charged before is another ledger's."""
    ledger.begin(f"new {number}")
    return acquire(ledger, number)


def try_acquire(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    """Ask for an acquisition; an interrupted request leaves nothing charged."""
    handed_out: list[Acquisition] = []

    def work() -> None:
        handed_out.append(ledger.limits.try_acquire({"x": 5}))

    return interrupted(number, work), handed_out


def settle(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    acquired = ledger.acquire()
    acquired.update({"x": 2})
    return interrupted(number, acquired.release), [acquired]


def renew(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    acquired = ledger.acquire()
    return interrupted(number, lambda: ledger.store.renew([acquired.claim])), [acquired]


def peek(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    return interrupted(number, ledger.limits.get_stats), [ledger.acquire()]


def wait(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    """Wait for a permit that is free; an interrupted wait leaves nothing charged."""
    admitted: list[Acquisition] = []

    def work() -> None:
        admitted.append(wait_in_thread(Alternatives([ledger.prepare()]), PATIENCE))

    return interrupted(number, work), admitted


def wait_in_vain(ledger: Ledger, number: int) -> tuple[bool, list[Acquisition]]:
    """Wait for a permit until the time is over."""
    held = [ledger.acquire(), ledger.acquire()]

    def work() -> None:
        with suppress(LimitTimeout):
            wait_in_thread(Alternatives([ledger.prepare()]), 0.001)

    return interrupted(number, work), held


VERBS: list[Verb] = [acquire, acquire_first, try_acquire, settle, renew, peek, wait, wait_in_vain]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of an interrupted finalizer
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_nothing_is_locked_lost_or_charged_that_was_not_handed_out(store: CountingStore, verb: Verb) -> None:
    ledger = Ledger(store, verb.__name__)
    ledger.release(ledger.acquire())
    ledger.check()
    number, goes_on = 0, True
    with ThreadPoolExecutor(1) as executor:
        while goes_on:
            number += 1
            goes_on, acquisitions = verb(ledger, number)
            ledger.release(*acquisitions)
            assert ledger.use(), number
            assert executor.submit(ledger.use).result(PATIENCE), number
            ledger.check()
    assert number > 5
