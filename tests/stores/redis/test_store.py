"""What the Redis store promises beyond the conformance suite."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
from django.test import override_settings
from redis import Redis

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import AnyLimit, CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.runtime import installed, present
from limits_app.stores import modes, registry
from limits_app.stores.redis import RedisStore, open_redis_store
from limits_app.stores.redis.hints import Rejections
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import in_scope, taken
from tests.opened import open_none
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.support import (
    PATIENT,
    changes_of,
    forget_rejections,
    listeners,
    prefix,
    record,
    scoped,
    scripts_run,
    store_on,
)
from tests.stores.support import connections_of, has_subscribed, limits_of, until, used

HOUR = 3600
CALLS = CallLimit(100, HOUR)


@pytest.mark.parametrize("limits", [(CALLS,), (CALLS, RateLimit("tokens", 10, HOUR), ResourceLimit("db", 2))])
def test_new_clients_leave_nothing_to_the_garbage_collector(store: RedisStore, limits: tuple[AnyLimit, ...]) -> None:
    template = LimitSet.composed([in_scope(store, scope_of("tests", "first"), *limits, counts=True)], store, version=0)
    tokens = {limit.key: 1 for limit in limits if isinstance(limit, RateLimit)}

    def acquire(entity: str) -> None:
        client = template.bound([scope_of("tests", entity)], version=0)
        with client.try_acquire(tokens) as acquisition:
            assert acquisition
            acquisition.update(tokens)

    acquire("second")
    gc.collect()
    gc.freeze()  # what other tests have left may become garbage meanwhile
    gc.disable()
    try:
        for number in range(10):
            acquire(f"client {number}")
        assert gc.collect() == 0
    finally:
        gc.enable()
        gc.unfreeze()


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("keys", [["a"], ["a", "b", "c"]])
def test_an_acquire_is_one_round_trip_whatever_the_limits_and_scopes(
    store: RedisStore, client: Redis, people: int, keys: list[str]
) -> None:
    limits = [RateLimit(key, 1000, HOUR) for key in keys]
    family = LimitSet.composed([scoped(store, *limits, entity=f"p{who}") for who in range(people)], store)
    wanted = dict.fromkeys(keys, 1)
    assert family.try_acquire(wanted)
    before = client.info("commandstats")
    for _ in range(10):
        assert family.try_acquire(wanted)
    after = client.info("commandstats")
    assert after["cmdstat_evalsha"]["calls"] - before["cmdstat_evalsha"]["calls"] == 10
    assert after["cmdstat_hset"]["calls"] - before["cmdstat_hset"]["calls"] == 10 * people
    sent = {name for name in after if after[name]["calls"] != before.get(name, {"calls": 0})["calls"]}
    expected = ("evalsha", "hset", "hmget", "hlen", "hgetall", "time", "info", "pexpire")
    assert sent <= {f"cmdstat_{name}" for name in expected}


def test_three_limits_used_and_released_are_two_round_trips(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, CALLS, RateLimit("tokens", 1000, HOUR), ResourceLimit("db", 5))
    for _ in range(2):
        before = scripts_run(client)
        with limits.try_acquire({"tokens": 5}) as acquired:
            acquired.update({"tokens": 3})
    assert scripts_run(client) - before == 2


def test_a_lost_script_cache_is_reloaded_silently(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, CALLS)
    for _ in range(5):
        client.script_flush()
        assert limits.try_acquire()
    assert used(limits) == pytest.approx(5, abs=0.1)


def test_a_server_that_has_forgotten_everything_starts_again(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, CallLimit(1, HOUR), version=store.version())
    assert limits.try_acquire()
    assert not limits.try_acquire()
    client.flushall()
    assert limits.try_acquire()


def test_holders_are_notified_when_the_server_has_forgotten_everything(
    store: RedisStore, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    for release in (Acquisition.release, lambda held: asyncio.run(held.arelease())):
        caplog.clear()
        held = limits.try_acquire()
        client.flushall()
        release(held)
        assert caplog.messages == ["the lease of db ran out while it was held: other holders may have the permit now"]


def test_the_eviction_policy_of_the_server_is_reported(store: RedisStore, client: Redis) -> None:
    assert store.eviction_policy() == client.config_get("maxmemory-policy")["maxmemory-policy"]


def test_another_process_reads_state_of_other_limits(redis: RedisServer) -> None:
    name = prefix()
    old, new = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
    assert limits_of(old, CallLimit(10, HOUR, RateLimitAlgorithm.SLIDING_WINDOW)).try_acquire()
    assert used(limits_of(new, CallLimit(20, HOUR, RateLimitAlgorithm.FIXED_WINDOW))) == 1
    assert limits_of(new, CallLimit(20, HOUR, RateLimitAlgorithm.FIXED_WINDOW)).try_acquire()
    assert used(limits_of(new, CallLimit(20, HOUR, RateLimitAlgorithm.FIXED_WINDOW))) == 2
    old.close()
    new.close()


@pytest.mark.parametrize("damage", [b"", b"z", b"zq", b"z" * 60], ids=["short", "letter", "two", "long"])
def test_state_of_an_unknown_version_counts_as_unused(store: RedisStore, client: Redis, damage: bytes) -> None:
    limits = limits_of(store, CallLimit(1, HOUR))
    assert limits.try_acquire()
    client.hset(record(store, limits), CallLimit.key, bytes(4) + damage)
    assert used(limits) == 0
    assert limits.try_acquire()
    client.hset(record(store, limits), CallLimit.key, bytes(4) + damage)
    store.reset([limits.scoped[0].scope.key])
    assert limits.try_acquire()
    assert not limits.try_acquire()


def test_a_store_can_be_sent_to_another_process(redis: RedisServer) -> None:
    store = open_redis_store(url=redis.url, prefix=prefix(), **PATIENT)
    assert pickle.loads(pickle.dumps(store)) is store
    assert open_redis_store(url=redis.url, prefix=store.prefix, **PATIENT) is store
    assert redis.url in repr(store)
    limits = limits_of(store, CallLimit(1, HOUR))
    assert limits.try_acquire()
    assert not pickle.loads(pickle.dumps(limits)).try_acquire()
    store.close()


def test_a_command_that_cannot_be_sent_is_an_error(redis: RedisServer, client: Redis) -> None:
    with pytest.raises(NotShareable, match="clock"):
        pickle.dumps(store_on(redis, clock=FakeClock()))
    with pytest.raises(NotShareable, match="alias or a url"):
        pickle.dumps(RedisStore(client=client))
    with pytest.raises(ValueError, match="url and client"):
        RedisStore(url=redis.url, client=client)


def test_a_client_of_another_client_will_do(client: Redis) -> None:
    store = RedisStore(client=client, prefix=prefix(), **PATIENT)
    assert limits_of(store, CALLS).try_acquire()
    store.close()


def test_the_modes_of_several_machines_use_the_sites_store(store: RedisStore) -> None:
    with installed(replace(present(), open_store=lambda mode: store)):
        assert LimitSet([CALLS], shared=True, mode="celery").store is store
        assert LimitSet([CALLS], shared=True, mode="distributed").store is store


def test_a_distributed_set_without_django_names_the_store_to_pass() -> None:
    code = "from limits_app import CallLimit, LimitSet; LimitSet([CallLimit(1, 60)], shared=True, mode='distributed')"
    variables = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables)
    assert "InvalidRequest: a limit set that several machines share needs a store" in ended.stderr
    assert "open_redis_store(url='redis://...')" in ended.stderr


def test_an_option_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="RedisStore has no option 'prefx'; it has prefix, "):
        RedisStore(url="redis://127.0.0.1:1/", prefx="limits")


def caches(server: RedisServer) -> dict[str, object]:
    """Settings with a cache on a server."""
    return {name: {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url} for name in ("default", "big")}


def test_the_connection_of_a_cache_is_used(redis: RedisServer) -> None:
    with override_settings(CACHES=caches(redis)):
        store = modes.open_store("distributed")
        assert store is open_redis_store("default")
        assert limits_of(store, CALLS, entity=prefix()).try_acquire()
        assert pickle.loads(pickle.dumps(store)) is store


def test_a_cache_of_django_itself_is_used(redis: RedisServer) -> None:
    entry = {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": [redis.url, "redis://127.0.0.1:1/0"],
        "OPTIONS": {"client_name": "limits"},
    }
    with override_settings(CACHES={"default": entry}, LIMITS={"STORES": {"default": {"KIND": "redis"}}}):
        store = registry.store()
        assert isinstance(store, RedisStore)
        assert limits_of(store, CALLS, entity=prefix()).try_acquire()
        assert pickle.loads(pickle.dumps(store)) is store
        assert registry.shared_store() is store


def test_another_server_for_a_cache_is_another_store(redis: RedisServer) -> None:
    names, stores = ("default", "big"), {"default": {"KIND": "redis", "CACHE": "big"}}
    opened = []
    for url in (f"{redis.url}?client_name={name}" for name in names):
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": url}
        with override_settings(CACHES=dict.fromkeys(names, entry), LIMITS={"STORES": stores}):
            opened += [registry.store(), open_redis_store("default")]
            assert limits_of(registry.store(), CALLS, entity=prefix()).try_acquire()
    assert len({id(store) for store in opened}) == 4


def test_the_settings_name_stores_on_redis(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = {"default": {"KIND": "memory"}, "all": {"KIND": "redis", "CACHE": "big"}}
    with override_settings(CACHES=caches(redis), LIMITS={"STORES": stores}):
        assert registry.shared_store() is registry.store("all") is open_redis_store("big")
    with override_settings(LIMITS={"STORES": {"default": {"KIND": "redis", "URL": redis.url}}}):
        assert registry.store() is open_redis_store(url=redis.url)
    with override_settings(LIMITS={}, CACHES=caches(redis)):
        assert registry.shared_store() is open_redis_store("default")


def test_sites_on_one_server_have_keys_of_their_own(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def site(key_prefix: str = "", **options: object) -> RedisStore:
        open_none(monkeypatch)  # as each process has its own
        entry = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis.url, "KEY_PREFIX": key_prefix}
        where = {} if "URL" in options else {"CACHE": "default"}
        stores = {"default": {"KIND": "redis", **where, **options}}
        with override_settings(CACHES={"default": entry}, LIMITS={"STORES": stores}):
            opened = registry.store()
        assert isinstance(opened, RedisStore)
        return opened

    name = prefix().rstrip(":")
    once = CallLimit(1, 3600)
    named, other, plain = site(f"{name}{{a}}"), site(f"{name}b"), site(URL=redis.url, PREFIX=name)
    again = site(f"{name}c", PREFIX=name)
    for one in (named, other, plain):
        assert [bool(limits_of(one, once, entity=name).try_acquire()) for _ in range(2)] == [True, False]
    assert not limits_of(again, once, entity=name).try_acquire()  # the prefix of a store goes first
    with Redis.from_url(redis.url) as client:
        assert {key.split(b":limits:1:")[0].decode() for key in client.scan_iter(f"*{name}*")} == {
            f"{name}{{a}}",
            f"{name}b",
            name,
        }


def test_a_server_that_is_far_away_may_take_longer(redis: RedisServer) -> None:
    far = {"KIND": "redis", "URL": redis.url, "CONNECT_TIMEOUT_SECONDS": 3, "REPLY_TIMEOUT_SECONDS": 2}
    with override_settings(LIMITS={"STORES": {"default": far}}):
        store = registry.store()
    assert isinstance(store, RedisStore)
    connections = connections_of(store)
    assert (connections.connect_seconds, connections.reply_seconds) == (3, 2)


def test_a_cache_that_is_not_on_redis_is_an_error() -> None:
    elsewhere = {"local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    with (
        override_settings(CACHES=elsewhere),
        pytest.raises(StoreUnavailable, match="the cache 'local' is not a Redis cache"),
    ):
        open_redis_store("local")


def test_idle_state_is_small(store: RedisStore, client: Redis) -> None:
    one = limits_of(store, CALLS, entity="one")
    three = limits_of(store, CALLS, RateLimit("tokens", 100, HOUR), ResourceLimit("db", 5), entity="three")
    assert one.try_acquire()
    with three.try_acquire({"tokens": 1}) as acquired:
        acquired.update({"tokens": 1})
    assert client.memory_usage(record(store, one)) <= 170
    assert client.memory_usage(record(store, three)) <= 320


@pytest.mark.parametrize("algorithm", RateLimitAlgorithm)
def test_idle_state_expires_after_seven_times_its_refill_time(
    store: RedisStore, client: Redis, algorithm: RateLimitAlgorithm
) -> None:
    limits = limits_of(store, RateLimit("tokens", 100, 100, algorithm))
    assert limits.try_acquire({"tokens": 100})
    assert 695 <= client.ttl(record(store, limits)) <= 701
    quick = limits_of(store, RateLimit("tokens", 100, 0.001, algorithm), entity="quick")
    assert quick.try_acquire({"tokens": 1})
    assert 58 <= client.ttl(record(store, quick)) <= 61


def test_an_earlier_expiry_is_extended_when_it_has_to_be(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, RateLimit("short", 10, 10), RateLimit("long", 10, 10_000))
    assert limits.try_acquire({"short": 1})
    assert client.ttl(record(store, limits)) <= 70
    assert limits.try_acquire({"long": 10})
    assert client.ttl(record(store, limits)) >= 60_000
    assert limits.try_acquire({"short": 1})
    assert client.ttl(record(store, limits)) >= 60_000


def test_state_with_leases_lives_as_long_as_they_are_renewed(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, ResourceLimit("db", 5))
    claim = taken(limits)
    key = record(store, limits)
    for one in (key, key + b":held:db"):
        client.pexpire(one, 1000)
    assert store.renew([claim]) == []
    assert all(client.ttl(one) > 60 for one in (key, key + b":held:db"))


def test_a_lease_keeps_its_name_when_its_longest_hold_begins_again(redis: RedisServer, client: Redis) -> None:
    clock = FakeClock()
    store = store_on(redis, clock=clock)
    limits = limits_of(store, ResourceLimit("db", 1, max_hold_seconds=30))
    claim = taken(limits)
    leases = record(store, limits) + b":held:db"
    names = client.zrange(leases, 0, -1)
    clock.advance(-HOUR)
    assert not taken(limits).admitted
    assert store.renew([claim]) == []
    assert client.zrange(leases, 0, -1) == names, "processes with another version know it by this name"
    store.close()


def test_a_refusal_is_known_for_a_while_and_forgotten_when_something_is_given_back(
    store: RedisStore, client: Redis
) -> None:
    limits = limits_of(store, RateLimit("tokens", 10, HOUR, RateLimitAlgorithm.LEAKY_BUCKET))
    assert limits.try_acquire({"tokens": 10})
    refused = limits.try_acquire({"tokens": 5})
    before = scripts_run(client)
    again = limits.try_acquire({"tokens": 5})
    assert scripts_run(client) == before
    assert not again
    assert 0 < again.outcome.retry_after <= refused.outcome.retry_after  # type: ignore[operator]
    assert not limits.try_acquire({"tokens": 6})
    assert scripts_run(client) == before + 1
    store.reset([limits.scoped[0].scope.key])
    assert limits.try_acquire({"tokens": 5})


@pytest.mark.parametrize("algorithm", [RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA])
def test_a_rejection_hides_the_refund_of_another_process_for_a_tenth_of_a_second_at_most(
    redis: RedisServer, algorithm: RateLimitAlgorithm
) -> None:
    clock, name = FakeClock(), prefix()
    mine, other = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
    mine.rejections.clock = clock
    limit = RateLimit("tokens", 10, HOUR, algorithm)
    held = limits_of(other, limit).try_acquire({"tokens": 10})
    limits = limits_of(mine, limit)
    assert not limits.try_acquire({"tokens": 5})
    held.update({"tokens": 0})
    held.release()
    clock.move(99_999)
    assert not limits.try_acquire({"tokens": 5})
    clock.move(1)
    assert limits.try_acquire({"tokens": 5})
    mine.close()
    other.close()


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (RateLimit("tokens", 1, 2 * HOUR), 0.1),
        (RateLimit("tokens", 1, 2 * HOUR, RateLimitAlgorithm.GCRA), 0.1),
        (QuotaLimit.per_month("tokens", 1), 0.1),
        (RateLimit("tokens", 1, 2 * HOUR, RateLimitAlgorithm.FIXED_WINDOW), 1),
        (RateLimit("tokens", 1, 2 * HOUR, RateLimitAlgorithm.SLIDING_WINDOW), 1),
    ],
)
def test_a_remembered_rejection_is_retried_when_it_is_forgotten_at_the_latest(
    redis: RedisServer, limit: RateLimit | QuotaLimit, most: float
) -> None:
    clock, name = FakeClock(), prefix()
    mine, other = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
    mine.rejections.clock = clock
    limits = limits_of(mine, limit)
    assert limits.try_acquire({"tokens": 1})
    assert limits.try_acquire({"tokens": 1}).outcome.retry_after > most  # type: ignore[operator]  # by the store
    other.reset([limits.scoped[0].scope.key])
    clock.move(round(most * 400_000))
    repeated = limits.try_acquire({"tokens": 1})
    assert not repeated
    assert repeated.outcome.retry_after == pytest.approx(0.6 * most)
    clock.move(round(most * 600_000))
    admitted = limits.try_acquire({"tokens": 1})
    assert admitted
    assert limits.try_acquire({"tokens": 1}).outcome.retry_after > most  # type: ignore[operator]
    mine.close()
    other.close()


def test_the_store_decides_again_on_a_claim_whose_rejection_was_repeated(redis: RedisServer) -> None:
    store = RedisStore(url=redis.url, prefix=prefix(), **PATIENT)
    limits = limits_of(store, RateLimit("tokens", 1, HOUR))
    assert limits.try_acquire({"tokens": 1})
    claim = limits.prepare({"tokens": 1}).claim
    waits = []
    for _ in range(2):
        assert not store.acquire(claim)
        waits.append(claim.refusal()[1])
    forget_rejections(store)
    assert not store.acquire(claim)
    assert waits[0] > 100_000 >= waits[1]
    assert claim.refusal()[1] > 100_000
    store.close()


def test_a_refusal_that_depends_on_permits_is_asked_again(store: RedisStore, client: Redis) -> None:
    limits = limits_of(store, ResourceLimit("db", 1))
    claim = taken(limits)
    before = scripts_run(client)
    assert not taken(limits).admitted
    assert not taken(limits).admitted
    assert scripts_run(client) == before + 2
    assert claim.admitted


def test_refusals_of_a_configuration_are_always_asked_for(store: RedisStore) -> None:
    limits = limits_of(store, CallLimit(1, HOUR), version=store.version())
    assert limits.try_acquire()
    assert not limits.try_acquire()
    store.advance_version()
    with pytest.raises(StaleConfiguration):
        limits.try_acquire()


def test_remembered_rejections_are_bounded(store: RedisStore) -> None:
    rejections = Rejections(most=3)
    for number in range(20):
        limits = limits_of(
            store, CallLimit(1, HOUR + number, RateLimitAlgorithm.FIXED_WINDOW), entity=f"person {number}"
        )
        assert limits.try_acquire()
        rejections.learn(limits.try_acquire().claim, rejections.forgotten)
        assert rejections.reject(limits.prepare(None).claim)
        assert len(rejections) <= 3


def test_a_waiter_is_woken_by_a_release_through_another_store(redis: RedisServer) -> None:
    name = prefix()
    mine, other = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
    held = taken(limits_of(other, ResourceLimit("db", 1)))
    mine.poll_us = None
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits_of(mine, ResourceLimit("db", 1)).acquire)
        until(lambda: mine.line.busy and has_subscribed(mine))
        Event().wait(0.1)  # nothing says that a waiter has gone to sleep
        other.settle(held, changes_of(held, {}))
        with waiter.result(5) as acquired:
            assert acquired
    mine.close()
    other.close()


def test_a_waiter_is_woken_by_a_reset_and_by_a_change_of_another_store(redis: RedisServer) -> None:
    name = prefix()
    mine, other = (RedisStore(url=redis.url, prefix=name, **PATIENT) for _ in range(2))
    limits = limits_of(mine, CallLimit(1, HOUR), version=mine.version())
    assert limits.try_acquire()
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits.acquire)
        until(lambda: has_subscribed(mine))
        Event().wait(0.1)
        other.reset([limits.scoped[0].scope.key])
        assert waiter.result(5)
        waiter = executor.submit(limits.acquire)
        Event().wait(0.1)
        other.advance_version()
        with pytest.raises(StaleConfiguration):
            waiter.result(5)
    mine.close()
    other.close()


def test_the_listener_ends_after_the_last_waiter(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limits_app.stores.redis.waking._IDLE_SECONDS", 0.01)
    limits, before = limits_of(store, ResourceLimit("db", 1)), listeners()
    held = taken(limits)
    with ThreadPoolExecutor(1) as executor:
        waiter = executor.submit(limits.acquire)
        until(lambda: listeners() - before)
        store.settle(held, changes_of(held, {}))
        waiter.result(5).release()
    until(lambda: not listeners() - before)
    assert limits.try_acquire()


def test_connections_over_a_unix_socket_and_with_a_password_work(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "redis.sock"
    with redis_server("--unixsocket", str(path), "--requirepass", "secret"):
        store = RedisStore(url=f"unix://:secret@{path}", **PATIENT)
        assert limits_of(store, CALLS).try_acquire()
        store.close()
