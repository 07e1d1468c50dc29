"""The stores of the site, by alias, as the settings say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from os.path import realpath
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from limits_app import conf
from limits_app.acquiring import Mode, Store, lock_over_forks
from limits_app.conf import StoreKind, StoreSettings, test_runner
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores import modes
from limits_app.stores.in_tests import test_stores
from limits_app.stores.resilient import ResilientStore

_REDIS_CACHES: Final = frozenset({"django.core.cache.backends.redis.RedisCache", "django_redis.cache.RedisCache"})


# Stores are imported when they are opened: a site need not install what its stores do not use.


def _memory(chosen: StoreSettings) -> Store:
    from limits_app.stores.memory import MAX_SCOPES, MemoryStore

    return MemoryStore(max_scopes=chosen.max_scopes or MAX_SCOPES)


def _process(chosen: StoreSettings) -> Store:
    from limits_app.stores.process import open_process_store

    megabytes = chosen.map_megabytes or conf.get(conf.MAP_MEGABYTES)
    return open_process_store(chosen.state_dir or state_directory(), map_megabytes=megabytes)


def process_store() -> Store:
    """The process store in the site's state directory, whatever the default store is."""
    return _process(StoreSettings(StoreKind.PROCESS))


def _redis(chosen: StoreSettings) -> Store:
    # Imported on use, because its packages are an extra.
    try:
        from limits_app.stores.redis import open_redis_store, prefix_for
    except ModuleNotFoundError as error:
        raise StoreUnavailable("the Redis client is not installed: pip install 'limits-app[redis]'") from error

    alias = chosen.cache or (None if chosen.url else "default")
    # Several sites may share the server: in a cache their keys differ by this prefix.
    site = chosen.prefix or (caches.settings.get(alias, {}).get("KEY_PREFIX", "") if alias else "")
    options = _given(
        prefix=prefix_for(site),
        idle_factor=chosen.idle_factor,
        connect_seconds=chosen.connect_timeout_seconds,
        reply_seconds=chosen.reply_timeout_seconds,
    )
    return open_redis_store(alias, url=chosen.url, cluster=chosen.cluster, **options)


def _database(chosen: StoreSettings) -> Store:
    # Imported on use, because the others do not depend on it.
    from limits_app.stores.database import open_database_store

    options = _given(lock_timeout=chosen.lock_timeout_seconds, connect_timeout=chosen.connect_timeout_seconds)
    return open_database_store(chosen.using or DEFAULT_DB_ALIAS, **options)


def is_in_file_of(using: str, alias: str) -> bool:
    """Whether the store of an alias is in the SQLite file of the database `using`, whose transactions lock it."""
    chosen = conf.get(conf.STORES).get(alias)
    if chosen is None or chosen.kind is not StoreKind.DATABASE:
        return False
    settings_of = [connections[name].settings_dict for name in (chosen.using or DEFAULT_DB_ALIAS, using)]
    [mine, other] = [(settings["ENGINE"], realpath(settings["NAME"])) for settings in settings_of]
    return mine == other and connections[using].vendor == "sqlite"


def _given(**options: Any) -> dict[str, Any]:
    """The options that the settings have; the others keep the store's defaults."""
    return {name: value for name, value in options.items() if value is not None}


def is_redis_cache(alias: str) -> bool:
    """Return whether CACHES has a Redis cache of Django or django-redis under an alias, which a store can use."""
    backend = caches.settings.get(alias, {}).get("BACKEND")
    if not backend:
        return False
    try:
        classes = import_string(backend).__mro__
    except ImportError:
        return False
    return any(f"{base.__module__}.{base.__qualname__}" in _REDIS_CACHES for base in classes)


def package_of_cache(alias: str) -> str:
    """Return the package that has the backend of a cache in CACHES, such as `django_redis`; empty without a backend."""
    return str(caches.settings.get(alias, {}).get("BACKEND", "")).partition(".")[0]


def shared_store() -> Store:
    """The first store of the settings that several machines share, Redis before a database.

    Without any, the cache `default` where that is on Redis, else the database `default`.
    """
    kinds = {alias: chosen.kind for alias, chosen in conf.get(conf.STORES).items()}
    shared = [
        alias for preferred in (StoreKind.REDIS, StoreKind.DATABASE) for alias in kinds if kinds[alias] is preferred
    ]
    if shared:
        return store(shared[0])
    kind = StoreKind.REDIS if is_redis_cache(DEFAULT_CACHE_ALIAS) else StoreKind.DATABASE
    if test_runner.current_test() is not None:
        return test_stores.store(kind)
    return _KINDS[kind](StoreSettings(kind))


