"""Waiting for a pool: for the earliest of its sets, in turn, in threads and in tasks."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import cycle
from selectors import DefaultSelector, SelectorKey
from typing import Any, Final

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.pool import LimitPool
from limits_app.engine.errors import LimitTimeout, NeverAdmissible, StaleConfiguration
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.acquiring.sets import used_up
from tests.acquiring.watched import Caller, WatchedStore, in_a_loop, settled

TEN = RateLimit("tpm", 10, 10)
"""One unit per second."""
SLOW = RateLimit("tpm", 10, 100)
DB = ResourceLimit("db", 1)
BALANCERS = ("round_robin", "random", "weighted", "least_loaded", "failover")


@pytest.fixture
def store(clock: FakeClock) -> WatchedStore:
    return WatchedStore(clock=clock)


def set_of(store: MemoryStore, *limits: LimitDefinition, name: str = "") -> LimitSet:
    return LimitSet(limits, store=store, config={"name": name})


def two(store: MemoryStore, first: LimitDefinition, second: LimitDefinition, **options: Any) -> LimitPool:
    """A pool of the sets a and b."""
    return LimitPool([set_of(store, first, name="a"), set_of(store, second, name="b")], **options)


def full(store: MemoryStore, first: LimitDefinition, second: LimitDefinition, **options: Any) -> LimitPool:
    """The same, of which all rates are used up."""
    pool = two(store, first, second, **options)
    for one in pool:
        used_up(one, "tpm")
    return pool


@pytest.mark.parametrize("name", BALANCERS)
def test_a_waiter_is_served_by_the_set_that_admits_first(name: str, store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN, load_balancing=name)
    waiter = store.waiting(pool.acquire, {"tpm": 3})
    clock.move(2_999_999)
    store.until_refused()
    assert waiter.is_alive()
    clock.move(1)
    assert waiter.result().config == {"name": "b"}
    store.until_waiting(0)
    assert not store.line.busy


@pytest.mark.parametrize("name", BALANCERS)
def test_a_waiter_is_served_by_the_first_that_gets_something_back(name: str, store: WatchedStore) -> None:
    pool = two(store, DB, DB, load_balancing=name)
    held = {one.config["name"]: one for one in (pool.acquire({"db": 1}), pool.acquire({"db": 1}))}
    waiter = store.waiting(pool.acquire, {"db": 1})
    held["b"].release()
    assert waiter.result().config == {"name": "b"}
    store.until_waiting(0)


def test_no_time_at_all(store: WatchedStore) -> None:
    pool = full(store, SLOW, TEN)
    with pytest.raises(LimitTimeout) as caught:
        pool.acquire({"tpm": 2}, timeout=0)
    assert caught.value.outcome.retry_after == 2
    pool = two(store, SLOW, TEN)
    assert pool.acquire({"tpm": 2}, timeout=0).config == {"name": "a"}


def test_a_waiter_sleeps_until_the_earliest_moment_and_is_woken_by_it_alone() -> None:
    store = WatchedStore()
    pool = full(store, RateLimit("tpm", 10, 3600), RateLimit("tpm", 1000, 10))
    held = pool.acquire({"tpm": 1}, timeout=20)
    assert held.config == {"name": "b"}
    held.cancel()


def test_waiters_of_a_pool_and_of_its_sets_are_served_in_order(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN)
    first = store.waiting(pool.acquire, {"tpm": 5})
    second = store.waiting(pool[1].acquire, {"tpm": 1})
    clock.advance(4)
    assert second.is_alive(), "the small one does not overtake"
    clock.advance(1)
    assert first.result().config == {"name": "b"}
    clock.advance(1)
    assert second.result()


def test_a_request_that_waits_for_one_set_does_not_delay_requests_for_another(store: WatchedStore) -> None:
    pool = two(store, DB, DB)
    held = pool[0].acquire()
    first = store.waiting(pool[0].acquire)
    second = Caller(pool.acquire)
    assert second.result().config == {"name": "b"}
    held.release()
    assert first.result()


def test_one_bucket_in_two_sets_is_waited_for_once(store: WatchedStore) -> None:
    account = ScopedLimits(scope_of("account", None), schema_of((DB,), store.lease_us))
    regions = [ScopedLimits(scope_of("region", name), schema_of((CallLimit(9, 9),), store.lease_us)) for name in "ab"]
    pool = LimitPool([LimitSet.composed([account, region], store) for region in regions])
    held = pool.acquire({"db": 1})
    waiter = store.waiting(pool.acquire, {"db": 1})
    held.release()
    assert waiter.result()
    store.until_waiting(0)
    assert not store.line.busy


def test_without_failover_only_the_chosen_one_is_waited_for(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN, failover=False)
    waiter = store.waiting(pool.acquire, {"tpm": 1})
    clock.advance(9)
    store.until_refused()
    clock.advance(1)
    assert waiter.result().config == {"name": "a"}


def test_without_failover_the_next_one_is_waited_for_behind_others(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN, failover=False)
    first = store.waiting(pool.acquire, {"tpm": 1})
    second = store.waiting(pool.acquire, {"tpm": 1})
    clock.advance(1)
    assert second.result().config == {"name": "b"}
    clock.advance(9)
    assert first.result().config == {"name": "a"}


def without_failover(store: WatchedStore, *sizes: int) -> tuple[LimitPool, Caller, Acquisition]:
    """A pool of the least loaded of these permits, while somebody waits in its store for something else."""
    other = set_of(store, DB)
    held = other.acquire({"db": 1})
    waiter = store.waiting(other.acquire, {"db": 1})
    sets = [set_of(store, ResourceLimit("db", size), name=name) for size, name in zip(sizes, "abc", strict=False)]
    return LimitPool(sets, "least_loaded", failover=False), waiter, held


def test_without_failover_the_least_loaded_is_taken_behind_others(store: WatchedStore) -> None:
    pool, waiter, held = without_failover(store, 2, 2)
    used_up(pool[0], "db")
    assert [Caller(pool.acquire, {"db": 1}).result().config["name"] for _ in range(2)] == ["b", "b"]
    held.release()
    waiter.result().release()


def test_without_failover_turns_are_taken_behind_others_among_equally_loaded_sets(store: WatchedStore) -> None:
    pool, waiter, held = without_failover(store, 9, 9, 9)
    assert [Caller(pool.acquire, {"db": 0}).result().config["name"] for _ in range(4)] == ["a", "b", "c", "a"]
    held.release()
    waiter.result().release()


def test_without_failover_the_least_loaded_is_none_that_is_put_aside_or_can_never_admit(store: WatchedStore) -> None:
    pool, waiter, held = without_failover(store, 9, 5, 9)
    assert pool[2].acquire({"db": 4})
    pool.cool_down(0, 60)
    assert [Caller(pool.acquire, {"db": 1}).result().config["name"] for _ in range(2)] == ["b", "b"]
    with pytest.raises(LimitTimeout):
        pool.acquire({"db": 6}, timeout=0)
    pool.cool_down(0, 0)
    assert Caller(pool.acquire, {"db": 6}).result().config == {"name": "a"}
    with pytest.raises(NeverAdmissible):
        pool.acquire({"db": 10})
    held.release()
    waiter.result().release()


def test_sets_that_can_never_admit_are_not_waited_for(store: WatchedStore, clock: FakeClock) -> None:
    pool = two(store, RateLimit("tpm", 5, 5), TEN)
    used_up(pool[1], "tpm")
    waiter = store.waiting(pool.acquire, {"tpm": 7})
    with pytest.raises(NeverAdmissible):
        pool.acquire({"tpm": 11})
    clock.advance(7)
    assert waiter.result().config == {"name": "b"}


def test_a_blocked_set_is_waited_for_last(store: WatchedStore, clock: FakeClock) -> None:
    blocked = LimitSet.composed([ScopedLimits(scope_of("blocked", None), schema_of((Blocked(),)))], store)
    pool = LimitPool([blocked, set_of(store, CallLimit(1, 10), name="b")], "least_loaded")
    assert pool.acquire().config == {"name": "b"}
    waiter = store.waiting(pool.acquire)
    clock.advance(10)
    assert waiter.result().config == {"name": "b"}


def test_an_empty_set_admits_a_request_behind_waiting_ones(store: WatchedStore) -> None:
    free = LimitPool([LimitSet(config={"name": "free"}), set_of(store, DB)], load_balancing="failover")
    held = free[1].acquire({"db": 1})
    first = store.waiting(free[1].acquire, {"db": 1})
    assert free.acquire().config == {"name": "free"}
    held.release()
    assert first.result()


def test_a_set_that_is_enabled_again_serves_waiting_requests(store: WatchedStore, clock: FakeClock) -> None:
    pool = two(store, SLOW, TEN)
    used_up(pool[0], "tpm")
    pool.cool_down(1, 5)
    waiter = store.waiting(pool.acquire, {"tpm": 10})
    clock.move(4_999_999)
    store.until_refused()
    clock.move(1)
    assert waiter.result().config == {"name": "b"}


def test_a_set_that_is_put_aside_meanwhile_serves_no_waiter(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN)
    waiter = store.waiting(pool.acquire, {"tpm": 1})
    pool.cool_down(1, 100)
    clock.advance(9)
    store.until_refused()
    other = pool[1].acquire({"tpm": 5})
    assert other, "nobody stands in its line any more"
    clock.advance(1)
    assert waiter.result().config == {"name": "a"}


def test_waiter_sleeps_until_a_set_returns() -> None:
    store = WatchedStore()
    pool = two(store, RateLimit("tpm", 10, 3600), TEN)
    used_up(pool[0], "tpm")
    pool.cool_down(1, 0.02)
    assert pool.acquire({"tpm": 10}, timeout=20).config == {"name": "b"}


def test_a_cooling_set_is_waited_for_where_no_other_can_admit(store: WatchedStore, clock: FakeClock) -> None:
    pool = two(store, RateLimit("tpm", 5, 5), TEN)
    used_up(pool[1], "tpm")
    pool.cool_down(1, 100)
    waiter = store.waiting(pool.acquire, {"tpm": 10})
    clock.advance(10)
    assert waiter.result().config == {"name": "b"}


def test_when_all_are_put_aside_all_are_waited_for(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN)
    pool.cool_down(0, 100)
    pool.cool_down(1, 100)
    waiter = store.waiting(pool.acquire, {"tpm": 1})
    clock.advance(1)
    assert waiter.result().config == {"name": "b"}


@pytest.mark.parametrize("name", BALANCERS)
def test_sets_of_several_stores_are_waited_for_together(name: str, clock: FakeClock) -> None:
    stores = [WatchedStore(clock=clock), WatchedStore(clock=clock)]
    pool = LimitPool([set_of(store, DB, name="ab"[index]) for index, store in enumerate(stores)], name)
    held = [one.acquire({"db": 1}) for one in pool]
    waiter = Caller(pool.acquire, {"db": 1})
    for store in stores:
        store.until_waiting(1)
    held[1].release()
    assert waiter.result().config == {"name": "b"}
    for store in stores:
        store.until_waiting(0)
        assert not store.line.busy


def test_a_waiter_whose_limits_have_changed_leaves_nothing_behind(store: WatchedStore) -> None:
    old = LimitSet.composed([ScopedLimits(scope_of("old", None), schema_of((DB,)))], store, version=store.version())
    pool = LimitPool([old, set_of(store, DB)])
    held = [one.acquire({"db": 1}) for one in pool]
    waiter = store.waiting(pool.acquire, {"db": 1})
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        waiter.result()
    assert not store.line.busy
    assert all(held)


@in_a_loop
async def test_tasks_wait_for_the_earliest_too(store: WatchedStore, clock: FakeClock) -> None:
    pool = full(store, SLOW, TEN)
    waiter = asyncio.create_task(pool.aacquire({"tpm": 3}))
    await settled()
    clock.advance(3)
    async with await waiter as held:
        assert held.config == {"name": "b"}
        held.update({"tpm": 3})
    assert not store.line.busy


@in_a_loop
async def test_tasks_do_not_wait_with_free_capacity_or_without_time(store: WatchedStore) -> None:
    pool = two(store, DB, CallLimit(1, 10))
    first = await pool.aacquire()
    second = await pool.atry_acquire()
    assert [first.config["name"], second.config["name"]] == ["a", "b"]
    assert first.claim in store.renewer.held()
    assert not await pool.atry_acquire({"db": 1})
    with pytest.raises(LimitTimeout):
        await pool.aacquire({"db": 1}, timeout=0)
    first.release()


@in_a_loop
async def test_threads_and_tasks_wait_together(store: WatchedStore) -> None:
    pool = two(store, DB, DB)
    held = [pool.acquire({"db": 1}), pool.acquire({"db": 1})]
    thread = store.waiting(pool.acquire, {"db": 1})
    task = asyncio.create_task(pool.aacquire({"db": 1}))
    await settled()
    assert len(store.watched.waiting) == 2
    held[1].release()
    held[0].release()
    assert {one.config["name"] for one in (await task, thread.result())} == {"a", "b"}


CALLERS: Final = 1000
MINUTE: Final = 60.0
MINUTES: Final = [2, pytest.param(10, marks=pytest.mark.release)]
ANSWER_SECONDS: Final = 10.0
QUOTA: Final = {"call_count": 500, "input": 400_000, "output": 100_000}
"""Of each account in each region, per minute."""
MEMBERS: Final = [f"{region}/{account}" for region in ("us-east-1", "us-west-2", "eu-west-1") for account in (1, 2)]
SIZES: Final = [(input_, output) for input_ in (760, 800, 840) for output in (190, 200, 210)]
"""Of requests, whose mean uses all three limits of a member up together."""
LARGEST: Final = {"input": 840, "output": 210}


class Leaps(DefaultSelector):
    """Where an event loop would sleep, its time leaps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        return ready


