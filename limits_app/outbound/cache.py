"""A client that caches responses in memory."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Final

from limits_app.outbound.client import ResourceClient, WrappingClient
from limits_app.outbound.errors import check_counts, check_durations
from limits_app.outbound.messages import Request, Response

_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=(\d{1,9})(?:$|[\s,])")


class CachingClient(WrappingClient):
    """Caches responses to GET for `seconds`, or less if their `Cache-Control` has a lower `max-age`.

    Only responses with status 200 are cached, and none with `no-store`, `no-cache` or `Vary: *`. The key is the path,
    the parameters and all headers of a request. The cache has the `most` responses that were used last.
    A cached response is not charged to any limit.
    """

    def __init__(self, client: ResourceClient, *, seconds: float = 60.0, most: int = 1000) -> None:
        check_counts(most=most)
        check_durations(seconds=seconds)
        super().__init__(client)
        self._seconds = seconds
        self._most = most
        self._responses: OrderedDict[object, tuple[float, Response]] = OrderedDict()

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        if request.method != "GET" or request.content:
            return await self._client.send(request)
        loop = asyncio.get_running_loop()
        key = (request.path, request.params, request.headers)
        until, response = self._responses.get(key, (0.0, None))
        if response is not None and loop.time() < until:
            self._responses.move_to_end(key)
            return response.model_copy(update={"cached": True, "request_id": request.request_id})
        self._responses.pop(key, None)
        response = await self._client.send(request)
        seconds = self._lifetime(response)
        if seconds > 0:
            self._responses[key] = (loop.time() + seconds, response)
            if len(self._responses) > self._most:
                self._responses.popitem(last=False)
        return response

    async def aclose(self) -> None:
        """Clear the cache, and close the client behind it."""
        self._responses.clear()
        await super().aclose()

    def _lifetime(self, response: Response) -> float:
        control = (response.header("Cache-Control") or "").lower()
        varies = (response.header("Vary") or "").split(",")
        if response.status != 200 or "no-store" in control or "no-cache" in control or "*" in map(str.strip, varies):
            return 0.0
        max_age = _MAX_AGE.search(control)
        return self._seconds if max_age is None else min(float(max_age[1]), self._seconds)
