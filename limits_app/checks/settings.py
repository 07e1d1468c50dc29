"""Checks of the settings: errors, hazards and deployment. They access neither stores nor databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from inspect import signature
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.cache import DEFAULT_CACHE_ALIAS
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 - Django's name
from django.core.exceptions import ImproperlyConfigured, ValidationError

from limits_app import conf
from limits_app.checks.databases import (
    database_in_memory,
    database_of_one_machine,
    missing_databases,
    pooled_transactions,
    transactions_in_the_way,
)
from limits_app.checks.reporting import reported, stores_of
from limits_app.checks.site import cors_order, log_in_limits, middleware_order, missing_apps, missing_templates
from limits_app.conf import OnUnavailable, StoreKind, StoreSettings, test_runner
from limits_app.models.patterns import check_requester
from limits_app.stores.registry import is_redis_cache, package_of_cache, state_directory

_NARROWEST_CROWD: Final = {4: 12, 6: 24}
"""By IP version: public networks with a shorter prefix contain more than the proxies of an operator."""
_PROCESSES_PER_CORE: Final = 16
"""More processes than this are probably those of several machines."""


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
        middleware_order,
        cors_order,
        missing_apps,
        missing_templates,
        log_in_limits,
        _namespaces_without_context,
        missing_databases,
        missing_packages,
        missing_caches,
        database_in_memory,
        _believed_crowds,
        pooled_transactions,
        transactions_in_the_way,
    )


def check_deployment() -> list[CheckMessage]:
    """Report settings that are suitable for development only."""
    return reported(_test_runner, _memory_store, _temporary_directory, database_of_one_machine)


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
    for alias, chosen in stores_of(StoreKind.PROCESS):
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
    for alias, _settings in stores_of(StoreKind.PROCESS):
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
    for alias, _settings in stores_of(StoreKind.PROCESS) if reasons else ():
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


def missing_packages() -> Iterator[CheckMessage]:
    """Report Redis stores whose packages are not installed."""
    for alias, chosen in stores_of(StoreKind.REDIS):
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
    for alias, chosen in stores_of(StoreKind.REDIS):
        cache = chosen.cache or DEFAULT_CACHE_ALIAS
        if not (chosen.url or is_redis_cache(cache) or _missing_packages_of(chosen)):
            yield Error(
                f"the store {alias!r} uses the cache {cache!r}, which is not defined in CACHES or does not use Redis",
                hint="Set CACHE to a Redis cache of Django or django-redis, or give the store a URL.",
                id="limits_app.E056",
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
    for alias, _settings in stores_of(StoreKind.MEMORY):
        yield Warning(
            f"the store {alias!r} is in memory: each process counts separately",
            hint="Use a store that processes share, unless the site has exactly one process. A token of the REST API "
            "is valid only in the process that has issued it.",
            id="limits_app.W044",
        )


def _temporary_directory() -> Iterator[CheckMessage]:
    from limits_app.stores.process import is_temporary

    for alias, chosen in stores_of(StoreKind.PROCESS):
        directory = state_directory() if chosen.state_dir is None else chosen.state_dir
        if is_temporary(directory):
            yield Warning(
                f"the store {alias!r} keeps its state in {directory}, a temporary directory, which may be cleaned up "
                "or private to each process",
                hint="Set LIMITS['STATE_DIR'] to a directory that all processes of the site can access.",
                id="limits_app.W045",
            )
