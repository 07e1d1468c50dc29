"""Clients that ask limits first: a limit set, or a pool that also says whom to send to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

from limits_app.core.acquisition import Acquisition
from limits_app.core.amounts import Amount
from limits_app.outbound.client import Limits, ResourceClient
from limits_app.outbound.errors import Closed, NotNow, Unsendable
from limits_app.outbound.events import Observer, Waited, silent
from limits_app.outbound.hints import hints_of
from limits_app.outbound.messages import Request, Response

__all__ = ["LimitedClient", "Pool", "PooledClient", "Usage", "as_requested"]

Usage = Callable[[Request, Response], Mapping[str, Amount]]
"""Reads from an answer what was really used, by key."""


def as_requested(request: Request, response: Response) -> Mapping[str, Amount]:
    """What was requested was used, unless the upstream refused: then nothing was."""
    return dict.fromkeys(dict(request.amounts), 0) if response.refused else dict(request.amounts)


class LimitedClient:
    """Acquires what a request takes, sends it, and reports what it used.

    The observer is told how long each request waited for the limits, which it calls `name`.
    """

    def __init__(
        self,
        client: ResourceClient,
        limits: Limits,
        *,
        usage: Usage = as_requested,
        name: str = "limits",
        observer: Observer = silent,
    ) -> None:
        self.name = name
        self._client = client
        self._limits = limits
        self._usage = usage
        self._observer = observer

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; also raises LimitTimeout when the limits have no room in time."""
        async with _acquired(self._limits, request) as (acquisition, waited):
            self._observer.note(Waited(self.name, waited))
            response = await self._client.send(request)
            acquisition.update(self._usage(request, response))
            return response

    async def aclose(self) -> None:
        """Close the client behind it."""
        await self._client.aclose()


class _Configured(Protocol):
    @property
    def config(self) -> dict[str, object]: ...


class Pool(Limits, Protocol):
    """A limit pool, as far as it matters here."""

    def __len__(self) -> int:
        """How many limit sets it has."""

    def __getitem__(self, index: int, /) -> _Configured:
        """A limit set of the pool."""

    def cool_down(self, index: int, seconds: float) -> None:
        """Put a set aside for a while."""


class PooledClient:
    """Sends through the client of whichever limit set of a pool admits: a region, an account, a key.

    `members` are the clients by name, in the order of the pool, whose sets say in `config[label]` which one is theirs.
    A member whose breaker is open, or that has no turn, is put aside and the next one is tried; one that refused for
    a time is put aside for that long. The observer is told who was chosen, and after what wait.
    Raises ValueError when members and sets do not match.
    """

    def __init__(
        self,
        pool: Pool,
        members: Mapping[str, ResourceClient],
        *,
        label: str = "name",
        usage: Usage = as_requested,
        observer: Observer = silent,
        unix_seconds: Callable[[], float] = time.time,
    ) -> None:
        names = [pool[index].config.get(label) for index in range(len(pool))]
        if names != list(members):
            raise ValueError(
                "members must be one for each limit set of the pool, in its order, named as config "
                f"[{label!r}] of the set says: {names}, not {list(members)}"
            )
        self._pool = pool
        self._members = dict(members)
        self._indices = {name: index for index, name in enumerate(members)}
        self._label = label
        self._usage = usage
        self._observer = observer
        self._unix_seconds = unix_seconds

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`; raises NotNow when no member can be asked."""
        clock, refusals, patience = asyncio.get_running_loop().time, list[NotNow](), request.wait_seconds
        start = clock()
        for _ in self._members:
            try:
                return await self._send(request)
            except NotNow as error:
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
            name = str(acquisition.config[self._label])
            self._observer.note(Waited(name, waited))
            try:
                response = await self._members[name].send(request)
            except NotNow as error:
                self._pool.cool_down(self._indices[name], error.retry_after)
                raise
            retry_after = hints_of(response, unix_seconds=self._unix_seconds()).retry_after
            if retry_after and not response.ok:
                self._pool.cool_down(self._indices[name], retry_after)
            acquisition.update(self._usage(request, response))
            return response


@asynccontextmanager
async def _acquired(limits: Limits, request: Request) -> AsyncIterator[tuple[Acquisition, float]]:
    """What a request takes, for as long as it is sent, and how long it waited; what was not sent used nothing."""
    clock = asyncio.get_running_loop().time
    start = clock()
    async with await limits.aacquire(dict(request.amounts) or None, timeout=request.wait_seconds) as acquisition:
        try:
            yield acquisition, clock() - start
        except (NotNow, Unsendable, Closed):
            acquisition.update(dict.fromkeys(acquisition.acquisitions, 0))
            raise
