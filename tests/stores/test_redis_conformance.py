"""The Redis store passes the conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from redis import Redis

from limits_app.core.store import Store
from limits_app.stores.redis import RedisStore, open_redis_store
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance.counting import Counting
from tests.servers.redis import RedisServer, redis_server
from tests.stores.redis.ageing import Ageing
from tests.stores.redis.support import PATIENT, prefix


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


class TestRedisStore(Counting, StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> Iterator[None]:
        self.server = server
        self.client = Redis(port=server.port)
        self.ageing: dict[int, Ageing] = {}
        yield
        self.client.flushall()
        self.client.close()

    def make_store(self, clock: FakeClock) -> RedisStore:
        store = RedisStore(url=self.server.url, prefix=prefix(), clock=clock, **PATIENT)
        self.ageing[id(store)] = Ageing([self.client], store.prefix, clock)
        return store

    def close_store(self, store: Store) -> None:
        assert isinstance(store, RedisStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        return self.ageing[id(store)].count()

    def open_store(self) -> Callable[[], Store]:
        return partial(open_redis_store, url=self.server.url, **PATIENT)
