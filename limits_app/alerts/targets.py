"""Connections to webhooks: only to allowed addresses, and closed when the time of a delivery is over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from threading import Thread
from time import monotonic
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import (
    AbstractHTTPHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from django.db import connections

from limits_app import conf
from limits_app.engine.locks import RLock

Address = tuple[int, Any]
"""The family of a socket, and an address of this family."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE: Final = IPv6Network("::/96")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""The only part of IPv6 from which addresses of the internet are assigned; the others have uses within networks."""


class PrivateTarget(OSError):
    """A webhook is in a private, loopback or link-local network, and LIMITS["ALERT_PRIVATE_TARGETS"] is not set."""


class Deadline:
    """Runs one delivery in a thread, until its time is over; then its connections are closed."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = monotonic() + seconds
        self._sockets: list[socket.socket] = []
        self._lock = RLock()
        self._is_over = False

    def run(self, deliver: Callable[[Deadline], object]) -> None:
        """Call `deliver`, and raise what it raises; TimeoutError where it takes longer, also to resolve a name."""
        errors: list[BaseException] = []
        thread = Thread(target=self._run, args=(deliver, errors), name="limits-alert", daemon=True)
        thread.start()
        thread.join(self.left())
        is_late = thread.is_alive()
        self._close()
        if is_late:
            raise TimeoutError("the time for the delivery is over")
        if errors:
            raise errors.pop()  # a reference to it here would be a cycle

    def left(self) -> float:
        """The seconds that are left."""
        return max(self._ends_at - monotonic(), 0.001)

    def connect(self, addresses: Iterable[Address]) -> socket.socket:
        """Connect to the first address that accepts a connection; raises OSError where none does."""
        error = OSError("the name has no address")
        for family, address in addresses:
            connection = socket.socket(family, socket.SOCK_STREAM)
            try:
                self._watch(connection)
                connection.settimeout(self.left())
                connection.connect(address)
            except OSError as failure:
                connection.close()
                error = failure
            else:
                return connection
        raise error

    def _watch(self, connection: socket.socket) -> None:
        with self._lock:
            if self._is_over:
                raise TimeoutError("the time for the delivery is over")
            self._sockets.append(connection.dup())  # TLS takes the socket itself over

    def _close(self) -> None:
        """Close the connections, so that a thread that still reads from one ends."""
        with self._lock:
            self._is_over = True
            for connection in self._sockets:
                with suppress(OSError):  # closed already
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()

    def _run(self, deliver: Callable[[Deadline], object], errors: list[BaseException]) -> None:
        try:
            deliver(self)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            errors.append(error)
        finally:
            connections.close_all()  # those that a mail backend has opened in this thread


def opener(deadline: Deadline) -> OpenerDirector:
    """An opener for HTTP and HTTPS only, which follows no redirects: they could lead anywhere."""
    director = OpenerDirector()
    guarded = (_Plain(), _Encrypted())
    for handler in guarded:
        handler.deadline = deadline
    for processor in (ProxyHandler(), *guarded, HTTPErrorProcessor(), HTTPDefaultErrorHandler()):
        director.add_handler(processor)
    return director


def addresses(host: str, port: int) -> list[Address]:
    """Resolve a host."""
    return [(family, address) for family, *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def allowed_addresses(host: str, port: int) -> list[Address]:
    """Resolve the host of a webhook; PrivateTarget where one of its addresses is not allowed."""
    resolved = addresses(host, port)
    if not conf.get(conf.ALERT_PRIVATE_TARGETS) and not all(
        is_public(ip_address(address[0])) for _, address in resolved
    ):
        raise PrivateTarget
    return resolved


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is one of the internet; of an address that stands for one of IPv4, whether that is."""
    meant = address if isinstance(address, IPv4Address) else _embedded(address) or address
    is_assigned = not meant.is_multicast if isinstance(meant, IPv4Address) else meant in _GLOBAL_UNICAST
    return meant.is_global and is_assigned


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that the system or a router connects to in place of an IPv6 address."""
    if address in _NAT64 or address in _IPV4_COMPATIBLE:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


class _Guarded(AbstractHTTPHandler):
    """Opens connections that end with a deadline, to addresses that were checked when they were resolved.

    Behind a proxy of the environment it checks the host as far as this machine can resolve it; the proxy resolves it
    again, and decides where it connects to.
    """

    deadline: Deadline

    def do_open(self, http_class: Any, req: Request, **options: Any) -> Any:
        is_proxied = req.has_proxy() or bool(req._tunnel_host)  # type: ignore[attr-defined]  # missing in its stubs
        if is_proxied:
            with suppress(socket.gaierror):
                allowed_addresses(urlsplit(req.full_url).hostname or "", 0)  # no user, and no brackets of IPv6
        resolve = addresses if is_proxied else allowed_addresses

        def connection(host: str, **options: Any) -> Any:
            made = http_class(host, **options)
            made._create_connection = lambda address, *_: self.deadline.connect(resolve(*address))
            return made

        return super().do_open(connection, req, **options)


class _Plain(_Guarded, HTTPHandler):
    pass


class _Encrypted(_Guarded, HTTPSHandler):
    pass
