"""The stores that machines share pass the conformance suite: databases, Redis, and a cluster of three servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker
from redis import Redis
from redis.cluster import RedisCluster

from limits_app.acquiring.store import Store
from limits_app.engine.limits import CallLimit
from limits_app.stores.database import DatabaseStore
from limits_app.stores.redis import RedisClusterStore, RedisStore, acl_rules, open_redis_store
from limits_app.testing import FakeClock, StoreConformance
from limits_app.testing.conformance import StoreOperations
from limits_app.testing.conformance.bounds import IDLE
from limits_app.testing.conformance.changes import DEFINITIONS
from limits_app.testing.conformance.concurrency import THREADS, choose_in_threads
from limits_app.testing.conformance.contract import YEAR, available
from limits_app.testing.conformance.counting import Counting
from limits_app.testing.conformance.requests import members
from tests.servers.machine import HOST
from tests.servers.mariadb import MariaDBServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.stores.database.databases import ALIAS, PATIENT, Settings, count_entries, database, empty, opened
from tests.stores.redis import support
from tests.stores.redis.support import Ageing, cluster_client
from tests.stores.support import OnlyForked

LOCK_SECONDS = 30.0
"""With a thread switch every microsecond whoever has it may take a second to go on."""


class _OnADatabase:
    """Stores on one kind of database."""

    @pytest.fixture(autouse=True)
    def _database(self, settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
        self.settings = settings
        with django_db_blocker.unblock(), database(settings, emptied=False):  # as `make_store` does
            yield

    def make_store(self, clock: FakeClock) -> DatabaseStore:
        empty()
        return DatabaseStore(ALIAS, clock=clock, lock_timeout=LOCK_SECONDS, **PATIENT)

    def close_store(self, store: Store) -> None:
        assert isinstance(store, DatabaseStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        return count_entries()

    def open_store(self) -> Callable[[], Store]:
        return partial(opened, self.settings)


def usual(names: Iterable[str], *tested: str) -> list[Any]:
    """Parameters of which those that are not `tested` have to wait for a release."""
    return [name if name in tested else pytest.param(name, marks=pytest.mark.release) for name in names]


class _OnAFurtherServer(OnlyForked):
    """What arithmetic decides is tested with every limit on the first database, or Redis; here with some of them."""

    @pytest.mark.parametrize(
        "first", usual(DEFINITIONS, "unlimited", "blocked", "sliding_window", "month", "resource", "several")
    )
    def test_a_scope_keeps_its_use_over_every_change_of_its_limits(
        self, store: Store, clock: FakeClock, first: str
    ) -> None:
        super().test_a_scope_keeps_its_use_over_every_change_of_its_limits(store, clock, first)  # type: ignore[misc]

    @pytest.mark.parametrize("kind", usual(IDLE, "sliding_window", "abandoned_permit", "released_permit"))
    def test_idle_scopes_are_forgotten(self, store: Store, clock: FakeClock, kind: str) -> None:
        super().test_idle_scopes_are_forgotten(store, clock, kind)  # type: ignore[misc]

    @pytest.mark.parametrize(
        "kind", usual(sorted(IDLE.keys() - {"released_permit"}), "sliding_window", "abandoned_permit")
    )
    def test_scopes_that_were_used_while_the_clock_was_ahead_are_forgotten(
        self, store: Store, clock: FakeClock, kind: str
    ) -> None:
        super().test_scopes_that_were_used_while_the_clock_was_ahead_are_forgotten(store, clock, kind)  # type: ignore[misc]


class TestSQLite(OnlyForked, _OnADatabase, StoreConformance, Counting):
    """Everything; what differs on the servers below is what their statements and locks do, and no arithmetic."""

    @pytest.fixture
    def settings(self, sqlite: Settings) -> Settings:
        return sqlite


class TestPostgreSQL(_OnAFurtherServer, _OnADatabase, StoreOperations, Counting):
    @pytest.fixture
    def settings(self, postgres: PostgresServer) -> Settings:
        return postgres.settings


class TestMariaDB(_OnAFurtherServer, _OnADatabase, StoreOperations, Counting):
    @pytest.fixture
    def settings(self, mariadb: MariaDBServer) -> Settings:
        return mariadb.settings


class _OnRedis:
    """Stores on Redis, whose keys expire as the test moves the clock."""

    ageing: dict[int, Ageing]

    def kept(self, store: RedisStore, clients: Sequence[Redis], clock: FakeClock) -> RedisStore:
        """Let the keys of a new store age."""
        self.ageing[id(store)] = Ageing(clients, store.prefix, clock)
        return store

    def close_store(self, store: Store) -> None:
        assert isinstance(store, RedisStore)
        store.close()

    def count_entries(self, store: Store) -> int:
        return self.ageing[id(store)].count()


class TestRedisStore(OnlyForked, _OnRedis, Counting, StoreConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> Iterator[None]:
        self.url, self.ageing = redis.url, {}
        with Redis(port=redis.port) as self.client:
            yield
            self.client.flushall()

    def make_store(self, clock: FakeClock) -> RedisStore:
        store = RedisStore(url=self.url, prefix=support.prefix(), clock=clock, **support.PATIENT)
        return self.kept(store, [self.client], clock)

    def open_store(self) -> Callable[[], Store]:
        return partial(open_redis_store, url=self.url, **support.PATIENT)


class TestRedis62Store(_OnAFurtherServer, _OnRedis, StoreOperations, Counting):
    """What scripts do on the oldest version, for a user who may do nothing else; the arithmetic is as above."""

    @pytest.fixture(autouse=True)
    def _server(self, redis_62: RedisServer) -> Iterator[None]:
        self.url, self.ageing = f"redis://app:secret@{HOST}:{redis_62.port}/0", {}
        rules = ["on", ">secret", *acl_rules("test"), "~limits:1:*", "&limits:1:*"]
        with Redis(port=redis_62.port) as self.client:
            self.client.execute_command("ACL", "SETUSER", "app", "reset", *rules)
            yield
            self.client.flushall()

    make_store, open_store = TestRedisStore.make_store, TestRedisStore.open_store


@pytest.fixture(scope="module")
def cluster_of_client(cluster: list[RedisServer]) -> Iterator[RedisCluster]:
    """One for all tests: to learn which server has which keys takes longer than most of them."""
    with cluster_client(cluster[0].url) as client:
        yield client


class TestRedisClusterStore(_OnAFurtherServer, _OnRedis, StoreOperations, Counting):
    """What several servers do together; the arithmetic of one scope runs on one server, as in `TestRedisStore`."""

    def test_threads_that_choose_the_emptiest_use_all_sets_equally(self, store: Store) -> None:
        """Choice and charge are two steps where sets are on several servers, so that some do."""
        sets = members(store, CallLimit(1000, YEAR), number=4)
        assert sum(choose_in_threads(store, sets, each=25, emptiest_first=True)) == THREADS * 25
        assert [available(one, CallLimit.key) for one in sets] == [pytest.approx(1000 - THREADS * 25 // 4, abs=25)] * 4

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: list[RedisServer], cluster_of_client: RedisCluster) -> Iterator[None]:
        self.url, self.client, self.ageing = cluster[0].url, cluster_of_client, {}
        yield
        self.client.flushall(target_nodes=RedisCluster.PRIMARIES)

    def make_store(self, clock: FakeClock) -> RedisStore:
        store = RedisClusterStore(client=self.client, prefix=support.prefix(), clock=clock, **support.PATIENT)
        return self.kept(store, [node.redis_connection for node in self.client.get_primaries()], clock)

    def open_store(self) -> Callable[[], Store]:
        return partial(open_redis_store, url=self.url, cluster=True, **support.PATIENT)
