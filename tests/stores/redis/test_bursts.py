"""Bursts of requests in processes without connections, or that have just lost them: a healthy server answers all.

Tests with the timeouts of a site, of which that of an answer is 0.1 seconds, run alone.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from threading import Barrier
from time import monotonic, sleep

import pytest
from redis import Redis
from redis.sentinel import Sentinel

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.stores.connection_limit import MOST_CONNECTIONS
from limits_app.stores.redis import RedisClusterStore, RedisStore
from tests.servers.redis import RedisServer, redis_sentinel
from tests.stores.redis.support import PATIENT, claimed, loops_of, of_this_loop, prefix, record
from tests.stores.support import limits_of, until

HOUR = 3600
BURST = 300


@pytest.fixture(params=["server", "cluster", "sentinel"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisStore]:
    """A store with the timeouts that a site has by default, and without connections."""
    with ExitStack() as stack:
        if request.param == "server":
            store = RedisStore(url=request.getfixturevalue("redis").url, prefix=prefix())
        elif request.param == "cluster":
            store = RedisClusterStore(url=request.getfixturevalue("cluster")[0].url, prefix=prefix())
        else:
            _, _, sentinel = stack.enter_context(redis_sentinel())
            client = Sentinel([("127.0.0.1", sentinel.port)]).master_for("limits")
            store = RedisStore(client=client, prefix=prefix())
        stack.enter_context(closing(store))
        yield store


def in_threads(limits: LimitSet, number: int = BURST) -> int:
    """How many requests of as many threads at the same time are admitted."""
    barrier = Barrier(number)

    def acquire(_: int) -> bool:
        barrier.wait()
        return bool(limits.try_acquire())

    with ThreadPoolExecutor(number) as executor:
        return sum(executor.map(acquire, range(number)))


async def in_tasks(limits: LimitSet, number: int = BURST) -> int:
    """How many requests of as many tasks at the same time are admitted."""
    return sum(map(bool, await asyncio.gather(*[limits.atry_acquire() for _ in range(number)])))


@pytest.mark.alone
def test_a_burst_of_first_requests_is_answered(store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(10**6, HOUR))
    assert asyncio.run(in_tasks(limits)) == BURST
    assert in_threads(limits) == BURST


def test_a_burst_opens_a_bounded_number_of_connections(redis: RedisServer, client: Redis) -> None:
    opened = [int(client.info("stats")["total_connections_received"])]
    for burst in (in_threads, lambda limits: asyncio.run(in_tasks(limits))):
        with closing(RedisStore(url=redis.url, prefix=prefix(), **PATIENT)) as store:
            burst(limits_of(store, CallLimit(10**6, HOUR)))
        opened.append(int(client.info("stats")["total_connections_received"]))
        assert opened[-1] - opened[-2] <= MOST_CONNECTIONS


def test_all_waiters_of_a_process_listen_over_one_connection(redis: RedisServer, client: Redis) -> None:
    with closing(RedisStore(url=redis.url, prefix=prefix(), **PATIENT)) as store:
        sets = [limits_of(store, ResourceLimit("db", 1), entity=f"person {number}") for number in range(8)]
        held = [limits.try_acquire() for limits in sets]

        def wait_in_thread(limits: LimitSet) -> None:
            limits.acquire(timeout=60).release()

        async def wait_in_tasks() -> None:
            for acquired in await asyncio.gather(*[limits.aacquire(timeout=60) for limits in sets[4:]]):
                await acquired.arelease()

        with ThreadPoolExecutor(5) as executor:
            waiters = [
                executor.submit(lambda limits=limits: limits.acquire(timeout=60).release()) for limits in sets[:4]
            ]
            waiters.append(executor.submit(lambda: asyncio.run(wait_in_tasks())))
            until(lambda: all(client.hexists(record(store, limits), "!") for limits in sets))
            listening = [entry for entry in client.client_list() if int(entry["sub"])]
            for acquired in held:
                acquired.release()
            for waiter in waiters:
                waiter.result(60)
        assert len(listening) == 1


@pytest.mark.alone
def test_a_burst_after_a_reconnect_is_answered(redis: RedisServer, client: Redis) -> None:
    with closing(RedisStore(url=redis.url, prefix=prefix())) as store:
        limits = limits_of(store, CallLimit(10**6, HOUR))

        async def reconnected() -> int:
            await in_tasks(limits)
            client.client_kill_filter(_type="normal", skipme=True)
            return await in_tasks(limits)

        assert asyncio.run(reconnected()) == BURST
        in_threads(limits)
        client.client_kill_filter(_type="normal", skipme=True)
        assert in_threads(limits) == BURST


@pytest.mark.parametrize("connected", [False, True])
def test_a_busy_event_loop_is_no_silent_server(redis: RedisServer, *, connected: bool) -> None:
    seconds = 0.05
    with closing(RedisStore(url=redis.url, prefix=prefix(), connect_seconds=seconds, reply_seconds=seconds)) as store:
        limits = limits_of(store, CallLimit(10**6, HOUR))

        async def in_a_busy_loop() -> int:
            if connected:
                await in_tasks(limits, MOST_CONNECTIONS)
            loop = asyncio.get_running_loop()

            def work() -> None:
                sleep(1.5 * seconds)  # a step of another task, longer than the timeouts
                nonlocal working
                working = loop.call_soon(work)

            working = loop.call_soon(work)
            try:
                return await in_tasks(limits, 5)
            finally:
                working.cancel()

        assert asyncio.run(in_a_busy_loop()) == 5


@pytest.mark.parametrize("burst", [in_threads, lambda *given: asyncio.run(in_tasks(*given))], ids=["threads", "tasks"])
def test_a_burst_at_a_silent_server_is_an_error_soon(redis: RedisServer, burst: Callable[..., int]) -> None:
    with closing(RedisStore(url=redis.url, prefix=prefix())) as store:
        limits = limits_of(store, CallLimit(10**6, HOUR))
        assert limits.try_acquire()
        redis.freeze()
        try:
            started = monotonic()
            with pytest.raises(StoreUnavailable):
                burst(limits, 2 * MOST_CONNECTIONS)
            assert monotonic() - started < 3
        finally:
            redis.resume()
        until(lambda: bool(burst(limits, 1)))


def test_tasks_wait_for_a_connection_as_long_as_the_server_answers(redis: RedisServer) -> None:
    with closing(RedisStore(url=redis.url, prefix=prefix(), reply_seconds=0.2)) as store:
        limits = limits_of(store, CallLimit(10**6, HOUR))

        async def ask() -> None:
            await limits.atry_acquire()
            own = await of_this_loop(store)
            for _ in range(MOST_CONNECTIONS):
                await own.limit.acquire()  # as tasks that wait for an answer
            waiting = asyncio.ensure_future(store.aacquire(claimed(limits)))
            for _ in range(8):
                await asyncio.sleep(0.05)
                own.answers += 1
            assert not waiting.done()
            with pytest.raises(StoreUnavailable, match=r"not answered for 0\.2 s"):
                await waiting
            for _ in range(MOST_CONNECTIONS):
                own.limit.release()
            assert await limits.atry_acquire()

        asyncio.run(ask())


def test_event_loops_are_not_kept(redis: RedisServer) -> None:
    with closing(RedisStore(url=redis.url, prefix=prefix())) as store:
        limits = limits_of(store, CallLimit(10**6, HOUR))
        for _ in range(3):
            asyncio.run(in_tasks(limits, 3 * MOST_CONNECTIONS))
        gc.collect()
        assert not list(loops_of(store))
