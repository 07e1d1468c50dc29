"""A request cannot take the identity of another client, and no two scopes have the same key, whatever their parts."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from django.http import HttpRequest
from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from limits_app.engine.keys import (
    MAX_ENTITY_LENGTH,
    Scope,
    check_entity,
    line_change_scope,
    line_scope,
    member_scope,
    scope_of,
    shadow_scope,
    shared_scope,
    short_key,
)
from limits_app.integrations.identity import (
    UNKNOWN_CLIENT,
    client_of,
    entity_of_key,
    entity_of_request,
    normalize_entity,
    resource_named,
)
from limits_app.models.validators import validate_identifier
from tests.fuzz.making import FEW, MANY, nearly

PROXY = "10.0.0.1"
CLIENT = "198.51.100.7"
SPOKEN = nearly(
    CLIENT, "2001:db8::1", "[2001:db8::1]:443", "203.0.113.9, 10.0.0.1", "unknown", "127.0.0.1:80", "_hidden"
)
ADDRESSES = st.one_of(*(st.ip_addresses(network=network) for network in ("64.0.0.0/4", "10.0.0.0/8", "2600::/12")))


def asked(peer: str, forwarded: str | None = None) -> HttpRequest:
    request = HttpRequest()
    request.META = {"REMOTE_ADDR": peer}
    if forwarded is not None:
        request.META["HTTP_X_FORWARDED_FOR"] = forwarded
    return request


@MANY
@given(SPOKEN)
def test_without_trusted_proxies_headers_do_not_change_the_client(forwarded: str) -> None:
    with override_settings(LIMITS={}):
        assert entity_of_request(asked(CLIENT, forwarded)) == f"ip:{CLIENT}"


@MANY
@given(SPOKEN)
def test_headers_of_the_client_behind_a_proxy_change_nothing(said: str) -> None:
    with override_settings(LIMITS={"TRUSTED_PROXIES": [PROXY]}):
        assert client_of(asked(PROXY, f"{said},{CLIENT}")) == f"ip:{CLIENT}"
        assert client_of(asked(PROXY, f"{said}, {CLIENT} , {PROXY}")) == f"ip:{CLIENT}"


@MANY
@given(SPOKEN, SPOKEN)
def test_a_client_is_an_address_a_network_or_unknown(peer: str, forwarded: str) -> None:
    with override_settings(LIMITS={"TRUSTED_PROXIES": [PROXY, "unix"]}):
        for client in (client_of(asked(peer, forwarded)), client_of(asked(PROXY, forwarded))):
            assert len(client) < 50
            assert client == UNKNOWN_CLIENT or ip_address(client.removeprefix("ip:").partition("/")[0])


@FEW
@given(st.integers(0x2001 << 48, 2**64 - 1), st.integers(0, 2**64 - 1), st.text("abcdef01", min_size=1, max_size=8))
def test_a_network_of_ipv6_is_one_client(network: int, host: int, zone: str) -> None:
    first, other = IPv6Address(network << 64), IPv6Address(network << 64 | host)
    with override_settings(LIMITS={}):
        spoken = [str(first), str(other), other.exploded, f"[{other}]:443", f"{other}%{zone}"]
        assert len({client_of(asked(address)) for address in spoken}) == 1


@FEW
@given(ADDRESSES, ADDRESSES)
def test_two_clients_are_never_one(one: IPv4Address | IPv6Address, other: IPv4Address | IPv6Address) -> None:
    with override_settings(LIMITS={"IPV6_PREFIX": 128}):
        clients = {client_of(asked(str(address))) for address in (one, other)}
        assert len(clients) == len({_plain(one), _plain(other)})


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """IPv4 is IPv4, however it is written."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


@MANY
@given(
    *[st.text(min_size=1) | st.text("x", min_size=250, max_size=260) | nearly("digest:0", "account:*", "ip:10.0.0.0/8")]
    * 2
)
@example("ip:::FFFF:", "ip:10.0.0.1/8")
def test_identifiers_are_storable_and_never_meet(one: str, other: str) -> None:
    made = [normalize_entity(text) for text in (one, other)]
    assert (made[0] == made[1]) == (one == other)
    for identifier in filter(None, made):
        assert len(check_entity(identifier)) <= MAX_ENTITY_LENGTH
        validate_identifier(identifier)


@FEW
@given(st.text(min_size=8, max_size=64))
def test_a_key_is_never_part_of_its_entity(key: str) -> None:
    entity = entity_of_key(key)
    assert key not in entity
    assert entity == entity_of_key(key)
    assert normalize_entity(entity) == entity


NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_./-]{0,63}", fullmatch=True)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True)
ENTITIES = st.none() | nearly("-", "user:42", "a:b", "v1:api:-", "*tpm", "~", ">tpm") | st.text(min_size=1, max_size=20)

Made = tuple[Any, ...]
"""How a scope was made: with which function, and of what."""


def kind(make: Callable[..., Scope], *parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Made]:
    return st.tuples(st.just(make), *parts)


PLAIN = kind(scope_of, NAMES, ENTITIES)
LINES = kind(line_scope, PLAIN, KEYS)
SCOPES = (
    PLAIN
    | kind(shared_scope, NAMES, KEYS)
    | kind(member_scope, NAMES, ENTITIES.filter(lambda name: name is not None))
    | PLAIN.map(lambda made: (shadow_scope, made))
    | LINES
    | kind(line_change_scope, LINES, st.text(max_size=20))
)


def scope(made: Made) -> Scope:
    make, *parts = made
    return make(*(scope(part) if isinstance(part, tuple) else part for part in parts))  # type: ignore[no-any-return]


@MANY
@given(SCOPES, SCOPES)
def test_scopes_have_one_key_only_if_they_were_made_alike(one: Made, other: Made) -> None:
    keys = [scope(made).key for made in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert (short_key(keys[0]) == short_key(keys[1])) == (one == other)
    assert all(key.isascii() and key.isprintable() and len(key) < 256 for key in keys)


@MANY
@given(*[nearly("shop.views.report", "shop.views.<locals>.report", "nshop", "a" * 70) | st.text(max_size=80)] * 2)
def test_groups_of_other_libraries_never_become_one_resource(one: str, other: str) -> None:
    assert (resource_named(one) == resource_named(other)) == (one == other)
