"""A client that remembers answers for a while."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from typing import Final

from limits_app.outbound.bounds import check_counts, check_durations
from limits_app.outbound.client import ResourceClient
from limits_app.outbound.messages import Request, Response

__all__ = ["CachingClient"]

_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=(\d{1,9})(?:$|[\s,])")


class CachingClient:
    """Answers a GET from memory if the same was asked within `seconds`, or for as long as the upstream said.

    Only what it did (200) is kept, and nothing that says `no-store`, `no-cache` or `Vary: *`; requests with other
    headers are others. The `most` answers that were used last are kept. What comes from memory takes nothing from any
    limit, so it may answer in place of the upstream, but never decides about a limit.
    """

    def __init__(self, client: ResourceClient, *, seconds: float = 60.0, most: int = 1000) -> None:
        check_counts(most=most)
        check_durations(seconds=seconds)
        self._client = client
        self._seconds = seconds
        self._most = most
        self._kept: OrderedDict[object, tuple[float, Response]] = OrderedDict()

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        if request.method != "GET" or request.content:
            return await self._client.send(request)
        loop = asyncio.get_running_loop()
        key = (request.path, request.params, request.headers)
        until, response = self._kept.get(key, (0.0, None))
        if response is not None and loop.time() < until:
            self._kept.move_to_end(key)
            return response.model_copy(update={"cached": True})
        self._kept.pop(key, None)
        response = await self._client.send(request)
        seconds = self._lifetime(response)
        if seconds > 0:
            self._kept[key] = (loop.time() + seconds, response)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return response

    async def aclose(self) -> None:
        """Forget everything, and close the client behind it."""
        self._kept.clear()
        await self._client.aclose()

    def _lifetime(self, response: Response) -> float:
        control = (response.header("Cache-Control") or "").lower()
        varies = (response.header("Vary") or "").split(",")
        if response.status != 200 or "no-store" in control or "no-cache" in control or "*" in map(str.strip, varies):
            return 0.0
        told = _MAX_AGE.search(control)
        return self._seconds if told is None else min(float(told[1]), self._seconds)
