"""Which requests to an upstream are repeated, and a client that does so; `acquiring.retry` repeats them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from limits_app.acquiring import Retrier, RetryOn, RetryPolicy
from limits_app.outbound.breaker import loop_us
from limits_app.outbound.client import ResourceClient, WrappingClient
from limits_app.outbound.errors import Unavailable, UpstreamFailed
from limits_app.outbound.events import Observer, Retrying, silent
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Request, Response

_TEMPORARY: Final = frozenset({502, 503, 504})
"""Statuses after which a retry may succeed."""


class UnsuccessfulResponse(Exception):
    """A response that may be retried, for `retry_on`; never raised to the caller."""

    def __init__(self, response: Response, retry_after: float) -> None:
        super().__init__(response.status)
        self.response = response
        self.retry_after = retry_after


def _is_retried(*, exception: Exception, request: object = None, **_: object) -> bool:
    match exception:
        case Unavailable() | UnsuccessfulResponse():
            return True
        case UpstreamFailed(maybe_sent=maybe_sent):
            return not maybe_sent or (isinstance(request, Request) and request.may_repeat)
        case _:
            return False


@dataclass(frozen=True, kw_only=True)
class RequestRetryPolicy(RetryPolicy):
    """A RetryPolicy with defaults for requests; `retry_on` receives errors, and refusals as UnsuccessfulResponse."""

    num_retries: int = 3
    retry_on: RetryOn = _is_retried
    wait: float = 0.25
    max_wait: float = 10.0
    within: float | None = 60.0
    clock: Callable[[], int] = loop_us


class RetryingClient(WrappingClient):
    """Retries requests that may succeed later, and that the upstream may receive twice.

    By default these are requests that were refused (429) or never sent, and those that failed or were answered with
    502, 503 or 504 if they may be repeated. A pause lasts at least as long as the upstream demands.
    The result is the last response, or the last error.
    """

    def __init__(
        self,
        client: ResourceClient,
        policy: RetryPolicy | None = None,
        *,
        name: str = "upstream",
        observer: Observer = silent,
    ) -> None:
        super().__init__(client)
        self._retrier = Retrier(
            policy or RequestRetryPolicy(),
            min_wait=lambda error: error.retry_after if isinstance(error, Unavailable | UnsuccessfulResponse) else 0.0,
            on_retry=lambda attempt, seconds: observer.note(Retrying(name, attempt, seconds)),
        )

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""

        async def attempt() -> Response:
            response = await self._client.send(request)
            if response.refused or (response.status in _TEMPORARY and request.may_repeat):
                retry_after = hints_of(response).retry_after
                raise UnsuccessfulResponse(response, retry_after or 0.0)
            return response

        try:
            return await self._retrier.acall(attempt, {"request": request})
        except UnsuccessfulResponse as error:
            return error.response
