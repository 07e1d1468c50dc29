"""Patterns: entities that stand for all clients whose identifiers begin alike, or whose addresses are in a network."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import takewhile
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import connections
from django.db.models import Q, QuerySet
from django.utils.translation import gettext as _

from limits_app import conf
from limits_app.conf import parsed_network
from limits_app.engine import shown
from limits_app.models.prefixes import ADDRESS, kind_of

SEPARATORS: Final = ":/.-_@"
"""The characters after which the “*” of a pattern may be."""

_MAPPED: Final = f"{ADDRESS}::ffff:"
"""What precedes IPv4 addresses that are mapped to IPv6; clients are identified by the IPv4 address."""
_LAST: Final = "\U0010ffff"
"""No character comes after it."""
_NETWORK_RANK: Final = 1000
"""Networks are more specific than any prefix."""


def check_pattern(identifier: str) -> None:
    """Raise ValidationError for an identifier that looks like a pattern and is not a valid one."""
    if identifier.endswith("*") and identifier[-2:-1] not in tuple(SEPARATORS):
        raise ValidationError(
            _("A pattern needs one of %(separators)s before its “*”, such as “key:*” or “user:eu-*”."),
            params={"separators": " ".join(SEPARATORS)},
        )
    if identifier.endswith("*") or not _resembles_network(identifier):
        return
    try:
        network = parsed_network(identifier.removeprefix(ADDRESS))
    except ValueError:
        raise ValidationError(
            _("%(value)s is not a network: write one such as “ip:10.0.0.0/8”."), params={"value": shown(identifier)}
        ) from None
    if identifier != f"{ADDRESS}{network}":
        raise ValidationError(
            _("Write the network as “ip:%(network)s”, not %(value)s."),
            params={"network": network, "value": shown(identifier)},
        )


def check_client(identifier: str) -> None:
    """Raise ValidationError for a pattern, where one client is meant; and as `check_pattern`."""
    check_pattern(identifier)
    if is_pattern(identifier):
        name = shown(identifier)
        raise ValidationError(
            _("entity %(name)s is a pattern: name one entity, or set a policy for it"), params={"name": name}
        )


def check_requester(identifier: str) -> None:
    """Raise ValidationError for an identifier or a pattern that no request has or matches; and as `check_pattern`.

    The clients of requests with an IPv6 address are identified by their network of LIMITS["IPV6_PREFIX"] bits.
    """
    check_pattern(identifier)
    client = client_network(identifier)
    if client not in {None, identifier}:
        raise ValidationError(
            _(
                "%(value)s matches no request, since clients are identified by %(bits)s bits of their IPv6 address "
                "(IPV6_PREFIX): write “%(client)s”, or a larger network."
            ),
            params={"value": shown(identifier), "bits": conf.get(conf.IPV6_PREFIX), "client": client},
        )


def is_malformed_network(identifier: str) -> bool:
    """Whether an identifier is written like a network, but `check_pattern` refuses it."""
    if not _resembles_network(identifier):
        return False
    try:
        return identifier != f"{ADDRESS}{parsed_network(identifier.removeprefix(ADDRESS))}"
    except ValueError:
        return True


def is_pattern(identifier: str) -> bool:
    """Whether an identifier is a pattern: it ends in “*”, or it is a network that is not a single client.

    A client with an IPv6 address is identified by its network of LIMITS["IPV6_PREFIX"] bits.
    """
    if identifier.endswith("*"):
        return True
    network = _network_of(identifier)
    if network is None or "/" not in identifier:
        return False
    return isinstance(network, IPv4Network) or network.prefixlen != conf.get(conf.IPV6_PREFIX)


def patterns_in(field: str) -> Q:
    """The filter for rows with a pattern in a field."""
    is_network = Q(**{f"{field}__startswith": ADDRESS, f"{field}__contains": "/"})
    is_client = Q(**{f"{field}__contains": "::", f"{field}__endswith": f"/{conf.get(conf.IPV6_PREFIX)}"})
    return Q(**{f"{field}__endswith": "*"}) | (is_network & ~is_client)


def specificity(identifier: str) -> int:
    """A number that is higher for the more specific one of two patterns that match the same client."""
    network = None if identifier.endswith("*") else _network_of(identifier)
    return len(identifier) if network is None else _NETWORK_RANK + network.prefixlen


def networks_of(identifier: str) -> list[str]:
    """The identifiers of all networks that the address of a client is in; none for clients without an address."""
    network = _network_of(identifier)
    if network is None:
        return []
    return _larger_networks(network, range(network.prefixlen + 1))


def other_networks_of(identifier: str) -> list[str]:
    """The identifiers of the networks of a client without its own identifier, unless that is a pattern."""
    if not identifier.startswith(ADDRESS):
        return []
    return [network for network in networks_of(identifier) if network != identifier or is_pattern(identifier)]


def client_network(identifier: str) -> str | None:
    """The identifier of the client that an IPv6 address belongs to, which is not a pattern; None for all others."""
    return _client_network(identifier, conf.get(conf.IPV6_PREFIX))


@lru_cache(maxsize=4096)
def _client_network(identifier: str, bits: int) -> str | None:
    network = _network_of(identifier) if ":" in identifier.removeprefix(ADDRESS) else None
    if not isinstance(network, IPv6Network) or network.prefixlen < bits:
        return None
    return f"{ADDRESS}{network.supernet(new_prefix=bits)}"


def prefixes_of(identifier: str) -> list[str]:
    """The patterns that end in “*” and match an identifier."""
    ends = [index + 1 for index, character in enumerate(identifier) if character in SEPARATORS]
    return [f"{identifier[:end]}*" for end in ends]


def patterns_of(identifier: str) -> list[str]:
    """All patterns that match the identifier of a client, as the query for policies finds them."""
    return prefixes_of(identifier) + other_networks_of(identifier)


def begins(field: str, text: str, using: str) -> Q:
    """The filter for rows whose field begins with a text, in words that the database looks up in an index."""
    if connections[using].vendor == "postgresql":
        return Q(**{f"{field}__startswith": text})
    return Q(**{f"{field}__gte": text, f"{field}__lt": text + _LAST})


def matching(field: str, name: str, identifiers: QuerySet[Any, str]) -> Q:
    """The filter for rows whose field is an identifier or matches a pattern; `identifiers` are those of addresses."""
    if name.endswith("*"):
        return begins(field, name.removesuffix("*"), identifiers.db)
    if not is_pattern(name):
        return Q(**{field: name})
    network = Patterns([name])
    return Q(**{f"{field}__in": [identifier for identifier in identifiers if identifier in network]})


def stem_of(pattern: str) -> str:
    """What all identifiers that match a pattern begin with; of a network, as far as its texts are alike."""
    if pattern.endswith("*"):
        return pattern.removesuffix("*")
    network = _network_of(pattern)
    if network is None:
        return pattern
    separator, bits = (".", 8) if isinstance(network, IPv4Network) else (":", 16)
    parts = network.network_address.exploded.split(separator)[
        : min(network.prefixlen, network.max_prefixlen - 1) // bits
    ]
    if isinstance(network, IPv6Network):  # in which "::" stands for zeros
        parts = [*takewhile(bool, (part.lstrip("0") for part in parts))]
    return ADDRESS + "".join(f"{part}{separator}" for part in parts)


class Patterns:
    """Identifiers and patterns, and which of them match an identifier: the same ones as the query for policies finds.

    The time of a look-up does not depend on their number.
    """

    __slots__ = ("_longest", "_names", "_sizes")

    def __init__(self, identifiers: Iterable[str] = ()) -> None:
        self._names = frozenset(identifiers)
        self._longest = max((len(name) for name in self._names if name.endswith("*")), default=0)
        networks = [_network_of(name) for name in self._names if "/" in name]  # also that of a client
        sizes = {(network.version, network.prefixlen) for network in networks if network is not None}
        self._sizes = tuple(sorted(sizes))

    def __bool__(self) -> bool:
        return bool(self._names)

    def __contains__(self, identifier: object) -> bool:
        return isinstance(identifier, str) and bool(self.matching(identifier))

    @property
    def kinds(self) -> frozenset[str]:
        """What precedes the colon of each."""
        return frozenset(map(kind_of, self._names))

    def matching(self, identifier: str) -> list[str]:
        """Return those that are this identifier, or match it."""
        names = [identifier]
        if self._longest:
            ends = [end for end, character in enumerate(identifier[: self._longest], 1) if character in SEPARATORS]
            names += [f"{identifier[:end]}*" for end in ends]
        if self._sizes:
            names += _networks_around(identifier, self._sizes)
        return [name for name in dict.fromkeys(names) if name in self._names]


def _resembles_network(identifier: str) -> bool:
    return identifier.startswith(ADDRESS) and ("/" in identifier or identifier.lower().startswith(_MAPPED))


@lru_cache(maxsize=4096)
def _networks_around(identifier: str, sizes: tuple[tuple[int, int], ...]) -> list[str]:
    """The networks of some versions and sizes that an address or a network is in, as patterns."""
    network = _network_of(identifier)
    if network is None:
        return []
    fitting = [size for version, size in sizes if version == network.version and size <= network.prefixlen]
    return _larger_networks(network, fitting)


def _larger_networks(network: IPv4Network | IPv6Network, sizes: Iterable[int]) -> list[str]:
    """The networks of some sizes that one is in, as `supernet` gives them, in a tenth of its time."""
    kind, number = type(network.network_address), int(network.network_address)
    rests = [(size, network.max_prefixlen - size) for size in sizes]
    return [f"{ADDRESS}{kind(number >> rest << rest)}/{size}" for size, rest in rests]


def _network_of(identifier: str) -> IPv4Network | IPv6Network | None:
    """The network, or the address as a network, of an identifier that begins with `ip:`."""
    if not identifier.startswith(ADDRESS):
        return None
    try:
        return ip_network(identifier.removeprefix(ADDRESS))
    except ValueError:
        return None
