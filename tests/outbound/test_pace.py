"""Turns: who leaves when, on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import NoTurnInTime, Pace, PacedClient, Quota, Request, Schedule
from limits_app.outbound.events import Learned, Refused, Waited
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
    pace, left = Pace(TEN, schedule=Schedule(longest_gap=0.1)), []
    async with asyncio.TaskGroup() as group:
        for number in range(30):
            group.create_task(leave(pace, left, number))
    assert [number for number, _ in left] == list(range(30))
    moments = [moment for _, moment in left]
    assert moments[:12] == pytest.approx([0, 0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.001, 1.001], abs=0.002)
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
async def test_a_turn_that_is_given_and_not_taken_goes_to_the_next() -> None:
    pace, left = Pace(Quota("rps", 1, 1.0)), []
    held = started(leave(pace, left, 0))
    await steps()
    first, second = started(leave(pace, left, 1)), started(leave(pace, left, 2))
    await steps()
    assert pace._timer is not None
    # In the same step of the loop: first it is woken, then cancelled.
    asyncio.get_running_loop().call_at(pace._timer.when() + 5e-10, first.cancel)
    await asyncio.gather(held, first, second, return_exceptions=True)
    assert first.cancelled()
    assert left == [(0, 0.0), (2, 1.001)]
    assert (pace.waiting, pace.in_flight) == (0, 0)


@on_a_fake_clock
async def test_a_turn_that_cannot_come_in_time_is_refused_at_once() -> None:
    pace = Pace(Quota("rps", 1, 10.0))
    async with pace.turn():
        pass
    with pytest.raises(NoTurnInTime, match=r"upstream has no turn in time: the next may be free in 10 s") as caught:
        async with pace.turn(timeout=5):
            pass
    assert caught.value.retry_after == pytest.approx(10.01)
    assert now() == 0.0
    assert isinstance(caught.value, TimeoutError)


@on_a_fake_clock
async def test_a_turn_that_does_not_come_in_time_is_given_up_then() -> None:
    pace, left = Pace(Quota("rps", 1, 1.0)), []
    holder = started(leave(pace, left, 0, takes=3.0))
    await steps()
    with pytest.raises(NoTurnInTime):
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
    assert paths == ["/0", "/1", "/2", "/3", "/4", "/1", "/2"]
    assert client.moments[-1] == pytest.approx(2.0, abs=1.2)
    assert watch.of(Refused)[0] == Refused("upstream", 2.0)


@on_a_fake_clock
async def test_those_who_come_later_stay_behind_those_who_were_refused() -> None:
    client = Scripted([refusal(Retry_After="2"), answer()])
    paced = PacedClient(client, Pace())
    first = started(paced.send(Request(path="/first")))
    await asyncio.sleep(1)
    later = started(paced.send(Request(path="/later")))
    await asyncio.gather(first, later)
    assert [request.path for _, request in client.sent] == ["/first", "/first", "/later"]


@on_a_fake_clock
async def test_a_refusal_is_the_answer_when_there_is_no_time_or_no_try_left() -> None:
    client = Scripted([refusal(Retry_After="20")])
    paced = PacedClient(client, Pace())
    assert (await paced.send(Request(path="/", wait_seconds=5))).refused
    assert len(client.sent) == 1
    client = Scripted([refusal(Retry_After="1")])
    assert (await PacedClient(client, Pace(), tries=3).send(Request(path="/", wait_seconds=None))).refused
    assert client.moments == [0.0, 1.0, 2.0]


@on_a_fake_clock
async def test_time_that_was_waited_is_gone() -> None:
    client = Scripted([refusal(Retry_After="2")])
    paced = PacedClient(client, Pace())
    assert (await paced.send(Request(path="/", wait_seconds=5))).refused
    assert client.moments == [0.0, 2.0, 4.0]


@on_a_fake_clock
async def test_who_comes_while_an_upstream_is_held_hears_when_to_come_back() -> None:
    paced = PacedClient(Scripted([refusal(Retry_After="30")]), Pace(name="eu"), tries=1)
    await paced.send(Request(path="/"))
    with pytest.raises(NoTurnInTime, match="eu"):
        await paced.send(Request(path="/", wait_seconds=10))


@on_a_fake_clock
async def test_what_is_learned_is_told_and_kept() -> None:
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
