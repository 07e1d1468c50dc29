"""Local slices: charged before they are spent, returned when they end, and never more than the limits allow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from time import monotonic, sleep
from typing import Any

import pytest

from benchmarks.simulation import Oracle
from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StaleConfiguration, StoreUnavailable
from limits_app.engine.keys import EntityScopes, scope_of
from limits_app.engine.limits import (
    AnyLimit,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.plan import Amounts
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.resilient import ResilientStore
from limits_app.stores.slices import SliceRequest, Slices, sliced
from limits_app.testing import FakeClock
from tests.acquiring.test_remote_stores import FarStore
from tests.forking import exit_code_of_child
from tests.stores.races import STORES
from tests.stores.support import MULTI_THREADED_FORK, PATIENCE, running

DAILY = QuotaLimit("units", 100_000, "day")
ONE = {"units": 1}
GCRA = RateLimitAlgorithm.GCRA


class Counted(MemoryStore):
    """Counts its calls, and fails while `error` is set."""

    calls = 0
    error: Exception | None = None

    def acquire_first(self, claims: Any, **options: Any) -> Claim | None:
        self._call()
        return super().acquire_first(claims, **options)

    def settle(self, claim: Claim, changes: Any) -> None:
        self._call()
        super().settle(claim, changes)

    def _call(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error


def limits_on(store: Store, *limits: AnyLimit, seconds: int = 2, counts_usage: bool = False) -> LimitSet:
    """A set whose policies have slices of so many seconds."""
    applied, slice_us = sliced([(limit, seconds) for limit in limits])
    schema = schema_of(applied, store.lease_us, counts_usage)
    return LimitSet.composed([ScopedLimits(scope_of("hot", None), schema, slice_us=slice_us)], store)


class Process:
    """One of several processes that share a store."""

    def __init__(self, shared: Store, *limits: AnyLimit, seconds: int = 2, clock: FakeClock | None = None) -> None:
        shared_clock = clock or shared.clock
        self.store = ResilientStore("far", lambda _: shared, clock=shared_clock, jitter=lambda: 1.0).open()
        self.limits = limits_on(self.store, *limits, seconds=seconds)

    def acquire(self, times: int, amount: int = 1) -> int:
        """How many requests of many are admitted."""
        return sum(bool(self.limits.try_acquire({"units": amount})) for _ in range(times))

    def out(self) -> int:
        return sum(self.store.slices.unspent().values())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def shared(clock: FakeClock) -> Counted:
    return Counted(clock=clock)


def used(shared: Store, limits: LimitSet) -> object:
    return limits.get_stats()["units"]["used"]


def test_most_requests_for_a_hot_limit_do_not_call_the_store(shared: Counted) -> None:
    process = Process(shared, DAILY)
    assert process.acquire(20_000) == 20_000
    assert shared.calls < 1000
    assert used(shared, process.limits) == 20_000 + process.out()
    assert process.out() <= 1000


def test_all_of_a_quota_is_admitted_and_no_more(shared: Counted, clock: FakeClock) -> None:
    processes = [Process(shared, DAILY) for _ in range(4)]
    admitted = 0
    for _ in range(50):
        admitted += sum(process.acquire(600) for process in processes)
        clock.advance(0.05)
    clock.advance(4)
    assert admitted + processes[0].acquire(10_000) == 100_000


def test_rest_of_a_slice_is_returned_when_it_ends(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(1500)
    assert process.out() > 0
    clock.advance(4)
    assert process.out() == 0
    assert used(shared, process.limits) == 1500
    calls = shared.calls
    clock.advance(60)
    assert shared.calls == calls


@pytest.mark.parametrize("algorithm", ["token_bucket", "gcra"])
def test_bucket_is_refunded_amounts_that_have_not_refilled(shared: Counted, clock: FakeClock, algorithm: str) -> None:
    process = Process(shared, RateLimit("units", 86_400, 86_400, algorithm))
    process.acquire(100)
    assert process.out() > 2
    clock.advance(2)
    assert process.out() == 0
    assert used(shared, process.limits) == 100.1  # a return may take a tenth of a second


def test_a_slice_that_has_ended_is_not_spent_before_it_is_returned(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(500)
    clock.now_us += 2_000_000  # the background task is late
    out, calls = process.out(), shared.calls
    assert process.acquire(1) == 1
    assert (process.out() >= out, shared.calls) == (True, calls + 1)


def test_a_slice_grows_with_the_traffic_and_shrinks_without_it(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)

    def calls(times: int) -> int:
        before = shared.calls
        process.acquire(times)
        return shared.calls - before

    assert calls(1000) > calls(1000)
    for _ in range(20):
        clock.advance(6)
        process.acquire(1)
    assert process.out() == 0
    assert calls(1) == 1


@pytest.mark.parametrize(
    "limit",
    [
        ResourceLimit("units", 1000),
        RateLimit("units", 100_000, 60, "sliding_window"),
        RateLimit("units", 100_000, 60, "fixed_window"),
        RateLimit("units", 100_000, 60, "leaky_bucket"),
        RateLimit("units", 100_000, 60, soft=True),
        RateLimit("units", 199, 60),
        QuotaLimit("units", 100_000, "day", soft=True),
    ],
    ids=repr,
)
def test_limits_that_cannot_be_sliced_stay_as_they_are(limit: AnyLimit) -> None:
    assert sliced([(limit, 2)]) == ((limit,), 0)
    assert sliced([(limit, 2), (RateLimit("others", 100_000, 60), 2)])[0][1].ceiling == 100_000
    assert sliced([(DAILY, 0)]) == ((DAILY,), 0)
    assert sliced([]) == ((), 0)


@pytest.mark.parametrize(
    ("limit", "burst", "held_us"),
    [
        (CallLimit(200, 60), 198, 600_000),
        (CallLimit(6000, 60), 5940, 600_000),
        (CallLimit(6000, 3600), 5996, 2_000_000),
        (CallLimit(86_400, 86_400, GCRA), 86_398, 2_000_000),
        (CallLimit(1000.5, 10, burst=2000.5), 1980.5, 199_900),
    ],
)
def test_burst_is_smaller_by_the_refill_while_a_slice_is_held(limit: CallLimit, burst: float, held_us: int) -> None:
    [applied], found_us = sliced([(limit, 2)])
    assert (applied.ceiling, found_us) == (burst, held_us)


def test_near_the_limit_every_request_asks_the_store(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.limits.try_acquire({"units": 99_998})
    calls = shared.calls
    assert process.acquire(5) == 2
    assert shared.calls == calls + 5


def test_amounts_of_nothing_take_no_slice(shared: Counted) -> None:
    process = Process(shared, DAILY)
    assert process.acquire(50, 0) == 50
    assert process.out() == 0


def test_unused_amounts_go_back_to_the_slice_or_to_the_store(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(100, 10)
    held, late, more = [process.limits.try_acquire({"units": 10}) for _ in range(3)]
    out, calls = process.out(), shared.calls
    held.update({"units": 4})
    held.release()
    held.claim.settled = False  # as two threads that release at the same time
    more.update({"units": 12})
    more.release()
    assert (process.out(), shared.calls) == (out + 6, calls + 1)
    clock.advance(4)
    late.update({"units": 3})
    late.release()
    assert used(shared, process.limits) == 1000 + 4 + 12 + 3


def test_a_claim_is_refunded_once(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.acquire(100, 10)
    held = process.limits.try_acquire({"units": 10})
    out = process.out()
    for _ in range(2):
        process.store.settle(held.claim, [-10])
    assert process.out() == out + 10


def test_tasks_use_slices_too(clock: FakeClock) -> None:
    shared = FarStore(clock=clock)
    process = Process(shared, DAILY)

    async def work() -> int:
        taken = 0
        for _ in range(500):
            async with await process.limits.atry_acquire(ONE) as held:
                held.update({"units": 0})
                taken += bool(held)
        return taken

    assert asyncio.run(work()) == 500
    clock.advance(4)
    assert used(shared, process.limits) == 0


def test_while_one_thread_takes_a_slice_others_charge_the_store(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.acquire(3)
    slices, plan = process.store.slices, process.limits.try_acquire(ONE).claim.plan
    slices.return_ended(lambda *_: None, everything=True)
    first, second = [slices.take(Claim(plan, [1])) for _ in range(2)]
    assert first is not None
    assert second is not None
    assert (len(first.claims), len(second.claims)) == (2, 1)


def test_a_slice_ends_early_where_the_reply_was_late(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(3)
    slices, plan = process.store.slices, process.limits.try_acquire(ONE).claim.plan
    slices.return_ended(shared.settle, everything=True)
    taking = slices.take(Claim(plan, [1]))
    assert taking is not None
    charged = shared.acquire_first(taking.claims)
    clock.now_us += 1_900_000
    assert slices.decided(taking, charged)
    assert process.out() > 0
    clock.now_us += 100_000
    slices.return_ended(shared.settle)
    assert process.out() == 0


def test_a_larger_request_replaces_the_slice_and_nothing_is_lost(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(100)
    amount = process.out() + 1
    assert process.acquire(1, amount) == 1
    assert used(shared, process.limits) == 100 + amount + process.out()
    clock.advance(4)
    assert used(shared, process.limits) == 100 + amount


def test_a_claim_has_the_time_at_which_it_was_admitted(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(100)
    calls = shared.calls
    clock.now_us += 1_000_000
    assert process.limits.try_acquire(ONE).claim.decided_at == clock.now_us
    assert shared.calls == calls


def test_a_slice_is_returned_once_the_store_is_available_again(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(500)
    shared.error = StoreUnavailable("down")
    clock.advance(10)
    assert process.out() > 0
    shared.error = None
    clock.advance(10)
    assert process.out() == 0
    assert used(shared, process.limits) == 500


def test_a_new_configuration_counts_once_the_slice_has_ended(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.limits = LimitSet.composed(process.limits.scoped, process.store, version=shared.version())
    process.acquire(1000)
    shared.advance_version()
    assert process.limits.try_acquire(ONE)
    clock.advance(2)
    with pytest.raises(StaleConfiguration):
        process.limits.try_acquire(ONE)
    clock.advance(4)
    assert process.out() == 0


def test_an_old_claim_takes_nothing_from_a_slice_of_a_newer_version(shared: Counted) -> None:
    process = Process(shared, DAILY)
    old = process.limits.at_version(shared.version())
    process.limits = old.at_version(shared.advance_version())
    process.acquire(1000)
    assert process.out() > 0
    with pytest.raises(StaleConfiguration):
        old.try_acquire(ONE)
    calls = shared.calls
    newer = process.limits.at_version(shared.advance_version())
    assert newer.try_acquire(ONE)
    assert shared.calls == calls, "the limits of a slice are the same in a later version"


def test_a_client_that_is_bound_for_each_request_has_slices_of_its_own(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    template, names = process.limits, [f"client {number}" for number in range(3)]
    scopes = EntityScopes(template.scopes, None)
    for place, name in enumerate(names, 1):
        for _ in range(1000 * place):
            assert template.bound(scopes.of(name), version=None).try_acquire(ONE)
    assert shared.calls < 600
    clock.advance(4)
    assert process.out() == 0
    totals = [used(shared, template.bound(scopes.of(name), version=None)) for name in names]
    assert totals == [1000, 2000, 3000]


def test_a_reset_drops_the_slices_of_the_scope(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, DAILY)
    process.acquire(1000)
    held = process.limits.try_acquire(ONE)
    process.store.reset([scope_of("other", None).key])
    assert process.out() > 0
    process.store.reset([scope_of("hot", None).key])
    assert process.out() == 0
    process.acquire(5)
    held.update({"units": 0})
    held.release()
    clock.advance(10)
    assert used(shared, process.limits) == 5


HOT = scope_of("hot", None).key


@contextmanager
def processes_of(name: str, number: int, limit: AnyLimit) -> Iterator[list[Process]]:
    """Processes that share a store of a kind; nothing is returned when the tests end."""
    with ExitStack() as stack:
        open_store = MemoryStore if name == "memory" else stack.enter_context(STORES[name]())
        shared = open_store()
        processes = [Process(shared, limit, seconds=300) for _ in range(number)]
        for process in processes:
            stack.callback(process.store.slices.after_fork)
        yield processes


@pytest.mark.parametrize("name", ["memory", *STORES])
def test_reset_leaves_slices_of_other_processes_charged(name: str, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), processes_of(name, 2, QuotaLimit("units", 20_000, "month")) as [holder, other]:
        shared = holder.store
        assert holder.acquire(2, 100) == 2
        assert (holder.out(), used(shared, holder.limits)) == (100, 300)
        other.store.reset([HOT], ["another"])
        assert used(shared, holder.limits) == 300
        other.store.reset([HOT])
        assert used(shared, holder.limits) == 200, "the slice, of which one half is spent"
        assert other.acquire(300, 100) == 198
        spent = holder.limits.try_acquire({"units": 100})
        assert spent.claim.taken_from is not None
        holder.store.return_slices(everything=True)
        other.store.return_slices(everything=True)
        assert not other.acquire(1, 100)
        assert used(shared, holder.limits) == 20_000
        other.store.reset([HOT])
        assert used(shared, holder.limits) == 0


@pytest.mark.parametrize("name", ["memory", *STORES])
def test_refund_after_a_reset_admits_nothing_more(name: str, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), processes_of(name, 3, QuotaLimit("units", 50_000, "month")) as processes:
        holder, other, third = processes
        late = [other.limits.try_acquire({"units": 700}) for _ in range(4)]
        assert holder.acquire(2, 150) == 2
        assert holder.out() == 150
        third.store.reset([HOT])
        assert other.acquire(100, 700) == 71, "49,700 units; 300 are in the slice"
        for each, unused in zip(late, (700, 1, 350, 699), strict=True):
            each.update({"units": 700 - unused})
            each.release()
        assert not third.limits.try_acquire({"units": 1})
        assert used(third.store, third.limits) == 50_000


@pytest.mark.parametrize("name", ["memory", *STORES])
def test_slice_returned_after_a_reset_frees_its_amounts(name: str, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock(), processes_of(name, 2, QuotaLimit("units", 30_000, "month")) as [holder, other]:
        held = [holder.limits.try_acquire({"units": 120}) for _ in range(2)]
        other.store.reset([HOT])
        new = other.limits.try_acquire({"units": 5000})
        assert used(other.store, other.limits) == 5240
        holder.store.return_slices(everything=True)
        assert used(other.store, other.limits) == 5120, "one half of the slice was spent"
        for each in held:
            each.update({"units": 0})
            each.release()
        assert used(other.store, other.limits) == 5120, "their requests are from before the reset"
        new.update({"units": 4000})
        new.release()
        assert used(other.store, other.limits) == 4120


@pytest.mark.parametrize("seed", [0, *[pytest.param(seed, marks=pytest.mark.release) for seed in range(1, 8)]])
@pytest.mark.parametrize("name", ["memory", *STORES])
def test_no_order_of_requests_resets_refunds_and_returns_admits_more_than_the_limit(
    name: str, seed: int, django_db_blocker: Any
) -> None:
    capacity, drawn = 2000, random.Random(seed)
    with django_db_blocker.unblock(), processes_of(name, 3, QuotaLimit("units", capacity, "month")) as processes:
        admitted, held = 0, list[tuple[int, Acquisition, int]]()
        for resets in range(8):
            for _ in range(25):
                process, amount = drawn.choice(processes), drawn.choice([1, 2, 7, 300])
                for _ in range(drawn.choice([1, 5])):
                    one = process.limits.try_acquire({"units": amount})
                    if one:
                        admitted += amount
                        held.append((resets, one, amount))
                if drawn.random() < 0.2:
                    process.store.return_slices(everything=True)
                if held and drawn.random() < 0.5:
                    since, one, amount = held.pop(drawn.randrange(len(held)))
                    actual = drawn.randrange(amount + 1)
                    one.update({"units": actual})
                    one.release()
                    admitted -= amount - actual if since == resets else 0
                assert admitted <= capacity
            drawn.choice(processes).store.reset([HOT])
            admitted = 0


def test_slice_that_a_reset_has_forgotten_is_not_refunded(shared: Counted, clock: FakeClock) -> None:
    process, other = OneProcess(shared, DAILY), Process(shared, DAILY)
    for _ in range(2):
        process.acquire(10)
    process.now = 2_000_000
    returns = list[tuple[Claim, Amounts]]()
    process.slices.return_ended(lambda claim, changes: returns.append((claim, changes)))
    [(claim, changes)] = returns
    clock.advance(2 + 20)
    other.store.reset([HOT])
    other.limits.try_acquire({"units": 500})
    shared.settle(claim, changes)
    assert used(shared, other.limits) == 500


def test_reset_returns_the_slices_of_its_own_process_first(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.acquire(1000)
    assert process.out() > 0
    process.store.reset([HOT])
    assert used(shared, process.limits) == 0


def test_reset_keeps_amounts_of_each_limit_of_a_slice(shared: Counted, clock: FakeClock) -> None:
    holder = Process(shared, QuotaLimit("units", 1000.0, "day"), RateLimit("tokens", 90_000.5, 3600), seconds=60)
    for _ in range(2):
        assert holder.limits.try_acquire({"units": 2, "tokens": 20.25})
    before = {key: stats["used"] for key, stats in holder.limits.get_stats().items()}
    assert before == {"units": 6, "tokens": 60.75}
    Process(shared, DAILY).store.reset([HOT], ["tokens"])
    after = {key: stats["used"] for key, stats in holder.limits.get_stats().items()}
    assert after == {"units": 6, "tokens": 41}, "two requests of 20.25, in whole units"


def test_slice_is_recorded_until_it_can_no_longer_be_returned(shared: Counted, clock: FakeClock) -> None:
    killed, other = Process(shared, DAILY, seconds=2), Process(shared, DAILY, seconds=2)
    killed.acquire(2, 10)
    killed.store.slices.after_fork()
    clock.advance(2 + 20 - 0.000001)
    other.store.reset([HOT])
    assert used(shared, other.limits) == 20
    clock.advance(0.000001)
    other.store.reset([HOT])
    assert used(shared, other.limits) == 0


class OneProcess:
    """The slices of one process, on a clock that is set by hand."""

    def __init__(self, shared: Store, *limits: AnyLimit, processes: int = 1) -> None:
        self.shared, self.now = shared, 0
        self.limits = limits_on(shared, *limits)
        self.slices = Slices(lambda: self.now, lambda: processes)

    def take(self, amount: int = 1) -> SliceRequest | None:
        return self.slices.take(self.limits.prepare({"units": amount}).claim)

    def acquire(self, amount: int = 1) -> int:
        """Acquire; returns how much was charged in the store for it."""
        request = self.take(amount)
        if request is None:
            return 0
        charged = self.shared.acquire_first(request.claims)
        assert self.slices.decided(request, charged)
        assert charged is not None
        return int(charged.amounts[0])

    def returned(self, *, everything: bool = False) -> int:
        """How many slices are returned now."""
        claims = list[Claim]()
        self.slices.return_ended(lambda claim, _: claims.append(claim), everything=everything)
        return len(claims)


@pytest.mark.parametrize(("capacity", "amount", "charged"), [(200, 1, 2), (199, 1, 1), (600, 3, 6), (599, 3, 3)])
def test_slice_is_at_most_a_share_of_the_capacity(shared: Counted, capacity: int, amount: int, charged: int) -> None:
    process = OneProcess(shared, QuotaLimit("units", capacity, "day"))
    assert [process.acquire(amount) for _ in range(2)] == [amount, charged]


def test_slices_grow_to_the_share_of_the_capacity_and_no_further(shared: Counted) -> None:
    process = OneProcess(shared, QuotaLimit("units", 5000, "day"))
    charged = [process.acquire() for _ in range(200)]
    assert [one for one in charged if one] == [1, 2, 4, 8, 16, 32, 50, 50, 50]


@pytest.mark.parametrize(
    ("remaining", "processes", "charged"), [(4, 1, 2), (3, 1, 1), (8, 2, 2), (7, 2, 1), (12, 3, 2), (11, 3, 1)]
)
def test_slice_is_at_most_half_of_the_remaining_share_of_each_process(
    shared: Counted, remaining: int, processes: int, charged: int
) -> None:
    process = OneProcess(shared, QuotaLimit("units", 1000, "day"), processes=processes)
    assert process.acquire(1000 - remaining) == 1000 - remaining
    assert process.acquire() == charged


@pytest.mark.parametrize(("pause_us", "charged"), [(249_999, 2), (250_000, 1)])
def test_slice_grows_within_one_eighth_of_its_time(shared: Counted, pause_us: int, charged: int) -> None:
    process = OneProcess(shared, DAILY)
    process.acquire()
    process.now += pause_us
    assert process.acquire() == charged


def test_slice_that_nothing_decides_is_taken_again_when_it_would_have_ended(shared: Counted) -> None:
    process = OneProcess(shared, DAILY)
    process.acquire()
    requests = [process.take(), process.take()]
    assert [len(one.claims) for one in requests if one] == [2, 1]
    assert requests[1] is not None
    process.slices.decided(requests[1], requests[1].claims[0] if shared.acquire(requests[1].claims[0]) else None)
    for pause_us, claims in ((1_999_999, 1), (1, 2)):
        process.now += pause_us
        request = process.take()
        assert request is not None
        assert len(request.claims) == claims


def test_slice_of_which_much_was_left_is_followed_by_a_smaller_one_at_its_end(shared: Counted) -> None:
    process = OneProcess(shared, DAILY)
    assert [process.acquire(10), process.acquire(10)] == [10, 20]
    process.now = 2_000_000
    assert process.acquire(10) == 10


def test_claim_of_which_all_was_used_is_settled_without_the_store(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.acquire(100, 10)
    held = process.limits.try_acquire({"units": 10})
    calls = shared.calls
    held.update({"units": 10})
    process.store.settle(held.claim, [0])
    assert held.claim.settled
    assert shared.calls == calls


def test_slice_is_returned_exactly_at_its_end(shared: Counted) -> None:
    process = OneProcess(shared, DAILY)
    assert [process.acquire(10), process.acquire(10)] == [10, 20]
    process.now = 1_999_999
    assert (process.returned(), process.returned()) == (0, 0)
    process.now = 2_000_000
    assert (process.returned(), process.returned()) == (1, 0)


@pytest.mark.parametrize(("later_us", "is_returned"), [(21_999_999, True), (22_000_000, False)])
def test_spent_slice_is_returned_when_the_process_ends_while_it_is_recorded(
    shared: Counted, later_us: int, is_returned: bool
) -> None:
    process = OneProcess(shared, DAILY)
    assert [process.acquire() for _ in range(4)] == [1, 2, 0, 4]
    process.now = 2_000_000
    assert process.returned() == 1, "the second slice, of which something is left"
    process.now = later_us
    assert process.returned(everything=True) == is_returned


def test_plan_without_requests_is_forgotten_after_twice_the_time_of_a_slice(shared: Counted) -> None:
    process = OneProcess(shared, DAILY)
    process.acquire()
    process.now = 3_999_999
    assert process.slices.return_ended(shared.settle) == 2_000_000
    process.now = 4_000_000
    assert process.slices.return_ended(shared.settle) is None


@pytest.mark.parametrize(("late_us", "is_returned"), [(9_999_999, True), (10_000_000, False)])
def test_slice_that_is_returned_too_late_is_lost(shared: Counted, late_us: int, is_returned: bool) -> None:
    process = OneProcess(shared, DAILY)
    process.acquire(10)
    process.acquire(10)
    process.now = 2_000_000 + late_us
    assert process.returned() == is_returned
    assert not process.slices.unspent()


def test_a_slice_ends_with_the_hour_in_which_it_is_counted(clock: FakeClock) -> None:
    shared = FarStore(clock=clock)
    clock.move(3_600_000_000 - clock.now_us % 3_600_000_000 - 500_000)
    store = ResilientStore("far", lambda _: shared, clock=clock, jitter=lambda: 1.0).open()
    limits = limits_on(store, DAILY, counts_usage=True)
    for _ in range(500):
        limits.try_acquire(ONE)
    clock.advance(1)
    assert store.slices.unspent() == {}


def test_a_slice_ends_with_the_period_of_its_quota(shared: Counted, clock: FakeClock) -> None:
    process = Process(shared, QuotaLimit("units", 20_000, session_seconds=10))
    process.acquire(1, 400)
    clock.advance(9.5)
    assert process.acquire(600) == 600
    assert process.out() > 0
    clock.advance(0.5)
    assert process.acquire(20_001) == 20_000


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
def test_a_child_has_no_slices(shared: Counted) -> None:
    process = Process(shared, DAILY)
    process.acquire(500)
    assert exit_code_of_child(lambda: 0 if process.out() == 0 else 2) == 0
    assert process.out() > 0


HISTORIES = {
    "token_bucket": RateLimit("units", 4000, 10),
    "small_burst": RateLimit("units", 4000, 10, burst=1000),
    "gcra": RateLimit("units", 40_000, 600, "gcra", burst=4000),
    "quota": QuotaLimit("units", 8000, "hour"),
}


class History:
    """Four processes that share a limit, at random; fails when they are admitted more than the limit allows."""

    def __init__(self, limit: AnyLimit, seed: int) -> None:
        self.drawn, self.clock, self.allowed = random.Random(seed), FakeClock(), Oracle(limit)
        self.limit, self.shared = limit, MemoryStore(clock=self.clock)
        self.processes = [Process(self.shared, limit) for _ in range(4)]
        self.held_seconds = self.processes[0].limits.scoped[0].slice_us / 1e6

    def acquire(self, amount: int, times: list[int]) -> None:
        """Have each process acquire until the limit rejects it, at most so many times."""
        for process in self.processes:
            self.acquire_in(process, amount, self.drawn.choice(times))

    def acquire_in(self, process: Process, amount: int, times: int) -> None:
        """Have one process acquire until the limit rejects it, at most so many times."""
        for _ in range(times):
            if not process.limits.try_acquire({"units": amount}):
                break
            assert self.allowed.admits(self.clock.now_us, amount)

    def pause(self, *shares: float) -> None:
        """Let some of the time pass for which a slice is held."""
        self.clock.advance(self.drawn.choice(shares) * self.held_seconds)

    def kill(self) -> None:
        """Kill a process, and start another one."""
        index = self.drawn.randrange(4)
        self.processes[index].store.slices.after_fork()
        self.processes[index] = Process(self.shared, self.limit)

    def reset(self) -> None:
        """Have a process reset the limit; others may hold slices of it."""
        self.drawn.choice(self.processes).store.reset([HOT])
        self.allowed = Oracle(self.limit)


@pytest.mark.parametrize("name", HISTORIES)
@pytest.mark.parametrize("seed", [*range(5), *[pytest.param(seed, marks=pytest.mark.release) for seed in range(5, 50)]])
def test_no_history_admits_more_than_the_limit(name: str, seed: int) -> None:
    history = History(HISTORIES[name], seed)
    for _ in range(25):
        history.acquire(1, [0, 0, 80])  # slices grow
        history.pause(0.4, 0.9, 1.7)
        history.acquire(history.drawn.choice([1, 2]), [0, 1, 1])  # they are held while the limit refills
        history.pause(0, 0.3, 0.9)
        if history.drawn.random() < 0.2:
            history.kill()
        if history.drawn.random() < 0.3:
            history.reset()
        for amount in (1, 100, 10, 1):  # all of it is spent at one time
            history.acquire(amount, [40])
        history.pause(0, 50, 500, 5000)


@pytest.mark.parametrize("name", HISTORIES)
def test_ended_slice_is_not_spent(name: str) -> None:
    history = History(HISTORIES[name], 1)
    history.acquire(1, [80])
    assert all(process.out() for process in history.processes)
    history.clock.advance(3600)
    history.acquire(1, [10_000])


def racing(pipe: Connection, open_store: Callable[[], Store], kind: str) -> None:
    """Acquire until the limit has rejected everything for longer than slices last, and report what was admitted."""
    process_store = ResilientStore("far", lambda _: open_store()).open()
    limits = limits_on(process_store, QuotaLimit("units", 20_000, "month"), seconds=1)
    pipe.send("ready")
    pipe.recv()
    admitted, rejected_at = 0, None
    while rejected_at is None or monotonic() < rejected_at + 3:
        if limits.try_acquire(ONE):
            admitted, rejected_at = admitted + 1, None
            if kind == "killed" and admitted == 1500:
                pipe.send((admitted, sum(process_store.slices.unspent().values())))
                pipe.recv()
        else:
            rejected_at = rejected_at or monotonic()
            sleep(0.05)
    process_store.return_slices(everything=True)
    pipe.send((admitted, 0))


def race(store: str, kinds: list[str]) -> tuple[int, int]:
    """What four processes were admitted together, and what those that were killed held."""
    with STORES[store]() as open_store, ExitStack() as stack:
        racers = [stack.enter_context(running(racing, open_store, kind)) for kind in kinds]
        for racer in racers:
            racer.hear()
        for racer in racers:
            racer.pipe.send("go")
        reports: list[Any] = []
        for kind, racer in sorted(zip(kinds, racers, strict=True), key=lambda one: one[0] != "killed"):
            reports.append(racer.hear(4 * PATIENCE))
            if kind == "killed":
                racer.kill()
    return sum(admitted for admitted, _ in reports), sum(held for _, held in reports)


@pytest.mark.filterwarnings(MULTI_THREADED_FORK)
@pytest.mark.parametrize(
    "store",
    ["redis", *[pytest.param(name, marks=pytest.mark.release) for name in ["redis"] * 19 + ["sqlite", "postgres"]]],
)
def test_four_processes_use_all_of_a_limit_except_the_slice_of_a_killed_one(store: str, django_db_blocker: Any) -> None:
    with django_db_blocker.unblock():
        admitted, lost = race(store, ["killed", "lives", "lives", "lives"])
    assert 20_000 - lost <= admitted <= 20_000


class Interrupted(list[int]):
    """Amounts; `deed` is done in the middle of what goes through them, as a signal handler does, at a chosen time."""

    def __init__(self, amounts: Amounts, passes: int, deed: Callable[[], object]) -> None:
        super().__init__(amounts)
        self.passes, self.deed = passes, deed

    def __iter__(self) -> Iterator[int]:
        self.passes -= 1
        if self.passes == -1:
            self.deed()
        return super().__iter__()


def piece_of(process: Process) -> tuple[Any, int]:
    """The slice that a process has, and how many parts a unit of its limit has."""
    [traffic] = process.store.slices._traffic.values()
    return traffic.slice, traffic.slice.claim.shape.limits[0].rule.parts_per_unit


@pytest.mark.parametrize("passes", range(4))
@pytest.mark.parametrize("amount", [1, 3])
def test_a_request_of_a_signal_handler_in_the_middle_of_another_one_takes_nothing_twice(
    shared: Counted, passes: int, amount: int
) -> None:
    process = Process(shared, DAILY)
    assert process.acquire(20, amount) == 20
    piece, unit = piece_of(process)
    piece.left = [amount * unit]
    admitted: list[bool] = []

    def ask(claim: Claim) -> None:
        admitted.append(piece.spend(claim, process.store.clock()))

    first, second = [process.limits.prepare({"units": amount}).claim for _ in range(2)]
    first.amounts = Interrupted(first.amounts, passes, lambda: ask(second))
    ask(first)
    assert sum(admitted) == 1
    assert piece.left == [0]


def test_a_request_of_a_signal_handler_in_the_middle_of_a_refund_is_not_forgotten(shared: Counted) -> None:
    process = Process(shared, DAILY)
    assert process.acquire(20, 5) == 20
    piece, unit = piece_of(process)
    held, other = [process.limits.prepare({"units": amount}).claim for amount in (5, 2)]
    piece.left, now = [10 * unit], process.store.clock()
    assert piece.spend(held, now)
    changes = Interrupted([-5 * unit], 1, lambda: piece.spend(other, now))
    assert process.store.slices.refund(held, changes)
    assert other.admitted
    assert piece.left == [8 * unit]
