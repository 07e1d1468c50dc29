"""Parsers of settings: each returns the parsed value, or raises a ValueError with the allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from limits_app.engine import NORMAL, is_priority_name, shown
from limits_app.engine.limits import CallLimit

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

_MAPPED_BITS: Final = 96
"""The bits of `::ffff:0:0/96`, the network of IPv4 addresses that are mapped to IPv6."""

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
OfRequest = Callable[["HttpRequest"], str | None]
"""Returns the entity, the API key or the plan of a request."""
RefusalHandler = Callable[["HttpRequest", Exception], "HttpResponse | None"]
Network = IPv4Network | IPv6Network

MAX_MEGABYTES: Final = 1024 * 1024
MAX_SCOPES: Final = 1_000_000_000
MOST_PRIORITIES: Final = 10
_PLAIN_NETWORKS: Final = "a list of addresses and networks such as ['10.0.0.0/8']"
_NETWORKS: Final = "a list of addresses and networks such as ['10.0.0.0/8', 'unix']"


ALL_USAGE: Final = "all"
"""The value of `LIMITS["USAGE"]` that keeps the rows of all clients."""


class StoreKind(StrEnum):
    """Kinds of stores."""

    PROCESS = "process"
    MEMORY = "memory"
    REDIS = "redis"
    DATABASE = "database"


class UnknownKeys(StrEnum):
    """What happens when a request names a limit key that its set does not have."""

    WARN = "warn"
    RAISE = "raise"


class Unpriced(StrEnum):
    """What happens to a request of a resource without a price in the currency of a limit on it."""

    ERROR = "error"
    FREE = "free"


class OnUnavailable(StrEnum):
    """What happens to requests while the store of their limits is unavailable."""

    BLOCK = "block"
    ALLOW = "allow"
    LOCAL = "local"


class HeaderStyle(StrEnum):
    """Which headers report limits to clients."""

    DRAFT = "draft"
    LEGACY = "legacy"
    BOTH = "both"
    NONE = "none"


class Exporter(StrEnum):
    """Metrics exporters."""

    PROMETHEUS = "prometheus"
    OPENTELEMETRY = "opentelemetry"


class OnUnresolved(StrEnum):
    """What happens to requests whose limits cannot be loaded from the database."""

    BLOCK = "block"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One entry of `STORES`; missing values are taken from `LIMITS` itself."""

    kind: StoreKind
    state_dir: Path | None = None
    map_megabytes: int | None = None
    max_scopes: int | None = None
    cache: str | None = None
    url: str | None = None
    cluster: bool = False
    prefix: str | None = None
    idle_factor: float | None = None
    using: str | None = None
    lock_timeout_seconds: float | None = None
    connect_timeout_seconds: float | None = None
    reply_timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Exempt:
    """Who is exempt from all limits."""

    staff: bool = False
    superusers: bool = False
    groups: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    entities: tuple[str, ...] = ()


def _wrong(expected: str, value: object) -> ValueError:
    return ValueError(f"must be {expected}, not {shown(value)}")


