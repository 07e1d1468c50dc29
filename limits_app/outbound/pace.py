"""The pace of one upstream: requests wait in line, and each is sent when the schedule allows it."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Final

from limits_app.outbound.client import ResourceClient, WrappingClient
from limits_app.outbound.errors import QueueTimeout, check_counts
from limits_app.outbound.events import Depth, Learned, Observer, Refused, Waited, silent
from limits_app.outbound.hints import Quota, hints_of
from limits_app.outbound.messages import Request, Response
from limits_app.outbound.schedule import Departure, PaceSchedule

_next_ticket: Final = count(1).__next__


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: int
    future: asyncio.Future[Departure]


class Pace:
    """The waiting line of one upstream, first in, first out; belongs to one event loop.

    `quotas` are known limits of the upstream; others are learned from responses. Without a known quota the pace starts
    with one request at a time and grows. At most `max_gap` seconds pass between requests that may be sent, and no
    refusal stops the line for more than `max_hold` seconds.
    One timer wakes the first waiter when it may be sent; nothing polls.
    """

    def __init__(
        self,
        *quotas: Quota,
        name: str = "upstream",
        max_gap: float = 0.05,
        max_hold: float = 3600.0,
        observer: Observer = silent,
    ) -> None:
        self.name = name
        self._schedule = PaceSchedule(max_gap=max_gap, max_hold=max_hold)
        self._observer = observer
        self._line: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        for quota in quotas:
            self._schedule.learn(quota)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._line)

    @property
    def in_flight(self) -> int:
        """How many requests were sent and have no response yet."""
        return self._schedule.in_flight

    @asynccontextmanager
    async def turn(self, *, timeout: float | None = None, ticket: int | None = None) -> AsyncIterator[Departure]:
        """Wait for a turn, and send in the block; set `hints` of the departure to those of the response.

        A lower `ticket` comes first; by default it is the next number.
        Raises QueueTimeout when `timeout` seconds are over, and immediately when the turn cannot come before.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        departure = await self._wait(_next_ticket() if ticket is None else ticket, timeout)
        self._observer.note(Waited(self.name, loop.time() - start))
        try:
            yield departure
        finally:
            update = self._schedule.arrive(loop.time(), departure)
            for quota in update.quotas:
                self._observer.note(Learned(self.name, quota.name, quota.capacity, quota.window_seconds))
            if update.hold_seconds is not None:
                self._observer.note(Refused(self.name, update.hold_seconds))
            self._serve()

    async def _wait(self, ticket: int, timeout: float | None) -> Departure:
        loop = asyncio.get_running_loop()
        index = bisect(self._line, ticket, key=attrgetter("ticket"))
        earliest = self._schedule.opens_at(loop.time(), index) - loop.time()
        if timeout is not None and earliest > timeout:
            raise QueueTimeout(self.name, earliest)
        waiter = _Waiter(ticket, loop.create_future())
        self._line.insert(index, waiter)
        self._serve()
        try:
            async with asyncio.timeout(timeout):
                return await waiter.future
        except TimeoutError:
            self._give_up(waiter)
            raise QueueTimeout(self.name, self._schedule.opens_at(loop.time(), self.waiting) - loop.time()) from None
        except BaseException:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        """Leave the line; a turn that came at the same time goes to the next waiter."""
        if waiter in self._line:
            self._line.remove(waiter)
        elif waiter.future.done() and not waiter.future.cancelled():
            self._schedule.withdraw()
        self._serve()

    def _serve(self) -> None:
        """Release the waiters that may be sent, set the timer for the next one, and report the depth of the line."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._release()
        self._observer.note(Depth(f"{self.name} line", self.waiting, self.in_flight))

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        while self._line and self._schedule.has_room:
            now = loop.time()
            opens_at = self._schedule.opens_at(now)
            if opens_at > now:
                self._timer = loop.call_at(opens_at, self._serve)
                return
            waiter = self._line.pop(0)
            if not waiter.future.cancelled():
                waiter.future.set_result(self._schedule.depart(now))


class PacedClient(WrappingClient):
    """Sends each request at a pace, which learns from the responses.

    A request that the upstream refuses (429) keeps its place in line and is sent again when the upstream allows it, up
    to `tries` times in total and within `wait_seconds` of the request; then the refusal is the response. This is safe
    for every method, since an upstream does not process a request that it refuses.
    """

    def __init__(self, client: ResourceClient, pace: Pace, *, tries: int = 5) -> None:
        check_counts(tries=tries)
        super().__init__(client)
        self.pace = pace
        self._tries = tries

    async def send(self, request: Request) -> Response:
        """See `ResourceClient.send`."""
        loop, ticket = asyncio.get_running_loop(), _next_ticket()
        timeout = request.wait_seconds
        response = None
        for _ in range(self._tries):
            start = loop.time()
            try:
                async with self.pace.turn(timeout=timeout, ticket=ticket) as departure:
                    waited = loop.time() - start
                    response = await self._client.send(request)
                    departure.hints = hints_of(response)
            except QueueTimeout:
                if response is None:
                    raise
                break
            if not response.refused:
                break
            timeout = None if timeout is None else max(timeout - waited, 0.0)
        assert response is not None  # noqa: S101 - there is at least one try
        return response
