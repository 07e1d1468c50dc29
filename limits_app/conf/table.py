"""The keys of `LIMITS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from limits_app.conf import parsers
from limits_app.conf.parsers import (
    Exempt,
    Exporter,
    HeaderStyle,
    Network,
    OfRequest,
    OnUnavailable,
    OnUnresolved,
    RefusalHandler,
    StoreKind,
    StoreSettings,
    UnknownKeys,
    Unpriced,
)
from limits_app.engine import DAY, DEFAULT_CURRENCIES, DEFAULT_PRIORITIES

T = TypeVar("T")


@dataclass(frozen=True)
class SettingKey(Generic[T]):
    """One key of `LIMITS`: its default, the id of its check, and its parser; docs/settings.md has its docstring."""

    name: str
    default: T
    check_id: str
    parse: Callable[[object], T]


ENABLED: Final = SettingKey("ENABLED", True, "limits_app.E003", parsers.yes_or_no)
"""Whether requests are limited. With False everything is allowed, and no store is asked."""
TESTING: Final = SettingKey("TESTING", True, "limits_app.E004", parsers.yes_or_no)
"""Whether stores are in memory, and nothing is written in the background, while a test runner runs in the process.
False for projects that test a store itself."""
STORE: Final = SettingKey("STORE", "default", "limits_app.E010", parsers.alias)
"""The default store."""
STORES: Final = SettingKey[Mapping[str, StoreSettings]](
    "STORES", {"default": StoreSettings(StoreKind.PROCESS)}, "limits_app.E011", parsers.stores
)
"""The stores, by alias. Options of a process store: STATE_DIR and MAP_MEGABYTES. Option of a memory store: MAX_SCOPES
(default 250000). Options of a Redis store: either CACHE (the alias of a Redis cache of Django or django-redis) or URL,
CLUSTER (only with URL), PREFIX for all keys, IDLE_FACTOR, CONNECT_TIMEOUT_SECONDS (default 0.2) and
REPLY_TIMEOUT_SECONDS (default 0.1). Options of a database store: USING (an alias of DATABASES), LOCK_TIMEOUT_SECONDS
(default 1) and CONNECT_TIMEOUT_SECONDS (default 0.2)."""
STATE_DIR: Final = SettingKey("STATE_DIR", None, "limits_app.E012", parsers.directory)
"""The directory of process stores; None selects a directory that is private to the user."""
MAP_MEGABYTES: Final = SettingKey(
    "MAP_MEGABYTES", 48, "limits_app.E013", parsers.whole_number(1, parsers.MAX_MEGABYTES)
)
"""The size of the file of a process store, reserved on disk before use."""
IDEMPOTENCY_SECONDS: Final = SettingKey(
    "IDEMPOTENCY_SECONDS", DAY, "limits_app.E021", parsers.whole_number(1, 31_622_400)
)
"""Lifetime of idempotency keys, in seconds."""
IDLE_FACTOR: Final = SettingKey[float]("IDLE_FACTOR", 7, "limits_app.E019", parsers.factor)
"""How long a Redis store keeps idle state: this factor times the time until the limits are full again, at least one
minute. The state of entities with specific limits does not expire."""
UNKNOWN_KEYS: Final = SettingKey("UNKNOWN_KEYS", UnknownKeys.WARN, "limits_app.E014", parsers.one_of(UnknownKeys))
"""What happens when a request names a limit key that its set does not have."""
CURRENCIES: Final = SettingKey[tuple[str, ...]]("CURRENCIES", DEFAULT_CURRENCIES, "limits_app.E091", parsers.currencies)
"""Keys of limits that are currencies: their amounts are money, with up to six decimals."""
UNPRICED: Final = SettingKey("UNPRICED", Unpriced.ERROR, "limits_app.E095", parsers.one_of(Unpriced))
"""What happens to a request of a resource without a price in the currency of a limit on it."""
PRIORITIES: Final = SettingKey[tuple[str, ...]]("PRIORITIES", DEFAULT_PRIORITIES, "limits_app.E094", parsers.priorities)
"""The priorities of requests, the highest first; requests without one have the priority 'normal'."""
ENTITY_OF_REQUEST: Final = SettingKey[str | OfRequest](
    "ENTITY_OF_REQUEST", "limits_app.integrations.identity.entity_of_request", "limits_app.E015", parsers.function
)
"""Takes a request and returns the identifier of its entity, or None for the site itself."""
RESOLVER_TTL_SECONDS: Final = SettingKey[float]("RESOLVER_TTL_SECONDS", 60, "limits_app.E016", parsers.seconds)
"""Maximum age of cached limits, in seconds, before they are loaded from the database again; also how often a process
looks for changes that no store has announced."""
RESOLVER_MAX_ENTRIES: Final = SettingKey(
    "RESOLVER_MAX_ENTRIES", 10_000, "limits_app.E017", parsers.whole_number(1, 10**9)
)
"""Maximum number of cached limit sets per process, of clients with rows; clients without rows share a few."""
ON_UNAVAILABLE: Final = SettingKey(
    "ON_UNAVAILABLE", OnUnavailable.BLOCK, "limits_app.E030", parsers.one_of(OnUnavailable)
)
"""What happens while the store is unavailable, unless the policy sets it: 'block' fails closed, 'allow' fails open,
'local' counts in each process."""
EXPECTED_PROCESSES: Final = SettingKey[int | None](
    "EXPECTED_PROCESSES", None, "limits_app.E031", parsers.or_none(parsers.whole_number(1, 10**6))
)
"""Number of processes that share the limits; with 'local', each one allows its part of the capacity."""
ON_UNRESOLVED: Final = SettingKey("ON_UNRESOLVED", OnUnresolved.BLOCK, "limits_app.E032", parsers.one_of(OnUnresolved))
"""What happens when the database cannot be read and the limits are not cached."""
BREAKER_FAILURE_RATIO: Final = SettingKey[float]("BREAKER_FAILURE_RATIO", 0.5, "limits_app.E033", parsers.share)
"""Failure ratio at which the circuit breaker of a store opens."""
BREAKER_MIN_CALLS: Final = SettingKey("BREAKER_MIN_CALLS", 3, "limits_app.E034", parsers.whole_number(1, 10**6))
"""Minimum number of calls, counted from the first failed one, before the circuit breaker can open."""
BREAKER_INTERVAL_SECONDS: Final = SettingKey[float]("BREAKER_INTERVAL_SECONDS", 10, "limits_app.E035", parsers.seconds)
"""Interval in which calls and failures are counted, in seconds."""
BREAKER_PROBE_SECONDS: Final = SettingKey[float]("BREAKER_PROBE_SECONDS", 0.5, "limits_app.E036", parsers.seconds)
"""Maximum delay between probes of an unavailable store by each process; also sent as Retry-After."""
API_KEY_OF_REQUEST: Final = SettingKey[str | OfRequest | None](
    "API_KEY_OF_REQUEST", None, "limits_app.E050", parsers.or_none(parsers.function)
)
"""Takes a request and returns the API key that authenticated it, or None; only a digest of the key is used."""
PLAN_OF_REQUEST: Final = SettingKey[str | OfRequest | None](
    "PLAN_OF_REQUEST", None, "limits_app.E068", parsers.or_none(parsers.function)
)
"""Takes a request and returns the name of its plan, or None; for entities without a plan."""
EXEMPT: Final = SettingKey("EXEMPT", Exempt(), "limits_app.E059", parsers.exempt)
"""Who is charged nothing by the middleware, decorators and throttles. Options: STAFF and SUPERUSERS (True), GROUPS (a
list of names), NETWORKS (a list of networks) and ENTITIES (a list of identifiers and patterns)."""
TRUSTED_PROXIES: Final = SettingKey[tuple[Network | None, ...]](
    "TRUSTED_PROXIES", (), "limits_app.E051", parsers.networks
)
"""Proxies whose X-Forwarded-For header is trusted; 'unix' is a proxy that connects through a Unix socket."""
IPV6_PREFIX: Final = SettingKey("IPV6_PREFIX", 64, "limits_app.E052", parsers.whole_number(1, 128))
"""Number of bits of an IPv6 address that identify a client; customers usually have a /64 network."""
HEADERS: Final = SettingKey("HEADERS", HeaderStyle.DRAFT, "limits_app.E053", parsers.one_of(HeaderStyle))
"""Rate limit headers of responses: RateLimit ('draft'), X-RateLimit-* ('legacy'), both or none."""
REFUSAL_HANDLER: Final = SettingKey[str | RefusalHandler | None](
    "REFUSAL_HANDLER", None, "limits_app.E054", parsers.or_none(parsers.function)
)
"""Takes a request and the error and returns the response to a rejected request, or None for the default one."""
BASE_TEMPLATE: Final = SettingKey("BASE_TEMPLATE", "limits_app/page.html", "limits_app.E088", parsers.template_name)
"""Template that the pages for users extend, a rejected request and their own limits; it has the blocks
'title' and 'content'."""
REQUEST_ID_HEADER: Final = SettingKey("REQUEST_ID_HEADER", "X-Request-ID", "limits_app.E069", parsers.short_name)
"""Header of requests with their id, which rejections show; without it, an id is generated."""
USAGE: Final = SettingKey[bool | str]("USAGE", True, "limits_app.E060", parsers.usage)
"""Whether usage and rejections are counted. Of clients without a row or a user, only the heaviest keep separate
rows; 'all' keeps the rows of all clients."""
USAGE_HOURS_KEPT: Final = SettingKey[int | None](
    "USAGE_HOURS_KEPT", 31 * 24, "limits_app.E061", parsers.or_none(parsers.whole_number(1, 10**6))
)
"""Retention of hourly snapshots, in hours; None keeps all."""
USAGE_DAYS_KEPT: Final = SettingKey[int | None](
    "USAGE_DAYS_KEPT", 2 * 366, "limits_app.E062", parsers.or_none(parsers.whole_number(1, 36_600))
)
"""Retention of daily snapshots, in days; None keeps all."""
DENIALS_HOURS_KEPT: Final = SettingKey[int | None](
    "DENIALS_HOURS_KEPT", 7 * 24, "limits_app.E063", parsers.or_none(parsers.whole_number(1, 10**6))
)
"""Retention of rejections by minute, in hours; None keeps all."""
USAGE_ARCHIVE_DIR: Final = SettingKey("USAGE_ARCHIVE_DIR", None, "limits_app.E064", parsers.directory)
"""Directory in which the pruning task archives rows as gzipped JSON lines before it deletes them, or None."""
AUDIT_DAYS_KEPT: Final = SettingKey[int | None](
    "AUDIT_DAYS_KEPT", None, "limits_app.E086", parsers.or_none(parsers.whole_number(1, 36_600))
)
"""Retention of audit events, in days, with the archive of USAGE_ARCHIVE_DIR; None keeps all."""
BACKGROUND_JOBS: Final = SettingKey("BACKGROUND_JOBS", True, "limits_app.E087", parsers.yes_or_no)
"""Whether one process of the site rolls up usage and prunes in the background, unless a task or command does."""
NEAR_THRESHOLDS: Final = SettingKey[tuple[float, ...]]("NEAR_THRESHOLDS", (0.8,), "limits_app.E065", parsers.shares)
"""Used fractions of a limit at which the signal limit_near is sent."""
METRICS: Final = SettingKey[tuple[Exporter, ...]](
    "METRICS", (), "limits_app.E066", parsers.list_of(parsers.one_of(Exporter))
)
"""Metrics exporters to enable; each requires the extra of the same name."""
ALERTS: Final = SettingKey("ALERTS", False, "limits_app.E067", parsers.yes_or_no)
"""Whether this process records events for the alert rules of the admin."""
ALERT_PRIVATE_TARGETS: Final = SettingKey("ALERT_PRIVATE_TARGETS", False, "limits_app.E070", parsers.yes_or_no)
"""Whether webhooks of alert rules may be in private, loopback and link-local networks."""
MAX_BOOST_DAYS: Final = SettingKey[int | None](
    "MAX_BOOST_DAYS", 31, "limits_app.E081", parsers.or_none(parsers.whole_number(1, 36_600))
)
"""Longest duration of a boost, in days; None allows any. Who may add policies can set limits for longer."""
NAMESPACE: Final = SettingKey[str | Callable[[], str | None] | None](
    "NAMESPACE", None, "limits_app.E082", parsers.or_none(parsers.function_of("no arguments"))
)
"""Takes no arguments and returns the name of the present tenant, or None. Each name has its own configuration and
counters, beside those of each schema of django-tenants and of each database that a router chooses."""
NAMESPACE_CONTEXT: Final = SettingKey[str | Callable[[str], AbstractContextManager[object]] | None](
    "NAMESPACE_CONTEXT", None, "limits_app.E083", parsers.or_none(parsers.function_of("a name"))
)
"""Takes the name of a tenant and returns a context manager that enters it, for background threads and commands; None
enters a schema of django-tenants."""
NAMESPACES: Final = SettingKey[tuple[str, ...] | str | Callable[[], Iterable[str]] | None](
    "NAMESPACES", None, "limits_app.E084", parsers.or_none(parsers.namespaces)
)
"""The names of all tenants, or a function without arguments that returns them, for commands that work on all."""

KEYS: Final[Mapping[str, SettingKey[Any]]] = {
    name: key for name, key in globals().items() if isinstance(key, SettingKey)
}
"""All keys by name, in the order above."""