def text(pattern: str, expected: str) -> Callable[[object], str]:
    """Make a parser of texts that match a pattern."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise _wrong(expected, value)
        return value

    return parse


def number(expected: str, is_allowed: Callable[[float], bool]) -> Callable[[object], float]:
    """Make a parser of numbers, whole or not."""

    def parse(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not is_allowed(value):
            raise _wrong(expected, value)
        return value

    return parse


alias: Final = text(r"[A-Za-z][A-Za-z0-9_-]{0,63}", "a letter followed by at most 63 letters, digits, '_' or '-'")
short_name: Final = text(r"[A-Za-z0-9._-]{1,32}", "1 to 32 letters, digits, '.', '_' or '-'")
template_name: Final = text(r"[^\s\\]{1,200}\.\w+", "the name of a template, such as 'base.html'")
seconds: Final = number(
    "a number of seconds above 0 and at most 1000000000", lambda number: 0 < number <= 1_000_000_000
)
share: Final = number("a number above 0 and at most 1", lambda number: 0 < number <= 1)
factor: Final = number("a number from 1 to 1000", lambda number: 1 <= number <= 1000)


def directory(value: object) -> Path | None:
    """Parse an absolute directory."""
    if value is None:
        return None
    if not isinstance(value, str | Path) or "\0" in str(value) or not Path(value).is_absolute():
        raise _wrong("an absolute path, so that every process means the same directory, or None", value)
    return Path(value)


def whole_number(least: int, most: int) -> Callable[[object], int]:
    """Make a parser of whole numbers in a range."""

    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(f"a whole number from {least} to {most}", value)
        return value

    return parse


def redis_url(value: object) -> str:
    """Parse the address of a Redis server. Errors do not repeat it where it may have a password."""
    with suppress(ValueError):
        address = urlsplit(value) if isinstance(value, str) else None
        if address is not None and address.scheme in {"redis", "rediss", "unix"} and _is_encoded(address):
            return str(value)
    expected = "an address that starts with redis://, rediss:// or unix://"
    if isinstance(value, str) and "@" in value:
        raise ValueError(f"must be {expected}, with special characters of the user and the password percent-encoded")
    raise _wrong(expected, value)


def _is_encoded(address: SplitResult) -> bool:
    """Whether host and port of an address are where they belong, and not in a password that has a slash."""
    return address.scheme == "unix" or (address.port != 0 and "@" not in address._replace(netloc="").geturl())


def yes_or_no(value: object) -> bool:
    """Parse a switch."""
    if not isinstance(value, bool):
        raise _wrong("True or False", value)
    return value


def usage(value: object) -> bool | str:
    """Parse the switch of usage, which may also name what is kept."""
    if not isinstance(value, bool) and value != ALL_USAGE:
        raise _wrong(f"True, False or {ALL_USAGE!r}", value)
    return value


def list_of(parse: Callable[[object], T], expected: str = "a list") -> Callable[[object], tuple[T, ...]]:
    """Make a parser of lists from a parser of entries."""

    def parse_all(value: object) -> tuple[T, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise _wrong(expected, value)
        return tuple(map(parse, value))

    return parse_all


def currencies(value: object) -> tuple[str, ...]:
    """Parse keys of limits that are currencies."""
    return tuple(dict.fromkeys(list_of(_currency, "a list of keys such as 'usd'")(value)))


def _currency(value: object) -> str:
    if isinstance(value, str) and value != CallLimit.key and re.fullmatch(r"[a-z][a-z0-9_]{0,15}", value):
        return value
    raise _wrong("a key of 1 to 16 small letters, digits and '_', such as 'usd'", value)


def priorities(value: object) -> tuple[str, ...]:
    """Parse the names of classes, the highest first."""
    names = list_of(_priority, "a list of names such as 'high'")(value)
    if NORMAL not in names or len({*names}) < len(names) or len(names) > MOST_PRIORITIES:
        raise _wrong(f"a list of at most {MOST_PRIORITIES} different names, one of which is {NORMAL!r}", value)
    return names


def _priority(value: object) -> str:
    if isinstance(value, str) and is_priority_name(value):
        return value
    raise _wrong("a name of at most 32 small letters, digits, '_' and '-', such as 'high'", value)


def shares(value: object) -> tuple[float, ...]:
    """Parse fractions; returns them sorted and without duplicates."""
    return tuple(sorted(set(list_of(share)(value))))


def or_none(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Make a parser that also accepts None."""
    return lambda value: None if value is None else parse(value)


def function_of(arguments: str) -> Callable[[object], str | Callable[..., Any]]:
    """Make a parser of functions, or of the dotted path of one that is imported on first use."""

    def parse(value: object) -> str | Callable[..., Any]:
        if callable(value):
            return value
        if not isinstance(value, str) or "." not in value or not all(part.isidentifier() for part in value.split(".")):
            raise _wrong(f"a function that takes {arguments}, or the dotted path of one", value)
        return value

    return parse


function: Final = function_of("a request")


def namespaces(value: object) -> tuple[str, ...] | str | Callable[..., Any]:
    """Parse the names of namespaces, or a function that returns them."""
    if isinstance(value, str) or callable(value):
        return function_of("no arguments")(value)
    return list_of(text(r"(?s).{1,255}", "the name of a namespace"), "a list of names, or a function")(value)


def parsed_network(text: str) -> Network:
    """Parse an address or a network; an IPv4 address that is mapped to IPv6 is the IPv4 address, as of clients."""
    network = ip_network(text, strict=False)
    mapped = network.network_address.ipv4_mapped if isinstance(network, IPv6Network) else None
    if mapped is None or network.prefixlen < _MAPPED_BITS:
        return network
    return IPv4Network((mapped, network.prefixlen - _MAPPED_BITS))


def _network(value: object) -> Network | None:
    if value == "unix":
        return None
    try:
        network = parsed_network(value if isinstance(value, str) else "")
    except ValueError:
        raise _wrong(_NETWORKS, [value]) from None
    if network.prefixlen == 0:
        raise ValueError(f"must not include every address, as {shown(value)} does")
    return network


