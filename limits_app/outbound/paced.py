"""A client that learns how much its upstream takes, and sends no more than that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from limits_app.outbound.bounds import check_counts
from limits_app.outbound.client import ResourceClient
from limits_app.outbound.errors import NoTurnInTime
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.pace import Pace, next_ticket

__all__ = ["PacedClient"]


class PacedClient:
    """Sends each request when its turn has come.

    A request that the upstream refused (429) keeps its place in line, and is sent again when the upstream may be
    asked again, up to `tries` times in all and for as long as the request is ready to wait; then the refusal is
    the answer. The upstream did nothing yet, so this is safe for every method.
    """

    def __init__(
        self,
        client: ResourceClient,
        pace: Pace,
        *,
        tries: int = 5,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        check_counts(tries=tries)
        self.pace = pace
        self._client = client
        self._tries = tries
        self._unix_seconds = unix_seconds

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        loop, ticket = asyncio.get_running_loop(), next_ticket()
        patience = request.wait_seconds
        response = None
        for _ in range(self._tries):
            start = loop.time()
            try:
                async with self.pace.turn(timeout=patience, ticket=ticket) as departure:
                    waited = loop.time() - start
                    response = await self._client.send(request)
                    departure.hints = hints_of(response, unix_seconds=self._unix_seconds())
            except NoTurnInTime:
                if response is None:
                    raise
                break
            if not response.refused:
                break
            patience = None if patience is None else max(patience - waited, 0.0)
        assert response is not None  # noqa: S101 - there is at least one try
        return response

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()
