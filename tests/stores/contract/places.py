"""Stores under test: how any process opens each of them, straight and over ways that lose replies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, Final

import pytest
from django.db import connections
from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException

from limits_app.acquiring.store import CountingStore
from limits_app.stores.database import DatabaseStore
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisClusterStore, RedisStore
from tests.servers.machine import HOST
from tests.servers.proxy import Proxy, proxy
from tests.stores.database.databases import Settings, database
from tests.stores.redis.support import prefix
from tests.stores.support import until

__all__ = ["PLACES", "SERVERS", "SHARED", "Place", "Way", "place_named"]

SERVERS: Final = ("postgres", "mariadb", "redis", "cluster")
SHARED: Final = ("process", "sqlite", *SERVERS)
PLACES: Final = ("memory", *SHARED)

_LOCK_SECONDS: Final = 30.0
"""A lock that an interrupted caller has left is noticed by `_PROBE_LOCK_SECONDS`, before a server takes it away."""
_PROBE_LOCK_SECONDS: Final = 5.0
_REPLY_SECONDS: Final = 0.1
_LATE_SECONDS: Final = 0.15

Open = Callable[..., CountingStore]


class Way:
    """What a proxy does with commands: from a chosen one on, replies or the commands themselves are lost, or are late.

    Without a fault, everything arrives.
    """

    def __init__(self) -> None:
        self.proxy: Proxy | None = None
        self._lock = Lock()
        self._passes = self._loses = 0
        self._arrives = True

    def __call__(self, command: bytes) -> bool:
        """Return whether the reply to a command is lost; raise where the command is."""
        with self._lock:
            if self._passes:
                self._passes -= 1
                return False
            lost = self._loses > 0
            self._loses -= lost
        if lost and not self._arrives:
            raise ConnectionError
        return lost

    def lose(self, passes: int, loses: int, *, arrives: bool) -> None:
        """Lose the replies to some commands after those that pass, or these commands themselves unless they arrive."""
        with self._lock:
            self._passes, self._loses, self._arrives = passes, loses, arrives

    def delay(self, seconds: float) -> None:
        """Make all replies so many seconds late."""
        assert self.proxy is not None
        self.proxy.delay = seconds

    def heal(self) -> None:
        """Let everything arrive, and in time."""
        self.lose(0, 0, arrives=True)
        self.delay(0)


@dataclass
class Place:
    """A store under test."""

    name: str
    open: Open
    """`open(clock)` opens it in any process; where one has left a lock, that is an error after a while."""
    open_over: Open
    """The same over `ways`, with the timeouts of a site; it waits for locks longer."""
    ways: list[Way] = field(default_factory=list)
    can_be_late: bool = False
    """Whether it gives up soon when a reply is late, unless it is given a `reply_seconds` of its own."""

    @contextmanager
    def fault(self, random: Random) -> Iterator[None]:
        """In the block, the server is not reached in one of many ways."""
        kind = random.choice((*["reply"] * 8, "command", "command", "late" if self.can_be_late else "reply"))
        loses, passes = random.choice((1, 1, 2, 1000)), random.choice((0, 0, 0, 1, 2, 4))
        for way in self.ways:
            if kind == "late":
                way.delay(_LATE_SECONDS)
            else:
                way.lose(passes, loses, arrives=kind == "reply")
        try:
            yield
        finally:
            for way in self.ways:
                way.heal()


@contextmanager
def place_named(name: str, request: pytest.FixtureRequest, directory: Path) -> Iterator[Place]:
    """The place of this name, until the block ends; stores that were opened in this process are closed then."""
    with ExitStack() as stack:
        make = {"memory": _memory, "process": _process, "redis": _redis, "cluster": _cluster}.get(name, _database)
        place = make(name, request, stack, directory)
        opened: list[Any] = []

        def closing(open_store: Open) -> Open:
            def open_and_note(*args: Any, **options: Any) -> CountingStore:
                opened.append(open_store(*args, **options))
                return opened[-1]

            return open_and_note

        place.open, place.open_over = closing(place.open), closing(place.open_over)
        yield place
        for store in opened:
            with suppress(AttributeError):  # a store in memory has nothing to close
                store.close()


def _memory(name: str, request: pytest.FixtureRequest, stack: ExitStack, directory: Path) -> Place:
    opened: list[MemoryStore] = []

    def open_once(clock: Any) -> MemoryStore:
        if not opened:
            opened.append(MemoryStore(clock=clock))
        return opened[0]

    return Place(name, open_once, open_once)


def _process(name: str, request: pytest.FixtureRequest, stack: ExitStack, directory: Path) -> Place:
    opened: dict[int, ProcessStore] = {}

    def open_once(clock: Any) -> ProcessStore:
        # A process must not open a file twice.
        if os.getpid() not in opened:
            opened[os.getpid()] = ProcessStore(directory, map_megabytes=4, clock=clock)
        return opened[os.getpid()]

    return Place(name, open_once, open_once)


def _redis(name: str, request: pytest.FixtureRequest, stack: ExitStack, directory: Path) -> Place:
    server, way, keys = request.getfixturevalue("redis"), Way(), prefix()
    way.proxy = stack.enter_context(proxy(server.port, way))

    def open_at(port: int, seconds: float, clock: Any) -> RedisStore:
        url = f"redis://{HOST}:{port}/0"
        return RedisStore(url=url, prefix=keys, clock=clock, connect_seconds=10, reply_seconds=seconds)

    lossy = way.proxy.port
    return Place(
        name,
        lambda clock: open_at(server.port, 10, clock),
        lambda clock, reply_seconds=_REPLY_SECONDS: open_at(lossy, reply_seconds, clock),
        [way],
        can_be_late=True,
    )


def _cluster(name: str, request: pytest.FixtureRequest, stack: ExitStack, directory: Path) -> Place:
    servers, keys, ways, ports = request.getfixturevalue("cluster"), prefix(), list[Way](), dict[int, int]()
    for server in servers:
        ways.append(Way())
        ways[-1].proxy = stack.enter_context(proxy(server.port, ways[-1]))
        ports[server.port] = ways[-1].proxy.port

    def open_straight(clock: Any) -> RedisClusterStore:
        return RedisClusterStore(url=servers[0].url, prefix=keys, clock=clock, connect_seconds=10, reply_seconds=10)

    def open_over(clock: Any, reply_seconds: float = _REPLY_SECONDS) -> RedisClusterStore:
        client = _cluster_client(servers[0].url, lambda address: (HOST, ports.get(address[1], address[1])))
        stack.callback(client.close)
        stack.callback(client.disconnect_connection_pools)
        return RedisClusterStore(
            client=client, prefix=keys, clock=clock, connect_seconds=10, reply_seconds=reply_seconds
        )

    return Place(name, open_straight, open_over, ways, can_be_late=True)


def _cluster_client(url: str, remap: Callable[[tuple[str, int]], tuple[str, int]]) -> RedisCluster:
    """A client of the cluster; where it cannot learn of its servers, it tries again."""
    clients: list[RedisCluster] = []

    def connect() -> bool:
        with suppress(RedisClusterException):
            clients.append(RedisCluster.from_url(url, address_remap=remap))
        return bool(clients)

    until(connect)
    return clients[0]


def _database(name: str, request: pytest.FixtureRequest, stack: ExitStack, directory: Path) -> Place:
    server = request.getfixturevalue(name)
    settings: Settings = server if isinstance(server, dict) else server.settings
    stack.enter_context(request.getfixturevalue("django_db_blocker").unblock())
    stack.enter_context(database(settings))
    straight, ways = _alias("limits_straight", settings, stack), list[Way]()
    over = straight
    if not isinstance(server, dict):
        ways.append(Way())
        ways[0].proxy = stack.enter_context(proxy(server.port, ways[0]))
        over = _alias("limits_over", {**settings, "PORT": str(ways[0].proxy.port)}, stack)

    def open_straight(clock: Any) -> DatabaseStore:
        return DatabaseStore(straight, clock=clock, lock_timeout=_PROBE_LOCK_SECONDS, connect_timeout=10)

    def open_over(clock: Any) -> DatabaseStore:
        return DatabaseStore(over, clock=clock, lock_timeout=_LOCK_SECONDS, connect_timeout=10)

    return Place(name, open_straight, open_over, ways)


def _alias(alias: str, settings: Settings, stack: ExitStack) -> str:
    """Another alias for a database, until the end."""

    def forget() -> None:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]

    connections.settings[alias] = connections.configure_settings({"default": {}, alias: settings.copy()})[alias]
    stack.callback(forget)
    return alias
