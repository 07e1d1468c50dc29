"""Retries: timelines on a clock of its own."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import (
    CircuitOpen,
    Request,
    RequestRetryPolicy,
    RetryingClient,
    Unsendable,
    UnsuccessfulResponse,
    UpstreamFailed,
    UpstreamTimeout,
)
from limits_app.outbound.events import Retrying
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, refusal, started, steps

RULES = RequestRetryPolicy(num_retries=4, within=60, wait=1, max_wait=4, jitter=0)
UNREACHABLE = UpstreamFailed("eu", "ConnectError", maybe_sent=False)
BROKEN_OFF = UpstreamFailed("eu", "ReadError", maybe_sent=True)
GET = Request(path="/")
POST = Request(method="POST", path="/")


@on_a_fake_clock
async def test_waits_double_up_to_a_bound() -> None:
    watch = Recorder()
    client = Scripted([UNREACHABLE])
    with pytest.raises(UpstreamFailed, match="eu did not respond: ConnectError"):
        await RetryingClient(client, RULES, name="eu", observer=watch).send(POST)
    assert client.moments == [0.0, 1.0, 3.0, 7.0, 11.0]
    assert watch.events == [Retrying("eu", attempt, wait) for attempt, wait in [(1, 1), (2, 2), (3, 4), (4, 4)]]


@on_a_fake_clock
async def test_jitter_spreads_retries_of_concurrent_failures() -> None:
    rules = RequestRetryPolicy(num_retries=1, wait=1.5, jitter=0.3)
    clients = [Scripted([UNREACHABLE, answer()]) for _ in range(20)]
    await asyncio.gather(*[RetryingClient(client, rules).send(GET) for client in clients])
    waits = [client.moments[1] for client in clients]
    assert len(set(waits)) > 10
    assert all(1.05 <= wait <= 1.95 for wait in waits)


@on_a_fake_clock
async def test_retry_after_of_an_upstream_is_respected() -> None:
    client = Scripted([refusal(Retry_After="7"), answer(503, Retry_After="3"), CircuitOpen("eu", 5.0), answer()])
    assert (await RetryingClient(client, RULES).send(GET)).ok
    assert client.moments == [0.0, 7.0, 10.0, 15.0]


@pytest.mark.parametrize(
    ("request_", "step", "times"),
    [
        pytest.param(GET, answer(503), 5, id="a_read_that_failed"),
        pytest.param(GET, BROKEN_OFF, 5, id="a_read_that_broke_off"),
        pytest.param(
            GET, UpstreamTimeout("eu", "no answer in time", maybe_sent=True), 5, id="a_read_that_took_too_long"
        ),
        pytest.param(GET, answer(500), 1, id="a_fault_that_does_not_pass"),
        pytest.param(GET, answer(404), 1, id="an_answer"),
        pytest.param(POST, answer(503), 1, id="a_write_that_failed"),
        pytest.param(POST, BROKEN_OFF, 1, id="a_write_that_may_have_been_seen"),
        pytest.param(POST, UNREACHABLE, 5, id="a_write_that_was_never_sent"),
        pytest.param(POST, refusal(), 5, id="a_write_that_was_refused"),
        pytest.param(POST.model_copy(update={"repeatable": True}), BROKEN_OFF, 5, id="a_write_that_may_be_repeated"),
        pytest.param(GET.model_copy(update={"repeatable": False}), BROKEN_OFF, 1, id="a_read_that_may_not"),
        pytest.param(GET, Unsendable("eu", "URL too long"), 1, id="what_can_never_be_sent"),
        pytest.param(GET, ValueError("ours"), 1, id="an_error_of_our_own"),
    ],
)
@on_a_fake_clock
async def test_failures_that_are_repeated(request_: Request, step: object, times: int) -> None:
    client = Scripted([step])
    results = await asyncio.gather(RetryingClient(client, RULES).send(request_), return_exceptions=True)
    assert results == [step]
    assert len(client.sent) == times


@on_a_fake_clock
async def test_a_callable_decides_with_the_request_and_the_response() -> None:
    seen = []

    def rule(*, exception: Exception, attempt: int, request: object = None, **context: object) -> bool:
        assert isinstance(exception, UnsuccessfulResponse)
        seen.append((exception.response.status, attempt, request))
        return attempt < 2

    client = Scripted([answer(503)])
    policy = RequestRetryPolicy(num_retries=9, retry_on=rule, wait=0)
    assert (await RetryingClient(client, policy).send(GET)).status == 503
    assert seen == [(503, 1, GET), (503, 2, GET)]


@on_a_fake_clock
async def test_nothing_is_tried_after_the_time_is_up() -> None:
    client = Scripted([answer(503, Retry_After="40")])
    assert (await RetryingClient(client, RULES).send(GET)).status == 503
    assert client.moments == [0.0, 40.0]


@on_a_fake_clock
async def test_a_caller_that_goes_away_while_it_waits_is_gone() -> None:
    client = Scripted([answer(503)])
    retrying = RetryingClient(client, RULES)
    task = started(retrying.send(GET))
    await steps()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(client.sent) == 1
    await retrying.aclose()
    assert client.closed
