"""Leases: permits stay with a holder that lives, and return from one that does not."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.runtime import on_fork
from limits_app.engine.claims import Claim
from limits_app.engine.clock import as_clock
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import AnyLimit, RateLimit, ResourceLimit
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import DB, ChangeRuntime, limit_set
from tests.acquiring.watched import PATIENCE_SECONDS, Caller, WatchedStore
from tests.forking import exit_code_of_child
from tests.stores.support import until
from tests.threads import no_more_threads

ONE = ResourceLimit("db", 1)
HOUR = 3600


@pytest.fixture
def lost(change_runtime: ChangeRuntime) -> list[Acquisition]:
    """The acquisitions whose lease was lost."""
    lost: list[Acquisition] = []
    change_runtime(lease_lost=lost.append)
    return lost


class Counting(MemoryStore):
    """A store that counts how often it was asked to renew, and can be out of reach."""

    down = False

    def __init__(self, **options: Any) -> None:
        self.renewals: list[int] = []
        super().__init__(**options)

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        self.renewals.append(len(claims))
        if self.down:
            raise StoreUnavailable("out of reach")
        return super().renew(claims)


class Late(MemoryStore):
    """A store in which a round of renewals falls between the end of a lease and the return of `settle`."""

    remote = True

    def settle(self, claim: Claim, changes: Sequence[int]) -> None:
        super().settle(claim, changes)
        self.renewer.run()

    async def aacquire(self, claim: Claim) -> bool:
        return self.acquire(claim)

    async def asettle(self, claim: Claim, changes: Sequence[int]) -> None:
        self.settle(claim, changes)


def test_all_permits_are_renewed_in_one_call_every_third_of_a_lease(clock: FakeClock) -> None:
    store = Counting(clock=clock, lease_seconds=30)
    limits = limit_set(store, DB)
    held = [limits.acquire({"db": 1}) for _ in range(3)]
    clock.advance(95)
    assert store.renewals == [3] * 9
    held.pop().release()
    clock.advance(10)
    assert store.renewals == [3] * 9 + [2]


def test_renewal_goes_on_when_the_clock_was_set_back(clock: FakeClock) -> None:
    store = Counting(clock=clock, lease_seconds=30)
    limits = limit_set(store, DB)
    with limits.acquire({"db": 1}) as held:
        clock.advance(20)
        store.renewals.clear()
        clock.advance(-HOUR)
        clock.advance(95)
        assert len(store.renewals) == 10
        assert not held.lost_lease


def test_nothing_is_renewed_where_nothing_is_held(clock: FakeClock) -> None:
    store = Counting(clock=clock)
    limits = limit_set(store, DB)
    clock.advance(HOUR)
    limits.acquire().release()
    clock.advance(HOUR)
    assert store.renewals == []
    with limits.acquire():
        clock.advance(5)
    assert store.renewals
    assert set(store.renewals) == {1}


def test_the_next_holder_starts_renewal_where_no_thread_could_be_started(caplog: pytest.LogCaptureFixture) -> None:
    store = Counting(lease_seconds=0.3)
    limits = limit_set(store, DB)
    with no_more_threads():
        first = limits.acquire({"db": 1})
    assert first
    assert not store.renewer.running
    assert "cannot start the thread limits-renewer" in caplog.text
    with limits.acquire({"db": 1}):
        assert store.renewer.running
        until(lambda: 2 in store.renewals)


def released_in_a_task(limits: LimitSet) -> None:
    async def hold() -> None:
        async with await limits.aacquire():
            pass

    asyncio.run(hold())


def released_by_a_block(limits: LimitSet) -> None:
    with limits.acquire():
        pass


def released_with_a_report(limits: LimitSet) -> None:
    with limits.acquire({"db": 1, "tokens": 5}) as held:
        held.update({"tokens": 3})


@pytest.mark.parametrize(
    ("release", "limits"),
    [
        pytest.param(released_by_a_block, [ONE], id="block"),
        pytest.param(released_with_a_report, [ONE, RateLimit("tokens", 10, 60)], id="report"),
        pytest.param(lambda limits: limits.acquire().release(), [ONE], id="release"),
        pytest.param(lambda limits: limits.acquire().cancel(), [ONE], id="cancel"),
        pytest.param(released_in_a_task, [ONE], id="task"),
    ],
)
def test_a_permit_that_is_released_during_a_renewal_is_not_lost(
    release: Callable[[LimitSet], None],
    limits: list[AnyLimit],
    clock: FakeClock,
    lost: list[Acquisition],
    caplog: pytest.LogCaptureFixture,
) -> None:
    release(limit_set(Late(clock=clock), *limits))
    assert lost == []
    assert caplog.messages == []


def test_the_end_of_max_hold_is_reported_at_that_time(clock: FakeClock, change_runtime: ChangeRuntime) -> None:
    lost: list[tuple[Acquisition, int]] = []
    change_runtime(lease_lost=lambda held: lost.append((held, clock())))
    store, start = Counting(clock=clock, lease_seconds=30), clock()
    limits = limit_set(store, ResourceLimit("db", 2, max_hold_seconds=13))
    first = limits.acquire()
    clock.advance(1)
    second = limits.acquire({"db": 1})
    clock.advance(40)
    assert lost == [(first, start + 13_000_000), (second, start + 14_000_000)]
    assert store.renewals == [2, 2, 1], "one round after ten seconds, and one for each end"


def test_a_lost_lease_names_all_keys(store: MemoryStore, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    limits = limit_set(store, ResourceLimit("gpu", 1, max_hold_seconds=5), ResourceLimit("db", 1))
    with limits.acquire():
        clock.advance(20)
    assert caplog.messages == ["the lease of db, gpu ran out while it was held: other holders may have the permit now"]


class ReleasedWhileRenewed(MemoryStore):
    """A store whose last holder releases while its lease is renewed, or when it is found that the lease is lost."""

    releases_first = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.acquired: list[Acquisition] = []

    def renew(self, claims: Sequence[Claim]) -> list[Claim]:
        if self.releases_first:
            self.acquired[-1].release()
        found = super().renew(claims)
        if not self.releases_first:
            self.acquired[-1].release()
        return found


def test_a_release_while_it_is_renewed_is_no_loss(clock: FakeClock, lost: list[Acquisition]) -> None:
    store = ReleasedWhileRenewed(clock=clock)
    store.acquired.append(limit_set(store, ONE).acquire())
    clock.advance(10)
    assert lost == []


def test_a_holder_that_releases_while_its_loss_is_found_is_notified_once(
    clock: FakeClock, lost: list[Acquisition]
) -> None:
    store = ReleasedWhileRenewed(clock=clock)
    limits = limit_set(store, ONE)
    for store.releases_first in (True, False):
        store.acquired.append(limits.acquire())
        # As if the process had been stopped for a minute: the clock went on without renewals.
        clock.now_us += 60_000_000
        other = limits.try_acquire({"db": 1})
        clock.advance(5)
        assert lost == store.acquired
        other.release()
    clock.advance(60)
    assert lost == store.acquired


def test_a_short_outage_loses_no_lease(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, lost: list[Acquisition]
) -> None:
    store = Counting(clock=clock)
    limits = limit_set(store, ONE)
    with limits.acquire():
        store.down = True
        clock.advance(5)
        store.down = False
        clock.advance(60)
        assert not limits.try_acquire({"db": 1})
    assert caplog.messages == ["permits could not be renewed; trying again"]
    assert lost == []


def test_a_listener_that_fails_ends_no_renewal(
    store: MemoryStore, clock: FakeClock, change_runtime: ChangeRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Acquisition] = []
    change_runtime(lease_lost=lambda claim: told.append(claim) or 1 / 0)
    short, long = limit_set(store, ResourceLimit("db", 1, max_hold_seconds=5)), limit_set(store, ONE)
    first, kept = short.acquire(), long.acquire()
    clock.advance(20)
    assert told == [first]
    assert "ZeroDivisionError" in caplog.text
    clock.advance(HOUR)
    assert not long.try_acquire({"db": 1})
    kept.release()


def renewers() -> set[threading.Thread]:
    """The threads that renew."""
    return {thread for thread in threading.enumerate() if thread.name == "limits-renewer"}


def test_a_renewer_that_starts_immediately_renews_nothing_early() -> None:
    store, pauses = Counting(lease_seconds=HOUR), list[int]()

    def started_at_once(*_: object) -> threading.Thread:
        pauses.append(store.renewer.pause_us())
        return threading.current_thread()

    store.renewer.start_thread = started_at_once
    with limit_set(store, ONE).acquire():
        assert pauses == [pytest.approx(HOUR / 3 * 1e6, rel=0.01)]


def test_the_end_of_max_hold_is_reported_in_real_time(change_runtime: ChangeRuntime) -> None:
    told = threading.Event()
    change_runtime(lease_lost=lambda claim: told.set())
    limits = limit_set(MemoryStore(lease_seconds=3600), ResourceLimit("db", 1, max_hold_seconds=0.05))
    with limits.acquire():
        assert told.wait(PATIENCE_SECONDS)


def test_an_unexpected_error_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    class FailsOnce(Counting):
        """A store whose first renewal fails."""

        def renew(self, claims: Sequence[Claim]) -> list[Claim]:
            lost = super().renew(claims)
            if len(self.renewals) == 1:
                raise ValueError("an error of a driver")
            return lost

    store = FailsOnce(lease_seconds=0.3)
    with limit_set(store, ONE).acquire():
        until(lambda: len(store.renewals) > 1)
    assert "renewing permits failed; trying again" in caplog.messages


def test_the_thread_ends_when_nothing_is_held_and_a_new_one_starts_when_it_is_needed() -> None:
    before = renewers()
    store = MemoryStore(lease_seconds=0.06)
    limits = limit_set(store, ONE)
    for _ in range(2):
        with limits.acquire():
            (thread,) = renewers() - before
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
    assert renewers() <= before


def test_one_daemon_thread_serves_all_sets_of_a_store() -> None:
    before = renewers()
    store = MemoryStore(lease_seconds=1)
    held = [limit_set(store, ONE).acquire() for _ in range(5)]
    (thread,) = renewers() - before
    assert thread.daemon, "it does not keep a program alive"
    for acquisition in held:
        acquisition.release()


def test_threads_that_acquire_permits_concurrently_start_one_renewer() -> None:
    for _ in range(20):
        before = renewers()
        store = MemoryStore(lease_seconds=0.5)
        limits, gate = limit_set(store, ResourceLimit("db", 8)), threading.Barrier(8)

        def hold(limits: Any = limits, gate: threading.Barrier = gate) -> Acquisition:
            gate.wait()
            return limits.acquire()

        held = [caller.result() for caller in [Caller(hold) for _ in range(8)]]
        assert len(renewers() - before) == 1
        for acquisition in held:
            acquisition.release()


pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_forked_child_has_nothing_to_renew(store: MemoryStore, clock: FakeClock) -> None:
    limits = limit_set(store, ONE)

    def acquire_when_the_lease_has_ended() -> int:
        assert not limits.try_acquire({"db": 1})
        clock.advance(11)
        assert limits.try_acquire({"db": 1})
        return 0

    with limits.acquire():
        assert exit_code_of_child(acquire_when_the_lease_has_ended) == 0
        clock.advance(11)
        assert not limits.try_acquire({"db": 1})


def test_forked_child_renews_its_own_permits() -> None:
    store = Counting(lease_seconds=0.6)
    limits = limit_set(store, ResourceLimit("db", 2))

    def hold() -> int:
        store.renewals.clear()
        with limits.acquire({"db": 1}):
            until(lambda: len(store.renewals) > 1)
        return int(set(store.renewals) != {1})

    with limits.acquire():
        assert exit_code_of_child(hold) == 0


def test_a_forked_child_has_no_waiters(clock: FakeClock) -> None:
    store = WatchedStore(clock=clock)
    limits = limit_set(store, DB)

    def look() -> int:
        limits.acquire({"db": 0}).release()
        assert not store.line.busy
        return len(store.line.scopes())

    held = limits.acquire({"db": 3})
    waiter = store.waiting(limits.acquire, {"db": 1})
    assert exit_code_of_child(look) == 0
    held.release()
    waiter.result().release()


def test_only_objects_that_live_are_notified_of_a_fork() -> None:
    class Told:
        """Something with handles of its process."""

        forks = 0

        def after_fork(self) -> None:
            Told.forks += 1

    kept, dropped = Told(), Told()
    on_fork(kept)
    on_fork(dropped)
    del dropped
    gc.collect()
    assert exit_code_of_child(lambda: Told.forks) == 1
    assert Told.forks == 0
    assert kept


def test_a_fake_clock_stands_still_until_it_is_moved() -> None:
    clock = FakeClock(7)
    assert [clock(), clock()] == [7, 7]
    clock.advance(1.5)
    assert clock() == 1_500_007
    clock.advance(-1)
    clock.move(1)
    assert clock() == 500_008
    assert not clock.moves_by_itself
    assert as_clock(clock) is clock


def test_permits_may_be_taken_while_the_thread_of_the_renewer_starts(store: MemoryStore) -> None:
    limits, finalized = limit_set(store, ResourceLimit("db", 5)), []
    start = store.renewer.start_thread

    def start_while_something_is_finalized(*given: Any) -> Any:
        if not finalized:
            finalized.append(None)
            finalized.append(limits.try_acquire({"db": 1}))
        return start(*given)

    store.renewer.start_thread = start_while_something_is_finalized
    store.clock.moves_by_itself = True
    caller = threading.Thread(target=lambda: finalized.append(limits.try_acquire({"db": 1})), daemon=True)
    caller.start()
    caller.join(PATIENCE_SECONDS)
    assert len([one for one in finalized if one]) == 2
