"""The verbs for asyncio: the same decisions, and an event loop that is never blocked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StaleConfiguration, StoreFull, StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.readings import outcome_of
from limits_app.stores.redis import RedisStore
from limits_app.testing.conformance.contract import claim_of
from tests.servers.redis import RedisServer, redis_server
from tests.servers.tls import certificate, tls
from tests.stores.redis.support import PATIENT, calm_down, changes_of, claimed, hurry, prefix
from tests.stores.support import limits_of, until, used

HOUR = 3600
TOKENS = RateLimit("tokens", 100, HOUR)


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_a_hundred_tasks_are_admitted_exactly_the_capacity(store: RedisStore, algorithm: RateLimitAlgorithm) -> None:
    limits = limits_of(store, CallLimit(30, 366 * 86_400, algorithm))

    async def all_at_once() -> list[bool]:
        return await asyncio.gather(*[store.aacquire(claimed(limits)) for _ in range(100)])

    assert sum(asyncio.run(all_at_once())) == 30


def test_charges_of_tasks_are_settled_and_visible(store: RedisStore) -> None:
    limits = limits_of(store, TOKENS, ResourceLimit("db", 1))

    async def one_after_the_other() -> None:
        claim = claimed(limits, {"tokens": 50})
        assert await store.aacquire(claim)
        refused = claimed(limits, {"tokens": 60})
        assert not await store.aacquire(refused)
        assert {status.key for status in outcome_of(refused).violations} == {"tokens", "db"}
        await store.asettle(
            claim, [-1 if ask.rule.is_permit else -40 * ask.rule.parts_per_unit for ask in claim.shape.limits]
        )
        await store.asettle(claim, [-1 for _ in claim.amounts])
        await store.apeek(refused)

    asyncio.run(one_after_the_other())
    assert used(limits, "tokens") == pytest.approx(10, abs=0.1)
    assert used(limits, "db") == 0


def test_limits_that_have_changed_are_followed(store: RedisStore) -> None:
    old = limits_of(store, RateLimit("tokens", 10, HOUR))
    new = limits_of(store, RateLimit("tokens", 20, HOUR))
    version = limits_of(store, CallLimit(1, HOUR), version=store.version() + 1)

    async def change() -> None:
        claim = claimed(old, {"tokens": 10})
        assert await store.aacquire(claim)
        assert await store.aacquire(claimed(new, {"tokens": 5}))
        await store.asettle(claim, [-5 * claim.shape.limits[0].rule.parts_per_unit])
        with pytest.raises(StaleConfiguration):
            await store.aacquire(claimed(version))

    asyncio.run(change())
    assert used(new, "tokens") == pytest.approx(10, abs=0.1)


def cancelled(redis: RedisServer, verb: Coroutine[Any, Any, object], and_then: Callable[[], object]) -> None:
    """Cancel a task whose question a frozen server has not answered, do something, and wait for its end."""

    async def cancel() -> None:
        redis.freeze()
        task = asyncio.create_task(verb)
        await asyncio.sleep(0)  # so that it has begun
        task.cancel()
        asyncio.get_running_loop().call_later(0.02, and_then)
        with pytest.raises(asyncio.CancelledError):
            await task

    try:
        asyncio.run(cancel())  # which waits for what threads have to finish
    finally:
        redis.resume()


@pytest.fixture
def taken(store: RedisStore) -> LimitSet:
    """Limits of which tokens are taken already, whose plan the store has met, and which tasks have a link for."""
    limits = limits_of(store, TOKENS, ResourceLimit("db", 5))

    async def take() -> None:
        await (await limits.atry_acquire({"tokens": 30})).acancel()
        (await limits.atry_acquire({"tokens": 20})).update({"tokens": 20})

    asyncio.run(take())
    return limits


@pytest.mark.parametrize("tokens", [pytest.param(50, id="admitted"), pytest.param(90, id="rejected")])
@pytest.mark.parametrize("known", [True, False])
def test_a_cancelled_task_is_charged_nothing(
    store: RedisStore, redis: RedisServer, taken: LimitSet, *, known: bool, tokens: int
) -> None:
    claim = claimed(taken, {"tokens": tokens}) if known else claim_of(taken, {"tokens": tokens})
    cancelled(redis, store.aacquire(claim), redis.resume)
    assert used(taken, "tokens") == pytest.approx(20, abs=0.1)
    assert used(taken, "db") == 1


def test_settlement_of_a_cancelled_task_is_completed(store: RedisStore, redis: RedisServer, taken: LimitSet) -> None:
    claim = claimed(taken, {"tokens": 50})
    assert asyncio.run(store.aacquire(claim))
    cancelled(redis, store.asettle(claim, changes_of(claim, {"tokens": 5})), redis.resume)
    assert claim.settled
    assert used(taken, "tokens") == pytest.approx(25, abs=0.1)


@pytest.mark.parametrize("known", [True, False])
def test_a_task_is_cancelled_while_the_server_does_not_reply(
    store: RedisStore, redis: RedisServer, *, known: bool
) -> None:
    limits = limits_of(store, TOKENS)

    async def take() -> Claim:
        return await limits.atry_acquire({"tokens": 1})

    assert asyncio.run(take())
    hurry(store, connections=1)
    claim = claimed(limits, {"tokens": 1}) if known else claim_of(limits, {"tokens": 1})
    cancelled(redis, store.aacquire(claim), lambda: None)
    assert claim.admitted is None


def test_a_connection_that_was_lost_is_replaced(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))

    async def lose() -> None:
        with Redis(port=redis.port) as client:
            for _ in range(3):
                assert await store.aacquire(claimed(limits))
                client.client_kill_filter(_type="normal", skipme=True)
                assert await store.aacquire(claimed(limits))

    asyncio.run(lose())
    assert used(limits) == pytest.approx(6, abs=0.1)


def test_connections_are_closed_with_the_event_loop(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))

    async def ask() -> list[bool]:
        return await asyncio.gather(*[store.aacquire(claimed(limits)) for _ in range(20)])

    with Redis(port=redis.port) as client:
        before = len(client.client_list())
        for _ in range(3):
            assert all(asyncio.run(ask()))
        until(lambda: len(client.client_list()) <= before + 1)


def test_a_lost_script_cache_is_reloaded(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, CallLimit(100, HOUR))

    async def ask() -> bool:
        return await store.aacquire(claimed(limits))

    assert asyncio.run(ask())
    with Redis(port=redis.port) as client:
        client.script_flush()
    assert asyncio.run(ask())


def test_a_full_server_is_unavailable(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, TOKENS)
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="no memory"):
            asyncio.run(_acquired(store, claimed(limits, {"tokens": 1})))
    finally:
        client.config_set("maxmemory", 0)


async def _acquired(store: RedisStore, claim: Claim) -> bool:
    return await store.aacquire(claim)


def test_a_silent_server_is_unavailable(store: RedisStore, redis: RedisServer) -> None:
    limits = limits_of(store, TOKENS)

    async def ask() -> Claim:
        claim = claimed(limits, {"tokens": 10})
        assert await store.aacquire(claim)
        hurry(store)
        redis.freeze()
        with pytest.raises(StoreUnavailable):
            await store.aacquire(claimed(limits, {"tokens": 1}))
        with pytest.raises(StoreUnavailable):
            await store.asettle(claim, [-claim.amounts[0]])
        redis.resume()
        return claim

    claim = asyncio.run(ask())
    calm_down(store)
    asyncio.run(store.asettle(claim, [-claim.amounts[0]]))
    assert claim.settled
    assert used(limits, "tokens") <= 1  # type: ignore[operator]


def test_unsent_settlement_is_sent_when_the_server_is_available_again() -> None:
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        store = RedisStore(url=server.url, prefix=prefix(), **PATIENT)
        limits = limits_of(store, TOKENS)
        claim = claimed(limits, {"tokens": 50})
        assert asyncio.run(store.aacquire(claim))
        changes = changes_of(claim, {"tokens": 5})
        server.kill()
        with pytest.raises(StoreUnavailable) as error:
            asyncio.run(store.asettle(claim, changes))
        assert type(error.value) is StoreUnavailable  # rather than that nobody knows whether it was done
        assert not claim.settled
        server.start()
        asyncio.run(store.asettle(claim, changes))
        assert claim.settled
        assert used(limits, "tokens") == pytest.approx(5, abs=0.1)
        store.close()


def test_a_server_that_is_reached_over_tls_answers_tasks_too(redis: RedisServer, tmp_path: Path) -> None:
    files = certificate(tmp_path)
    with tls(redis.port, files) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files[0]}"
        store = RedisStore(url=url, prefix=prefix(), **PATIENT)
        limits = limits_of(store, CallLimit(1, HOUR))

        async def ask() -> list[bool]:
            return [await store.aacquire(claim_of(limits)), await store.aacquire(claimed(limits))]

        assert asyncio.run(ask()) == [True, False]
        assert used(limits) == pytest.approx(1, abs=0.1)
        store.close()