networks: Final = list_of(_network, _NETWORKS)
"""Parses IP addresses and networks; the result contains None for 'unix', a Unix socket."""


def _plain_network(value: object) -> Network:
    try:
        return parsed_network(value if isinstance(value, str) else "")
    except ValueError:
        raise _wrong(_PLAIN_NETWORKS, [value]) from None


_EXEMPT_OPTIONS: Final[Mapping[str, Callable[[object], Any]]] = {
    "STAFF": yes_or_no,
    "SUPERUSERS": yes_or_no,
    "GROUPS": list_of(text(r"(?s).{1,150}", "the name of a group"), "a list of names of groups"),
    "NETWORKS": list_of(_plain_network, _PLAIN_NETWORKS),
    "ENTITIES": list_of(text(r"(?s).{1,255}", "an identifier of 1 to 255 characters"), "a list of identifiers"),
}


def exempt(value: object) -> Exempt:
    """Parse who is exempt from all limits."""
    if not isinstance(value, Mapping):
        raise _wrong("a dict such as {'STAFF': True, 'NETWORKS': ['10.0.0.0/8']}", value)
    for option in value:
        if option not in _EXEMPT_OPTIONS:
            raise ValueError(f"does not take {shown(option)}, only {', '.join(map(repr, _EXEMPT_OPTIONS))}")
    return Exempt(**{option.lower(): _part(value, option) for option in value})


def _part(value: Mapping[str, object], option: str) -> Any:
    try:
        return _EXEMPT_OPTIONS[option](value[option])
    except ValueError as error:
        raise ValueError(f"{option} {error}") from None


def one_of(choices: type[E]) -> Callable[[object], E]:
    """Make a parser of a choice."""

    def parse(value: object) -> E:
        try:
            return choices(value if isinstance(value, str) else "")
        except ValueError:
            raise _wrong(" or ".join(repr(str(choice)) for choice in choices), value) from None

    return parse


_STORE_OPTIONS: Final[Mapping[StoreKind, Mapping[str, Callable[[object], Any]]]] = {
    StoreKind.PROCESS: {"STATE_DIR": directory, "MAP_MEGABYTES": whole_number(1, MAX_MEGABYTES)},
    StoreKind.MEMORY: {"MAX_SCOPES": whole_number(1, MAX_SCOPES)},
    StoreKind.REDIS: {
        "CACHE": alias,
        "URL": redis_url,
        "CLUSTER": yes_or_no,
        "PREFIX": short_name,
        "IDLE_FACTOR": factor,
        "CONNECT_TIMEOUT_SECONDS": seconds,
        "REPLY_TIMEOUT_SECONDS": seconds,
    },
    StoreKind.DATABASE: {"USING": alias, "LOCK_TIMEOUT_SECONDS": seconds, "CONNECT_TIMEOUT_SECONDS": seconds},
}


def stores(value: object) -> Mapping[str, StoreSettings]:
    """Parse the settings of each store, by alias."""
    if not isinstance(value, Mapping) or not value:
        raise _wrong("a dict such as {'default': {'KIND': 'process'}}", value)
    return {alias(name): _store(name, entry) for name, entry in value.items()}


def _store(name: str, entry: object) -> StoreSettings:
    if not isinstance(entry, Mapping) or "KIND" not in entry:
        raise ValueError(f"{name!r} must be a dict with a 'KIND', such as {{'KIND': 'process'}}, not {shown(entry)}")
    kind = _option(name, entry, "KIND", one_of(StoreKind))
    options = _STORE_OPTIONS[kind]
    for option in entry:
        if option != "KIND" and option not in options:
            raise ValueError(f"{name!r} does not take {shown(option)}, only {', '.join(map(repr, ['KIND', *options]))}")
    taken = {option.lower(): _option(name, entry, option, options[option]) for option in options if option in entry}
    chosen = StoreSettings(kind, **taken)
    if chosen.cache and chosen.url:
        raise ValueError(f"{name!r} names its server twice, by CACHE and by URL: leave one of them out")
    if chosen.cluster and not chosen.url:
        raise ValueError(f"{name!r}: CLUSTER takes the URL of one of its servers, and no CACHE")
    return chosen


def _option(name: str, entry: Mapping[str, object], option: str, parse: Callable[[object], T]) -> T:
    try:
        return parse(entry[option])
    except ValueError as error:
        raise ValueError(f"{name!r}: {option} {error}") from None
