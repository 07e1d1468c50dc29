"""Clients that acquire limits for each request: from a limit set, or from a pool that also chooses the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import GivenAmount
from limits_app.outbound.client import Closable, ResourceClient, WrappingClient
from limits_app.outbound.errors import Closed, Unavailable, Unsendable
from limits_app.outbound.events import Observer, Waited, silent
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Request, Response

UsageOfResponse = Callable[[Request, Response], Mapping[str, GivenAmount]]
"""Returns the amounts that a request has used, by key."""


def as_requested(request: Request, response: Response) -> Mapping[str, GivenAmount]:
    """Return the requested amounts, or zeros when the upstream refused the request."""
    return dict.fromkeys(dict(request.amounts), 0) if response.refused else dict(request.amounts)


class Limits(Protocol):
    """A limit set or a limit pool."""

    def aacquire(
        self, requested: Mapping[str, GivenAmount] | None = None, timeout: float | None = None
    ) -> Coroutine[object, object, Acquisition]:
        """Acquire, and wait up to `timeout` seconds."""


class LimitedClient(WrappingClient):
    """Acquires the amounts of a request from limits, sends it, and updates the acquisition with the used amounts.

    `report` is called with the seconds for which the upstream refuses requests, or has nothing left.
    The observer receives how long each request waited for the limits, under `name`.
    """

    def __init__(
        self,
        client: ResourceClient,
        limits: Limits,
        *,
        usage: UsageOfResponse = as_requested,
        report: Callable[[float], Awaitable[None]] | None = None,
        name: str = "limits",
        observer: Observer = silent,
    ) -> None:
        super().__init__(client)
        self.name = name
        self._limits = limits
        self._usage = usage
        self._report = report
        self._observer = observer

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; also raises LimitTimeout when the limits do not allow the request in time."""
        async with _acquired(self._limits, request) as (acquisition, waited):
            self._observer.note(Waited(self.name, waited))
            response = await self._client.send(request)
            pause = _pause(response)
            if pause and self._report is not None:
                await self._report(pause)
            acquisition.update(self._usage(request, response))
            return response


class PoolOfLimits(Limits, Protocol):
    """The part of a limit pool that a PooledClient uses."""

    def __len__(self) -> int:
        """Return the number of limit sets."""

    def __getitem__(self, index: int, /) -> LimitSet:
        """Return a limit set."""

    async def acool_down(self, index: int, seconds: float) -> None:
        """Do not choose a set for some seconds."""


class PooledClient(Closable):
    """Acquires from a limit pool, and sends through the client of the chosen limit set: a region, account or key.

    `members` are the clients by name, in the order of the pool; `config["name"]` of each set is the name of its client.
    A member whose circuit breaker is open, or whose line is too long, is not chosen for that time, and the next one is
    tried; so is a member that refused with a time, or that reports a limit with nothing left.
    The observer receives the chosen member and the wait.
    Raises ValueError when members and sets do not match.
    """

    def __init__(
        self,
        pool: PoolOfLimits,
        members: Mapping[str, ResourceClient],
        *,
        usage: UsageOfResponse = as_requested,
        observer: Observer = silent,
    ) -> None:
        names = [pool[index].config.get("name") for index in range(len(pool))]
        if names != list(members):
            raise ValueError(
                f"members must be one for each limit set, in the order of the pool, named as config['name'] of the "
                f"set: {names}, not {list(members)}"
            )
        self._pool = pool
        self._members = dict(members)
        self._indices = {name: index for index, name in enumerate(members)}
        self._usage = usage
        self._observer = observer

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises Unavailable when no member is available."""
        clock, refusals, patience = asyncio.get_running_loop().time, list[Unavailable](), request.wait_seconds
        start = clock()
        for _ in self._members:
            try:
                return await self._send(request)
            except Unavailable as error:
                refusals.append(error)
            if patience is not None:  # for all members together
                left = max(start + patience - clock(), 0.0)
                request = request.model_copy(update={"wait_seconds": left})
        raise min(refusals, key=lambda error: error.retry_after)

    async def aclose(self) -> None:
        """Close all clients."""
        for client in self._members.values():
            await client.aclose()

    async def _send(self, request: Request) -> Response:
        async with _acquired(self._pool, request) as (acquisition, waited):
            name = str(acquisition.config["name"])
            self._observer.note(Waited(name, waited))
            try:
                response = await self._members[name].send(request)
            except Unavailable as error:
                await self._pool.acool_down(self._indices[name], error.retry_after)
                raise
            pause = _pause(response)
            if pause:
                await self._pool.acool_down(self._indices[name], pause)
            acquisition.update(self._usage(request, response))
            return response


def _pause(response: Response) -> float | None:
    """Return for how many seconds the upstream has asked not to be used."""
    hints = hints_of(response)
    return hints.empty_seconds if response.ok else hints.retry_after


@asynccontextmanager
async def _acquired(limits: Limits, request: Request) -> AsyncIterator[tuple[Acquisition, float]]:
    """Acquire the amounts of a request, yield the acquisition and the wait; a request that was not sent uses none."""
    clock = asyncio.get_running_loop().time
    start = clock()
    async with await limits.aacquire(dict(request.amounts) or None, timeout=request.wait_seconds) as acquisition:
        try:
            yield acquisition, clock() - start
        except (Unavailable, Unsendable, Closed):
            acquisition.update(dict.fromkeys(acquisition.acquisitions, 0))
            raise
