"""Servers of a cluster that do not answer: no caller waits for them, and no key is charged without its amounts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import IDEMPOTENCY_LEVEL, idempotency_scope, short_key
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.redis import RedisClusterStore
from limits_app.stores.redis.opening import tag_of
from tests.servers.redis import RedisServer, until
from tests.stores.redis.support import add_idle, node_of, scoped
from tests.stores.support import connections_of, used

pytestmark = pytest.mark.product

YEAR = 366 * 86_400
TOKENS = RateLimit("tokens", 100, YEAR)
PEOPLE = [f"person {number}" for number in range(6)]
SECONDS = 0.1


@pytest.fixture
def store(cluster_store: RedisClusterStore) -> RedisClusterStore:
    return cluster_store


@pytest.fixture
def parts(store: RedisClusterStore) -> list[ScopedLimits]:
    """Limits of several people, in the order in which they are asked, all of which were used before."""
    parts = [scoped(store, TOKENS, ResourceLimit("db", 5), entity=who) for who in PEOPLE]
    parts.sort(key=lambda part: tag_of(short_key(part.scope.key)))
    acquired = LimitSet.composed(parts, store).try_acquire({"tokens": 20})
    acquired.update({"tokens": 20})
    acquired.release()
    return parts


@contextmanager
def frozen(cluster: list[RedisServer], store: RedisClusterStore, limits: LimitSet) -> Iterator[None]:
    """The server that has the state of some limits takes what it is sent, and answers when it goes on."""
    port = node_of(store, limits).port
    server = next(server for server in cluster if server.port == port)
    by_node = connections_of(store)._by_node.values()
    for connections in by_node:
        connections.close()
        connections.connect_seconds, connections.reply_seconds = 10, SECONDS
        add_idle(connections, 1)
        connections.connect_seconds = SECONDS
    connections_of(store).reply_seconds = SECONDS
    server.freeze()
    try:
        yield
    finally:
        server.resume()
        for connections in by_node:
            connections.connect_seconds = connections.reply_seconds = 10
            connections.close()


def test_amounts_stay_charged_with_a_key_whose_server_has_not_answered(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits]
) -> None:
    def port_of(limits: LimitSet) -> int:
        return node_of(store, limits).port

    once = schema_of((CallLimit(1, YEAR, RateLimitAlgorithm.TOKEN_BUCKET),), store.lease_us)
    keys = [
        ScopedLimits(idempotency_scope("api", "ann", f"order {number}"), once, IDEMPOTENCY_LEVEL, prefix="key:")
        for number in range(20)
    ]
    amounts = LimitSet.composed(parts[:1], store)
    key = next(key for key in keys if port_of(LimitSet.composed([key], store)) != port_of(amounts))
    of_key = LimitSet.composed([key], store)
    assert of_key.try_acquire({"key:call_count": 0})
    with frozen(cluster, store, of_key), pytest.raises(StoreUnavailable):
        LimitSet.composed([key, *parts[:1]], store).try_acquire({"tokens": 50})
    until(lambda: used(of_key, "key:call_count") > 0.9, "the server does not do what it was asked")  # type: ignore[operator]
    assert used(amounts, "tokens") == pytest.approx(70, abs=0.1)


@pytest.mark.alone
def test_requests_do_not_wait_while_slots_are_refreshed(
    cluster: list[RedisServer], store: RedisClusterStore, parts: list[ScopedLimits]
) -> None:
    limits = LimitSet.composed(parts[:1], store)
    with frozen(cluster, store, limits):
        for _ in range(3):
            started = monotonic()
            with pytest.raises(StoreUnavailable):
                limits.try_acquire({"tokens": 1})
            assert monotonic() - started < 5 * SECONDS
