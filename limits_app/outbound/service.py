"""A service: a client with limits, pace, circuit breaker, retries and cache, with an executor and a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from limits_app.acquiring import RetryPolicy
from limits_app.outbound.breaker import Breaker, BreakerClient, BreakerRules
from limits_app.outbound.cache import CachingClient
from limits_app.outbound.client import Closable, ResourceClient
from limits_app.outbound.events import Observer, silent
from limits_app.outbound.executor import Executor
from limits_app.outbound.limited import LimitedClient, Limits, UsageOfResponse, as_requested
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.pace import Pace, PacedClient
from limits_app.outbound.retry import RequestRetryPolicy, RetryingClient
from limits_app.outbound.work_queue import FailedItem, WorkQueue


class OutboundService(Closable):
    """Sends requests to one upstream through all clients of this package, in the right order.

    From the outside in: cache (with `cache_seconds`), retries, limits (with `limits`), circuit breaker, pace, and
    `client`. At most `concurrency` requests are sent at the same time, and at most `capacity` wait in the queue of
    `enqueue`. The observer receives all events, under `name`.

    The end of an `async with` block processes the queue and the running requests, for at most `grace_seconds`, and
    closes the client.
    """

    def __init__(
        self,
        client: ResourceClient,
        *,
        name: str = "upstream",
        limits: Limits | None = None,
        usage: UsageOfResponse = as_requested,
        pace: Pace | None = None,
        breaker: BreakerRules | None = None,
        retry: RetryPolicy | None = None,
        cache_seconds: float | None = None,
        concurrency: int = 10,
        capacity: int = 100,
        grace_seconds: float = 30.0,
        observer: Observer = silent,
    ) -> None:
        self.breaker = Breaker(breaker, name=name, observer=observer)
        self.pace = pace or Pace(name=name, observer=observer)
        chain: ResourceClient = BreakerClient(PacedClient(client, self.pace), self.breaker)
        if limits is not None:
            chain = LimitedClient(chain, limits, usage=usage, name=name, observer=observer)
        chain = RetryingClient(chain, retry or RequestRetryPolicy(), name=name, observer=observer)
        if cache_seconds is not None:
            chain = CachingClient(chain, seconds=cache_seconds)
        self._client = chain
        self._executor = Executor(concurrency, name=name, grace_seconds=grace_seconds, observer=observer)
        self._queue: WorkQueue[Request] = WorkQueue(
            self._process,
            workers=concurrency,
            capacity=capacity,
            grace_seconds=grace_seconds,
            name=f"{name} queue",
            observer=observer,
        )

    @property
    def failures(self) -> list[FailedItem[Request]]:
        """The requests of `enqueue` that raised, each with its exception."""
        return self._queue.failures

    async def send(self, request: Request) -> Response:
        """Send a request and return the response; raises as `ResourceClient.send` does, and LimitTimeout."""
        return await self._executor.run(lambda: self._client.send(request))

    def submit(self, request: Request) -> asyncio.Task[Response]:
        """Send a request in a task, and return the task."""
        return self._executor.submit(lambda: self._client.send(request))

    async def map(self, requests: Iterable[Request]) -> list[Response]:
        """Send several requests; returns the responses in their order. The first exception cancels the others."""
        return await self._executor.map(self._client.send, requests)

    async def enqueue(self, request: Request) -> None:
        """Send a request later, without its response; waits while the queue is full."""
        await self._queue.put(request)

    async def join(self) -> None:
        """Wait until all requests of `enqueue` were sent."""
        await self._queue.join()

    def stats(self) -> Mapping[str, object]:
        """Return the current state: requests that wait, run, are queued, done or failed, and the circuit breaker."""
        return {
            "running": self._executor.running,
            "waiting": self._executor.waiting,
            "queued": self._queue.waiting,
            "queue_running": self._queue.running,
            "queue_done": self._queue.done,
            "queue_failed": len(self._queue.failures),
            "in_line": self.pace.waiting,
            "in_flight": self.pace.in_flight,
            "breaker": str(self.breaker.state),
        }

    async def aclose(self) -> None:
        """Process the queue and the running requests, then close the client."""
        try:
            await self._queue.aclose()
            await self._executor.aclose()
        finally:
            await self._client.aclose()

    async def _process(self, request: Request) -> None:
        await self.send(request)
