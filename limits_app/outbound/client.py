"""Clients: the protocol, the base of clients around another client, and the HTTP client on httpx."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Protocol, Self

import httpx
from pydantic import SecretStr

from limits_app.outbound.errors import Closed, Unsendable, UpstreamFailed, UpstreamTimeout
from limits_app.outbound.events import Called, Observer, silent
from limits_app.outbound.messages import HEADER_NAME, HEADER_VALUE, Request, Response

_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_MAX_IDLE: Final = 20
"""Idle connections that are kept. More cost time: httpx compares all of them with each other for each request."""


class ResourceClient(Protocol):
    """Sends requests to an upstream, or to another client."""

    async def send(self, request: Request) -> Response:
        """Send a request and return the response, whatever its status.

        Raises UpstreamFailed without a response, Unavailable when the request was not sent, and Unsendable when
        it is invalid.
        """

    async def aclose(self) -> None:
        """Close the connections."""


class Closable(ABC):
    """An object whose `async with` block ends with `aclose`."""

    @abstractmethod
    async def aclose(self) -> object:
        """Close it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class WrappingClient(Closable):
    """The base of clients that send through another client."""

    def __init__(self, client: ResourceClient) -> None:
        self._client = client

    @abstractmethod
    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()


class HttpClient(Closable):
    """Sends requests to one base URL, with one key.

    The key is sent in `key_header` after `key_prefix`, and never logged or shown. Redirects are returned and not
    followed, so that the key stays at this address; cookies are not kept.
    Proxies of the environment are not used. A response takes at most the timeout of its request, from the
    wait for a connection to the last byte.
    Raises TypeError for a key that is not a SecretStr, and ValueError for an invalid URL or key.
    """

    def __init__(
        self,
        base_url: str,
        *,
        name: str | None = None,
        key: SecretStr | None = None,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        connect_seconds: float = 5.0,
        max_connections: int = 100,
        observer: Observer = silent,
    ) -> None:
        if key is not None:
            _check_key(key, key_header, key_prefix)
        self._http = httpx.AsyncClient(
            base_url=_address(base_url),
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=_MAX_IDLE),
            trust_env=False,
            # No cookies: one client serves many users, whose sessions must not mix.
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        )
        self.name = name or self._http.base_url.host
        self._key = key
        self._key_header = key_header
        self._key_prefix = key_prefix
        self._connect_seconds = connect_seconds
        self._observer = observer

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises Closed after `aclose`."""
        if self._http.is_closed:
            raise Closed(f"{self.name} was closed and sends no more requests")
        loop = asyncio.get_running_loop()
        start = loop.time()
        status = 0
        try:
            answer = await self._request(request)
            status = answer.status_code
        finally:
            seconds = loop.time() - start
            self._observer.note(Called(self.name, request.method, status, seconds))
        return Response(
            status=status,
            headers=tuple(answer.headers.multi_items()),
            content=answer.content,
            upstream=self.name,
            seconds=seconds,
            request_id=request.request_id,
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _request(self, request: Request) -> httpx.Response:
        seconds = request.timeout_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._http.request(
                    request.method,
                    request.path,
                    params=request.params or None,
                    headers=self._headers(request),
                    content=request.content or None,
                    timeout=httpx.Timeout(seconds, connect=min(seconds, self._connect_seconds)),
                )
        except (httpx.TimeoutException, TimeoutError) as error:
            raise UpstreamTimeout(self.name, "no response in time", maybe_sent=_maybe_sent(error)) from error
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise Unsendable(self.name, str(error)) from error
        except httpx.RequestError as error:
            raise UpstreamFailed(self.name, type(error).__name__, maybe_sent=_maybe_sent(error)) from error

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        if self._key is None:
            return list(request.headers)
        own = self._key_header.lower()
        headers = [(name, value) for name, value in request.headers if name.lower() != own]
        return [*headers, (self._key_header, self._key_prefix + self._key.get_secret_value())]


def _check_key(key: SecretStr, header: str, prefix: str) -> None:
    """Check here, since httpx would reject an invalid header with each request, and show the key in its error."""
    if not isinstance(key, SecretStr):
        raise TypeError("key must be a SecretStr, so that it is not logged: pass pydantic.SecretStr(key)")
    if not (re.fullmatch(HEADER_NAME, header) and re.fullmatch(HEADER_VALUE, prefix + key.get_secret_value())):
        raise ValueError("key_header, key_prefix and key must be valid in a header: ASCII, without a space at an end")


def _address(base_url: str) -> httpx.URL:
    rule = "base_url must be http:// or https:// with a host and without a query"
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ValueError(rule) from error
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ValueError(rule)
    return url


def _maybe_sent(error: Exception) -> bool:
    return not isinstance(error, _NEVER_SENT)
