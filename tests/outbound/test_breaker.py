"""The circuit breaker of an upstream: timelines on a clock of the test, and the client that uses it."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import (
    Breaker,
    BreakerClient,
    BreakerRules,
    BreakerState,
    CircuitOpen,
    Closed,
    Request,
    Unavailable,
    Unsendable,
    UpstreamFailed,
)
from limits_app.outbound.events import BreakerChanged
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, started, steps

RULES = BreakerRules(
    failure_ratio=0.5, min_calls=4, interval_seconds=10, cool_down_seconds=5, most_cool_down_seconds=15
)
BROKEN = UpstreamFailed("eu", "ConnectError", maybe_sent=False)


@on_a_fake_clock
async def test_any_coroutine_function_can_be_called_through_it() -> None:
    watch = Recorder()
    breaker = Breaker(RULES, name="eu", observer=watch)

    @breaker.wrap
    async def divide(one: int, by: int) -> float:
        return one / by

    assert await divide(6, by=3) == 2
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await breaker.call(divide.__wrapped__, 1, by=0)  # type: ignore[attr-defined]
    with pytest.raises(
        CircuitOpen, match="eu failed too often and its circuit breaker is open; retry in 5 s"
    ) as caught:
        await divide(6, by=3)
    assert caught.value.retry_after == 5.0
    await asyncio.sleep(5)
    assert await divide(6, by=3) == 2
    assert watch.events == [BreakerChanged("eu", state) for state in ("open", "half_open", "closed")]


@pytest.mark.parametrize(
    "error",
    [Unavailable("eu", 1.0), Closed("eu was closed"), Unsendable("eu", "URL too long"), asyncio.CancelledError()],
)
@on_a_fake_clock
async def test_errors_that_are_not_of_the_upstream_do_not_count(error: BaseException) -> None:
    breaker = Breaker(RULES)

    async def fail() -> None:
        raise error

    for _ in range(10):
        with pytest.raises(type(error)):
            await breaker.call(fail)
    assert breaker.state is BreakerState.CLOSED


@on_a_fake_clock
async def test_endless_times_are_possible() -> None:
    breaker = Breaker(BreakerRules(min_calls=1, interval_seconds=float("inf"), cool_down_seconds=float("inf")))
    guarded = BreakerClient(Scripted([answer(500)]), breaker)
    await guarded.send(Request(path="/"))
    with pytest.raises(CircuitOpen):
        await guarded.send(Request(path="/"))


@on_a_fake_clock
async def test_a_broken_upstream_is_asked_rarely_and_found_again() -> None:
    client = Scripted([BROKEN, BROKEN, answer(500), answer(503), answer()])
    guarded = BreakerClient(client, Breaker(RULES, name="eu"))
    results: list[object] = []
    for _ in range(8):
        try:
            results.append((await guarded.send(Request(path="/"))).status)
        except UpstreamFailed:
            results.append("failed")
        except CircuitOpen:
            results.append("open")
        await asyncio.sleep(1)
    assert results == ["failed", "failed", 500, 503, "open", "open", "open", "open"]
    assert (await guarded.send(Request(path="/"))).ok
    assert client.moments == [0.0, 1.0, 2.0, 3.0, 8.0]
    await guarded.aclose()
    assert client.closed


@on_a_fake_clock
async def test_a_probe_whose_caller_goes_away_blocks_no_client() -> None:
    breaker = Breaker(RULES, name="eu")
    client = Scripted([answer(500)] * 4 + [answer()], takes_seconds=3)
    guarded = BreakerClient(client, breaker)
    await asyncio.gather(*[guarded.send(Request(path="/")) for _ in range(4)])
    await asyncio.sleep(5)
    probe = started(guarded.send(Request(path="/")))
    await steps()
    probe.cancel()
    await asyncio.gather(probe, return_exceptions=True)
    assert (await guarded.send(Request(path="/"))).ok
    assert breaker.state is BreakerState.CLOSED