class Simulation(asyncio.SelectorEventLoop):
    """An event loop in which minutes take as long as what happens in them."""

    def __init__(self) -> None:
        self.leaps = Leaps()
        super().__init__(self.leaps)

    def time(self) -> float:
        return self.leaps.now

    def clock(self) -> int:
        """The time for a store."""
        return 10**15 + round(self.leaps.now * 1_000_000)


class Demand:
    """A thousand callers, each of which asks again as soon as it has its answer."""

    def __init__(self, pool: LimitPool, minutes: int) -> None:
        self.pool = pool
        self.minutes = minutes
        self.loop = asyncio.get_running_loop()
        self.served: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
        self.asked: Counter[str] = Counter()
        self.idle_while_somebody_waited: list[float] = []

    async def caller(self, sizes: Iterator[tuple[int, int]]) -> None:
        while True:
            input_, output = next(sizes)
            self.asked["requests"] += 1
            async with await self.pool.aacquire({"input": input_, "output": output}) as acquisition:
                member = str(acquisition.config["member"])
                self.served[member].append((self.loop.time(), input_, output))
                self.asked["answers"] += 1
                await asyncio.sleep(ANSWER_SECONDS)
                acquisition.update({"input": input_, "output": output})

    async def observer(self) -> None:
        """Look again and again whether somebody waits though a member could serve anybody."""
        while True:
            await asyncio.sleep(0.7919)
            if self.pool[0].store.line.busy and any(one.peek(LARGEST).allowed for one in self.pool):
                self.idle_while_somebody_waited.append(self.loop.time())

    async def run(self) -> None:
        sizes = cycle(random.sample(SIZES * 1000, len(SIZES) * 1000))
        tasks = [asyncio.create_task(self.caller(sizes)) for _ in range(CALLERS)]
        tasks.append(asyncio.create_task(self.observer()))
        done, _ = await asyncio.wait(tasks, timeout=self.minutes * MINUTE)
        assert not done, "nobody fails"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def most_in_a_minute(served: list[tuple[float, int, int]]) -> dict[str, int]:
    """The most that was used within any minute, by limit."""
    most = dict.fromkeys(QUOTA, 0)
    used, oldest = [0, 0, 0], 0
    for time, input_, output in served:
        used = [used[0] + 1, used[1] + input_, used[2] + output]
        while served[oldest][0] <= time - MINUTE:
            _, gone_input, gone_output = served[oldest]
            used = [used[0] - 1, used[1] - gone_input, used[2] - gone_output]
            oldest += 1
        most = {key: max(before, now) for (key, before), now in zip(most.items(), used, strict=True)}
    return most


