"""A Redis server for the tests of the Redis store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from limits_app.stores.redis import RedisClusterStore, RedisStore
from tests.servers.redis import RedisServer
from tests.stores.redis.support import PATIENT, prefix, store_on


@pytest.fixture
def store(redis: RedisServer) -> Iterator[RedisStore]:
    """A store with keys of its own; a server that a test has stopped goes on."""
    store = store_on(redis)
    yield store
    redis.resume()
    store.close()


@pytest.fixture
def cluster_store(cluster: list[RedisServer]) -> Iterator[RedisClusterStore]:
    """A store on the cluster with keys of its own."""
    store = RedisClusterStore(url=cluster[0].url, prefix=prefix(), **PATIENT)
    yield store
    store.close()


@pytest.fixture
def client(redis: RedisServer) -> Iterator[Redis]:
    """Somebody who looks at the server behind the store's back."""
    with Redis(port=redis.port) as client:
        yield client
