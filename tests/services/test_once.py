"""A request that comes again with its idempotency key is admitted, and charged once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from limits_app import (
    CallLimit,
    InvalidRequest,
    LimitExceeded,
    LimitTimeout,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
    conf,
    limits,
)
from limits_app.signals import limit_exceeded
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.services.pool_rows import make_pool, serve


@pytest.fixture
def _time_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), MemoryStore())


def used(resource: str = "api", entity: str | None = "user:1", key: str = "call_count") -> float:
    return limits.status(resource, entity=entity).limits[key]["used"]


def test_the_second_time_is_admitted_and_not_charged() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600), RateLimit("tpm", 100, 3600)])
    for _ in range(3):
        with limits.acquire("api", entity="user:1", requested={"tpm": 40}, idempotency_key="order 7") as acquisition:
            assert acquisition.successful
            acquisition.update({"tpm": 25})
    assert used() == 1
    assert used(key="tpm") == 25


def test_keys_are_those_of_one_entity_and_resource() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    limits.set_resource_limits("other", [CallLimit(10, 3600)])
    limits.acquire("api", entity="user:1", idempotency_key="a")
    limits.acquire("api", entity="user:1", idempotency_key="b")
    limits.acquire("api", entity="user:2", idempotency_key="a")
    limits.acquire("other", entity="user:1", idempotency_key="a")
    limits.acquire("api", idempotency_key="a")
    assert [used(), used(entity="user:2"), used("other"), used(entity=None)] == [2, 1, 1, 1]


def test_what_was_refused_is_charged_when_it_comes_again(clock: FakeClock) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60, RateLimitAlgorithm.FIXED_WINDOW)])
    assert limits.try_acquire("api", entity="user:1")
    assert not limits.try_acquire("api", entity="user:1", idempotency_key="a")
    with pytest.raises(LimitExceeded):
        limits.acquire("api", entity="user:1", idempotency_key="a")
    clock.advance(60)
    assert limits.try_acquire("api", entity="user:1", idempotency_key="a")
    assert not limits.try_acquire("api", entity="user:1", idempotency_key="b")
    assert limits.try_acquire("api", entity="user:1", idempotency_key="a")


def test_a_repeated_request_is_no_refusal() -> None:
    told: list[Any] = []

    def hear(**arguments: Any) -> None:
        told.append(arguments["outcome"])

    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limit_exceeded.connect(hear)
    try:
        for _ in range(3):
            repeated = limits.try_acquire("api", idempotency_key="a")
        assert not limits.try_acquire("api", idempotency_key="b")
    finally:
        limit_exceeded.disconnect(hear)
    assert len(told) == 1
    assert repeated.outcome.allowed
    assert repeated.acquisitions == {}
    repeated.update({"call_count": 5})
    repeated.release()
    repeated.cancel()


def test_a_key_is_remembered_for_as_long_as_the_settings_say(settings: Any, clock: FakeClock) -> None:
    settings.LIMITS = {**settings.LIMITS, "IDEMPOTENCY_SECONDS": 100}
    limits.set_resource_limits("api", [CallLimit(10, 3600, RateLimitAlgorithm.FIXED_WINDOW)])
    limits.acquire("api", entity="user:1", idempotency_key="a")
    clock.advance(99)
    limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 1
    clock.advance(1)
    limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 2


@pytest.mark.parametrize("key", ["", "x" * 256, 7, b"a", True, ["a"]])
def test_a_key_that_cannot_be_is_an_error(key: Any) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    with pytest.raises(InvalidRequest, match="idempotency key"):
        limits.acquire("api", idempotency_key=key)


def test_a_key_of_several_resources_is_one_of_all_of_them_in_whatever_order() -> None:
    for name in ("api", "reports"):
        limits.set_resource_limits(name, [CallLimit(10, 3600)])

    def ask(*names: str) -> list[float]:
        assert limits.acquire(dict.fromkeys(names), entity="user:1", idempotency_key="a")
        return [used(), used("reports")]

    assert ask("api", "reports") == [1, 1]
    assert ask("reports", "api") == [1, 1]
    assert ask("api") == [2, 1]
    assert ask("reports") == [2, 2]
    assert limits.acquire("api", entity="user:1", idempotency_key="a")
    assert used() == 2


def test_a_resource_that_a_pool_serves_is_charged_once() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 3600)])
    serve("api", make_pool({"eu": [CallLimit(10, 3600)], "us": [CallLimit(10, 3600)]}, name="claude"))
    for _ in range(4):
        assert limits.acquire("api", entity="user:1", requested={"tpm": 10}, idempotency_key="a")
    members = limits.pool("claude").get_stats()["limit_sets"]
    assert sorted(stats["call_count"]["used"] for stats in members) == [0, 1]


def test_permits_are_not_held_twice() -> None:
    limits.set_resource_limits("api", [ResourceLimit("db", 2)])
    with limits.acquire("api", idempotency_key="a"), limits.acquire("api", idempotency_key="a") as again:
        assert again.successful
        assert used(entity=None, key="db") == 1
    assert used(entity=None, key="db") == 0


def test_policies_in_the_shadow_are_tried_once() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 3600)])
    limits.set_entity_limits("user:1", [CallLimit(1, 3600)], resource="api", enforcement="shadow")
    for _ in range(3):
        assert not limits.acquire("api", entity="user:1", idempotency_key="a").outcome.shadowed
    assert limits.acquire("api", entity="user:1", idempotency_key="b").outcome.shadowed


@pytest.mark.usefixtures("_time_that_passes")
def test_a_request_that_waits_is_charged_once() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 0.5)])
    limits.acquire("api", entity="user:1", timeout=None, idempotency_key="a")
    limits.acquire("api", entity="user:1", timeout=5, idempotency_key="a")
    with pytest.raises(LimitTimeout):
        limits.acquire("api", entity="user:1", timeout=0.01, idempotency_key="b")


@pytest.mark.usefixtures("_time_that_passes")
def test_tasks_are_charged_once() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 0.1)])

    async def ask() -> None:
        assert await limits.atry_acquire("api", entity="user:1", idempotency_key="a")
        assert await limits.atry_acquire("api", entity="user:1", idempotency_key="a")
        assert await limits.aacquire("api", entity="user:1", idempotency_key="a")
        assert await limits.aacquire("api", entity="user:1", timeout=5, idempotency_key="a")
        with pytest.raises(LimitExceeded):
            await limits.aacquire("api", entity="user:1", idempotency_key="b")
        with pytest.raises(LimitTimeout):
            await limits.aacquire("api", entity="user:1", timeout=0.01, idempotency_key="b")

    asyncio.run(ask())
