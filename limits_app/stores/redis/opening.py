"""Opening a Redis store, of whatever kind."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from limits_app.core.errors import StoreUnavailable
from limits_app.stores.redis.cluster import RedisClusterStore
from limits_app.stores.redis.opened import open_store
from limits_app.stores.redis.store import RedisStore

__all__ = ["open_redis_store", "prefix_for"]


def open_redis_store(
    alias: str | None = None, *, url: str | None = None, cluster: bool = False, **options: Any
) -> RedisStore:
    """Open the store behind a django-redis alias or a URL, or give the one that this process has opened before.

    `cluster` says that the URL is that of one server of a cluster. `options` are those of RedisStore;
    other options are another store. Raises StoreUnavailable for an alias that is none of django-redis.
    """
    try:
        return open_store(RedisClusterStore if cluster else RedisStore, alias, url, options)
    except NotImplementedError:  # which is all that django-redis says
        message = f"the cache {alias!r} is none of django-redis: name one that is in CACHES, or give a url"
        raise StoreUnavailable(message) from None


def prefix_for(site: str) -> str:
    """What all keys of a site start with; braces, which mean something to a cluster, are written otherwise."""
    own = quote(site, safe="")
    return f"{RedisStore.DEFAULTS['prefix']}{own}:" if own else str(RedisStore.DEFAULTS["prefix"])
