"""Opening a Redis store, of whatever kind."""

from __future__ import annotations

from typing import Any

from limits_app.core.hooks import HOOKS
from limits_app.core.store import Store
from limits_app.stores.redis.cluster import RedisClusterStore
from limits_app.stores.redis.opened import open_store
from limits_app.stores.redis.store import RedisStore

__all__ = ["default_redis_store", "open_redis_store"]


def open_redis_store(
    alias: str | None = None, *, url: str | None = None, cluster: bool = False, **options: Any
) -> RedisStore:
    """Open the store behind a django-redis alias or a URL, or give the one that this process has opened before.

    `cluster` says that the URL is that of one server of a cluster. `options` are those of RedisStore;
    other options are another store.
    """
    return open_store(RedisClusterStore if cluster else RedisStore, alias, url, options)


def default_redis_store() -> Store:
    """The store of limit sets that several machines share: the site's, else the django-redis alias `default`."""
    return HOOKS.shared_store() or open_redis_store("default")
