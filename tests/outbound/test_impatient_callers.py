"""Two hundred callers before a real server that takes fifty requests a second."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import fmean, median

import pytest

from limits_app.outbound import HttpClient, Pace, PacedClient, Request, Response
from limits_app.outbound.events import Event, Learned
from tests.outbound.upstream import LimitedServer, limited_server

CAPACITY = 50
CALLERS = 200
PATIENCE_SECONDS = 30.0
WINDOWS = 5
"""How many seconds of the server's capacity are measured, from the first request that it admits after the refusals."""


class Siege:
    """Everybody calls again and again, and all of it is written down."""

    def __init__(self, server: LimitedServer) -> None:
        self.server = server
        self.learned_at = 0.0
        self.left: list[tuple[float, str]] = []
        self.round_trips: list[float] = []
        self.lags: list[float] = []
        self.pace = Pace(observer=self)
        self.http = HttpClient(server.url, max_connections=CALLERS)

    def note(self, event: Event) -> None:
        if isinstance(event, Learned) and not self.learned_at:
            self.learned_at = time.monotonic()

    async def send(self, request: Request) -> Response:
        self.left.append((time.monotonic(), request.path))
        response = await self.http.send(request)
        self.round_trips.append(response.seconds)
        return response

    async def aclose(self) -> None:
        await self.http.aclose()

    async def run(self) -> None:
        client = PacedClient(self, self.pace)

        async def call(number: int) -> None:
            turn = 0
            while True:
                answer = await client.send(Request(path=f"/{turn}/{number}"))
                assert answer.ok
                turn += 1

        async def beat() -> None:
            while True:
                start = time.monotonic()
                await asyncio.sleep(0.01)
                self.lags.append(time.monotonic() - start - 0.01)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call(number)) for number in range(CALLERS)]
            tasks.append(group.create_task(beat()))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(self.afterwards()) <= WINDOWS * CAPACITY:  # noqa: ASYNC110 - the server is in another thread
                    await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
        assert (self.pace.waiting, self.pace.in_flight) == (0, 0)
        await client.aclose()

    def afterwards(self) -> list[float]:
        """When requests were admitted after the last refusal; on a busy machine that one comes late."""
        refused = self.server.refused
        return [seen for seen, _ in self.server.admitted if seen > refused[-1][0]] if refused else []

    def left_at(self, path: str, seen: float) -> float:
        """When the request left that the server saw at a moment."""
        return max(moment for moment, other in self.left if other == path and moment <= seen)


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.release
def test_callers_use_what_a_server_has_and_are_never_refused_once_they_know() -> None:
    with limited_server(CAPACITY) as server:
        siege = Siege(server)
        asyncio.run(siege.run())
    # Requests that were under way when the limit was learned may be refused, and one whose turn had come by then; after
    # the refusal nothing leaves for a second, and no request that leaves later is refused.
    assert [path for seen, path in server.refused if siege.left_at(path, seen) > siege.learned_at + 0.5] == []
    # The slow start: 1 + 2 + ... + 10 requests, of which the server admits 50.
    assert len(server.refused) <= 15
    # The median second, since a machine that stands still makes one of them longer.
    seconds = median(end - start for start, end in pairwise(siege.afterwards()[: WINDOWS * CAPACITY + 1 : CAPACITY]))
    # A machine that is busy with other things wakes us late, and answers late: on a quiet one both are next to nothing.
    delay = fmean(siege.round_trips[CALLERS:]) + fmean(siege.lags[-50 * WINDOWS :])
    assert seconds <= (1.0 + delay) / 0.97
    # Whoever was refused kept the place: callers leave in the order in which they came, and then come again.
    waited = [path for moment, path in siege.left if moment > siege.learned_at + 0.5]
    first_turns = [int(path.split("/")[2]) for path in waited if path.startswith("/0/")]
    assert first_turns == sorted(first_turns)
    assert all(path.startswith("/0/") for path in waited[: len(first_turns)])
    assert len(first_turns) >= CALLERS - CAPACITY - 60
