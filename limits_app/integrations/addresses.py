"""IP addresses as connections and forwarding headers have them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

_MOST_PORT: Final = 65_535
_LONGEST_ADDRESS: Final = 300
"""An IPv6 address with the longest name of an interface and a port."""
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
"""IPv4 clients of a server that has IPv6 only, behind a translator (RFC 6052)."""
_NO_CLIENT: Final = (
    IPv4Network("0.0.0.0/8"),
    IPv4Network("224.0.0.0/3"),
    IPv6Network("::/128"),
    IPv6Network("ff00::/8"),
)
"""Multicast, broadcast, reserved and unspecified addresses, from which nothing is sent."""


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a text such as `203.0.113.7:80`, `[2001:db8::1]:443` or `fe80::1%eth0`; None otherwise.

    An IPv4 address that is written as IPv6 is the IPv4 address, so that a client has one identity.
    """
    host = _without_port(text.strip()) if len(text) <= _LONGEST_ADDRESS else ""
    try:
        address = ip_address(host)
    except ValueError:
        return None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or _translated(address)
    return None if any(address in network for network in _NO_CLIENT) else address


def _translated(address: IPv6Address) -> IPv4Address | IPv6Address:
    return IPv4Address(address.packed[-4:]) if address in _TRANSLATED else address


def _without_port(text: str) -> str:
    """Return the host of a text; empty where what follows is not a port."""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        return host if bracket and (not port or (port[0] == ":" and _is_port(port[1:]))) else ""
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host if _is_port(port) else ""
    return text


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_PORT)) and int(text) <= _MOST_PORT
