"""Patterns in memory match what the query for policies matches."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.models.patterns import Patterns, is_pattern, patterns_of, stem_of
from limits_app.policies import patterns
from limits_app.policies.patterns import PatternIndex

PATTERNS = (
    "key:*", "key:eu-*", "key:eu-1/*", "user:*", "a_*", "@*", "no*", "*",
    "ip:*", "ip:10.*", "ip:10.0.0.0/8", "ip:10.1.0.0/16", "ip:10.1.2.3/32", "ip:0.0.0.0/0", "ip:10.1.2.3/8",
    "ip:2001:db8::/32", "ip:2001:db8::/128", "ip:::/0", "ip:2001:*", "ip:x/8",
)  # fmt: skip
CLIENTS = (
    "key:1", "key:eu-1", "key:eu-1/a", "key:", "key", "a_", "@", "no", "nothing", "", "user:1", "üser:1",
    "ip:10.1.2.3", "ip:10.255.0.1", "ip:11.0.0.1", "ip:10.1.2.3/32", "ip:10.1.0.0/16", "ip:10.1.2.3/16",
    "ip:2001:db8::/64", "ip:2001:db8::1", "ip:2001:db9::/64", "ip:::ffff:10.1.2.3", "ip:none", "ip:",
)  # fmt: skip


def matched(patterns: frozenset[str], client: str) -> set[str]:
    """The patterns that the query finds by the identifiers that it looks for."""
    return {one for one in patterns_of(client) if one in patterns and is_pattern(one)}


@pytest.mark.parametrize("client", CLIENTS)
def test_patterns_match_as_in_the_query(client: str) -> None:
    patterns = frozenset(PATTERNS)
    assert set(PatternIndex(patterns).matching(client)) == matched(patterns, client)


@given(st.frozensets(st.sampled_from(PATTERNS)), st.sampled_from(CLIENTS))
def test_some_patterns_match_as_in_the_query(patterns: frozenset[str], client: str) -> None:
    index = PatternIndex().with_added(patterns)
    assert set(index.matching(client)) == matched(patterns, client)


@pytest.mark.parametrize(
    ("pattern", "stem"),
    [
        ("key:eu-*", "key:eu-"),
        ("ip:10.1.0.0/16", "ip:10.1."),
        ("ip:10.2.0.0/15", "ip:10."),
        ("ip:10.1.2.128/25", "ip:10.1.2."),
        ("ip:0.0.0.0/0", "ip:"),
        ("ip:2001:db8::/32", "ip:2001:db8:"),
        ("ip:2001:0:5::/48", "ip:2001:"),
        ("ip:::/16", "ip:"),
    ],
)
def test_clients_of_a_pattern_are_searched_by_its_beginning(pattern: str, stem: str) -> None:
    assert stem_of(pattern) == stem
    matching = [client for client in CLIENTS if client in Patterns([pattern]) and client != pattern]
    assert all(client.startswith(stem) for client in matching)


@given(st.ip_addresses(), st.integers(0, 128))
def test_addresses_of_a_network_begin_as_it_does(address: IPv4Address | IPv6Address, bits: int) -> None:
    network = ip_network(f"{address}/{min(bits, address.max_prefixlen)}", strict=False)
    assert f"ip:{address}".startswith(stem_of(f"ip:{network}"))


def test_matches_have_one_order() -> None:
    first, second = PatternIndex(frozenset(PATTERNS)), PatternIndex(frozenset(reversed(PATTERNS)))
    for client in CLIENTS:
        assert first.matching(client) == second.matching(client)
        assert len({*first.matching(client)}) == len(first.matching(client))


def test_patterns_that_are_added_later_match_in_the_same_order() -> None:
    together, one_by_one = PatternIndex(frozenset(PATTERNS)), PatternIndex()
    for pattern in reversed(PATTERNS):
        one_by_one = one_by_one.with_added([pattern])
    assert one_by_one.identifiers == {one for one in PATTERNS if is_pattern(one)}
    for client in CLIENTS:
        assert one_by_one.matching(client) == together.matching(client)


def test_pattern_is_added_without_parsing_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    index = PatternIndex().with_added([f"ip:10.{number}.0.0/16" for number in range(200)])
    parsed: list[str] = []

    def network_of(identifier: str) -> patterns.Network | None:
        parsed.append(identifier)
        return parse(identifier)

    parse = patterns.network_of
    monkeypatch.setattr(patterns, "network_of", network_of)
    index = index.with_added(["ip:11.0.0.0/8", "key:eu-*"])
    assert set(parsed) == {"ip:11.0.0.0/8"}
    assert [index.matching(name) for name in ("ip:11.2.3.4", "ip:10.7.3.4", "key:eu-1")] == [
        ("ip:11.0.0.0/8",),
        ("ip:10.7.0.0/16",),
        ("key:eu-*",),
    ]


def test_clients_are_no_patterns() -> None:
    index = PatternIndex().with_added(["key:1", "ip:10.0.0.1", "ip:2001:db8::/64"])
    assert len(index) == 0
    assert index.with_added(["key:1"]) is index
