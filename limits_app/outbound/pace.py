"""Turns: everybody who wants to send gets a place in line, and is woken once, at its own moment."""

from __future__ import annotations

import asyncio
from bisect import bisect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Final

from limits_app.outbound.errors import NoTurnInTime
from limits_app.outbound.events import Depth, Learned, Observer, Refused, Waited, silent
from limits_app.outbound.hints import Quota
from limits_app.outbound.schedule import Departure, Schedule

__all__ = ["Pace", "next_ticket"]

next_ticket: Final = count(1).__next__


@dataclass(frozen=True, slots=True)
class _Waiter:
    ticket: int
    future: asyncio.Future[Departure]


class Pace:
    """The line before one upstream, first come, first served; belongs to one event loop.

    `quotas` are limits that are known beforehand; what the answers tell is learned on the way.
    One timer wakes whoever is first, at the moment at which it may leave: nobody polls, and nobody is woken in vain.
    """

    def __init__(
        self,
        *quotas: Quota,
        name: str = "upstream",
        schedule: Schedule | None = None,
        observer: Observer = silent,
    ) -> None:
        self.name = name
        self._schedule = schedule or Schedule()
        self._observer = observer
        self._line: list[_Waiter] = []
        self._timer: asyncio.TimerHandle | None = None
        for quota in quotas:
            self._schedule.learn(quota)

    @property
    def waiting(self) -> int:
        """How many stand in line."""
        return len(self._line)

    @property
    def in_flight(self) -> int:
        """How many have left and have no answer yet."""
        return self._schedule.in_flight

    @asynccontextmanager
    async def turn(self, *, timeout: float | None = None, ticket: int | None = None) -> AsyncIterator[Departure]:
        """Wait for a turn, and hold it in the block; put into the departure what the answer tells.

        A `ticket` drawn before keeps the place in line that it had then.
        Raises NoTurnInTime at once when the turn cannot come within `timeout` seconds, and then when it did not.
        """
        loop = asyncio.get_running_loop()
        start = loop.time()
        departure = await self._leave(next_ticket() if ticket is None else ticket, timeout)
        self._observer.note(Waited(self.name, loop.time() - start))
        try:
            yield departure
        finally:
            lesson = self._schedule.arrive(loop.time(), departure)
            for quota in lesson.quotas:
                self._observer.note(Learned(self.name, quota.name, quota.capacity, quota.window_seconds))
            if lesson.hold_seconds is not None:
                self._observer.note(Refused(self.name, lesson.hold_seconds))
            self._serve()

    async def _leave(self, ticket: int, timeout: float | None) -> Departure:
        loop = asyncio.get_running_loop()
        place = bisect(self._line, ticket, key=_ticket_of)
        earliest = self._schedule.opens_at(loop.time(), place) - loop.time()
        if timeout is not None and earliest > timeout:
            raise NoTurnInTime(self.name, earliest)
        waiter = _Waiter(ticket, loop.create_future())
        self._line.insert(place, waiter)
        self._serve()
        try:
            async with asyncio.timeout(timeout):
                return await waiter.future
        except TimeoutError:
            self._give_up(waiter)
            raise NoTurnInTime(self.name, self._schedule.opens_at(loop.time(), self.waiting) - loop.time()) from None
        except BaseException:
            self._give_up(waiter)
            raise

    def _give_up(self, waiter: _Waiter) -> None:
        """Leave the line; a turn that came at the same moment goes to the next."""
        if waiter in self._line:
            self._line.remove(waiter)
        elif waiter.future.done() and not waiter.future.cancelled():
            self._schedule.withdraw()
        self._serve()

    def _serve(self) -> None:
        """Let everybody leave whose moment has come, set the timer for whoever is first then, and say how many wait."""
        self._let_go()
        self._observer.note(Depth(f"{self.name} line", self.waiting, self.in_flight))

    def _let_go(self) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._line:
            now = loop.time()
            opens = self._schedule.opens_at(now)
            if opens > now:
                self._timer = loop.call_at(opens, self._serve)
                return
            waiter = self._line.pop(0)
            if not waiter.future.cancelled():
                waiter.future.set_result(self._schedule.depart(now))


def _ticket_of(waiter: _Waiter) -> int:
    return waiter.ticket
