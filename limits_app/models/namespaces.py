"""Namespaces: which part of the site, such as a tenant, a request belongs to, and how other threads enter it.

A part is a database that a router chooses, a schema of it (`connection.schema_name`, of django-tenants), or a value
that `LIMITS["NAMESPACE"]` returns. Sites without any of these have one namespace, which is found without looking.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from typing import Final, NamedTuple

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.utils.module_loading import import_string

from limits_app import conf
from limits_app.engine import WHOLE_SITE as NO_NAMES
from limits_app.engine import Namespace, namespace_digest, shown
from limits_app.engine.errors import InvalidRequest

MAX_VALUE_LENGTH: Final = 255
MOST_NAMESPACES: Final = 100
"""Of how many namespaces a process keeps the configuration; that of others is read again."""
_SCHEMA_CONTEXT: Final = "django_tenants.utils.schema_context"


class SiteNamespace(NamedTuple):
    """A part of the site: the database of its policies, its schema, and its value of `LIMITS["NAMESPACE"]`.

    `keys` are the names under which stores keep it.
    """

    alias: str = DEFAULT_DB_ALIAS
    schema: str = ""
    value: str = ""
    keys: Namespace = NO_NAMES

    @property
    def name(self) -> str:
        """The name by which commands and `LIMITS["NAMESPACE_CONTEXT"]` know it."""
        return self.value or self.schema or self.alias


WHOLE_SITE: Final = SiteNamespace()

_ENTERED: ContextVar[SiteNamespace | None] = ContextVar("limits_app_namespace", default=None)


class NamespaceSources:
    """Where namespaces come from, as far as that is in the settings; it is looked up once."""

    def __init__(self) -> None:
        self.is_known = False
        self.is_used = True
        """Whether there may be several namespaces."""
        self.is_of_thread = False
        """Whether the namespace may be a different one in other threads of the same request."""
        self.has_own_tables = True
        """Whether each schema has the tables of the configuration."""
        self.model: type | None = None

    def look_up(self) -> None:
        routes, schemas = bool(router.routers), _schema_of(DEFAULT_DB_ALIAS) != ""
        self.is_of_thread = routes or schemas
        self.is_used = self.is_of_thread or conf.get(conf.NAMESPACE) is not None
        self.has_own_tables = _has_own_tables()
        self.model = apps.get_model("limits_app.Policy")
        self.is_known = True


sources: Final = NamespaceSources()


def forget_sources() -> None:
    """Look up again where namespaces come from, because the settings have changed."""
    sources.is_known, sources.is_used = False, True
    _named.cache_clear()


def current_namespace() -> SiteNamespace:
    """The namespace of the present request, command or task."""
    return _current() if sources.is_used else WHOLE_SITE


def current_keys() -> Namespace:
    """The names under which stores keep the present namespace."""
    return _current().keys if sources.is_used else NO_NAMES


def current_digest() -> str:
    """The digest of the present namespace, by which rows of usage and rejections are kept apart; empty without any."""
    return namespace_digest(current_keys().counters).hex()


def write_alias() -> str:
    """The alias of the database that policies are written to: a replica may not have the latest change."""
    entered = _ENTERED.get()
    return _routed_alias() if entered is None else entered.alias


def namespace_in(using: str) -> SiteNamespace:
    """The present namespace, for configuration in a database that may not be the one that a router chooses now."""
    current = current_namespace()
    return current if not sources.is_used or current.alias == using else _computed(using)


def is_entered(namespace: SiteNamespace) -> bool:
    """Whether the calling thread is in a namespace as its requests are, also for a router that chooses by thread."""
    return not sources.is_used or _computed(_routed_alias()) == namespace


@contextmanager
def entered(namespace: SiteNamespace) -> Iterator[None]:
    """Be in a namespace in the block, in a thread that works for its requests.

    Raises ImproperlyConfigured where `LIMITS["NAMESPACE_CONTEXT"]` does not enter it.
    """
    if current_namespace() == namespace:
        yield
        return
    with _context_of(namespace):
        computed = _computed(namespace.alias)
        if computed != namespace:
            raise _not_entered(namespace.name, computed.name)
        token = _ENTERED.set(namespace)
        try:
            yield
        finally:
            _ENTERED.reset(token)


def _context_of(namespace: SiteNamespace) -> AbstractContextManager[object]:
    """The context manager of `LIMITS["NAMESPACE_CONTEXT"]` for a namespace; of a schema that of django-tenants."""
    function = conf.function_of(conf.NAMESPACE_CONTEXT)
    if function is not None:
        return function(namespace.name)
    if namespace.value:
        raise ImproperlyConfigured(
            "LIMITS['NAMESPACE_CONTEXT'] must be set where LIMITS['NAMESPACE'] is: name a function that takes a "
            "namespace and returns a context manager that enters it"
        )
    return import_string(_SCHEMA_CONTEXT)(namespace.schema) if namespace.schema else nullcontext()


@contextmanager
def entered_by_name(name: str) -> Iterator[None]:
    """Be in the namespace of a name in the block, for commands and tasks; ImproperlyConfigured where that fails."""
    function = conf.function_of(conf.NAMESPACE_CONTEXT)
    if function is None and not _schema_of(DEFAULT_DB_ALIAS):
        raise ImproperlyConfigured(
            f"the namespace {shown(name)} cannot be entered: set LIMITS['NAMESPACE_CONTEXT'] to a function that takes "
            "its name and returns a context manager"
        )
    with import_string(_SCHEMA_CONTEXT)(name) if function is None else function(name):
        current = current_namespace().name
        if current != name:
            raise _not_entered(name, current)
        yield


def run_in_all(work: Callable[[str], object]) -> dict[str, Exception]:
    """Call `work` with the name of each namespace of `LIMITS["NAMESPACES"]`, in that namespace.

    Returns the errors by name: that of one namespace does not keep the others from being worked on.
    """
    errors: dict[str, Exception] = {}
    for name in all_namespaces():
        try:
            with entered_by_name(name):
                work(name)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            errors[name] = error
    return errors


def all_namespaces() -> list[str]:
    """The names in `LIMITS["NAMESPACES"]`; ImproperlyConfigured without that setting."""
    names = conf.function_of(conf.NAMESPACES)
    if names is None:
        raise ImproperlyConfigured(
            "LIMITS['NAMESPACES'] must be set to work on all namespaces: list their names, or name a function that "
            "returns them"
        )
    return [str(name) for name in (names() if callable(names) else names)]


def is_of_thread() -> bool:
    """Whether a coroutine has to ask a thread for its namespace, because the connections of threads decide."""
    if not sources.is_known:
        sources.look_up()
    return sources.is_of_thread and _ENTERED.get() is None


@asynccontextmanager
async def in_task() -> AsyncIterator[None]:
    """Be, in the block of a coroutine, in the namespace of the threads of its request."""
    token = _ENTERED.set(await sync_to_async(current_namespace)())
    try:
        yield
    finally:
        _ENTERED.reset(token)


def _not_entered(name: str, current: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(
        f"LIMITS['NAMESPACE_CONTEXT'] must enter the namespace {shown(name)}: in its context, the namespace is "
        f"{shown(current)}"
    )


def _current() -> SiteNamespace:
    if not sources.is_known:
        sources.look_up()
        if not sources.is_used:
            return WHOLE_SITE
    return _ENTERED.get() or _computed(_routed_alias())


def _computed(alias: str) -> SiteNamespace:
    return _named(alias, _schema_of(alias), _value())


def _routed_alias() -> str:
    model = sources.model
    if model is None:
        model = apps.get_model("limits_app.Policy")
    return router.db_for_write(model)


def _schema_of(alias: str) -> str:
    return getattr(connections[alias], "schema_name", None) or ""


def _value() -> str:
    function = conf.function_of(conf.NAMESPACE)
    value = "" if function is None else function()
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_VALUE_LENGTH:
        raise InvalidRequest(
            f"LIMITS['NAMESPACE'] must return None or text of at most {MAX_VALUE_LENGTH} characters; got {shown(value)}"
        )
    return value


@lru_cache(maxsize=1024)
def _named(alias: str, schema: str, value: str) -> SiteNamespace:
    configuration = _text(alias, schema if sources.has_own_tables else "", value)
    return SiteNamespace(alias, schema, value, Namespace(configuration, _text(alias, schema, value)))


def _text(alias: str, schema: str, value: str) -> str:
    parts = ["" if alias == DEFAULT_DB_ALIAS else alias, schema, value]
    return json.dumps(parts) if any(parts) else ""


def _has_own_tables() -> bool:
    """Whether the tables of the configuration are in each schema, and not in one that all schemas share."""
    types = getattr(settings, "TENANT_TYPES", None)
    lists = [options.get("APPS", ()) for name, options in types.items() if name != _public()] if types else None
    own = lists if lists is not None else [getattr(settings, "TENANT_APPS", None)]
    if own == [None]:
        return True
    config = apps.get_app_config("limits_app")
    names = {config.name, f"{type(config).__module__}.{type(config).__name__}"}
    return any(not names.isdisjoint(apps_of or ()) for apps_of in own)


def _public() -> str:
    return getattr(settings, "PUBLIC_SCHEMA_NAME", "public")
