"""A Redis server for the tests of the Redis store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from limits_app.stores.redis import RedisStore
from tests.servers.redis import RedisServer, redis_cluster, redis_server
from tests.stores.redis.support import store_on


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A server that all tests share; each has a prefix of its own."""
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[list[RedisServer]]:
    """A cluster of three servers that all tests share."""
    with redis_cluster() as servers:
        yield servers


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    """A store with keys of its own; a server that a test has stopped goes on."""
    store = store_on(redis)
    yield store
    redis.resume()
    store.close()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[Redis]:
    """Somebody who looks at the server behind the store's back."""
    with Redis(port=redis.port) as client:
        yield client
