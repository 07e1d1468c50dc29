"""A service: a client with limits, pace, circuit breaker, retries and cache, with an executor and a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import cast

from limits_app.acquiring import RetryPolicy
from limits_app.outbound.breaker import Breaker, BreakerClient, BreakerRules
from limits_app.outbound.cache import CachingClient
from limits_app.outbound.client import Closable, ResourceClient
from limits_app.outbound.events import Observer, silent
from limits_app.outbound.executor import Executor
from limits_app.outbound.limited import LimitedClient, Limits, PooledClient, PoolOfLimits, UsageOfResponse, as_requested
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.pace import Pace, PacedClient
from limits_app.outbound.retry import RequestRetryPolicy, RetryingClient
from limits_app.outbound.work_queue import FailedItem, WorkQueue


class OutboundService(Closable):
    """Sends requests to one upstream through all clients of this package, in the right order.

    From the outside in: cache (with `cache_seconds`), retries, limits (with `limits`), circuit breaker, pace, and
    `client`. At most `concurrency` requests are sent at the same time, and at most `capacity` wait in the queue of
    `enqueue`. The observer receives all events, under `name`.
    `report` is called with the seconds for which the upstream refuses requests: see `LimitedClient`.

    In place of one client, `clients` are those of several regions, accounts or keys by name. `limits` is then a pool:
    see `PooledClient`. Each has a circuit breaker and a pace, by name in `breakers` and `paces`.
    Raises ValueError unless it gets either, and for options that go with the other.

    The end of an `async with` block processes the queue and the running requests, for at most `grace_seconds`, and
    closes the client.
    """

    def __init__(
        self,
        client: ResourceClient | None = None,
        *,
        clients: Mapping[str, ResourceClient] | None = None,
        name: str = "upstream",
        limits: Limits | PoolOfLimits | None = None,
        usage: UsageOfResponse = as_requested,
        report: Callable[[float], Awaitable[None]] | None = None,
        pace: Pace | None = None,
        breaker: BreakerRules | None = None,
        retry: RetryPolicy | None = None,
        cache_seconds: float | None = None,
        concurrency: int = 10,
        capacity: int = 100,
        grace_seconds: float = 30.0,
        observer: Observer = silent,
    ) -> None:
        members = _members(client, clients, name)
        if clients is not None and (limits is None or pace is not None or report is not None):
            raise ValueError(
                "clients= needs limits= that is a pool, without pace= and report=: each client has its own"
            )
        if clients is None and report is not None and limits is None:
            raise ValueError("report= goes with limits=: without them, the pace waits for the upstream")
        self.breakers = {name: Breaker(breaker, name=name, observer=observer) for name in members}
        self.paces = {name: pace or Pace(name=name, observer=observer) for name in members}
        guarded = {
            name: BreakerClient(PacedClient(member, self.paces[name]), self.breakers[name])
            for name, member in members.items()
        }
        chain: ResourceClient = guarded[next(iter(guarded))]
        if clients is not None:
            chain = PooledClient(cast("PoolOfLimits", limits), guarded, usage=usage, observer=observer)
        elif limits is not None:
            chain = LimitedClient(chain, limits, usage=usage, report=report, name=name, observer=observer)
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
    def breaker(self) -> Breaker:
        """The circuit breaker, of several clients that of the first one."""
        return next(iter(self.breakers.values()))

    @property
    def pace(self) -> Pace:
        """The pace, of several clients that of the first one."""
        return next(iter(self.paces.values()))

    @property
    def failures(self) -> list[FailedItem[Request]]:
        """The requests of `enqueue` that raised, each with its exception."""
        return self._queue.failures

    async def send(self, request: Request) -> Response:
        """Send a request and return the response; raises as `ResourceClient.send` does, and LimitTimeout."""
        return await self._executor.run(lambda: self._send(request))

    def submit(self, request: Request) -> asyncio.Task[Response]:
        """Send a request in a task, and return the task."""
        return self._executor.submit(lambda: self._send(request))

    async def map(self, requests: Iterable[Request]) -> list[Response]:
        """Send several requests; returns the responses in their order. The first exception cancels the others."""
        return await self._executor.map(self._send, requests)

    async def enqueue(self, request: Request) -> None:
        """Send a request later, without its response; waits while the queue is full."""
        await self._queue.put(request)

    async def join(self) -> None:
        """Wait until all requests of `enqueue` were sent."""
        await self._queue.join()

    def stats(self) -> Mapping[str, object]:
        """Return the current state: requests that wait, run, are queued, done or failed, and the circuit breaker.

        Of several clients, `breaker` has the states by their names.
        """
        states = {name: str(breaker.state) for name, breaker in self.breakers.items()}
        return {
            "running": self._executor.running,
            "waiting": self._executor.waiting,
            "queued": self._queue.waiting,
            "queue_running": self._queue.running,
            "queue_done": self._queue.done,
            "queue_failed": len(self._queue.failures),
            "in_line": sum([pace.waiting for pace in self.paces.values()]),
            "in_flight": sum([pace.in_flight for pace in self.paces.values()]),
            "breaker": states if len(states) > 1 else str(self.breaker.state),
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

    async def _send(self, request: Request) -> Response:
        response = await self._client.send(request)
        if response.request_id:
            return response
        return response.model_copy(update={"request_id": request.request_id})  # of a client of the site


def _members(
    client: ResourceClient | None, clients: Mapping[str, ResourceClient] | None, name: str
) -> dict[str, ResourceClient]:
    """Return the clients by name."""
    if (client is None) is not bool(clients):
        raise ValueError("a service needs either a client or clients= by name")
    return dict(clients) if clients else {name: cast("ResourceClient", client)}
