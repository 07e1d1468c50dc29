"""Pools and cascades on a real Redis: one round trip, and never more than any level has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pytest_django import Settings
from redis import Redis

from limits_app import limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.keys import scope_of
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm
from limits_app.models import Entity
from limits_app.stores.redis import RedisStore
from tests.opened import put_store
from tests.servers.redis import redis_server
from tests.services.pool_rows import make_pool, serve

pytestmark = pytest.mark.server

CALLERS = 16
USERS = 250
REQUESTS = 1_000
PER_USER, PER_TENANT = 3, 500
WINDOW = RateLimitAlgorithm.FIXED_WINDOW
"""Of which nothing drips away while the test looks."""


@pytest.fixture
def redis(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    """The server of a site whose limits are in it."""
    with redis_server() as server, Redis.from_url(server.url) as client:
        settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
        store = RedisStore(url=server.url, connect_seconds=10.0, reply_seconds=10.0)
        put_store(monkeypatch, store)
        yield client
        store.close()


def round_trips(client: Redis) -> int:
    """How many scripts the server has run, which is all that a request asks of it."""
    stats: dict[str, Any] = client.info("commandstats")
    return int(stats["cmdstat_evalsha"]["calls"])


@pytest.mark.parametrize("balancing", ["round_robin", "least_loaded", "failover"])
def test_own_limits_a_parent_and_a_pool_are_one_round_trip(redis: Redis, balancing: str) -> None:
    tpm = RateLimit("tpm", 1000, 3600, WINDOW)
    serve("chat", make_pool({name: [tpm, CallLimit(50, 60)] for name in "abcdef"}, load_balancing=balancing))
    tenant = Entity.objects.create(identifier="tenant:1")
    Entity.objects.create(identifier="user:1", parent=tenant, cascade=True)
    limits.set_resource_limits("chat", [tpm, RateLimit("words", 900, 60)])

    def ask() -> int:
        with limits.acquire("chat", entity="user:1", requested={"tpm": 1, "words": 1}) as acquisition:
            trips = round_trips(redis)
            acquisition.update({"tpm": 1, "words": 1})
        return trips

    for _ in range(12):
        ask()  # every script and plan is known then
    for _ in range(6):
        before = round_trips(redis)
        assert ask() - before == 1
    assert limits.status("chat", entity="tenant:1").limits["tpm"]["used"] == 18


@pytest.mark.slow
def test_a_tenant_with_many_users_never_gets_more_than_any_level_has(redis: Redis) -> None:
    tenant = Entity.objects.create(identifier="tenant:1")
    users = [f"user:{number}" for number in range(USERS)]
    Entity.objects.bulk_create([Entity(identifier=name, parent=tenant, cascade=True) for name in users])
    limits.set_resource_limits("api", [CallLimit(PER_USER, 86_400, WINDOW)])
    limits.set_entity_limits("tenant:1", [CallLimit(PER_TENANT, 86_400, WINDOW)], resource="api")
    for name in users[: USERS // 2]:  # so that some are refused by their own limit, and some by that of their tenant
        assert limits.check("api", entity=name).allowed

    def caller(number: int) -> Counter[str]:
        chosen = random.Random(number)
        admitted: Counter[str] = Counter()
        for _ in range(REQUESTS // CALLERS):
            name = users[min(int(chosen.expovariate(3 / USERS)), USERS - 1)]
            if limits.try_acquire("api", entity=name):
                admitted[name] += 1
        return admitted

    with ThreadPoolExecutor(CALLERS) as callers:
        admitted = sum(callers.map(caller, range(CALLERS)), Counter[str]())
    assert 0 < admitted.total() < REQUESTS
    assert admitted.total() <= PER_TENANT
    assert max(admitted.values()) == PER_USER
    used = {name: _used(name) for name in users}
    assert used == {name: admitted[name] for name in users}
    assert limits.status("api", entity="tenant:1").limits["call_count"]["used"] == admitted.total()


def _used(name: str) -> object:
    """What stands in the bucket of a user alone."""
    found = limits.limit_set("api", name)
    own = [one for one in found.scoped if one.scope == scope_of("api", name)]
    return LimitSet.composed(own, found.store, version=found.version).get_stats()["call_count"]["used"]
