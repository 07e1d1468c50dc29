"""Databases on servers that all tests of one process share, and Redis servers likewise.

A server starts with the first test that needs it and ends with the last one; each test or module gets an empty
database of its own, or keys with a prefix of its own. A test that stops, configures or fills a server starts its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from typing import Any, Final

import psycopg
import pymysql
from redis import Redis

from tests.servers.machine import HOST
from tests.servers.mariadb import MariaDBServer, mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.redis import RedisServer, redis_cluster, redis_server

__all__ = ["close", "cluster", "mariadb", "mariadb_database", "postgres", "postgres_database", "redis"]

_STARTED: Final = ExitStack()
_NUMBERS: Final = count(1)
_SILENT_MS: Final = 60_000
"""After how long a server of the cluster counts as down: on a busy machine each is silent for seconds."""


@cache
def postgres() -> PostgresServer:
    """The PostgreSQL server of this process."""
    return _STARTED.enter_context(postgres_server())


@cache
def mariadb() -> MariaDBServer:
    """The MariaDB server of this process."""
    return _STARTED.enter_context(mariadb_server())


@cache
def redis() -> RedisServer:
    """The Redis server of this process."""
    return _STARTED.enter_context(redis_server())


@cache
def cluster() -> list[RedisServer]:
    """The Redis cluster of this process, of three servers."""
    servers = _STARTED.enter_context(redis_cluster())
    for server in servers:
        with Redis(port=server.port) as client:
            client.config_set("cluster-node-timeout", _SILENT_MS)
    return servers


def close() -> None:
    """Stop what was started."""
    _STARTED.close()
    for server in (postgres, mariadb, redis, cluster):
        server.cache_clear()


@contextmanager
def postgres_database() -> Iterator[dict[str, Any]]:
    """What Django needs to know of an empty database in PostgreSQL, which is dropped after the block."""
    settings = postgres().settings
    name = f"database_{next(_NUMBERS)}"
    address: dict[str, Any] = {"host": HOST, "port": settings["PORT"], "user": settings["USER"], "dbname": "postgres"}
    with psycopg.connect(**address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield {**settings, "NAME": name}
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def mariadb_database() -> Iterator[dict[str, Any]]:
    """What Django needs to know of an empty database in MariaDB, which is dropped after the block."""
    settings: dict[str, Any] = mariadb().settings
    name = f"database_{next(_NUMBERS)}"

    def execute(statement: str) -> None:
        address = {"host": HOST, "port": int(settings["PORT"]), "user": settings["USER"], "ssl_disabled": True}
        with pymysql.connect(**address) as connection:
            connection.cursor().execute(statement)

    execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    try:
        yield {**settings, "NAME": name}
    finally:
        execute(f"DROP DATABASE {name}")
