"""The stores that limit sets use by their modes; importing this module makes them known to limit sets."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from limits_app.acquiring import Mode, Store
from limits_app.engine import install, present
from limits_app.engine.errors import InvalidRequest

IN_MEMORY: Final = frozenset({Mode.SYNC, Mode.THREAD, Mode.ASYNCIO})
"""The modes of one process, each of whose sets has its own store."""


def open_store(mode: str) -> Store:
    """Return the store of limit sets in a mode, without the settings of a site.

    That of several machines is the one of Django's cache `default`; raises InvalidRequest where Django has no settings.
    """
    # Imported on use, because each needs other packages.
    if mode in IN_MEMORY:
        from limits_app.stores.memory import MemoryStore

        return MemoryStore()
    if mode == Mode.PROCESS:
        from limits_app.stores.process import open_process_store
        from limits_app.stores.process.files import default_directory

        return open_process_store(default_directory())
    from django.core.exceptions import ImproperlyConfigured

    from limits_app.stores.redis import open_redis_store

    try:
        return open_redis_store("default")
    except ImproperlyConfigured as error:
        raise InvalidRequest(
            "a limit set that several machines share needs a store: pass store=open_redis_store(url='redis://...') "
            "of limits_app.stores.redis; without it the store is that of Django's settings, and there are none"
        ) from error


install(replace(present(), open_store=open_store))