def store_of_mode(mode: str) -> Store:
    """The store that limit sets of a mode use on this site."""
    if mode in modes.IN_MEMORY:
        return modes.open_store(mode)
    return process_store() if mode == Mode.PROCESS else shared_store()


_KINDS: Final[Mapping[StoreKind, Callable[[StoreSettings], Store]]] = {
    StoreKind.MEMORY: _memory,
    StoreKind.PROCESS: _process,
    StoreKind.REDIS: _redis,
    StoreKind.DATABASE: _database,
}

OPENED: Final[dict[tuple[str, StoreSettings], Store]] = {}
"""The stores that are open, by alias and settings."""
_INSTEAD: Final[list[Callable[[str], Store]]] = []
_LOCK: Final = lock_over_forks()


def store(alias: str | None = None) -> Store:
    """The store of an alias (None: the default one), opened on first use; in memory while a test runner runs.

    Raises ImproperlyConfigured when the settings name no such store, StoreUnavailable when it cannot be opened.
    """
    name = conf.get(conf.STORE) if alias is None else alias
    key = (name, conf.store_settings(name))
    if _INSTEAD:
        return _INSTEAD[-1](name)
    if test_runner.current_test() is not None:
        return test_stores.store(name)
    opened = OPENED.get(key)
    if opened is None:
        with _LOCK:
            opened = OPENED.get(key) or _KINDS[key[1].kind](key[1])
            OPENED[key] = opened
    return opened


def open_store(alias: str) -> Store:
    """`store`, but StoreUnavailable for an alias that the settings do not have.

    A resource may name one that was removed, which must not be an error for the other resources.
    """
    if alias not in conf.get(conf.STORES):
        raise StoreUnavailable(f"LIMITS['STORES'] has no {alias!r}: add it, or name another for the resource")
    return store(alias)


_RESILIENT: Final[dict[str, ResilientStore]] = {}


def resilient_store(alias: str | None = None) -> ResilientStore:
    """The store of an alias (None: the default one) behind its circuit breaker, not necessarily opened yet."""
    name = conf.get(conf.STORE) if alias is None else alias
    opened = _RESILIENT.get(name)
    return _RESILIENT.setdefault(name, ResilientStore(name, open_store)) if opened is None else opened


def aliases() -> list[str]:
    """The stores of the settings, and those that resources name and the settings no longer have."""
    return [*dict.fromkeys([*conf.get(conf.STORES), *_RESILIENT])]


def forget_stores() -> None:
    """Forget the resilient stores, with all that is known of failures, because the settings have changed.

    The stores themselves stay open; the one of a cache is another store when CACHES has changed.
    """
    while _RESILIENT:
        _RESILIENT.popitem()[1].retire()
    with _LOCK:
        for key in [key for key in OPENED if key[1].kind is StoreKind.REDIS and key[1].url is None]:
            del OPENED[key]


@contextmanager
def instead(open_store: Callable[[str], Store]) -> Iterator[None]:
    """Have `open_store` give the store of every alias in the block, for tests; it is asked each time."""
    _INSTEAD.append(open_store)
    try:
        yield
    finally:
        _INSTEAD.remove(open_store)


def pools_transactions(using: str) -> bool:
    """Whether a pooler gives each transaction of a database any of its connections; raises StoreUnavailable."""
    from limits_app.stores.database import open_database_store

    return open_database_store(using).pools_transactions()


def state_directories() -> list[Path]:
    """Where the process stores of the settings keep their state, sorted."""
    stores = [conf.store_settings(alias) for alias in conf.get(conf.STORES)]
    return sorted({store.state_dir or state_directory() for store in stores if store.kind is StoreKind.PROCESS})


def state_directory() -> Path:
    """Where process stores keep their state: as configured, else a place that only this site of this user has."""
    configured = conf.get(conf.STATE_DIR)
    if configured is not None:
        return configured
    from limits_app.stores.process.files import default_directory

    site = blake2b(settings.SECRET_KEY.encode(), digest_size=8).hexdigest()
    return default_directory() / site
