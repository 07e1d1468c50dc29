"""Turns: who leaves when, on a clock of its own."""

from __future__ import annotations

import asyncio
import random

import pytest

from limits_app.outbound import Pace, PacedClient, QueueTimeout, Quota, Request, Response
from limits_app.outbound.events import Depth, Learned, Refused, Waited
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, refusal, started, steps

TEN = Quota("rps", 10, 1.0)


def now() -> float:
    return round(asyncio.get_running_loop().time() - 1_000.0, 3)


async def leave(pace: Pace, left: list[tuple[int, float]], number: int, *, takes: float = 0.0) -> None:
    async with pace.turn():
        left.append((number, now()))
        await asyncio.sleep(takes)


@on_a_fake_clock
async def test_thirty_callers_leave_one_by_one_in_the_order_in_which_they_came() -> None:
    pace, left = Pace(TEN, max_gap=0.1), []
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(leave(pace, left, number))
    assert [number for number, _ in left] == list(range(30))
    moments = [moment for _, moment in left]
    assert moments[:11] == pytest.approx([0, 0, 0.06, 0.14, 0.22, 0.3, 0.38, 0.46, 0.54, 0.62, 1.001], abs=0.002)
    assert moments[-1] < 3.0
    assert (pace.waiting, pace.in_flight) == (0, 0)


@on_a_fake_clock
async def test_a_caller_that_gives_up_makes_room_for_the_next() -> None:
    pace, left = Pace(Quota("rps", 1, 1.0)), []
    tasks = [started(leave(pace, left, number)) for number in range(4)]
    await steps()
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert left == [(0, 0.0), (3, 1.001)]


@on_a_fake_clock
async def test_observers_receive_the_length_of_the_line() -> None:
    watch = Recorder()
    pace, left = Pace(Quota("rps", 1, 1.0), name="eu", observer=watch), []
    tasks = [started(leave(pace, left, number, takes=0.5)) for number in range(3)]
    await steps()
    assert watch.of(Depth)[-1] == Depth("eu line", 2, 1)
    tasks[2].cancel()
    await steps()
    assert watch.of(Depth)[-1] == Depth("eu line", 1, 1)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert watch.of(Depth)[-1] == Depth("eu line", 0, 0)


@pytest.mark.parametrize("first_of_all", [True, False], ids=["just_before_its_turn", "just_after_its_turn"])
@on_a_fake_clock
async def test_a_caller_that_is_cancelled_in_the_moment_of_its_turn_passes_it_on(first_of_all: bool) -> None:
    loop = asyncio.get_running_loop()
    pace, left, callers = Pace(Quota("rps", 1, 1.0)), [], []
    await leave(pace, left, 0)
    moment = pace._schedule.opens_at(loop.time())

    def cancel() -> None:
        callers[0].cancel()

    # Both happen in the same step of the loop: what was planned first, or for a moment that is hardly later.
    if first_of_all:
        loop.call_at(moment, cancel)
    callers += [started(leave(pace, left, number)) for number in (1, 2)]
    await steps()
    if not first_of_all:
        loop.call_at(moment + 5e-10, cancel)
    await asyncio.gather(*callers, return_exceptions=True)
    assert callers[0].cancelled()
    assert left == [(0, 0.0), (2, 1.001)]
    assert (pace.waiting, pace.in_flight) == (0, 0)


@on_a_fake_clock
async def test_turn_after_the_timeout_is_rejected_immediately() -> None:
    pace = Pace(Quota("rps", 1, 10.0))
    async with pace.turn():
        pass
    with pytest.raises(QueueTimeout, match=r"upstream: the timeout ends before .* sent; retry in 10 s") as caught:
        async with pace.turn(timeout=5):
            pass
    assert caught.value.retry_after == pytest.approx(10.001)
    assert now() == 0.0
    assert isinstance(caught.value, TimeoutError)


@on_a_fake_clock
async def test_turn_is_given_up_at_the_timeout() -> None:
    pace, left = Pace(Quota("rps", 1, 1.0)), []
    holder = started(leave(pace, left, 0, takes=3.0))
    await steps()
    with pytest.raises(QueueTimeout):
        async with pace.turn(timeout=2):
            pass
    assert now() == 2.0
    await holder
    assert pace.waiting == 0


