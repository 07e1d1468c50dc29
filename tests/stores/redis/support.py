"""What the tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from redis.cluster import RedisCluster

from limits_app.core.amounts import Amount
from limits_app.core.plan import Claim
from limits_app.core.keys import scope_of, short_key
from limits_app.core.record import schema_of
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit
from limits_app.core.plan import Amounts, ScopedLimits
from limits_app.core.store import Store
from limits_app.stores.redis import RedisStore
from tests.servers.redis import RedisServer

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


def limits_of(store: Store, *limits: AnyLimit, entity: str = "someone", version: int | None = None) -> LimitSet:
    """A set over one scope."""
    return LimitSet.composed([scoped(store, *limits, entity=entity)], store, version=version)


def used(limits: LimitSet, key: str = "call_count") -> object:
    """How much of a limit is taken."""
    return limits.get_stats()[key]["used"]


def record(store: RedisStore, limits: LimitSet) -> bytes:
    """The key under which the state of a set over one scope stands."""
    return store._names.scope(short_key(limits.scoped[0].scope.key))


def met(limits: LimitSet, requested: Mapping[str, Amount] | None = None) -> LimitSet:
    """A set whose store has met the plan of a request, and was asked nothing."""
    store = limits.store
    assert isinstance(store, RedisStore)
    store._prepared.plan(limits.claim(requested).plan)
    return limits


def hurry(store: RedisStore, links: int = 0, seconds: float = 0.05) -> None:
    """Have a store give up soon from now on; it gets so many links before that."""
    opened = [store._links.open() for _ in range(links)]
    store._links.reply_seconds = seconds
    for link in opened:
        link.limit(store._links.reply_seconds)
        store._links._idle.keep(link)


def calm_down(store: RedisStore) -> None:
    """Have it be patient again, with links that are, too."""
    store._links.close()
    store._links.reply_seconds = PATIENT["reply_seconds"]


class Keeper:
    """Keeps what cannot be settled now, as a guard does."""

    def __init__(self, store: RedisStore) -> None:
        self.kept: list[tuple[Claim, Amounts]] = []
        self._store = store
        store.settle_later = self

    def __call__(self, claim: Claim, changes: Amounts) -> None:
        self.kept.append((claim, changes))

    def catch_up(self) -> None:
        """Settle it, as far as that can be done."""
        while self.kept:
            self._store.settle(*self.kept[0])
            del self.kept[0]
