"""The Redis store: state on a Redis or Valkey server that all machines share."""

from typing import Any
from urllib.parse import quote

from limits_app.stores.redis.cluster import RedisClusterStore
from limits_app.stores.redis.opening import forget_aliases, open_store
from limits_app.stores.redis.store import RedisStore

__all__ = ["RedisClusterStore", "RedisStore", "forget_aliases", "open_redis_store", "prefix_for"]


def open_redis_store(
    alias: str | None = None, *, url: str | None = None, cluster: bool = False, **options: Any
) -> RedisStore:
    """Open the store behind a cache or a URL, or return the one that this process has opened before.

    `cluster` says that the URL is that of one server of a cluster. `options` are those of RedisStore;
    other options are another store. Raises StoreUnavailable for a cache that is not on Redis.
    """
    return open_store(RedisClusterStore if cluster else RedisStore, alias, url, options)


def prefix_for(site: str) -> str:
    """Return the prefix of all keys of a site; braces, which have a meaning on a cluster, are quoted."""
    prefix: str = RedisStore.DEFAULTS["prefix"]
    own = quote(site, safe="")
    return f"{prefix}{own}:" if own else prefix
