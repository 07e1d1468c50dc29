"""Stores: where the state of limits lives. Each is one module or package and passes the same conformance suite."""

from __future__ import annotations

from limits_app.core.modes import HOOKS
from limits_app.core.store import Store


def default_shared_store() -> Store:
    """The store of limit sets that several machines share: the site's, else that of the Redis cache `default`."""
    chosen = HOOKS.shared_store()
    if chosen is None:
        # Imported on use, because its packages are an extra.
        from limits_app.stores.redis import open_redis_store

        chosen = open_redis_store("default")
    return chosen
