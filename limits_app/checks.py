"""System checks: what is wrong with the settings, and what is right and dangerous all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import time_ns
from typing import Any, Final

from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS, caches
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from limits_app import conf
from limits_app.conf import OnUnavailable, StoreKind
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit
from limits_app.core.store import Store
from limits_app.models import Policy, Resource
from limits_app.stores import registry

__all__ = ["check_deployment", "check_hazards", "check_settings", "check_stores"]

_MOST_SKEW_US: Final = 1_000_000
_NARROWEST_CROWD: Final = {4: 12, 6: 24}
"""By the version of IP: the prefixes of public networks that are shorter have more than proxies in them."""
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_settings(**options: Any) -> list[CheckMessage]:
    """Report every unknown key and bad value of `LIMITS`."""
    found: list[CheckMessage] = [
        Error(problem.message, hint=problem.hint, id=problem.check_id) for problem in conf.problems()
    ]
    return found or _check_functions()


def check_hazards(**options: Any) -> list[CheckMessage]:
    """Report settings that are allowed and probably not meant."""
    return _reported(
        _local_without_processes,
        _shared_directories,
        _ignored_exceptions,
        _middleware_order,
        _missing_databases,
        _missing_caches,
        _database_in_memory,
        _believed_crowds,
        _pooled_transactions,
    )


def check_deployment(**options: Any) -> list[CheckMessage]:
    """Report what is fine on one's own computer and not on a real site."""
    return _reported(_memory_store, _temporary_directory, _database_of_one_machine)


def check_stores(databases: Sequence[str] | None = None, **options: Any) -> list[CheckMessage]:
    """Ask the stores and the database; only where databases may be asked, as with `check --database default`."""
    asks = databases and not _reported(_missing_databases, _missing_caches)
    return _reported(_local_policies, _missing_stores, _stores, _evictions) if asks else []


def _check_functions() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    keys: tuple[conf.Key[Any], ...] = (conf.ENTITY_OF_REQUEST, conf.API_KEY_OF_REQUEST, conf.REFUSAL_HANDLER)
    for key in keys:
        try:
            conf.function_of(key)
        except ImproperlyConfigured as error:
            found.append(Error(str(error), hint="Name a function that takes a request.", id="limits_app.E018"))
    return found


def _reported(*checks: Callable[[], Iterator[CheckMessage]]) -> list[CheckMessage]:
    """What checks find; nothing where the settings cannot be read, which is reported as that."""
    if conf.problems():
        return []
    return [message for check in checks for message in check()]


def _local_without_processes() -> Iterator[CheckMessage]:
    if conf.get(conf.ON_UNAVAILABLE) is OnUnavailable.LOCAL and conf.get(conf.EXPECTED_PROCESSES) is None:
        yield Warning(
            "LIMITS['ON_UNAVAILABLE'] is 'local', but nobody says how many processes share a limit",
            hint="Set LIMITS['EXPECTED_PROCESSES']; without it each process gives out all of every limit.",
            id="limits_app.W040",
        )


def _shared_directories() -> Iterator[CheckMessage]:
    aliases: dict[object, str] = {}
    for alias in conf.get(conf.STORES):
        chosen = conf.store_settings(alias)
        first = aliases.setdefault(chosen.state_dir, alias)
        if chosen.kind is not StoreKind.PROCESS:
            continue
        if first != alias and conf.store_settings(first).kind is StoreKind.PROCESS:
            yield Warning(
                f"the process stores {first!r} and {alias!r} are one and the same, since they share a directory",
                hint=f"Give {alias!r} a STATE_DIR of its own.",
                id="limits_app.W041",
            )


def _ignored_exceptions() -> Iterator[CheckMessage]:
    everywhere = getattr(settings, "DJANGO_REDIS_IGNORE_EXCEPTIONS", False)
    for alias, cache in settings.CACHES.items():
        ignores = cache.get("OPTIONS", {}).get("IGNORE_EXCEPTIONS", everywhere)
        if ignores and str(cache.get("BACKEND", "")).startswith("django_redis."):
            yield Warning(
                f"the cache {alias!r} ignores exceptions, so that Redis being down looks like nothing being there",
                hint="Leave IGNORE_EXCEPTIONS out wherever something is counted: a count that is lost limits nobody.",
                id="limits_app.W042",
            )


def _middleware_order() -> Iterator[CheckMessage]:
    order = [name for name in settings.MIDDLEWARE if name in (_MIDDLEWARE, _AUTHENTICATION)]
    if order == [_MIDDLEWARE, _AUTHENTICATION]:
        yield Warning(
            "LimitsMiddleware stands before AuthenticationMiddleware, so that it knows no users",
            hint="Put it behind; otherwise everybody is limited by address.",
            id="limits_app.W043",
        )


def _databases() -> Iterator[tuple[str, BaseDatabaseWrapper]]:
    """The stores in databases, by alias, and their databases as far as there are any."""
    for alias, using in _databases_used():
        if using in connections.settings:
            yield alias, connections[using]


def _databases_used() -> Iterator[tuple[str, str]]:
    for alias in conf.get(conf.STORES):
        chosen = conf.store_settings(alias)
        if chosen.kind is StoreKind.DATABASE:
            yield alias, chosen.using or DEFAULT_DB_ALIAS


def _missing_databases() -> Iterator[CheckMessage]:
    for alias, using in _databases_used():
        if using not in connections.settings:
            yield Error(
                f"the store {alias!r} is in the database {using!r}, which DATABASES does not have",
                hint=f"Let USING be one of {', '.join(map(repr, connections.settings))}.",
                id="limits_app.E055",
            )


