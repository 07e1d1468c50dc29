"""Whoever fails with an idempotency key gives it back with the amounts, in the same step, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from limits_app import RateLimit, RateLimitAlgorithm, conf, limits
from limits_app.core.store import Store
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.redis import RedisStore
from limits_app.testing import FakeClock
from tests.servers.redis import redis_server
from tests.services.pool_rows import make_pool, serve

TPM = RateLimit("tpm", 100, 3600, RateLimitAlgorithm.GCRA)


class Failed(Exception):
    """What went wrong with the work."""


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    match request.param:
        case "memory":
            yield MemoryStore(clock=clock)
        case "process":
            yield ProcessStore(tmp_path, clock=clock, map_megabytes=4)
        case _:
            with redis_server() as server:
                store = RedisStore(url=server.url, connect_seconds=10.0, reply_seconds=10.0)
                yield store
                store.close()


every_store = pytest.mark.parametrize("opened", ["memory", "process", "redis"], indirect=True)


@pytest.fixture
def site(opened: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._OPENED, ("default", conf.store_settings()), opened)


def used(key: str = "tpm", resource: str = "api") -> int:
    """What is used, without the little that has come back in the meantime."""
    return round(limits.status(resource, entity="user:1").limits[key]["used"])


def ask(amount: int = 60, key: str = "k") -> Any:
    return limits.acquire("api", entity="user:1", requested={"tpm": amount}, idempotency_key=key)


def fail(usage: int | None = None) -> bool:
    """Fail in the block, after some usage was reported; says whether the request was charged."""
    acquisition = ask()
    with suppress(Failed), acquisition:
        if usage is not None:
            acquisition.update({"tpm": usage})
        raise Failed
    return "tpm" in acquisition.acquisitions


@every_store
@pytest.mark.usefixtures("site")
def test_who_comes_again_after_a_failure_is_charged_and_who_comes_after_that_is_not() -> None:
    limits.set_resource_limits("api", [TPM])
    assert fail()
    assert used() == 0
    for _ in range(3):
        with ask() as acquisition:
            acquisition.update({"tpm": 50})
        assert used() == 50


@every_store
@pytest.mark.usefixtures("site")
def test_what_is_cancelled_by_hand_gives_its_key_back_too() -> None:
    limits.set_resource_limits("api", [TPM])
    ask().cancel()
    assert used() == 0

    async def ask_and_cancel() -> None:
        acquisition = await limits.aacquire("api", entity="user:1", requested={"tpm": 60}, idempotency_key="k")
        assert acquisition.acquisitions
        await acquisition.acancel()

    asyncio.run(ask_and_cancel())
    assert used() == 0
    ask()
    ask()
    assert used() == 60


def test_a_failure_that_gives_something_back_gives_the_key_back_and_one_that_gives_nothing_keeps_it() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 3600)])
    assert fail(usage=25)
    assert used() == 25
    assert fail(usage=60)
    assert used() == 85
    assert not fail()
    assert used() == 85


@pytest.mark.parametrize("algorithm", [one for one in RateLimitAlgorithm if not one.refunds])
def test_where_nothing_comes_back_the_key_stays_taken(algorithm: RateLimitAlgorithm) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 100, 3600, algorithm)])
    assert fail()
    assert used() == 60
    assert not fail()
    assert used() == 60


def test_usage_that_is_less_gives_no_key_back_where_the_work_went_well() -> None:
    limits.set_resource_limits("api", [TPM])
    for _ in range(2):
        with ask() as acquisition:
            acquisition.update({"tpm": 0})
        assert used() == 0
    assert not acquisition.acquisitions


def test_a_key_of_several_resources_and_of_a_pool_is_given_back_too() -> None:
    limits.set_resource_limits("api", [TPM])
    serve("mail", make_pool({"eu": [TPM], "us": [TPM]}, name="claude"))

    def ask_both() -> Any:
        resources = {"api": {"tpm": 10}, "mail": {"tpm": 20}}
        return limits.acquire(resources, entity="user:1", idempotency_key="k")

    for _ in range(2):
        ask_both().cancel()
        assert used() == 0
    ask_both()
    ask_both()
    assert used() == 10
    members = limits.pool("claude").get_stats()["limit_sets"]
    assert sorted(stats["tpm"]["used"] for stats in members) == [0, 20]


def test_a_key_is_as_long_taken_after_it_was_given_back(clock: FakeClock, settings: Any) -> None:
    settings.LIMITS = {**settings.LIMITS, "IDEMPOTENCY_SECONDS": 7}
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 10**6)])
    clock.advance(3)
    fail()
    ask()
    assert used() == 60
    clock.advance(6.999999)
    ask()
    assert used() == 60
    clock.advance(0.000001)
    ask()
    assert used() == 120
