"""Requests of URL rules that block for a time: those that wait, and those that a pool serves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from limits_app import services
from limits_app.engine.errors import LimitExceeded, LimitTimeout
from limits_app.engine.limits import CallLimit, LimitDefinition, RateLimitAlgorithm
from limits_app.policies import resolver
from limits_app.services.rule_requests import RuleRequest
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.services.pool_rows import make_pool, serve

WINDOW = RateLimitAlgorithm.SLIDING_WINDOW
BLOCK_SECONDS = 600


def rule_request(resource: str = "log-in") -> RuleRequest:
    """A request of a rule that blocks a client for ten minutes."""
    key = (resource, "ip:192.0.2.1", (), None)
    return RuleRequest(key, None, resolver, block_seconds=BLOCK_SECONDS, blocks_by_responses=False)


def retry_after(resource: str = "log-in") -> float | None:
    """After how many seconds a request is admitted; 0 where one was."""
    try:
        rule_request(resource).acquire()
    except LimitExceeded as error:
        return error.outcome.retry_after
    return 0


def until_one_waits() -> None:
    """Return once a request waits."""
    line, pause = registry.store().line, Event()
    while not line.busy:
        pause.wait(0.001)


def test_requests_that_wait_begin_no_block(clock: FakeClock) -> None:
    services.set_resource_limits("log-in", [CallLimit(1, 60, WINDOW)])
    rule_request().acquire()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(rule_request().acquire, 300)
        until_one_waits()
        clock.advance(60)
        assert waiting.result(10).admitted
        waiting = threads.submit(rule_request().acquire, 30)
        until_one_waits()
        clock.advance(30)  # a clock that stands still ends no wait
        with pytest.raises(LimitTimeout):
            waiting.result(10)
    clock.advance(30)
    assert retry_after() == 0


def test_requests_that_wait_do_so_until_the_block_ends(clock: FakeClock) -> None:
    services.set_resource_limits("log-in", [CallLimit(1, 60, WINDOW)])
    rule_request().acquire()
    assert retry_after() == 60
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(rule_request().acquire, 1000)
        until_one_waits()
        clock.advance(BLOCK_SECONDS - 1)
        assert not waiting.done()
        assert retry_after() == 1, "requests that wait do not extend it"
        clock.advance(1)
        assert waiting.result(10).admitted


def test_several_requests_may_wait_beside_each_other(clock: FakeClock) -> None:
    services.set_resource_limits("log-in", [CallLimit(3, 60, WINDOW)])
    for _ in range(3):
        rule_request().acquire()
    with ThreadPoolExecutor(3) as threads:
        waiting = [threads.submit(rule_request().acquire, 300) for _ in range(3)]
        until_one_waits()
        clock.advance(60)
        assert [request.result(10).admitted for request in waiting] == [True] * 3, "none takes a part of the block"


@pytest.mark.parametrize(
    ("own", "blocks"), [([CallLimit(2, 60, WINDOW)], True), ([CallLimit(9, 60, WINDOW)], False), ([], False)]
)
def test_only_limits_of_the_client_begin_a_block_where_a_pool_serves(
    clock: FakeClock, own: list[LimitDefinition], blocks: bool
) -> None:
    members = {name: [CallLimit(2, 60, WINDOW)] for name in ("eu", "us")}
    serve("log-in", make_pool(members, load_balancing="failover"))
    if own:
        services.set_resource_limits("log-in", own)
    admitted = [retry_after() for _ in range(5)].count(0)
    assert admitted == (2 if blocks else 4)
    clock.advance(60)
    assert retry_after() == (BLOCK_SECONDS - 60 if blocks else 0)
    clock.advance(BLOCK_SECONDS)
    assert retry_after() == 0
