"""The verbs for asyncio: the same decisions, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis import Redis

from limits_app.core.claim import Claim
from limits_app.core.errors import StaleConfiguration, StoreUnavailable
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.outcome import outcome_of
from limits_app.stores.redis import RedisStore
from limits_app.testing.conformance.contract import claim_of
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, limits_of, prefix, store_on, used

HOUR = 3600


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    store = store_on(redis)
    yield store
    store.close()


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_a_hundred_tasks_are_admitted_exactly_the_capacity(store: RedisStore, algorithm: RateLimitAlgorithm) -> None:
    limits = limits_of(store, CallLimit(30, 366 * 86_400, algorithm))

    async def all_at_once() -> list[bool]:
        return await asyncio.gather(*[store.aacquire(claim_of(limits)) for _ in range(100)])

    assert sum(asyncio.run(all_at_once())) == 30


def test_what_tasks_took_is_settled_and_seen(store: RedisStore) -> None:
    limits = limits_of(store, RateLimit("tokens", 100, HOUR), ResourceLimit("db", 1))

    async def one_after_the_other() -> None:
        claim = claim_of(limits, {"tokens": 50})
        assert await store.aacquire(claim)
        refused = claim_of(limits, {"tokens": 60})
        assert not await store.aacquire(refused)
        assert {status.key for status in outcome_of(refused).violations} == {"tokens", "db"}
        await store.asettle(claim, [-1 if ask.lease_key else -40 * ask.scale for ask in claim.plan.asks])
        await store.asettle(claim, [-1 for _ in claim.amounts])
        await store.apeek(refused)

    asyncio.run(one_after_the_other())
    assert used(limits, "tokens") == pytest.approx(10, abs=0.1)
    assert used(limits, "db") == 0


def test_a_refusal_that_is_known_needs_no_server(store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(1, HOUR))

    async def ask(times: int) -> list[bool]:
        return [await store.aacquire(claim_of(limits)) for _ in range(times)]

    assert asyncio.run(ask(2)) == [True, False]
    assert not limits.try_acquire()
    assert not limits.try_acquire()
    assert not asyncio.run(ask(1))[0]


def test_limits_that_have_changed_are_followed(store: RedisStore) -> None:
    old = limits_of(store, RateLimit("tokens", 10, HOUR))
    new = limits_of(store, RateLimit("tokens", 20, HOUR))
    version = limits_of(store, CallLimit(1, HOUR), version=store.version() + 1)

    async def change() -> None:
        claim = claim_of(old, {"tokens": 10})
        assert await store.aacquire(claim)
        assert await store.aacquire(claim_of(new, {"tokens": 5}))
        await store.asettle(claim, [-5 * claim.plan.asks[0].scale])
        with pytest.raises(StaleConfiguration):
            await store.aacquire(claim_of(version))

    asyncio.run(change())
    assert used(new, "tokens") == pytest.approx(10, abs=0.1)


def test_a_cancelled_task_is_charged_nothing(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, RateLimit("tokens", 100, HOUR), ResourceLimit("db", 5))
    assert limits.try_acquire({"tokens": 1, "db": 0})

    async def cancelled() -> None:
        warm = claim_of(limits, {"tokens": 1})
        await store.aacquire(warm)
        await store.asettle(warm, warm.plan.changes({}, warm.amounts))
        plan = warm.plan
        redis.freeze()
        task = asyncio.create_task(store.aacquire(Claim(plan, plan.amounts({"tokens": 50})[0])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        redis.resume()

    try:
        asyncio.run(cancelled())  # and what threads have begun is done
    finally:
        redis.resume()
    assert used(limits, "tokens") == pytest.approx(2, abs=0.1)
    assert used(limits, "db") == 0


def test_a_connection_that_was_lost_is_made_anew(store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))

    async def lose() -> None:
        for _ in range(3):
            assert await store.aacquire(claim_of(limits))
            link = await store._tasks._link()
            link.socket.shutdown(2)
            store._tasks._idle.keep(link)
            assert await store.aacquire(claim_of(limits))

    asyncio.run(lose())
    assert used(limits) == pytest.approx(6, abs=0.1)


def test_a_lost_script_cache_is_reloaded(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))

    async def ask() -> bool:
        return await store.aacquire(claim_of(limits))

    assert asyncio.run(ask())
    with Redis(port=redis.port) as client:
        client.script_flush()
    assert asyncio.run(ask())


def test_a_silent_server_is_unavailable(redis: RedisServer) -> None:
    store = RedisStore(url=redis.url, prefix=prefix(), connect_seconds=0.1, reply_seconds=0.1)
    limits = limits_of(store, RateLimit("tokens", 100, HOUR))

    async def ask() -> Claim:
        claim = claim_of(limits, {"tokens": 10})
        assert await store.aacquire(claim)
        redis.freeze()
        with pytest.raises(StoreUnavailable):
            await store.aacquire(claim_of(limits, {"tokens": 1}))
        with pytest.raises(StoreUnavailable):
            await store.asettle(claim, [-10 * ask.scale if ask.key == "tokens" else 0 for ask in claim.plan.asks])
        redis.resume()
        return claim

    try:
        claim = asyncio.run(ask())
    finally:
        redis.resume()
    asyncio.run(store.asettle(claim, [-10 * ask.scale if ask.key == "tokens" else 0 for ask in claim.plan.asks]))
    assert claim.settled
    store.close()
    again = RedisStore(url=redis.url, prefix=store.prefix, **PATIENT)
    assert used(limits_of(again, RateLimit("tokens", 100, HOUR)), "tokens") <= 1  # type: ignore[operator]
    again.close()
