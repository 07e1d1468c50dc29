"""Checks of the settings: errors, hazards and deployment. They access neither stores nor databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.apps import apps
from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.module_loading import import_string

from limits_app import conf
from limits_app.conf import OnUnavailable, StoreKind, StoreSettings, test_runner
from limits_app.integrations.refusals import TEMPLATE
from limits_app.models.patterns import check_requester
from limits_app.stores.registry import is_redis_cache, package_of_cache, state_directory

_APPS: Final = ("django.contrib.auth", "django.contrib.contenttypes")
_NARROWEST_CROWD: Final = {4: 12, 6: 24}
"""By IP version: public networks with a shorter prefix contain more than the proxies of an operator."""
_PROCESSES_PER_CORE: Final = 16
"""More processes than this are probably those of several machines."""
_MIDDLEWARE: Final = "limits_app.integrations.middleware.LimitsMiddleware"
_CORS: Final = "corsheaders.middleware.CorsMiddleware"
_AUTHENTICATION: Final = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_settings() -> list[CheckMessage]:
    """Report every unknown key and bad value of `LIMITS`."""
    messages: list[CheckMessage] = [
        Error(problem.message, hint=problem.hint, id=problem.check_id) for problem in conf.problems()
    ]
    return messages or _check_functions()


def check_hazards() -> list[CheckMessage]:
    """Report settings that are valid but probably a mistake."""
    return reported(
        _disabled,
        _local_without_processes,
        _shared_directories,
        _no_file_locks,
        _several_machines,
        _ignored_exceptions,
        _middleware_order,
        _cors_order,
        _missing_apps,
        _missing_templates,
        _log_in_limits,
        _namespaces_without_context,
        missing_databases,
        missing_packages,
        missing_caches,
        _database_in_memory,
        _believed_crowds,
        _pooled_transactions,
        _transactions_in_the_way,
    )


def check_deployment() -> list[CheckMessage]:
    """Report settings that are suitable for development only."""
    return reported(_test_runner, _memory_store, _temporary_directory, _database_of_one_machine)


def _check_functions() -> list[CheckMessage]:
    messages: list[CheckMessage] = []
    keys: dict[conf.SettingKey[Any], tuple[str, ...]] = {
        conf.ENTITY_OF_REQUEST: ("request",),
        conf.API_KEY_OF_REQUEST: ("request",),
        conf.PLAN_OF_REQUEST: ("request",),
        conf.REFUSAL_HANDLER: ("request", "error"),
        conf.NAMESPACE: (),
        conf.NAMESPACE_CONTEXT: ("name",),
    }
    if not isinstance(conf.get(conf.NAMESPACES), tuple | None):
        keys[conf.NAMESPACES] = ()
    for identifier in conf.get(conf.EXEMPT).entities:
        try:
            check_requester(identifier)
        except ValidationError as error:
            problem = f"LIMITS['EXEMPT']: ENTITIES: {' '.join(error.messages)}"
            messages.append(Error(problem, hint="Correct the pattern, or remove it.", id=conf.EXEMPT.check_id))
    for key, arguments in keys.items():
        try:
            function = conf.function_of(key)
        except ImproperlyConfigured as error:
            messages.append(
                Error(str(error), hint=f"Name a function of ({', '.join(arguments)}).", id="limits_app.E018")
            )
            continue
        if function is not None:
            messages.extend(_misfits(key, function, arguments))
    return messages


def _misfits(
    key: conf.SettingKey[Any], function: Callable[..., Any], arguments: Sequence[str]
) -> Iterator[CheckMessage]:
    """Report errors that the first request would raise."""
    shown = ", ".join(arguments)
    if key is not conf.REFUSAL_HANDLER and iscoroutinefunction(function):
        yield Error(
            f"LIMITS[{key.name!r}] must be a regular function, not `async def`",
            hint="Use a regular function (`def`); it runs in a thread for asynchronous views.",
            id="limits_app.E057",
        )
    try:
        signature(function).bind(*arguments)
    except TypeError:
        yield Error(
            f"LIMITS[{key.name!r}] cannot be called with ({shown})",
            hint=f"Name a function of ({shown}).",
            id="limits_app.E057",
        )
    except ValueError:  # functions written in C may have no signature
        return


def reported(*checks: Callable[[], Iterator[CheckMessage]]) -> list[CheckMessage]:
    """The messages of the checks; empty if the settings are invalid, which is reported separately."""
    if conf.problems():
        return []
    return [message for check in checks for message in check()]


def _stores(kind: StoreKind) -> Iterator[tuple[str, StoreSettings]]:
    """The aliases and settings of the stores of a kind."""
    for alias in conf.get(conf.STORES):
        settings_of_store = conf.store_settings(alias)
        if settings_of_store.kind is kind:
            yield alias, settings_of_store


def _disabled() -> Iterator[CheckMessage]:
    if not conf.get(conf.ENABLED):
        yield Warning(
            "LIMITS['ENABLED'] is False: everything is allowed, and nothing is counted.",
            hint="Set it to True, or remove it, wherever limits must apply.",
            id="limits_app.W059",
        )


def _namespaces_without_context() -> Iterator[CheckMessage]:
    if conf.get(conf.NAMESPACE) is not None and conf.get(conf.NAMESPACE_CONTEXT) is None:
        yield Error(
            "LIMITS['NAMESPACE'] is set without LIMITS['NAMESPACE_CONTEXT']: background threads cannot write the usage "
            "and the rejections of a namespace.",
            hint="Name a function that takes the name of a namespace and returns a context manager that enters it.",
            id="limits_app.E085",
        )


def _test_runner() -> Iterator[CheckMessage]:
    if test_runner.current_test() is not None:
        # No error: a project may run the checks of its deployment in its tests.
        yield Warning(
            "a test environment is set up in this process: all stores are in memory, and nothing is written in the "
            "background",
            hint="Do not call setup_test_environment() on a site, or set LIMITS['TESTING'] to False.",
            id="limits_app.W068",
        )


def _local_without_processes() -> Iterator[CheckMessage]:
    if conf.get(conf.ON_UNAVAILABLE) is OnUnavailable.LOCAL and conf.get(conf.EXPECTED_PROCESSES) is None:
        yield Warning(
            "LIMITS['ON_UNAVAILABLE'] is 'local', but the number of processes that share a limit is unknown",
            hint="Set LIMITS['EXPECTED_PROCESSES']; otherwise each process allows the full capacity of every limit.",
            id="limits_app.W040",
        )


def _shared_directories() -> Iterator[CheckMessage]:
    aliases: dict[object, str] = {}
    for alias, chosen in _stores(StoreKind.PROCESS):
        first = aliases.setdefault(chosen.state_dir, alias)
        if first != alias:
            yield Warning(
                f"the process stores {first!r} and {alias!r} use the same directory and therefore the same state",
                hint=f"Set a different STATE_DIR for {alias!r}.",
                id="limits_app.W041",
            )


def _no_file_locks() -> Iterator[CheckMessage]:
    if find_spec("fcntl") is not None or find_spec("msvcrt") is not None:
        return
    for alias, _settings in _stores(StoreKind.PROCESS):
        yield Warning(
            f"the process store {alias!r} is on a system whose Python has neither fcntl nor msvcrt",
            hint="Use another store: without file locks, the permits of a process that was killed return only when "
            "their leases expire, and two processes must not open the store at the same time.",
            id="limits_app.W057",
        )


def _several_machines() -> Iterator[CheckMessage]:
    """Report process stores where each of several machines or containers probably counts for itself."""
    reasons = []
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        reasons.append("the site runs on Kubernetes")
    expected = conf.get(conf.EXPECTED_PROCESSES) or 0
    if expected > _PROCESSES_PER_CORE * (os.cpu_count() or 1):
        reasons.append(f"LIMITS['EXPECTED_PROCESSES'] is {expected}, too many for this machine")
    for alias, _settings in _stores(StoreKind.PROCESS) if reasons else ():
        yield Warning(
            f"the process store {alias!r} is shared by the processes of one machine or container, but "
            f"{' and '.join(reasons)}",
            hint="Use a store in Redis or in the database: with the process store each pod and each machine "
            "allows the full capacity of every limit. Silence this check where there is exactly one.",
            id="limits_app.W058",
        )


def _ignored_exceptions() -> Iterator[CheckMessage]:
    everywhere = getattr(settings, "DJANGO_REDIS_IGNORE_EXCEPTIONS", False)
    for alias, cache in settings.CACHES.items():
        ignores = cache.get("OPTIONS", {}).get("IGNORE_EXCEPTIONS", everywhere)
        if ignores and str(cache.get("BACKEND", "")).startswith("django_redis."):
            yield Warning(
                f"the cache {alias!r} ignores exceptions, so an unavailable Redis looks like an empty cache",
                hint="Remove IGNORE_EXCEPTIONS for caches of stores: a count that is lost limits no request.",
                id="limits_app.W042",
            )


def _middleware_order() -> Iterator[CheckMessage]:
    order = [name for name in settings.MIDDLEWARE if name in (_MIDDLEWARE, _AUTHENTICATION)]
    if order == [_MIDDLEWARE, _AUTHENTICATION]:
        yield Warning(
            "LimitsMiddleware comes before AuthenticationMiddleware, so it does not know the user",
            hint="Put it after AuthenticationMiddleware; otherwise all clients are limited by address.",
            id="limits_app.W043",
        )


def _cors_order() -> Iterator[CheckMessage]:
    order = [name for name in settings.MIDDLEWARE if name in (_MIDDLEWARE, _CORS)]
    if order == [_MIDDLEWARE, _CORS]:
        yield Warning(
            "LimitsMiddleware comes before CorsMiddleware, so URL rules count CORS preflights",
            hint="Put CorsMiddleware first: it answers preflights, and adds its headers to rejections too.",
            id="limits_app.W070",
        )


def _missing_apps() -> Iterator[CheckMessage]:
    if missing := [name for name in _APPS if not apps.is_installed(name)]:
        yield Error(
            f"limits_app needs {' and '.join(missing)}, which INSTALLED_APPS does not contain",
            hint="Add what is missing to INSTALLED_APPS, before limits_app: plans belong to groups of users, and the "
            "admin and the API have permissions. No middleware, session or admin is required.",
            id="limits_app.E075",
        )


def _missing_templates() -> Iterator[CheckMessage]:
    try:
        get_template(TEMPLATE)
    except TemplateDoesNotExist:
        yield Warning(
            f"no template engine finds {TEMPLATE}, the page of rejections for browsers",
            hint="Add DjangoTemplates with APP_DIRS to TEMPLATES; until then browsers get problem details as JSON. "
            "Silence this check for a site without browsers.",
            id="limits_app.W075",
        )


def _log_in_limits() -> Iterator[CheckMessage]:
    """Report log-in throttling that other backends or a missing middleware weaken."""
    backends = [*settings.AUTHENTICATION_BACKENDS] if apps.is_installed("django.contrib.auth") else []
    limiting = next(filter(_limits_log_ins, backends), None)
    if limiting is None:
        return
    if limiting != backends[0]:
        yield Warning(
            f"{backends[0]!r} comes before {limiting!r} in AUTHENTICATION_BACKENDS, so it checks passwords without a "
            "limit",
            hint=f"Put {limiting!r} first.",
            id="limits_app.W076",
        )
    if _MIDDLEWARE not in settings.MIDDLEWARE:
        yield Warning(
            "log-ins are limited without LimitsMiddleware, so rejected ones look like wrong passwords",
            hint=f"Add {_MIDDLEWARE!r} to MIDDLEWARE: it answers them with 429, and counts attempts that end in an "
            "error of another backend.",
            id="limits_app.W077",
        )


def _limits_log_ins(path: str) -> bool:
    from limits_app.integrations.login import LoginLimitBackend

    try:
        backend = import_string(path)
    except ImportError:  # Django reports it at the first log-in
        return False
    return isinstance(backend, type) and issubclass(backend, LoginLimitBackend)


def _databases() -> Iterator[tuple[str, BaseDatabaseWrapper]]:
    """The aliases of database stores and their connections, if the database is configured."""
    for alias, using in _databases_used():
        if using in connections.settings:
            yield alias, connections[using]


def _databases_used() -> Iterator[tuple[str, str]]:
    for alias, chosen in _stores(StoreKind.DATABASE):
        yield alias, chosen.using or DEFAULT_DB_ALIAS


def missing_databases() -> Iterator[CheckMessage]:
    """Report database stores whose database is not in DATABASES."""
    for alias, using in _databases_used():
        if using not in connections.settings:
            yield Error(
                f"the store {alias!r} uses the database {using!r}, which is not defined in DATABASES",
                hint=f"Set USING to one of {', '.join(map(repr, connections.settings))}.",
                id="limits_app.E055",
            )


def missing_packages() -> Iterator[CheckMessage]:
    """Report Redis stores whose packages are not installed."""
    for alias, chosen in _stores(StoreKind.REDIS):
        for package in _missing_packages_of(chosen):
            yield Error(
                f"the store {alias!r} requires the package {package!r}, which is not installed",
                hint="pip install 'limits-app[redis]'",
                id="limits_app.E058",
            )


def _missing_packages_of(redis: StoreSettings) -> list[str]:
    packages = ["redis"] if redis.url else ["redis", package_of_cache(redis.cache or DEFAULT_CACHE_ALIAS)]
    return [package for package in packages if package and find_spec(package) is None]


def missing_caches() -> Iterator[CheckMessage]:
    """Report Redis stores whose cache is missing or does not use Redis."""
    for alias, chosen in _stores(StoreKind.REDIS):
        cache = chosen.cache or DEFAULT_CACHE_ALIAS
        if not (chosen.url or is_redis_cache(cache) or _missing_packages_of(chosen)):
            yield Error(
                f"the store {alias!r} uses the cache {cache!r}, which is not defined in CACHES or does not use Redis",
                hint="Set CACHE to a Redis cache of Django or django-redis, or give the store a URL.",
                id="limits_app.E056",
            )


def _database_in_memory() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "sqlite" and ":memory:" in str(connection.settings_dict["NAME"]):
            yield Warning(
                f"the store {alias!r} uses an in-memory SQLite database, which other connections cannot open",
                hint="Use a database file, or a memory store.",
                id="limits_app.W049",
            )


def _pooled_transactions() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "postgresql" and connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
            yield Warning(
                f"the store {alias!r} seems to use a transaction-pooled connection: its database sets "
                "DISABLE_SERVER_SIDE_CURSORS",
                hint="Set USING to a database with a direct or session-pooled connection: the store prepares "
                "statements and sets session timeouts.",
                id="limits_app.W052",
            )


def _transactions_in_the_way() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        options = connection.settings_dict
        locks = str(options["OPTIONS"].get("transaction_mode")).upper() in {"IMMEDIATE", "EXCLUSIVE"}
        if connection.vendor == "sqlite" and (options["ATOMIC_REQUESTS"] or locks):
            yield Warning(
                f"the store {alias!r} uses an SQLite file that transactions of the site lock: its database has "
                f"{'transaction_mode' if locks else 'ATOMIC_REQUESTS'}",
                hint="Set USING to a separate database file without these options: a request inside a transaction on "
                "the file of the store blocks itself.",
                id="limits_app.W056",
            )


def _database_of_one_machine() -> Iterator[CheckMessage]:
    for alias, connection in _databases():
        if connection.vendor == "sqlite":
            yield Warning(
                f"the store {alias!r} uses an SQLite database, which is limited to one machine",
                hint="Use PostgreSQL, MySQL, MariaDB or Redis for several machines; "
                "on one machine, the process store is faster.",
                id="limits_app.W053",
            )


def _believed_crowds() -> Iterator[CheckMessage]:
    for network in conf.get(conf.TRUSTED_PROXIES):
        if network is not None and network.is_global and network.prefixlen < _NARROWEST_CROWD[network.version]:
            yield Warning(
                f"LIMITS['TRUSTED_PROXIES'] trusts every client in {network}, which can then claim any address",
                hint="List the addresses of the proxies, or the networks that their operator publishes.",
                id="limits_app.W051",
            )


def _memory_store() -> Iterator[CheckMessage]:
    for alias, _settings in _stores(StoreKind.MEMORY):
        yield Warning(
            f"the store {alias!r} is in memory: each process counts separately",
            hint="Use a store that processes share, unless the site has exactly one process.",
            id="limits_app.W044",
        )


def _temporary_directory() -> Iterator[CheckMessage]:
    from limits_app.stores.process import is_temporary

    for alias, chosen in _stores(StoreKind.PROCESS):
        directory = state_directory() if chosen.state_dir is None else chosen.state_dir
        if is_temporary(directory):
            yield Warning(
                f"the store {alias!r} keeps its state in {directory}, a temporary directory, which may be cleaned up "
                "or private to each process",
                hint="Set LIMITS['STATE_DIR'] to a directory that all processes of the site can access.",
                id="limits_app.W045",
            )
