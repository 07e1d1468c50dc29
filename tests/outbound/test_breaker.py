"""The circuit breaker of an upstream: timelines on a clock of the test, and the client that uses it."""

from __future__ import annotations

import asyncio

import pytest

from limits_app.outbound import Breaker, BreakerClient, BreakerRules, BreakerState, CircuitOpen, Request, UpstreamFailed
from limits_app.outbound.events import BreakerTurned
from limits_app.testing import FakeClock
from tests.outbound.timelines import Recorder, Scripted, answer, on_a_fake_clock, started, steps

RULES = BreakerRules(
    failure_ratio=0.5, min_calls=4, interval_seconds=10, cool_down_seconds=5, most_cool_down_seconds=15
)
BROKEN = UpstreamFailed("eu", "ConnectError", maybe_sent=False)


class Course:
    """A breaker with a clock that stands still between the calls."""

    def __init__(self, rules: BreakerRules = RULES, watch: Recorder | None = None) -> None:
        self.clock = FakeClock()
        self.breaker = Breaker(rules, name="eu", observer=watch or Recorder(), clock=self.clock)

    def call(self, *, failed: bool | None) -> None:
        """Make a call that ends at once."""
        self.breaker.leave(self.breaker.enter(), failed=failed)

    def opened(self) -> Course:
        """Open the breaker."""
        for _ in range(4):
            self.call(failed=True)
        return self


def test_it_stays_closed_while_few_calls_fail() -> None:
    course = Course()
    for number in range(100):
        course.call(failed=number % 3 == 2)
        course.clock.advance(0.1)
    assert course.breaker.state is BreakerState.CLOSED


def test_it_opens_when_half_of_at_least_four_have_failed() -> None:
    course = Course()
    for failed in (False, False, True):
        course.call(failed=failed)
        course.clock.advance(1)
    assert course.breaker.state is BreakerState.CLOSED
    course.call(failed=True)
    assert course.breaker.state is BreakerState.OPEN


def test_failures_that_are_older_than_the_interval_do_not_count() -> None:
    course = Course()
    for _ in range(3):
        course.call(failed=True)
    course.clock.advance(11)
    course.call(failed=True)
    assert course.breaker.state is BreakerState.CLOSED


def test_cancelled_calls_do_not_count() -> None:
    course = Course()
    for _ in range(10):
        course.call(failed=None)
    course.call(failed=True)
    assert course.breaker.state is BreakerState.CLOSED


def test_an_open_breaker_says_when_to_come_back() -> None:
    course = Course().opened()
    course.clock.advance(2)
    with pytest.raises(CircuitOpen, match="eu failed too often and is left alone: try again in 3 s") as caught:
        course.breaker.enter()
    assert caught.value.retry_after == 3.0


def test_after_its_cool_down_one_call_passes_and_success_closes_it() -> None:
    watch = Recorder()
    course = Course(watch=watch).opened()
    course.clock.advance(5)
    probe = course.breaker.enter()
    with pytest.raises(CircuitOpen) as caught:
        course.breaker.enter()
    assert caught.value.retry_after == 5.0
    course.breaker.leave(probe, failed=False)
    course.call(failed=True)
    assert course.breaker.state is BreakerState.CLOSED
    assert watch.events == [BreakerTurned("eu", state) for state in ("open", "half_open", "closed")]


def test_each_probe_that_fails_doubles_the_cool_down_up_to_a_bound() -> None:
    course, waits = Course().opened(), []
    for _ in range(4):
        with pytest.raises(CircuitOpen) as caught:
            course.breaker.enter()
        waits.append(caught.value.retry_after)
        course.clock.advance(waits[-1])
        course.call(failed=True)
    assert waits == [5.0, 10.0, 15.0, 15.0]


def test_a_cancelled_probe_lets_another_call_pass() -> None:
    course = Course().opened()
    course.clock.advance(5)
    course.call(failed=None)
    course.call(failed=False)
    assert course.breaker.state is BreakerState.CLOSED


def test_several_probes_must_all_succeed() -> None:
    course = Course(BreakerRules(min_calls=4, cool_down_seconds=5, probes=2)).opened()
    course.clock.advance(5)
    probes = [course.breaker.enter(), course.breaker.enter()]
    course.breaker.leave(probes[0], failed=False)
    assert course.breaker.state is BreakerState.HALF_OPEN
    course.breaker.leave(probes[1], failed=False)
    assert course.breaker.state is BreakerState.CLOSED


def test_a_call_that_began_before_a_change_of_state_does_not_count() -> None:
    course = Course()
    slow = course.breaker.enter()
    course.opened().clock.advance(5)
    probe = course.breaker.enter()
    course.breaker.leave(slow, failed=True)
    course.breaker.leave(probe, failed=False)
    assert course.breaker.state is BreakerState.CLOSED


def test_endless_times_are_possible() -> None:
    course = Course(BreakerRules(min_calls=4, interval_seconds=float("inf"), cool_down_seconds=float("inf"))).opened()
    with pytest.raises(CircuitOpen):
        course.breaker.enter()


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
