"""What the tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Thread
from threading import enumerate as enumerate_threads
from typing import Any

from redis import Redis
from redis.cluster import RedisCluster

from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import Store
from limits_app.engine.amounts import Amount
from limits_app.engine.claims import Claim
from limits_app.engine.keys import scope_of, short_key
from limits_app.engine.limits import AnyLimit
from limits_app.engine.record import schema_of
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.redis import RedisClusterStore, RedisStore
from limits_app.testing import FakeClock
from tests.servers.redis import RedisServer
from tests.stores.support import connections_of

_PREFIXES = count()

PATIENT = {"connect_seconds": 10.0, "reply_seconds": 10.0}
"""For tests that are not about time."""


def prefix() -> str:
    """What the keys of one store start with, and of no other."""
    return f"test{next(_PREFIXES)}:"


@contextmanager
def cluster_client(url: str, **options: Any) -> Iterator[RedisCluster]:
    """A client of a cluster, whose own `close` leaves its connections open."""
    client = RedisCluster.from_url(url, **options)
    try:
        yield client
    finally:
        client.disconnect_connection_pools()
        client.close()


def store_on(server: RedisServer, **options: Any) -> RedisStore:
    """A store with keys of its own."""
    return RedisStore(url=server.url, prefix=prefix(), **(PATIENT | options))


def scoped(store: Store, *limits: AnyLimit, entity: str = "someone") -> ScopedLimits:
    """Limits in one scope."""
    return ScopedLimits(scope_of("tests", entity), schema_of(limits, store.lease_us))


def claimed(limits: LimitSet, requested: Mapping[str, Amount] | None = None) -> Claim:
    """A claim on which no store has decided."""
    return limits.prepare(requested).claim


def changes_of(claim: Claim, used: Mapping[str, int]) -> list[int]:
    """What is to be settled when so many units were used; permits are returned."""
    return [
        -amount
        if limit.rule.is_permit
        else used.get(limit.key, amount // limit.rule.parts_per_unit) * limit.rule.parts_per_unit - amount
        for limit, amount in zip(claim.shape.limits, claim.amounts, strict=True)
    ]


def scripts_run(client: Redis) -> int:
    """How many scripts the server has run."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def record(store: RedisStore, limits: LimitSet) -> bytes:
    """The key under which the state of a set over one scope is stored."""
    return names_of(store).scope(short_key(limits.scoped[0].scope.key))


def hurry(store: RedisStore, connections: int = 0, seconds: float = 0.05) -> None:
    """Let a store give up soon from now on; it has so many connections to use before it needs others."""
    connections_of(store).close()
    connections_of(store).connect_seconds, connections_of(store).reply_seconds = 1.0, seconds
    add_idle(connections_of(store), connections)
    connections_of(store).connect_seconds = seconds


def calm_down(store: RedisStore) -> None:
    """Let it be patient again, with other connections."""
    connections_of(store).close()
    connections_of(store).connect_seconds = connections_of(store).reply_seconds = PATIENT["reply_seconds"]


_AGE = """
local keys = redis.call('KEYS', ARGV[1] .. '*')
for _, key in ipairs(keys) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, string.format('%.0f', left - ARGV[2])) end
end
"""
_SMALLEST_STEP_US = 1_000_000


class Ageing:
    """Takes the time by which a clock is moved from what the keys of a store have left to live."""

    def __init__(self, clients: Sequence[Redis], prefix: str, clock: FakeClock) -> None:
        self.clients = clients
        self.prefix = prefix
        self.told_at = clock.now_us
        clock.attach(self)

    def moved(self, now: int) -> None:
        """Take it from all keys at once, when it is worth while."""
        if now - self.told_at >= _SMALLEST_STEP_US:
            for client in self.clients:
                # Redis 7 would have every key declared on a cluster; this script reads what is there.
                client.eval(_AGE, 0, self.prefix, (now - self.told_at) // 1000)
            self.told_at = now
        self.told_at = min(self.told_at, now)

    def count(self) -> int:
        """How many keys there are."""
        return sum(1 for client in self.clients for _ in client.scan_iter(f"{self.prefix}*", 1000))


def names_of(store: RedisStore) -> Any:
    """What a store calls its keys."""
    return store._names


def node_of(store: RedisClusterStore, limits: LimitSet) -> Any:
    """The server of a cluster on which the state of a set over one scope is stored."""
    return connections_of(store)._client.get_node_from_key(record(store, limits))


def idle_of(store: RedisStore) -> list[Any]:
    """The connections of threads that no call uses."""
    return connections_of(store)._idle  # type: ignore[no-any-return]


def add_idle(connections: Any, number: int) -> None:
    """Open so many connections before any of them is used."""
    connections._idle.extend([connections._connect() for _ in range(number)])


def drop_idle(store: RedisStore) -> None:
    """Close idle connections, as when a server is demoted."""
    connections_of(store)._drop_idle(connections_of(store).generation)


def loops_of(store: RedisStore) -> Any:
    """The connections of tasks, by event loop."""
    return store._tasks._by_loop


async def of_this_loop(store: RedisStore) -> Any:
    """The connections of the tasks of the running event loop."""
    return await store._tasks._of_loop()


def forget_rejections(store: RedisStore) -> None:
    """Have the server decide about the next request, whatever it has rejected."""
    store.rejections.forget()


def forget_time(store: RedisStore) -> None:
    """Know nothing of the time of the server."""
    store._clock.learn(0)


def listeners() -> set[Thread]:
    """The threads that hear what wakes those who wait."""
    return {thread for thread in enumerate_threads() if thread.name == "limits-listener"}