@on_a_fake_clock
async def test_a_refused_call_keeps_its_place() -> None:
    script = [answer(), refusal(Retry_After="2"), refusal(Retry_After="2"), answer()]
    client = Scripted(script)
    watch = Recorder()
    paced = PacedClient(client, Pace(observer=watch))
    answers = [started(paced.send(Request(path=f"/{number}"))) for number in range(5)]
    assert [(await one).status for one in answers] == [200] * 5
    paths = [request.path for _, request in client.sent]
    assert paths == ["/0", "/1", "/2", "/1", "/2", "/3", "/4"]
    assert client.moments[-1] == pytest.approx(2.0, abs=1.2)
    assert watch.of(Refused)[0] == Refused("upstream", 2.0)


@on_a_fake_clock
async def test_rejection_is_returned_without_time_or_attempts_left() -> None:
    client = Scripted([refusal(Retry_After="20")])
    paced = PacedClient(client, Pace())
    assert (await paced.send(Request(path="/", wait_seconds=5))).refused
    assert len(client.sent) == 1
    client = Scripted([refusal(Retry_After="1")])
    assert (await PacedClient(client, Pace(), tries=3).send(Request(path="/", wait_seconds=None))).refused
    assert client.moments == [0.0, 1.0, 2.0]
    client = Scripted([refusal(Retry_After="2")])
    assert (await PacedClient(client, Pace()).send(Request(path="/", wait_seconds=5))).refused
    assert client.moments == [0.0, 2.0, 4.0]  # the time that was waited is gone


@on_a_fake_clock
async def test_a_call_during_a_hold_is_rejected_with_retry_after() -> None:
    paced = PacedClient(Scripted([refusal(Retry_After="30")]), Pace(name="eu"), tries=1)
    await paced.send(Request(path="/"))
    with pytest.raises(QueueTimeout, match="eu"):
        await paced.send(Request(path="/", wait_seconds=10))


@on_a_fake_clock
async def test_learned_limits_are_reported_and_kept() -> None:
    watch = Recorder()
    client = Scripted([answer(RateLimit_Policy='"rps";q=2;w=1')])
    paced = PacedClient(client, Pace(observer=watch))
    for _ in range(5):
        await paced.send(Request(path="/"))
    assert watch.of(Learned) == [Learned("upstream", "rps", 2, 1.0)]
    assert len(watch.of(Waited)) == 5
    assert client.moments == pytest.approx([0, 0, 1.0, 1.0, 2.0], abs=0.06)
    await paced.aclose()
    assert client.closed


class Strict:
    """An upstream that admits ten in any second, and sees each request somewhere on its way; it tells that, or not."""

    def __init__(self, headers: dict[str, str], *, always: bool) -> None:
        self.headers = headers
        self.always = always
        self.admitted: list[float] = []
        self.refused: list[float] = []

    async def send(self, request: Request) -> Response:
        way, left = random.random() / 50, now()
        await asyncio.sleep(way)
        admits = sum(1 for moment in self.admitted[-10:] if moment > now() - 1.0) < 10
        if admits:
            self.admitted.append(now())
        else:
            self.refused.append(left)
        await asyncio.sleep(0.02 - way)
        told = self.headers if self.always or not admits else {}
        return answer(**told) if admits else refusal(Retry_After="1", **told)

    async def aclose(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize(
    ("known", "headers"),
    [
        pytest.param((TEN,), {}, id="known_beforehand"),
        pytest.param((), {"RateLimit_Policy": '"rps";q=10;w=1'}, id="told_as_the_draft_says"),
        pytest.param((), {"X_RateLimit_Limit": "10", "X_RateLimit_Reset": "1"}, id="told_in_the_old_way"),
    ],
)
@on_a_fake_clock
async def test_a_limit_is_used_to_97_percent_and_never_exceeded_once_it_is_known(
    known: tuple[Quota, ...], headers: dict[str, str], always: bool
) -> None:
    upstream, watch = Strict(headers, always=always), Recorder()
    paced = PacedClient(upstream, Pace(*known, observer=watch))

    async def call() -> None:
        while True:
            await paced.send(Request(path="/", wait_seconds=None))

    callers = [started(call()) for _ in range(200)]
    await asyncio.sleep(60)
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    # Requests that were under way when the limit was learned may be refused; none that left later, and few at all.
    assert [moment for moment in upstream.refused if moment > 0.2] == []
    assert len(upstream.refused) <= 5
    assert bool(upstream.refused) is not (always or bool(known))
    assert len([moment for moment in upstream.admitted if moment > 2.0]) >= 0.97 * 10 * 58
    assert (paced.pace.waiting, paced.pace.in_flight) == (0, 0)
