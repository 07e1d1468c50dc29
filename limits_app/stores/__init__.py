"""Stores: where the state of limits lives. Each is one module or package and passes the same conformance suite."""

from __future__ import annotations

from limits_app.acquiring.store import Store
from limits_app.engine.errors import InvalidRequest
from limits_app.engine.modes import HOOKS


def default_shared_store() -> Store:
    """The store of limit sets that several machines share: the site's, else that of the Redis cache `default`.

    Raises InvalidRequest where Django has no settings.
    """
    chosen = HOOKS.shared_store()
    if chosen is None:
        # Imported on use, because its packages are an extra.
        from django.core.exceptions import ImproperlyConfigured

        from limits_app.stores.redis import open_redis_store

        try:
            chosen = open_redis_store("default")
        except ImproperlyConfigured as error:
            raise InvalidRequest(
                "a limit set that several machines share needs a store: pass store=open_redis_store(url='redis://...') "
                "of limits_app.stores.redis; without it the store is that of Django's settings, and there are none"
            ) from error
    return chosen
