"""A process of a site with traffic: what it asks of the store and of the database, with all its threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from time import monotonic, sleep
from typing import Any, Final

from benchmarks.site import RESOURCE

__all__ = ["traffic"]

_WARM_UP_SECONDS: Final = 3.0
_CLIENTS: Final = 100
_PLENTY: Final = 1_000_000
_CONNECTION: Final = "a new connection"
"""Counted beside the texts of queries."""


def traffic(kind: str, each_second: str, seconds: str) -> dict[str, float]:
    """Make so many requests each second, of which all are `allowed` or `rejected`, or allowed by a member of a `pool`.

    Returns the requests, the calls of Redis, and the queries and new connections of all threads, each in a second, and
    the connections to both servers.
    """
    from redis import Redis

    from limits_app import CallLimit, conf, limits
    from limits_app.services.background import jobs

    queries = _counted_queries()
    if kind == "pool":
        _serve_by_pool()
    limits.set_resource_limits(RESOURCE, [CallLimit(1 if kind == "rejected" else _PLENTY, 3600)])
    jobs.start()
    pause = 1 / float(each_second)
    with Redis.from_url(conf.store_settings("default").url or "") as redis:
        for number in range(_CLIENTS):  # the first request after a change of its limits takes another call
            with limits.try_acquire(RESOURCE, entity=f"user:{number}"):
                pass
        _requests(limits, _WARM_UP_SECONDS, pause)
        queries.pop(_CONNECTION, 0)
        calls, asked, started = _calls(redis), queries.total(), monotonic()
        made = _requests(limits, float(seconds), pause)
        passed, opened = monotonic() - started, queries.pop(_CONNECTION, 0)
        return {
            "requests": made / passed,
            "calls": (_calls(redis) - calls) / passed,
            "queries": (queries.total() - asked) / passed,
            "new_connections": opened / passed,
            "redis_connections": float(redis.info("clients")["connected_clients"] - 1),
            "database_connections": _database_connections(),
        }


def _serve_by_pool() -> None:
    """Let a pool of two members serve the resource."""
    from limits_app import CallLimit
    from limits_app.models import Limit, Pool, PoolMember, Resource

    pool = Pool.objects.create(name="pool")
    for name in ("a", "b"):
        member = PoolMember.objects.create(pool=pool, name=name)
        Limit.from_definition(member, CallLimit(_PLENTY, 3600)).save()
    Resource.objects.update_or_create(name=RESOURCE, defaults={"pool": pool})


def _counted_queries() -> Counter[str]:
    """Count the queries of each connection that a thread opens from now on, and these connections."""
    from django.db import connection
    from django.db.backends.signals import connection_created

    queries: Counter[str] = Counter()

    def count(execute: Callable[..., object], sql: str, *arguments: Any) -> object:
        queries[sql] += 1
        return execute(sql, *arguments)

    def watch(connection: Any, **_details: object) -> None:
        queries[_CONNECTION] += 1
        connection.execute_wrappers.append(count)

    connection_created.connect(watch, weak=False)
    connection.close()
    return queries


def _calls(redis: Any) -> int:
    stats = redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval", "fcall"))


def _database_connections() -> float:
    """Return how many there are, with that of the thread that asks."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        [(connections,)] = cursor.fetchall()
    return float(connections)


def _requests(limits: Any, seconds: float, pause: float) -> int:
    made, ends = 0, monotonic() + seconds
    while monotonic() < ends:
        with limits.try_acquire(RESOURCE, entity=f"user:{made % _CLIENTS}"):
            made += 1
        sleep(pause)
    return made
