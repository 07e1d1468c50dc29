"""The breaker: timelines, with time as an argument, and the client that asks it."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import Breaker, BreakerClient, BreakerRules, BreakerState, CircuitOpen, Request, UpstreamFailed
from limits_app.outbound.events import BreakerTurned
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, started, steps

RULES = BreakerRules(
    failure_ratio=0.5, min_calls=4, interval_seconds=10, cool_down_seconds=5, most_cool_down_seconds=15
)
BROKEN = UpstreamFailed("eu", "ConnectError", maybe_sent=False)


def called(breaker: Breaker, now: float, *, failed: bool | None) -> None:
    breaker.leave(breaker.enter(now), now, failed=failed)


def broken(now: float = 0.0, rules: BreakerRules = RULES, watch: Recorder | None = None) -> Breaker:
    """A breaker that opens."""
    breaker = Breaker(rules, name="eu", observer=watch or Recorder())
    for _ in range(4):
        called(breaker, now, failed=True)
    return breaker


def test_it_stays_closed_while_few_calls_fail() -> None:
    breaker = Breaker(RULES)
    for number in range(100):
        called(breaker, number / 10, failed=number % 3 == 2)
    assert breaker.state is BreakerState.CLOSED


def test_it_opens_when_half_of_at_least_four_have_failed() -> None:
    breaker = Breaker(RULES)
    called(breaker, 0.0, failed=False)
    called(breaker, 1.0, failed=False)
    called(breaker, 2.0, failed=True)
    assert breaker.state is BreakerState.CLOSED
    called(breaker, 3.0, failed=True)
    assert breaker.state is BreakerState.OPEN


def test_what_failed_long_ago_is_forgotten() -> None:
    breaker = Breaker(RULES)
    for _ in range(3):
        called(breaker, 0.0, failed=True)
    called(breaker, 11.0, failed=True)
    assert breaker.state is BreakerState.CLOSED


def test_what_says_nothing_counts_for_nothing() -> None:
    breaker = Breaker(RULES)
    for _ in range(10):
        called(breaker, 0.0, failed=None)
    called(breaker, 0.0, failed=True)
    assert breaker.state is BreakerState.CLOSED


def test_an_open_breaker_says_when_to_come_back() -> None:
    breaker = broken()
    with pytest.raises(CircuitOpen, match="eu failed too often and is left alone: try again in 3 s") as caught:
        breaker.enter(2.0)
    assert caught.value.retry_after == 3.0


def test_after_its_cool_down_one_may_try_and_success_closes_it() -> None:
    watch = Recorder()
    breaker = broken(watch=watch)
    probe = breaker.enter(5.0)
    with pytest.raises(CircuitOpen):
        breaker.enter(5.0)
    breaker.leave(probe, 5.1, failed=False)
    called(breaker, 5.1, failed=True)
    assert breaker.state is BreakerState.CLOSED
    assert watch.events == [BreakerTurned("eu", state) for state in ("open", "half_open", "closed")]


def test_each_probe_that_fails_doubles_the_cool_down_up_to_a_bound() -> None:
    breaker, now, waits = broken(), 0.0, []
    for _ in range(4):
        with pytest.raises(CircuitOpen) as caught:
            breaker.enter(now)
        waits.append(caught.value.retry_after)
        now += waits[-1]
        called(breaker, now, failed=True)
    assert waits == [5.0, 10.0, 15.0, 15.0]


def test_a_probe_that_was_cancelled_lets_another_one_try() -> None:
    breaker = broken()
    breaker.leave(breaker.enter(5.0), 5.0, failed=None)
    called(breaker, 5.0, failed=False)
    assert breaker.state is BreakerState.CLOSED


def test_several_probes_must_all_succeed() -> None:
    breaker = broken(rules=BreakerRules(min_calls=4, cool_down_seconds=5, probes=2))
    probes = [breaker.enter(5.0), breaker.enter(5.0)]
    breaker.leave(probes[0], 5.0, failed=False)
    assert breaker.state is BreakerState.HALF_OPEN
    breaker.leave(probes[1], 5.0, failed=False)
    assert breaker.state is BreakerState.CLOSED


def test_a_call_that_began_before_the_breaker_turned_says_nothing_about_now() -> None:
    breaker = Breaker(RULES)
    slow = breaker.enter(0.0)
    for _ in range(4):
        called(breaker, 1.0, failed=True)
    probe = breaker.enter(6.0)
    breaker.leave(slow, 6.0, failed=True)
    breaker.leave(probe, 6.0, failed=False)
    assert breaker.state is BreakerState.CLOSED


# --------------------------------------------------------------------------------------------- the client


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
async def test_a_probe_whose_caller_goes_away_blocks_nobody() -> None:
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
