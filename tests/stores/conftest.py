"""Stores for the tests of the stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.testing import FakeClock
from tests.interruptions import without_logging
from tests.servers import shared
from tests.servers.mariadb import MariaDBServer
from tests.servers.postgres import PostgresServer
from tests.servers.redis import REDIS_BINARIES, RedisServer, redis_server
from tests.stores.contract.places import Place, place_named
from tests.stores.database.databases import Settings, sqlite_in
from tests.stores.support import Lookout


@pytest.fixture
def process_store(tmp_path: Path) -> Iterator[ProcessStore]:
    """A process store on the machine's clock."""
    store = ProcessStore(tmp_path, map_megabytes=2)
    yield store
    store.close()


@pytest.fixture
def lookout() -> Lookout:
    """A clock that tells when somebody waits."""
    return Lookout()


@pytest.fixture
def watched_store(tmp_path: Path, lookout: Lookout) -> Iterator[ProcessStore]:
    """A process store on a clock that tells when somebody waits."""
    store = ProcessStore(tmp_path, map_megabytes=2, clock=lookout)
    lookout.store = store
    yield store
    store.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "process"])
def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> Iterator[MemoryStore | ProcessStore]:
    """Each store, on a clock that the test moves."""
    if request.param == "memory":
        yield MemoryStore(clock=clock)
        return
    made = ProcessStore(tmp_path, clock=clock, map_megabytes=2)
    yield made
    made.close()


@pytest.fixture(scope="session")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A database in a file."""
    return sqlite_in(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """A PostgreSQL server."""
    return shared.postgres()


@pytest.fixture(scope="session")
def mariadb() -> MariaDBServer:
    """A MariaDB server."""
    return shared.mariadb()


@pytest.fixture(scope="session")
def redis() -> RedisServer:
    """A Redis server."""
    return shared.redis()


@pytest.fixture(scope="session", params=REDIS_BINARIES)
def redis_binary(request: pytest.FixtureRequest) -> str:
    """The program of Redis 6.2, and of a newer one: their errors read differently."""
    return REDIS_BINARIES[request.param]()


@pytest.fixture(scope="session")
def redis_62() -> Iterator[RedisServer]:
    """A Redis server of the oldest version that is supported."""
    with redis_server(binary=REDIS_BINARIES["redis-6.2"]()) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> list[RedisServer]:
    """A Redis cluster of three servers."""
    return shared.cluster()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """The store that a test is given by name, with ways that lose replies."""
    with place_named(request.param, request, tmp_path) as place:
        yield place


@pytest.fixture
def without_circuit_breaker() -> Iterator[None]:
    """Every request is sent; what could not be delivered is as soon as it can be."""
    with override_settings(LIMITS={"BREAKER_MIN_CALLS": 10**6, "BREAKER_PROBE_SECONDS": 0.01}), without_logging():
        yield
