"""The keys of `LIMITS`: for each its default, the id of its check, what it expects, and its line in the docs."""

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
    RefusalHandler,
    StoreKind,
    StoreSettings,
    UnknownKeys,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Key(Generic[T]):
    """One key of `LIMITS`: what it expects, how a value is checked, and its line in the docs."""

    name: str
    default: T
    check_id: str
    expects: str
    doc: str
    parse: Callable[[object], T]


STORE: Final = Key(
    "STORE",
    "default",
    "limits_app.E010",
    expects="alias of STORES",
    doc="The store that is used where nothing else is said.",
    parse=parsers.alias,
)
STORES: Final = Key[Mapping[str, StoreSettings]](
    "STORES",
    {"default": StoreSettings(StoreKind.PROCESS)},
    "limits_app.E011",
    expects="dict of alias to {'KIND': 'process' or 'memory' or 'redis' or 'database', ...}",
    doc="Where the state of limits lives; a process store may have a STATE_DIR and MAP_MEGABYTES of its own, "
    "a Redis store has either a CACHE (the alias of a Redis cache of Django or django-redis) or a URL, "
    "with which it may be a CLUSTER, "
    "and may have a PREFIX for all its keys, an IDLE_FACTOR of its own, "
    "CONNECT_TIMEOUT_SECONDS (0.2 by default) and REPLY_TIMEOUT_SECONDS (0.1), "
    "and a database store may say USING which alias of DATABASES, and LOCK_TIMEOUT_SECONDS (1) "
    "and CONNECT_TIMEOUT_SECONDS (0.2).",
    parse=parsers.stores,
)
STATE_DIR: Final = Key(
    "STATE_DIR",
    None,
    "limits_app.E012",
    expects="absolute path, or None",
    doc="The directory of process stores; None lets the store choose one that is private to the user.",
    parse=parsers.directory,
)
MAP_MEGABYTES: Final = Key(
    "MAP_MEGABYTES",
    16,
    "limits_app.E013",
    expects="whole number from 1 to 1048576",
    doc="The size of a process store's file, reserved on the disk before use.",
    parse=parsers.whole_number(1, parsers.MAX_MEGABYTES),
)
IDEMPOTENCY_SECONDS: Final = Key(
    "IDEMPOTENCY_SECONDS",
    86_400,
    "limits_app.E021",
    expects="whole number from 1 to 31622400",
    doc="How long a request that comes again with its idempotency key is not charged again.",
    parse=parsers.whole_number(1, 31_622_400),
)
IDLE_FACTOR: Final = Key[float](
    "IDLE_FACTOR",
    7,
    "limits_app.E019",
    expects="number from 1 to 1000",
    doc="How long a Redis store keeps state that nobody uses: so many times as long as it takes to be full again, "
    "and a minute at least; that of entities with limits of their own it keeps for ever.",
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
    doc="Takes a request and gives the identifier of the entity that makes it, or None for the site itself.",
    parse=parsers.function,
)
RESOLVER_TTL_SECONDS: Final = Key[float](
    "RESOLVER_TTL_SECONDS",
    60,
    "limits_app.E016",
    expects="number of seconds above 0, at most 1000000000",
    doc="How long a compiled limit set is used at most before the database is asked again.",
    parse=parsers.seconds,
)
RESOLVER_MAX_ENTRIES: Final = Key(
    "RESOLVER_MAX_ENTRIES",
    10_000,
    "limits_app.E017",
    expects="whole number from 1 to 1000000000",
    doc="How many compiled limit sets each process keeps; 10,000 take 70 to 110 MB.",
    parse=parsers.whole_number(1, 10**9),
)
ON_UNAVAILABLE: Final = Key(
    "ON_UNAVAILABLE",
    OnUnavailable.BLOCK,
    "limits_app.E030",
    expects="'block' or 'allow' or 'local'",
    doc="What happens while the store is down, where the policy that applies does not say.",
    parse=parsers.one_of(OnUnavailable),
)
EXPECTED_PROCESSES: Final = Key[int | None](
    "EXPECTED_PROCESSES",
    None,
    "limits_app.E031",
    expects="whole number from 1 to 1000000, or None",
    doc="How many processes of the site share the limits; with 'local', each gives out its part of a capacity.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
ON_UNRESOLVED: Final = Key(
    "ON_UNRESOLVED",
    OnUnresolved.BLOCK,
    "limits_app.E032",
    expects="'block' or 'allow'",
    doc="What happens when the database is down and the process does not know which limits hold.",
    parse=parsers.one_of(OnUnresolved),
)
BREAKER_FAILURE_RATIO: Final = Key[float](
    "BREAKER_FAILURE_RATIO",
    0.5,
    "limits_app.E033",
    expects="number above 0 and at most 1",
    doc="From which part of failed calls on a store is no longer asked.",
    parse=parsers.share,
)
BREAKER_MIN_CALLS: Final = Key(
    "BREAKER_MIN_CALLS",
    3,
    "limits_app.E034",
    expects="whole number from 1 to 1000000",
    doc="How many calls there must be, counted from the first that failed, before their failures mean anything.",
    parse=parsers.whole_number(1, 10**6),
)
BREAKER_INTERVAL_SECONDS: Final = Key[float](
    "BREAKER_INTERVAL_SECONDS",
    10,
    "limits_app.E035",
    expects="number of seconds above 0, at most 1000000000",
    doc="Over how long calls and failures are counted.",
    parse=parsers.seconds,
)
BREAKER_PROBE_SECONDS: Final = Key[float](
    "BREAKER_PROBE_SECONDS",
    0.5,
    "limits_app.E036",
    expects="number of seconds above 0, at most 1000000000",
    doc="The longest pause in which each process asks whether a store is back; clients are told to wait as long.",
    parse=parsers.seconds,
)
API_KEY_OF_REQUEST: Final = Key[str | ApiKeyOfRequest | None](
    "API_KEY_OF_REQUEST",
    None,
    "limits_app.E050",
    expects="function, or its dotted path, or None",
    doc="Takes a request and gives the API key with which it was authenticated, or None; limits never see it in clear.",
    parse=parsers.or_none(parsers.function),
)
TRUSTED_PROXIES: Final = Key[tuple[Network | None, ...]](
    "TRUSTED_PROXIES",
    (),
    "limits_app.E051",
    expects="list of addresses and networks, and 'unix'",
    doc="The proxies whose X-Forwarded-For is believed; 'unix' is one that connects through a Unix socket.",
    parse=parsers.networks,
)
IPV6_PREFIX: Final = Key(
    "IPV6_PREFIX",
    64,
    "limits_app.E052",
    expects="whole number from 1 to 128",
    doc="How many bits of an IPv6 address tell clients apart; a customer usually has a network of 64.",
    parse=parsers.whole_number(1, 128),
)
HEADERS: Final = Key(
    "HEADERS",
    Headers.DRAFT,
    "limits_app.E053",
    expects="'draft' or 'legacy' or 'both' or 'none'",
    doc="Which headers tell clients about their limits: RateLimit as in the draft, X-RateLimit-* as before it.",
    parse=parsers.one_of(Headers),
)
REFUSAL_HANDLER: Final = Key[str | RefusalHandler | None](
    "REFUSAL_HANDLER",
    None,
    "limits_app.E054",
    expects="function, or its dotted path, or None",
    doc="Takes a request and the error and gives the response of a refusal, or None for the usual one.",
    parse=parsers.or_none(parsers.function),
)
USAGE: Final = Key(
    "USAGE",
    True,
    "limits_app.E060",
    expects="True or False",
    doc="Whether stores that can count what they admit do so, and refusals are counted.",
    parse=parsers.yes_or_no,
)
USAGE_HOURS_KEPT: Final = Key[int | None](
    "USAGE_HOURS_KEPT",
    31 * 24,
    "limits_app.E061",
    expects="whole number from 1 to 1000000, or None",
    doc="How many hours of hourly snapshots pruning keeps; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
USAGE_DAYS_KEPT: Final = Key[int | None](
    "USAGE_DAYS_KEPT",
    2 * 366,
    "limits_app.E062",
    expects="whole number from 1 to 36600, or None",
    doc="How many days of daily snapshots pruning keeps; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 36_600)),
)
DENIALS_HOURS_KEPT: Final = Key[int | None](
    "DENIALS_HOURS_KEPT",
    7 * 24,
    "limits_app.E063",
    expects="whole number from 1 to 1000000, or None",
    doc="How many hours of refusals by the minute pruning keeps; None keeps all.",
    parse=parsers.or_none(parsers.whole_number(1, 10**6)),
)
USAGE_ARCHIVE_DIR: Final = Key(
    "USAGE_ARCHIVE_DIR",
    None,
    "limits_app.E064",
    expects="absolute path, or None",
    doc="Where the task that prunes writes what it is about to delete, as gzipped lines of JSON; None for nowhere.",
    parse=parsers.directory,
)
NEAR_THRESHOLDS: Final = Key[tuple[float, ...]](
    "NEAR_THRESHOLDS",
    (0.8,),
    "limits_app.E065",
    expects="list of numbers above 0 and at most 1",
    doc="At which parts of a limit in use the signal limit_near is sent.",
    parse=parsers.shares,
)
METRICS: Final = Key[tuple[Exporter, ...]](
    "METRICS",
    (),
    "limits_app.E066",
    expects="list of 'prometheus' and 'opentelemetry'",
    doc="To whom metrics are given; each needs the extra of its name.",
    parse=parsers.list_of(parsers.one_of(Exporter)),
)

KEYS: Final[Mapping[str, Key[Any]]] = {name: key for name, key in globals().items() if isinstance(key, Key)}
"""All keys by name, in the order above."""
