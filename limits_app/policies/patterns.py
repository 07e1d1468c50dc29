"""The patterns that exist, by their form: those that match a client are found without going through all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_network

from limits_app.conf import Network
from limits_app.models.patterns import SEPARATORS, is_pattern
from limits_app.models.prefixes import ADDRESS

_Form = tuple[int, int]
"""The version of a network, and how many bits of an address it fixes."""


class PatternIndex:
    """An immutable set of patterns.

    It finds what the query for policies finds: prefixes that end with a separator, and networks in their usual form.
    """

    __slots__ = ("_lengths", "_networks", "_prefixes", "identifiers")

    def __init__(self, identifiers: frozenset[str] = frozenset(), base: PatternIndex | None = None) -> None:
        """`base` has other patterns, which this set has as well."""
        prefixes = [identifier[:-1] for identifier in identifiers if identifier.endswith("*")]
        prefixes = [prefix for prefix in prefixes if prefix.endswith(tuple(SEPARATORS))]
        networks = _networks(identifiers)
        if base is None:
            self.identifiers = identifiers
            self._prefixes = frozenset(prefixes)
        else:
            self.identifiers = base.identifiers | identifiers
            self._prefixes = base._prefixes.union(prefixes)
            networks = {form: {**base._networks.get(form, {}), **of_form} for form, of_form in networks.items()}
            networks = {**base._networks, **networks}
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        self._networks: Mapping[_Form, Mapping[int, str]] = dict(sorted(networks.items()))

    def __len__(self) -> int:
        return len(self.identifiers)

    def with_added(self, identifiers: Iterable[str]) -> PatternIndex:
        """The same set with the patterns among some identifiers."""
        added = {identifier for identifier in identifiers if identifier not in self.identifiers}
        patterns = [identifier for identifier in added if _may_be_pattern(identifier) and is_pattern(identifier)]
        return PatternIndex(frozenset(patterns), self) if patterns else self

    def matching(self, identifier: str) -> tuple[str, ...]:
        """The patterns that match the identifier of a client, always in the same order."""
        patterns = []
        for length in self._lengths:
            if length > len(identifier):
                break
            if identifier[:length] in self._prefixes:
                patterns.append(f"{identifier[:length]}*")
        if self._networks and identifier.startswith(ADDRESS):
            patterns += self._matching_networks(identifier)
        return tuple(patterns)

    def _matching_networks(self, identifier: str) -> list[str]:
        network = network_of(identifier)
        if network is None:
            return []
        address, bits = int(network.network_address), network.max_prefixlen
        return [
            networks[address >> (bits - length)]
            for (version, length), networks in self._networks.items()
            if version == network.version and length <= network.prefixlen and address >> (bits - length) in networks
        ]


def network_of(identifier: str) -> Network | None:
    """The network, or the address as a network, that an identifier such as `ip:10.0.0.1` stands for."""
    try:
        return ip_network(identifier.removeprefix(ADDRESS)) if identifier.startswith(ADDRESS) else None
    except ValueError:
        return None


def _may_be_pattern(identifier: str) -> bool:
    """Whether an identifier has the form of a pattern; most have not, which costs little to see."""
    return identifier.endswith("*") or (identifier.startswith(ADDRESS) and "/" in identifier)


def _networks(identifiers: Iterable[str]) -> dict[_Form, Mapping[int, str]]:
    by_form: dict[_Form, dict[int, str]] = {}
    for identifier in sorted(identifiers):
        network = None if identifier.endswith("*") else network_of(identifier)
        if network is not None and identifier == f"{ADDRESS}{network}":
            length = network.prefixlen
            address = int(network.network_address) >> (network.max_prefixlen - length)
            by_form.setdefault((network.version, length), {})[address] = identifier
    return {**by_form}
