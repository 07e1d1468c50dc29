"""How long Redis keeps what nobody uses, as the settings say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.test import override_settings
from redis import Redis

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores import registry
from limits_app.stores.redis import RedisStore
from tests.servers.redis import RedisServer
from tests.stores.redis.support import record, scoped, store_on
from tests.stores.support import limits_of

HOUR_MS = 3_600_000
TEN_HOURS = CallLimit(10, 36_000)
"""A call comes back after an hour."""


def kept(client: Redis, url: str, limit: CallLimit, **settings: object) -> float:
    """For how many seconds the state of a limit is kept after a call, in a store of such settings."""
    own = {"KIND": "redis", "URL": url}
    with override_settings(LIMITS={"STORES": {"default": own}} | settings):
        store = registry.store()
    assert isinstance(store, RedisStore)
    limits = limits_of(store, limit)
    client.delete(record(store, limits))
    assert limits.try_acquire()
    store.close()
    return client.pttl(record(store, limits)) / 1000


def test_the_idle_factor_is_a_setting(client: Redis, redis: RedisServer) -> None:
    assert kept(client, redis.url, TEN_HOURS, IDLE_FACTOR=2) == pytest.approx(2 * 3600, abs=10)
    own = {"default": {"KIND": "redis", "URL": redis.url, "IDLE_FACTOR": 3}}
    assert kept(client, redis.url, TEN_HOURS, STORES=own, IDLE_FACTOR=2) == pytest.approx(3 * 3600, abs=10)


@pytest.mark.parametrize("units", [2 * 10**8, 10**10, 10**12])
def test_state_that_takes_longer_than_a_server_can_count_is_kept_as_long_as_it_can(
    client: Redis, redis: RedisServer, units: int
) -> None:
    store = store_on(redis)
    limits = limits_of(store, RateLimit("tokens", 1, 86_400, burst=10**12))
    assert limits.try_acquire({"tokens": units})
    assert client.pttl(record(store, limits)) == pytest.approx(10**15, abs=10**6)
    assert limits.try_acquire({"tokens": 0})
    store.close()


def test_state_under_limits_that_are_set_for_an_entity_alone_is_kept_indefinitely(
    client: Redis, redis: RedisServer
) -> None:
    store = store_on(redis)
    usual = limits_of(store, TEN_HOURS, ResourceLimit("db", 1))
    own = LimitSet.composed([replace(usual.scoped[0], lasting=True)], store)
    state = record(store, usual)
    with usual.try_acquire():
        assert client.pttl(state) > 0
    with own.try_acquire() as held:
        assert client.pttl(state) == -1
        assert store.renew([held.claim]) == []
        with own.try_acquire({"db": 1}) as refused:
            assert not refused
        assert client.pttl(state) == -1
    assert client.pttl(state) == -1
    assert usual.try_acquire()
    assert client.pttl(state) > 0, "when they are everybody's again, it goes as everybody's does"
    store.close()


def test_an_amount_of_nothing_keeps_the_state_of_a_window_for_as_long_as_it_counts(
    client: Redis, redis: RedisServer
) -> None:
    store = store_on(redis)
    usual = limits_of(store, RateLimit("tokens", 100, 3600, RateLimitAlgorithm.SLIDING_WINDOW))
    own = LimitSet.composed([replace(usual.scoped[0], lasting=True)], store)
    assert own.try_acquire({"tokens": 60})
    assert usual.try_acquire({"tokens": 0})
    assert client.pttl(record(store, usual)) > 3600 * 1000
    store.close()


@pytest.mark.parametrize(
    "limit",
    [
        *[CallLimit(5, 864_000, algorithm) for algorithm in RateLimitAlgorithm],
        QuotaLimit("call_count", 5, period="month"),
    ],
    ids=[*RateLimitAlgorithm, "quota"],
)
def test_a_scope_in_which_all_was_undone_is_forgotten(client: Redis, redis: RedisServer, limit: AnyLimit) -> None:
    store = store_on(redis)
    limits = limits_of(store, limit)
    first, second = limits.try_acquire({"call_count": 1}), limits.try_acquire({"call_count": 1})
    first.undo(has_run=True)
    assert client.pttl(record(store, limits)) > HOUR_MS, "the other request is counted"
    second.undo(has_run=True)
    assert 0 < client.pttl(record(store, limits)) < HOUR_MS
    assert limits.get_stats()["call_count"]["used"] == pytest.approx(0, abs=0.1)
    assert limits.try_acquire({"call_count": 1})
    assert client.pttl(record(store, limits)) > HOUR_MS
    store.close()


def test_what_else_is_kept_of_a_scope_in_which_all_was_undone_stays(client: Redis, redis: RedisServer) -> None:
    store = store_on(redis)
    before = limits_of(store, CallLimit(5, 864_000), RateLimit("tokens", 5, 864_000))
    assert before.try_acquire({"tokens": 3})
    after = limits_of(store, CallLimit(5, 864_000))
    after.try_acquire().undo()
    assert client.pttl(record(store, after)) > HOUR_MS
    assert before.get_stats()["tokens"]["used"] == pytest.approx(3, abs=0.1)
    store.close()


def test_an_amount_of_nothing_is_no_use_of_a_fixed_window(client: Redis, redis: RedisServer) -> None:
    store = store_on(redis)
    limits = limits_of(store, CallLimit(1, 864_000, RateLimitAlgorithm.FIXED_WINDOW))
    assert limits.try_acquire({"call_count": 0})
    assert 0 < client.pttl(record(store, limits)) < HOUR_MS
    assert limits.try_acquire()
    assert not limits.try_acquire()
    assert limits.try_acquire({"call_count": 0})
    assert client.pttl(record(store, limits)) > HOUR_MS
    store.close()


def test_state_kept_indefinitely_does_not_expire_while_a_request_waits(client: Redis, redis: RedisServer) -> None:
    store = store_on(redis)
    own = LimitSet.composed([replace(scoped(store, ResourceLimit("db", 1)), lasting=True)], store)
    with own.try_acquire() as held:
        assert held
        with pytest.raises(TimeoutError):
            own.acquire({"db": 1}, timeout=0.05)
    assert client.pttl(record(store, own)) == -1
    store.close()
