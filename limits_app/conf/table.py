"""The keys of `LIMITS`: default, check id, expected value, and description for the docs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from limits_app.conf import parsers
from limits_app.conf.parsers import (
    ApiKeyOfRequest,
    EntityOfRequest,
    Exporter,
    Headers,
    Network,
    OnUnavailable,
    OnUnresolved,
    PlanOfRequest,
    RefusalHandler,
    StoreKind,
    StoreSettings,
    UnknownKeys,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Key(Generic[T]):
    """One key of `LIMITS`: default, check id, expected value, description for the docs, and parser."""

    name: str
    default: T
    check_id: str
    expects: str
    doc: str
    parse: Callable[[object], T]


ENABLED: Final = Key(
    "ENABLED",
    True,
    "limits_app.E003",
    expects="True or False",
    doc="Whether requests are limited. With False everything is allowed, and no store is asked.",
    parse=parsers.yes_or_no,
)
STORE: Final = Key(
    "STORE",
    "default",
    "limits_app.E010",
    expects="alias of STORES",
    doc="The default store.",
    parse=parsers.alias,
)
STORES: Final = Key[Mapping[str, StoreSettings]](
    "STORES",
    {"default": StoreSettings(StoreKind.PROCESS)},
    "limits_app.E011",
    expects="dict of alias to {'KIND': 'process' or 'memory' or 'redis' or 'database', ...}",
    doc="The stores, by alias. Options of a process store: STATE_DIR and MAP_MEGABYTES. "
    "Options of a Redis store: either CACHE (the alias of a Redis cache of Django or django-redis) or URL, "
    "CLUSTER (only with URL), PREFIX for all keys, IDLE_FACTOR, "
    "CONNECT_TIMEOUT_SECONDS (default 0.2) and REPLY_TIMEOUT_SECONDS (default 0.1). "
    "Options of a database store: USING (an alias of DATABASES), LOCK_TIMEOUT_SECONDS (default 1) "
    "and CONNECT_TIMEOUT_SECONDS (default 0.2).",
    parse=parsers.stores,
)
STATE_DIR: Final = Key(
    "STATE_DIR",
    None,
    "limits_app.E012",
    expects="absolute path, or None",
    doc="The directory of process stores; None selects a directory that is private to the user.",
    parse=parsers.directory,
)
MAP_MEGABYTES: Final = Key(
    "MAP_MEGABYTES",
    16,
    "limits_app.E013",
    expects="whole number from 1 to 1048576",
    doc="The size of the file of a process store, reserved on disk before use.",
    parse=parsers.whole_number(1, parsers.MAX_MEGABYTES),
)
IDEMPOTENCY_SECONDS: Final = Key(
    "IDEMPOTENCY_SECONDS",
    86_400,
    "limits_app.E021",
    expects="whole number from 1 to 31622400",
    doc="Lifetime of idempotency keys, in seconds.",
    parse=parsers.whole_number(1, 31_622_400),
)
IDLE_FACTOR: Final = Key[float](
    "IDLE_FACTOR",
    7,
    "limits_app.E019",
    expects="number from 1 to 1000",
    doc="How long a Redis store keeps idle state: this factor times the time until the limits are full again, "
    "at least one minute. The state of entities with specific limits does not expire.",
    parse=parsers.factor,
)
UNKNOWN_KEYS: Final = Key(
    "UNKNOWN_KEYS",
    UnknownKeys.WARN,
    "limits_app.E014",
    expects="'warn' or 'raise'",
    doc="What happens when a request names a limit key that its set does not have.",
    parse=parsers.one_of(UnknownKeys),
)
ENTITY_OF_REQUEST: Final = Key[str | EntityOfRequest](
    "ENTITY_OF_REQUEST",
    "limits_app.integrations.identity.entity_of_request",
    "limits_app.E015",
    expects="function, or its dotted path",
    doc="Takes a request and returns the identifier of its entity, or None for the site itself.",
    parse=parsers.function,
)
RESOLVER_TTL_SECONDS: Final = Key[float](
    "RESOLVER_TTL_SECONDS",
    60,
    "limits_app.E016",
    expects="number of seconds above 0, at most 1000000000",
    doc="Maximum age of a cached limit set, in seconds, before it is loaded from the database again.",
    parse=parsers.seconds,
)
RESOLVER_MAX_ENTRIES: Final = Key(
    "RESOLVER_MAX_ENTRIES",
    10_000,
    "limits_app.E017",
    expects="whole number from 1 to 1000000000",
    doc="Maximum number of cached limit sets per process; 10,000 take 70 to 110 MB.",
    parse=parsers.whole_number(1, 10**9),
)
ON_UNAVAILABLE: Final = Key(
    "ON_UNAVAILABLE",
    OnUnavailable.BLOCK,
    "limits_app.E030",
    expects="'block' or 'allow' or 'local'",
    doc="What happens while the store is unavailable, unless the policy sets it: "
    "'block' fails closed, 'allow' fails open, 'local' counts in each process.",
    parse=parsers.one_of(OnUnavailable),
)
EXPECTED_PROCESSES: Final = Key[int | None](
    "EXPECTED_PROCESSES",
    None,
    "limits_app.E031",
    expects="whole number from 1 to 1000000, or None",
    doc="Number of processes that share the limits; with 'local', each one allows its part of the capacity.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
ON_UNRESOLVED: Final = Key(
    "ON_UNRESOLVED",
    OnUnresolved.BLOCK,
    "limits_app.E032",
    expects="'block' or 'allow'",
    doc="What happens when the database is unavailable and the limits are not cached.",
    parse=parsers.one_of(OnUnresolved),
)
BREAKER_FAILURE_RATIO: Final = Key[float](
    "BREAKER_FAILURE_RATIO",
    0.5,
    "limits_app.E033",
    expects="number above 0 and at most 1",
    doc="Failure ratio at which the circuit breaker of a store opens.",
    parse=parsers.share,
)
BREAKER_MIN_CALLS: Final = Key(
    "BREAKER_MIN_CALLS",
    3,
    "limits_app.E034",
    expects="whole number from 1 to 1000000",
    doc="Minimum number of calls, counted from the first failed one, before the circuit breaker can open.",
    parse=parsers.whole_number(1, 10**6),
)
BREAKER_INTERVAL_SECONDS: Final = Key[float](
    "BREAKER_INTERVAL_SECONDS",
    10,
    "limits_app.E035",
    expects="number of seconds above 0, at most 1000000000",
    doc="Interval in which calls and failures are counted, in seconds.",
    parse=parsers.seconds,
)
BREAKER_PROBE_SECONDS: Final = Key[float](
    "BREAKER_PROBE_SECONDS",
    0.5,
    "limits_app.E036",
    expects="number of seconds above 0, at most 1000000000",
    doc="Maximum delay between probes of an unavailable store by each process; also sent as Retry-After.",
    parse=parsers.seconds,
)
API_KEY_OF_REQUEST: Final = Key[str | ApiKeyOfRequest | None](
    "API_KEY_OF_REQUEST",
    None,
    "limits_app.E050",
    expects="function, or its dotted path, or None",
    doc="Takes a request and returns the API key that authenticated it, or None; only a digest of the key is used.",
    parse=parsers.or_none(parsers.function),
)
PLAN_OF_REQUEST: Final = Key[str | PlanOfRequest | None](
    "PLAN_OF_REQUEST",
    None,
    "limits_app.E068",
    expects="function, or its dotted path, or None",
    doc="Takes a request and returns the name of its plan, or None; for entities without a plan.",
    parse=parsers.or_none(parsers.function),
)
TRUSTED_PROXIES: Final = Key[tuple[Network | None, ...]](
    "TRUSTED_PROXIES",
    (),
    "limits_app.E051",
    expects="list of addresses and networks, and 'unix'",
    doc="Proxies whose X-Forwarded-For header is trusted; 'unix' is a proxy that connects through a Unix socket.",
    parse=parsers.networks,
)
IPV6_PREFIX: Final = Key(
    "IPV6_PREFIX",
    64,
    "limits_app.E052",
    expects="whole number from 1 to 128",
    doc="Number of bits of an IPv6 address that identify a client; customers usually have a /64 network.",
    parse=parsers.whole_number(1, 128),
)
HEADERS: Final = Key(
    "HEADERS",
    Headers.DRAFT,
    "limits_app.E053",
    expects="'draft' or 'legacy' or 'both' or 'none'",
    doc="Rate limit headers of responses: RateLimit ('draft'), X-RateLimit-* ('legacy'), both or none.",
    parse=parsers.one_of(Headers),
)
REFUSAL_HANDLER: Final = Key[str | RefusalHandler | None](
    "REFUSAL_HANDLER",
    None,
    "limits_app.E054",
    expects="function, or its dotted path, or None",
    doc="Takes a request and the error and returns the response to a rejected request, or None for the default one.",
    parse=parsers.or_none(parsers.function),
)
REQUEST_ID_HEADER: Final = Key(
    "REQUEST_ID_HEADER",
    "X-Request-ID",
    "limits_app.E069",
    expects="name of a header, 1 to 32 letters, digits, '.', '_' or '-'",
    doc="Header of requests with their id, which rejections show; without it, an id is generated.",
    parse=parsers.short_name,
)
USAGE: Final = Key(
    "USAGE",
    True,
    "limits_app.E060",
    expects="True or False",
    doc="Whether usage and rejections are counted, by the stores that support it.",
    parse=parsers.yes_or_no,
)
USAGE_HOURS_KEPT: Final = Key[int | None](
    "USAGE_HOURS_KEPT",
    31 * 24,
    "limits_app.E061",
    expects="whole number from 1 to 1000000, or None",
    doc="Retention of hourly snapshots, in hours; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
USAGE_DAYS_KEPT: Final = Key[int | None](
    "USAGE_DAYS_KEPT",
    2 * 366,
    "limits_app.E062",
    expects="whole number from 1 to 36600, or None",
    doc="Retention of daily snapshots, in days; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 36_600)),
)
DENIALS_HOURS_KEPT: Final = Key[int | None](
    "DENIALS_HOURS_KEPT",
    7 * 24,
    "limits_app.E063",
    expects="whole number from 1 to 1000000, or None",
    doc="Retention of rejections by minute, in hours; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
USAGE_ARCHIVE_DIR: Final = Key(
    "USAGE_ARCHIVE_DIR",
    None,
    "limits_app.E064",
    expects="absolute path, or None",
    doc="Directory in which the pruning task archives rows as gzipped JSON lines before it deletes them, or None.",
    parse=parsers.directory,
)
NEAR_THRESHOLDS: Final = Key[tuple[float, ...]](
    "NEAR_THRESHOLDS",
    (0.8,),
    "limits_app.E065",
    expects="list of numbers above 0 and at most 1",
    doc="Used fractions of a limit at which the signal limit_near is sent.",
    parse=parsers.shares,
)
METRICS: Final = Key[tuple[Exporter, ...]](
    "METRICS",
    (),
    "limits_app.E066",
    expects="list of 'prometheus' and 'opentelemetry'",
    doc="Metrics exporters to enable; each requires the extra of the same name.",
    parse=parsers.list_of(parsers.one_of(Exporter)),
)
ALERTS: Final = Key(
    "ALERTS",
    False,
    "limits_app.E067",
    expects="True or False",
    doc="Whether this process records events for the alert rules of the admin.",
    parse=parsers.yes_or_no,
)

KEYS: Final[Mapping[str, Key[Any]]] = {name: key for name, key in globals().items() if isinstance(key, Key)}
"""All keys by name, in the order above."""
