"""The Redis store passes the conformance suite on a cluster of three servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from redis.cluster import RedisCluster

from limits_app.core.limits import CallLimit
from limits_app.core.store import Store
from limits_app.stores.redis import RedisClusterStore, open_redis_store
from limits_app.testing import FakeClock
from limits_app.testing.conformance import StoreOperations
from limits_app.testing.conformance.concurrency import THREADS, choose_in_threads
from limits_app.testing.conformance.contract import YEAR, available
from limits_app.testing.conformance.counting import Counting
from limits_app.testing.conformance.requests import members
from tests.servers.redis import RedisServer, redis_cluster
from tests.stores.redis.ageing import Ageing
from tests.stores.redis.support import PATIENT, cluster_client, prefix
from tests.stores.support import OnlyForked


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


@pytest.fixture(scope="module")
def client(cluster: list[RedisServer]) -> Iterator[RedisCluster]:
    """One for all tests: to learn which server has which keys takes longer than most of them."""
    with cluster_client(cluster[0].url) as client:
        yield client


class TestRedisClusterStore(OnlyForked, StoreOperations, Counting):
    """What several servers do together; the arithmetic of one scope runs on one server, as in `TestRedisStore`."""

    def test_threads_that_choose_the_emptiest_use_all_sets_equally(self, store: Store) -> None:
        """Choice and charge are two steps where sets are on several servers, so that some do."""
        sets = members(store, CallLimit(1000, YEAR), number=4)
        assert sum(choose_in_threads(store, sets, each=25, emptiest_first=True)) == THREADS * 25
        assert [available(one, CallLimit.key) for one in sets] == [pytest.approx(1000 - THREADS * 25 // 4, abs=25)] * 4

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: list[RedisServer], client: RedisCluster) -> Iterator[None]:
        self.url, self.client = cluster[0].url, client
        self.ageing: dict[int, Ageing] = {}
        yield
        client.flushall(target_nodes=RedisCluster.PRIMARIES)

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
