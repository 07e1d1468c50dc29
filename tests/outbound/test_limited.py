"""Clients that ask limits first: what is charged, what is given back, and who is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limits_app import CallLimit, LimitPool, LimitSet, LimitTimeout, RateLimit, ResourceLimit
from limits_app.engine.amounts import Amount
from limits_app.outbound import (
    Breaker,
    BreakerClient,
    BreakerRules,
    CircuitOpen,
    Closed,
    LimitedClient,
    OutboundError,
    Pace,
    PacedClient,
    PooledClient,
    Quota,
    Request,
    Response,
    Unavailable,
    Unsendable,
    UpstreamFailed,
)
from limits_app.outbound.events import Waited
from limits_app.stores.memory import MemoryStore
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, refusal, started, steps

BROKEN = UpstreamFailed("eu", "ReadError", maybe_sent=True)


def limit_set(*limits: RateLimit | CallLimit | ResourceLimit, **config: object) -> LimitSet:
    """A set on the clock of the loop."""
    loop = asyncio.get_running_loop()
    return LimitSet(limits, store=MemoryStore(clock=lambda: round(loop.time() * 1_000_000)), config=config)


def used(limits: LimitSet) -> dict[str, object]:
    return {key: stats["used"] for key, stats in limits.get_stats().items()}


TPM = RateLimit("tpm", 100, 60)
DB = ResourceLimit("db", 2)
ASK = Request(method="POST", path="/", amounts={"tpm": 30})


def tokens(request: Request, response: Response) -> dict[str, Amount]:
    """The amount that an answer names."""
    return {"tpm": int(response.header("X-Tokens") or 0)}


@pytest.mark.parametrize(
    ("response", "options", "charged"),
    [
        pytest.param(answer(), {}, 30, id="what_was_requested"),
        pytest.param(answer(X_Tokens="12"), {"usage": tokens}, 12, id="what_was_used"),
        pytest.param(refusal(), {}, 0, id="nothing_where_the_upstream_refuses"),
    ],
)
@on_a_fake_clock
async def test_request_is_charged_and_returns_its_permits(response: Response, options: Any, charged: int) -> None:
    limits = limit_set(TPM, DB, CallLimit(9, 60))
    assert await LimitedClient(Scripted([response]), limits, **options).send(ASK) == response
    assert used(limits) == {"tpm": charged, "db": 0, "call_count": 1}


@on_a_fake_clock
async def test_a_call_that_failed_or_was_cancelled_leaves_nothing_held() -> None:
    limits = limit_set(TPM, DB)
    client = LimitedClient(Scripted([BROKEN, answer()], takes_seconds=1), limits)
    with pytest.raises(UpstreamFailed):
        await client.send(ASK)
    task = started(client.send(ASK))
    await steps()
    assert used(limits) == {"tpm": 30, "db": 1}
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert used(limits) == {"tpm": 0, "db": 0}
    await client.aclose()


@pytest.mark.parametrize(
    "error", [CircuitOpen("eu", 5.0), Unsendable("eu", "URL too long"), Closed("eu was closed")], ids=repr
)
@on_a_fake_clock
async def test_unsent_requests_use_nothing(error: OutboundError) -> None:
    limits = limit_set(TPM, DB, CallLimit(9, 60))
    client = LimitedClient(Scripted([error]), limits)
    for _ in range(20):
        with pytest.raises(type(error)):
            await client.send(ASK)
    assert used(limits) == {"tpm": 0, "db": 0, "call_count": 0}


@on_a_fake_clock
async def test_a_request_waits_for_its_limits_and_not_for_ever() -> None:
    client, watch = Scripted([answer()]), Recorder()
    limited = LimitedClient(client, limit_set(CallLimit(1, 10)), name="tokens", observer=watch)
    for _ in range(3):
        await limited.send(Request(path="/"))
    assert client.moments == pytest.approx([0.0, 10.0, 20.0], abs=0.1)  # waiting has a little jitter
    assert [event.upstream for event in watch.of(Waited)] == ["tokens"] * 3
    assert [event.seconds for event in watch.of(Waited)] == pytest.approx([0.0, 10.0, 10.0], abs=0.1)
    with pytest.raises(LimitTimeout):
        await limited.send(Request(path="/", wait_seconds=5))


def two_regions() -> LimitPool:
    sets = [limit_set(CallLimit(5, 60), name=name) for name in ("eu", "us")]
    return LimitPool(sets, load_balancing="failover")


@on_a_fake_clock
async def test_the_pool_chooses_the_upstream() -> None:
    eu, us = Scripted([answer()]), Scripted([answer()])
    watch = Recorder()
    client = PooledClient(two_regions(), {"eu": eu, "us": us}, observer=watch)
    for _ in range(8):
        await client.send(Request(path="/"))
    assert (len(eu.sent), len(us.sent)) == (5, 3)
    assert [event.upstream for event in watch.of(Waited)] == ["eu"] * 5 + ["us"] * 3
    await client.aclose()
    assert eu.closed
    assert us.closed


@on_a_fake_clock
async def test_a_member_that_fails_is_left_alone_while_it_cools_down_and_the_other_serves() -> None:
    pool = two_regions()
    eu, us = Scripted([answer(500), answer(500), answer()]), Scripted([answer()])
    rules = BreakerRules(min_calls=2, cool_down_seconds=5)
    members = {name: BreakerClient(one, Breaker(rules, name=name)) for name, one in [("eu", eu), ("us", us)]}
    client = PooledClient(pool, members)
    statuses = [(await client.send(Request(path="/"))).status for _ in range(4)]
    assert statuses == [500, 500, 200, 200]
    assert (len(eu.sent), len(us.sent)) == (2, 2)
    assert [used(one) for one in pool] == [{"call_count": 2}, {"call_count": 2}]
    assert pool.cooling_seconds(0) == pytest.approx(5)
    await asyncio.sleep(5)
    assert (await client.send(Request(path="/"))).ok
    assert len(eu.sent) == 3


@pytest.mark.parametrize(
    ("first", "aside"),
    [
        (refusal(Retry_After="20"), 20.0),
        (answer(RateLimit='"minute";r=0;t=20'), 20.0),
        (answer(RateLimit='"minute";r=1;t=20'), 0.0),
        (answer(Retry_After="20"), 0.0),
    ],
)
@on_a_fake_clock
async def test_a_member_that_refuses_or_is_empty_is_left_out_for_that_long(first: Response, aside: float) -> None:
    pool = two_regions()
    eu, us = Scripted([first, answer()]), Scripted([answer()])
    client = PooledClient(pool, {"eu": eu, "us": us})
    assert (await client.send(Request(path="/"))).refused is first.refused
    assert (await client.send(Request(path="/"))).ok
    assert [pool.cooling_seconds(index) for index in range(2)] == [aside, 0.0]
    assert len(us.sent) == (aside > 0)


@on_a_fake_clock
async def test_without_available_upstreams_the_next_available_one_is_named() -> None:
    members = {}
    for name, seconds in [("eu", 50.0), ("us", 20.0)]:
        members[name] = PacedClient(Scripted([answer()]), Pace(Quota("q", 1, seconds), name=name))
    client = PooledClient(two_regions(), members)
    request = Request(path="/", wait_seconds=5)
    for _ in range(2):
        assert (await client.send(request)).ok
    with pytest.raises(Unavailable, match="us") as caught:
        await client.send(request)
    assert caught.value.retry_after == pytest.approx(20.001)


class Busy(Scripted):
    """Has no turn for anybody, whatever he is ready to wait."""

    async def send(self, request: Request) -> Response:
        self.sent.append((0.0, request))
        await asyncio.sleep(request.wait_seconds or 0.0)
        raise Unavailable("busy", 60.0)


@on_a_fake_clock
async def test_a_request_waits_no_longer_because_several_members_are_asked() -> None:
    loop = asyncio.get_running_loop()
    for wait_seconds, left in [(5.0, 0.0), (None, None)]:
        eu, us = Busy([]), Busy([])
        start = loop.time()
        with pytest.raises(Unavailable):
            await PooledClient(two_regions(), {"eu": eu, "us": us}).send(Request(path="/", wait_seconds=wait_seconds))
        assert loop.time() - start == pytest.approx(wait_seconds or 0.0)
        assert [request.wait_seconds for _, request in [*eu.sent, *us.sent]] == [wait_seconds, left]


@pytest.mark.parametrize("names", [["us", "eu"], ["eu"], ["eu", "us", "asia"], [], ["eu", "asia"]], ids=str)
def test_members_that_do_not_match_the_pool_are_refused(names: list[str]) -> None:
    sets = [LimitSet([CallLimit(5, 60)], config={"name": name}) for name in ("eu", "us")]
    with pytest.raises(ValueError, match=r"one for each limit set, .*'name'.*\['eu', 'us'\], not"):
        PooledClient(LimitPool(sets), {name: Scripted([answer()]) for name in names})