def _missing_caches() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        chosen = conf.store_settings(alias)
        if chosen.kind is not StoreKind.REDIS or chosen.url:
            continue
        cache = chosen.cache or DEFAULT_CACHE_ALIAS
        # As django-redis finds out whether it is one of its own.
        if cache not in caches.settings or not hasattr(caches[cache], "client"):
            yield Error(
                f"the store {alias!r} uses the cache {cache!r}, which CACHES does not have, or not from django-redis",
                hint="Let CACHE name a cache of django-redis, or give the store a URL.",
                id="limits_app.E056",
            )


def _database_in_memory() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "sqlite" and ":memory:" in str(connection.settings_dict["NAME"]):
            yield Warning(
                f"the store {alias!r} is in an SQLite database in memory, which no second connection can open",
                hint="Give the database a file, or use a memory store.",
                id="limits_app.W049",
            )


def _pooled_transactions() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "postgresql" and connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            yield Warning(
                f"the store {alias!r} seems to be behind a pool of transactions: its database disables server-side "
                "cursors",
                hint="Name a database with USING that is reached directly, or by a pool of sessions: the store "
                "prepares statements, and sets timeouts for its session.",
                id="limits_app.W052",
            )


def _database_of_one_machine() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "sqlite":
            yield Warning(
                f"the store {alias!r} is in an SQLite database, which one machine has for itself",
                hint="Use PostgreSQL, MySQL, MariaDB or Redis as soon as there are several machines; "
                "on one, the process store is faster.",
                id="limits_app.W053",
            )


def _believed_crowds() -> Iterator[CheckMessage]:
    for network in conf.get(conf.TRUSTED_PROXIES):
        if network is not None and network.is_global and network.prefixlen < _NARROWEST_CROWD[network.version]:
            yield Warning(
                f"LIMITS['TRUSTED_PROXIES'] believes everybody in {network}, who may then be whom they want",
                hint="Name the addresses of the proxies, or the networks that their operator publishes.",
                id="limits_app.W051",
            )


def _memory_store() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is StoreKind.MEMORY:
            yield Warning(
                f"the store {alias!r} is in memory: each process counts for itself",
                hint="Use a store that processes share, unless there is certainly only one.",
                id="limits_app.W044",
            )


def _temporary_directory() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        chosen = conf.store_settings(alias)
        if chosen.kind is StoreKind.PROCESS and chosen.state_dir is None:
            yield Warning(
                f"the store {alias!r} is in the directory for temporary files, which gets tidied and may be private",
                hint="Set LIMITS['STATE_DIR'] to a directory that all processes of the site see.",
                id="limits_app.W045",
            )


def _local_policies() -> Iterator[CheckMessage]:
    if conf.get(conf.EXPECTED_PROCESSES) is not None:
        return
    local = Policy.objects.filter(on_unavailable=OnUnavailable.LOCAL).select_related("resource", "entity")
    try:
        policies = list(local)
    except DatabaseError:  # `migrate` checks before it has made the tables
        return
    for policy in policies:
        yield Warning(
            f"while the store is down, the policy of {policy} is 'local', but nobody says how many processes share it",
            hint="Set LIMITS['EXPECTED_PROCESSES']; without it each process gives out all of every limit.",
            id="limits_app.W046",
        )


def _missing_stores() -> Iterator[CheckMessage]:
    aliases = conf.get(conf.STORES)
    elsewhere = Resource.objects.exclude(store__in=["", *aliases]).order_by("name").values_list("name", "store")
    try:
        found = list(elsewhere)
    except DatabaseError:  # as above
        return
    for name, alias in found:
        yield Warning(
            f"the resource {name} is counted in the store {alias!r}, which LIMITS['STORES'] does not have",
            hint=f"Add it, or name one of {', '.join(map(repr, aliases))} for the resource; until then its requests "
            "are answered as policies say for a store that is down.",
            id="limits_app.W054",
        )


def _stores() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is StoreKind.MEMORY:
            continue
        try:
            skew_us = _skew_us(registry.store(alias))
        except StoreUnavailable as error:
            yield Warning(
                f"the store {alias!r} cannot be used: {error}",
                hint="Until it can be, requests are answered as policies say for a store that is down.",
                id="limits_app.W047",
            )
            continue
        if abs(skew_us) > _MOST_SKEW_US:
            yield Warning(
                f"the clock of the store {alias!r} and the one of this machine differ by {skew_us / 1e6:+.1f} seconds",
                hint="Limits go by the store's clock and stay exact; set both by NTP, or times in logs will mislead.",
                id="limits_app.W048",
            )


def _evictions() -> Iterator[CheckMessage]:
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is not StoreKind.REDIS:
            continue
        policy = _eviction_policy(alias)
        if policy not in {None, "noeviction"}:
            yield Warning(
                f"the Redis of the store {alias!r} evicts keys when its memory is full: its policy is {policy!r}",
                hint="Set maxmemory-policy noeviction, or use a server of its own: an evicted limit starts anew.",
                id="limits_app.W050",
            )


def _eviction_policy(alias: str) -> str | None:
    from limits_app.stores.redis import RedisStore

    try:
        store = registry.store(alias)
        return store.eviction_policy() if isinstance(store, RedisStore) else None
    except StoreUnavailable:  # reported as that, or a server that may not be asked
        return None


def _skew_us(store: Store) -> int:
    LimitSet([CallLimit.per_second(1)], store=store).get_stats()  # whoever answers tells the time
    return store.clock() - time_ns() // 1000