@pytest.mark.slow
@pytest.mark.parametrize("load_balancing", ["round_robin", "least_loaded"])
@pytest.mark.parametrize("minutes", MINUTES)
@pytest.mark.release
def test_all_quotas_are_used_up_and_none_is_exceeded(load_balancing: str, minutes: int) -> None:
    random.seed(6)
    with asyncio.Runner(loop_factory=Simulation) as runner:
        store = MemoryStore(clock=runner.get_loop().clock)  # type: ignore[attr-defined]
        window = RateLimitAlgorithm.SLIDING_WINDOW
        limits = [
            CallLimit(QUOTA["call_count"], MINUTE, window),
            *[RateLimit(key, QUOTA[key], MINUTE, window) for key in ("input", "output")],
        ]
        sets = [LimitSet(limits, store=store, config={"member": member}) for member in MEMBERS]
        demand: list[Demand] = []

        async def use() -> None:
            demand.append(Demand(LimitPool(sets, load_balancing), minutes))
            await demand[0].run()

        runner.run(use())
    served, asked = demand[0].served, demand[0].asked
    assert sorted(served) == sorted(MEMBERS)
    for requests in served.values():
        used = {
            "call_count": len(requests),
            "input": sum(r[1] for r in requests),
            "output": sum(r[2] for r in requests),
        }
        for key, quota in QUOTA.items():
            assert used[key] >= 0.99 * minutes * quota
            assert most_in_a_minute(requests)[key] <= quota
    assert asked["requests"] - asked["answers"] <= CALLERS
    assert demand[0].idle_while_somebody_waited == []
