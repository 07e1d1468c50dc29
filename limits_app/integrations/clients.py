"""Which client a request comes from, as far as that can be believed."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from typing import Final

from django.http import HttpRequest
from python_ipware import IpWare

from limits_app import conf
from limits_app.conf import Network

__all__ = ["UNKNOWN_CLIENT", "client_at", "client_of"]

UNKNOWN_CLIENT: Final = "ip:unknown"
"""All clients whose address nobody tells; they share their limits, because without one they had none."""

_MOST_HOPS: Final = 32
_LONGEST_KEPT: Final = 512
"""Headers up to here are remembered with what was read; longer ones would let strangers fill the memory."""
_READER: Final = IpWare(precedence=("REMOTE_ADDR",))
"""Reads one address: with or without a port, brackets and a zone, IPv4 also where it is written as IPv6."""


def client_of(request: HttpRequest) -> str:
    """Give `ip:<address>`, of IPv6 the network.

    That is the other end of the connection, or where that is a trusted proxy, the last address that trusted proxies
    have added to X-Forwarded-For and that is none of theirs. What stands before it, anybody may have written.
    """
    proxies = conf.get(conf.TRUSTED_PROXIES)
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "") if proxies else ""
    read = _client if len(forwarded) <= _LONGEST_KEPT else _client.__wrapped__
    return read(str(request.META.get("REMOTE_ADDR", "")), str(forwarded), proxies, conf.get(conf.IPV6_PREFIX))


def client_at(address: str) -> str:
    """Give `ip:<address>`, of IPv6 the network, for an address that somebody else found out."""
    return _client(address, "", (), conf.get(conf.IPV6_PREFIX))


@lru_cache(maxsize=4096)
def _client(peer: str, forwarded: str, proxies: tuple[Network | None, ...], prefix: int) -> str:
    """One spelling for one client."""
    address = _address(peer)
    if forwarded and _is_trusted(peer, address, proxies):
        for hop in reversed(forwarded.rsplit(",", _MOST_HOPS)[-_MOST_HOPS:]):
            address = _address(hop)
            if address is None or not _is_trusted(hop, address, proxies):
                break
    return UNKNOWN_CLIENT if address is None else f"ip:{_network(address, prefix)}"


def _address(text: str) -> IPv4Address | IPv6Address | None:
    if "," in text:
        return None
    address: IPv4Address | IPv6Address | None = _READER.get_client_ip({"REMOTE_ADDR": text}, strict=True)[0]
    return address


def _is_trusted(text: str, address: IPv4Address | IPv6Address | None, proxies: tuple[Network | None, ...]) -> bool:
    if address is None:
        return not text.strip() and None in proxies
    return any(proxy is not None and address in proxy for proxy in proxies)


def _network(address: IPv4Address | IPv6Address, prefix: int) -> str:
    """An IPv6 customer has a whole network of addresses, and zones are what clients like to call them."""
    if isinstance(address, IPv4Address):
        return str(address)
    network = IPv6Network((int(address), prefix), strict=False)
    return str(network if prefix < 128 else network.network_address)
