"""The Redis store passes the conformance suite on a cluster of three servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from redis.cluster import RedisCluster

from limits_app.core.store import Store
from limits_app.stores.redis import RedisClusterStore, open_redis_store
from limits_app.testing import FakeClock, StoreConformance
from tests.servers.redis import RedisServer, redis_cluster
from tests.stores.redis.ageing import Ageing
from tests.stores.redis.support import PATIENT, prefix


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


class TestRedisClusterStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: list[RedisServer]) -> Iterator[None]:
        self.url = cluster[0].url
        self.client = RedisCluster.from_url(self.url)
        self.ageing: dict[int, Ageing] = {}
        yield
        self.client.flushall(target_nodes=RedisCluster.PRIMARIES)
        self.client.close()

    def make_store(self, clock: FakeClock) -> RedisClusterStore:
        store = RedisClusterStore(client=self.client, prefix=prefix(), clock=clock, **PATIENT)
        nodes = [node.redis_connection for node in self.client.get_primaries()]
        self.ageing[id(store)] = Ageing(nodes, store.prefix, clock)
        return store

    def close_store(self, store: Store) -> None:
        assert isinstance(store, RedisClusterStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        return self.ageing[id(store)].count()

    def open_store(self) -> Callable[[], Store]:
        return partial(open_redis_store, url=self.url, cluster=True, **PATIENT)
