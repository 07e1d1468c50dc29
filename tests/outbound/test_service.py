"""A service: all clients in the right order, an executor, a queue, and an orderly end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from limits_app import CallLimit, LimitPool, LimitSet, LimitTimeout
from limits_app.outbound import (
    BreakerRules,
    CircuitOpen,
    HttpClient,
    OutboundService,
    Quota,
    Request,
    RequestRetryPolicy,
)
from limits_app.outbound.events import BreakerChanged, Called, Depth, Learned, Retrying, Waited
from limits_app.outbound.pace import Pace
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, refusal
from tests.outbound.upstream import limited_server

GET = Request(path="/")
QUICK = RequestRetryPolicy(num_retries=2, wait=0)


@on_a_fake_clock
async def test_requests_are_sent_and_retried_and_closing_closes_the_client() -> None:
    client, watch = Scripted([answer(503), answer(RateLimit_Policy='"rps";q=9;w=1')]), Recorder()
    async with OutboundService(client, name="eu", retry=QUICK, observer=watch) as service:
        assert (await service.send(GET)).ok
        assert await service.submit(GET)
        assert [one.status for one in await service.map([GET] * 3)] == [200] * 3
    assert client.closed
    assert len(client.sent) == 6
    assert [event.attempt for event in watch.of(Retrying)] == [1]
    assert watch.of(Learned) == [Learned("eu", "rps", 9, 1.0)]
    assert len(watch.of(Waited)) == 6


@on_a_fake_clock
async def test_at_most_so_many_are_sent_at_the_same_time() -> None:
    client = Scripted([answer()], takes_seconds=1)
    async with OutboundService(client, pace=Pace(Quota("rps", 100, 1.0)), concurrency=2) as service:
        tasks = [service.submit(GET) for _ in range(5)]
        await asyncio.sleep(0.5)
        stats = service.stats()
        assert (stats["running"], stats["waiting"], stats["in_flight"]) == (2, 3, 2)
        await asyncio.gather(*tasks)
    assert client.moments == pytest.approx([0, 0, 1, 1, 2], abs=0.1)


@on_a_fake_clock
async def test_queued_requests_are_sent_later_and_failures_are_kept() -> None:
    watch, client = Recorder(), Scripted([answer(), ValueError("broken"), answer()])
    async with OutboundService(client, capacity=2, concurrency=1, observer=watch) as service:
        for number in range(3):
            await service.enqueue(Request(path=f"/{number}"))
        await service.join()
        stats = service.stats()
        assert (stats["queued"], stats["queue_done"], stats["queue_failed"]) == (0, 2, 1)
    assert [(failed.item.path, str(failed.error)) for failed in service.failures] == [("/1", "broken")]
    assert watch.of(Depth)[0].queue == "upstream queue"


@on_a_fake_clock
async def test_limits_breaker_and_cache_are_optional_parts() -> None:
    limits = LimitSet([CallLimit(2, 60)])
    client = Scripted([answer(), answer(500)])
    rules = BreakerRules(min_calls=2, failure_ratio=0.5)
    service = OutboundService(client, limits=limits, breaker=rules, retry=QUICK, cache_seconds=10)
    async with service:
        assert not (await service.send(GET)).cached
        assert (await service.send(GET)).cached
        assert limits.get_stats()["call_count"]["used"] == pytest.approx(1, abs=0.01)
        assert (await service.send(Request(path="/2"))).status == 500
        assert service.stats()["breaker"] == "open"
        with pytest.raises(LimitTimeout):
            await service.send(Request(path="/3", wait_seconds=0))
    service = OutboundService(client, breaker=rules, retry=RequestRetryPolicy(num_retries=0))
    async with service:
        for _ in range(2):
            await service.send(GET)
        with pytest.raises(CircuitOpen):
            await service.send(GET)


@on_a_fake_clock
async def test_a_refusal_keeps_its_place_and_is_sent_again() -> None:
    client, watch = Scripted([refusal(Retry_After="2"), answer()]), Recorder()
    async with OutboundService(client, observer=watch) as service:
        assert (await service.send(GET)).ok
    assert client.moments == [0.0, 2.0]
    assert watch.of(BreakerChanged, Called, Retrying) == []


def test_a_server_whose_quota_is_unknown_refuses_few_of_the_first_requests() -> None:
    """The server allows 20 requests in a second, and names its quota only when it refuses."""
    callers = 60

    async def scenario(url: str) -> list[int]:
        http = HttpClient(url, max_connections=callers)
        async with OutboundService(http, concurrency=callers) as service:
            return [response.status for response in await service.map([GET] * callers)]

    with limited_server(20) as server:
        assert asyncio.run(scenario(server.url)) == [200] * callers
    assert len(server.admitted) == callers
    assert 1 <= len(server.refused) <= 10


def two_regions() -> LimitPool:
    sets = [LimitSet([CallLimit(2, 60)], config={"name": name}) for name in ("eu", "us")]
    return LimitPool(sets, load_balancing="failover")


@on_a_fake_clock
async def test_several_clients_serve_as_the_pool_chooses_each_with_its_own_breaker() -> None:
    eu, us = Scripted([answer(500)]), Scripted([answer()])
    rules = BreakerRules(min_calls=2, failure_ratio=0.5)
    service = OutboundService(clients={"eu": eu, "us": us}, limits=two_regions(), breaker=rules)
    async with service:
        statuses = [(await service.send(Request(path=f"/{number}", wait_seconds=0))).status for number in range(4)]
        assert statuses == [500, 500, 200, 200]
        assert service.stats()["breaker"] == {"eu": "open", "us": "closed"}
        assert list(service.breakers) == list(service.paces) == ["eu", "us"]
    assert eu.closed
    assert us.closed


@on_a_fake_clock
async def test_pause_that_the_upstream_requests_is_reported() -> None:
    seconds: list[float] = []

    async def report(pause: float) -> None:
        seconds.append(pause)

    client, limits = Scripted([answer(RateLimit='"day";r=0;t=7'), answer()]), LimitSet([CallLimit(9, 60)])
    async with OutboundService(client, limits=limits, report=report) as service:
        assert (await service.send(GET)).ok
    assert seconds == [7]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"clients": {}},
        {"client": Scripted([answer()]), "clients": {"eu": Scripted([answer()])}},
        {"clients": {"eu": Scripted([answer()])}},
        {"clients": {"eu": Scripted([answer()])}, "limits": two_regions(), "pace": Pace()},
        {"client": Scripted([answer()]), "report": asyncio.sleep},
    ],
)
def test_options_that_do_not_go_together_are_an_error(options: Any) -> None:
    with pytest.raises(ValueError, match=r"clients=|report="):
        OutboundService(**options)


@on_a_fake_clock
async def test_a_response_has_the_id_of_its_request() -> None:
    before = datetime.now(UTC)
    async with OutboundService(Scripted([answer()]), cache_seconds=10) as service:
        first, second = Request(path="/"), Request(path="/", request_id="trace-7")
        responses = [await service.send(request) for request in (first, second)]
        assert [response.cached for response in responses] == [False, True]
    assert [response.request_id for response in responses] == [first.request_id, "trace-7"]
    assert first.request_id != Request(path="/").request_id
    assert before <= first.timestamp
    assert before.tzinfo is responses[0].timestamp.tzinfo
    assert Request(path="/") == Request(path="/")
