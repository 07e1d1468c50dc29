"""A Redis server for the tests of the Redis store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.redis import RedisServer, redis_server


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """A server that all tests share; each has a prefix of its own."""
    with redis_server() as server:
        yield server
