"""The seam that everything here stands on: who sends requests, and who may say when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.outbound.messages import Request, Response

__all__ = ["Limits", "ResourceClient"]


class ResourceClient(Protocol):
    """Sends requests to an upstream, or through another client that does."""

    async def send(self, request: Request) -> Response:
        """Send and give the answer, whatever its status.

        Raises UpstreamFailed when there is no answer, NotNow when the request was not sent, and Unsendable when it can
        never be.
        """

    async def aclose(self) -> None:
        """Give back connections."""


class Limits(Protocol):
    """What hands out acquisitions: a limit set, or a pool of them."""

    async def aacquire(
        self, requested: Mapping[str, Amount] | None = None, timeout: float | None = None
    ) -> Acquisition:
        """Acquire, waiting up to `timeout` seconds."""
