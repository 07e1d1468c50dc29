"""The client that really sends: HTTP, on httpx."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx
from pydantic import SecretStr

from limits_app.outbound.errors import UpstreamFailed, UpstreamTimeout
from limits_app.outbound.events import Called, Observer, silent
from limits_app.outbound.messages import Request, Response

__all__ = ["HttpClient"]

_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_MOST_IDLE: Final = 20
"""Each request looks at all connections that are kept, and at all of them again for each that is idle."""


class HttpClient:
    """Sends to one address, with one key.

    The key goes into `key_header` after `key_prefix`, and is shown nowhere. Redirects are given back as answers,
    so that it cannot be sent elsewhere. Proxies that the environment names are used if `trust_env`.
    Raises TypeError for a key that is plain text.
    An answer takes at most the timeout of its request, from the wait for a connection to the last byte.
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
        trust_env: bool = False,
        observer: Observer = silent,
    ) -> None:
        if key is not None and not isinstance(key, SecretStr):
            raise TypeError("key must be a SecretStr, so that it is shown nowhere: pass pydantic.SecretStr(key)")
        self._http = httpx.AsyncClient(
            base_url=base_url,
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=_MOST_IDLE),
            trust_env=trust_env,
        )
        self.name = name or self._http.base_url.host
        self._key = key
        self._key_header = key_header
        self._key_prefix = key_prefix
        self._connect_seconds = connect_seconds
        self._observer = observer

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        status = 0
        try:
            answer = await self._answer(request)
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
        )

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _answer(self, request: Request) -> httpx.Response:
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
            raise UpstreamTimeout(self.name, "no answer in time", maybe_sent=_maybe_sent(error)) from error
        except httpx.RequestError as error:
            raise UpstreamFailed(self.name, type(error).__name__, maybe_sent=_maybe_sent(error)) from error

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        if self._key is None:
            return list(request.headers)
        own = self._key_header.lower()
        headers = [(name, value) for name, value in request.headers if name.lower() != own]
        return [*headers, (self._key_header, self._key_prefix + self._key.get_secret_value())]


def _maybe_sent(error: Exception) -> bool:
    return not isinstance(error, _NEVER_SENT)
