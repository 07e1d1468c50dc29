"""A mapping of resources to amounts: acquired as one, by every verb."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from limits_app import limits, services
from limits_app.core.errors import InvalidLimit, InvalidRequest, LimitExceeded, LimitTimeout
from limits_app.core.limits import CallLimit, RateLimit
from limits_app.stores import registry
from limits_app.testing import FakeClock, freeze_limits, override_limits

BOTH: Any = {"api": None, "llm": {"tpm": 40}}


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    """The time of two resources, of which one soon has nothing left."""
    with (
        freeze_limits() as clock,
        override_limits("api", CallLimit(5, 60)),
        override_limits("llm", RateLimit("tpm", 100, 100)),
    ):
        yield clock


def left() -> list[object]:
    """What is left of both."""
    api, llm = limits.limit_set("api", "ann").get_stats(), limits.limit_set("llm", "ann").get_stats()
    return [api["call_count"]["available"], llm["tpm"]["available"]]


def take() -> None:
    """Take of both once."""
    with limits.acquire(BOTH, entity="ann") as acquisition:
        acquisition.update({"llm:tpm": 40})


def test_all_of_them_are_charged_or_none() -> None:
    take()
    take()
    assert left() == [3, 20]
    with pytest.raises(LimitExceeded):
        limits.acquire(BOTH, entity="ann")
    assert not limits.try_acquire(BOTH, entity="ann")
    assert left() == [3, 20]


def test_asyncio_finds_what_is_kept() -> None:
    take()
    assert asyncio.run(limits.atry_acquire(BOTH, entity="ann"))
    with override_limits("llm", RateLimit("tpm", 1, 100)):
        assert asyncio.run(limits.atry_acquire({"api": None}, entity="ann"))
        assert not asyncio.run(services.atry_acquire_all([services.Share("llm", "ann", {"tpm": 1})]))


def test_so_may_a_task_until_the_time_is_up(clock: FakeClock) -> None:
    limits.try_acquire("llm", entity="ann", requested={"tpm": 100}).release()

    async def course() -> None:
        assert not await limits.atry_acquire(BOTH, entity="ann")
        waiting = [asyncio.ensure_future(limits.aacquire(BOTH, entity="ann", timeout=seconds)) for seconds in (5, 60)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert registry.store().line.busy
        clock.advance(5)
        with pytest.raises(LimitTimeout):
            await waiting[0]
        clock.advance(35)
        assert (await waiting[1]).successful

    asyncio.run(course())
    assert left() == [4, 0]


@pytest.mark.parametrize(
    ("resources", "requested"),
    [
        pytest.param({}, None, id="no_resource"),
        pytest.param(BOTH, {"tpm": 1}, id="amounts_twice"),
        pytest.param({"api": 1}, None, id="an_amount_of_nothing_in_particular"),
        pytest.param({"a b": None}, None, id="a_name_that_cannot_be"),
        pytest.param(["api", "llm"], None, id="neither_a_name_nor_a_mapping"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(resources: Any, requested: Any) -> None:
    with pytest.raises((InvalidRequest, InvalidLimit)):
        limits.acquire(resources, entity="ann", requested=requested)
