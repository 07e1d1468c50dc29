"""The stores of the site, by alias, as the settings say."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Final

from django.conf import settings

from limits_app import conf
from limits_app.conf import StoreKind, StoreSettings
from limits_app.core.store import Store
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import open_process_store
from limits_app.stores.process.files import default_directory

__all__ = ["process_store", "state_directory", "store"]


def _process(chosen: StoreSettings) -> Store:
    megabytes = chosen.map_megabytes or conf.get(conf.MAP_MEGABYTES)
    return open_process_store(chosen.state_dir or state_directory(), map_megabytes=megabytes)


def process_store() -> Store:
    """The process store in the site's state directory, whatever the default store is."""
    return _process(StoreSettings(StoreKind.PROCESS))


_KINDS: Final[Mapping[StoreKind, Callable[[StoreSettings], Store]]] = {
    StoreKind.MEMORY: lambda chosen: MemoryStore(),  # noqa: ARG005 - it takes no options
    StoreKind.PROCESS: _process,
}

_OPENED: Final[dict[tuple[str, StoreSettings], Store]] = {}
_LOCK: Final = Lock()
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def store(alias: str | None = None) -> Store:
    """The store of an alias (None: the default one), opened on first use.

    Raises ImproperlyConfigured when the settings name no such store, StoreUnavailable when it cannot be opened.
    """
    name = conf.get(conf.STORE) if alias is None else alias
    key = (name, conf.store_settings(name))
    opened = _OPENED.get(key)
    if opened is None:
        with _LOCK:
            opened = _OPENED.get(key) or _KINDS[key[1].kind](key[1])
            _OPENED[key] = opened
    return opened


def state_directory() -> Path:
    """Where process stores keep their state: as configured, else a place that only this site of this user has."""
    configured = conf.get(conf.STATE_DIR)
    if configured is not None:
        return configured
    site = blake2b(settings.SECRET_KEY.encode(), digest_size=8).hexdigest()
    return default_directory() / site
