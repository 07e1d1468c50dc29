"""Acquiring by name, and requests that name unknown keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation

from limits_app import (
    CallLimit,
    InvalidLimit,
    InvalidRequest,
    LimitExceeded,
    NeverAdmissible,
    RateLimit,
    limits,
    signals,
)
from limits_app.acquiring.acquisition import Acquisition
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.outcome import Outcome
from limits_app.services import Share
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.services.pool_rows import make_pool, serve

TWO = [CallLimit(2, 60)]


@pytest.mark.parametrize("verb", [limits.acquire, limits.try_acquire, limits.check])
def test_a_verb_in_a_coroutine_names_the_one_for_asyncio(verb: Callable[[str], object]) -> None:
    async def main() -> None:
        verb("api")

    with pytest.raises(SynchronousOnlyOperation, match=r"await limits.aacquire\(...\)"):
        asyncio.run(main())


def test_no_entity_is_the_site_itself() -> None:
    limits.set_resource_limits("api", TWO)
    assert [bool(limits.try_acquire("api")) for _ in range(3)] == [True, True, False]
    assert limits.try_acquire("api", entity="-")


def test_a_refusal_is_raised_with_its_outcome() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limits.acquire("api", entity="a")
    with pytest.raises(LimitExceeded, match=r"'call_count' of api for a has 0 of 1 left") as caught:
        limits.acquire("api", entity="a")
    assert not isinstance(caught.value, TimeoutError)
    assert caught.value.outcome.retry_after == 60


def test_an_inadmissible_amount_is_rejected_as_such() -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 10, 60)])
    with pytest.raises(NeverAdmissible, match=r"can never admit 11: its most is 10"):
        limits.acquire("api", requested={"tpm": 11})
    limits.set_resource_limits("api", [RateLimit("tpm", 20, 60)])
    assert limits.acquire("api", requested={"tpm": 11})


@pytest.mark.parametrize("seconds", [5, None])
def test_waiting_ends_when_capacity_is_free(clock: FakeClock, seconds: float | None) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 2)])
    limits.acquire("api", entity="a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(limits.acquire, "api", entity="a", timeout=seconds)
        _until_somebody_waits()
        clock.advance(2)
        assert waiting.result(10).successful


@pytest.mark.parametrize("acquire", [limits.acquire, async_to_sync(limits.aacquire)], ids=["sync", "async"])
def test_a_change_applies_to_waiting_requests(acquire: Callable[..., Acquisition]) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 3600)])
    limits.acquire("api", entity="a")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(acquire, "api", entity="a", timeout=None)
        _until_somebody_waits()
        limits.set_resource_limits("api", [CallLimit(2, 3600)])
        assert waiting.result(10).successful


@pytest.mark.parametrize(
    ("resource", "entity", "message"),
    [
        ("", None, "resource"),
        (["api"], None, "resource"),
        (None, None, "resource"),
        ("api", "", "entity"),
        ("api", 42, "entity"),
        ("api", ["user"], "entity"),
    ],
)
def test_a_name_that_cannot_be_is_refused(resource: object, entity: object, message: str) -> None:
    with pytest.raises(InvalidLimit, match=f"{message} .* must be"):
        limits.try_acquire(resource, entity=entity)


def test_the_limits_of_a_call_hold_only_where_nothing_is_set() -> None:
    own = (CallLimit(1, 60),)
    assert [bool(limits.try_acquire("api", default_limits=own)) for _ in range(2)] == [True, False]
    assert limits.try_acquire("api", default_limits=[CallLimit(2, 60)])
    assert limits.try_acquire("api")
    limits.set_system_limits([CallLimit(100, 60)])
    assert limits.try_acquire("api", default_limits=own)


def test_a_check_consumes_nothing() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [limits.check("api").allowed for _ in range(3)] == [True] * 3
    limits.acquire("api")
    assert not limits.check("api").allowed
    with pytest.raises(NeverAdmissible):
        limits.check("api", requested={"call_count": 2})


def test_refusals_are_reported(heard: Callable[..., list[Outcome]]) -> None:
    refusals = heard(signals.limit_exceeded)
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limits.acquire("api")
    limits.try_acquire("api")
    with pytest.raises(NeverAdmissible):
        limits.try_acquire("api", requested={"call_count": 9})
    async_to_sync(limits.atry_acquire)("api")
    with pytest.raises(NeverAdmissible):
        async_to_sync(limits.atry_acquire)("api", requested={"call_count": 9})
    assert [outcome.allowed for outcome in refusals] == [False] * 4


def test_a_kept_set_reports_that_it_is_stale() -> None:
    limits.set_resource_limits("api", TWO)
    kept = limits.limit_set("api", "a")
    assert kept.try_acquire()
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    with pytest.raises(StaleConfiguration):
        kept.try_acquire()
    assert limits.limit_set("api", "a").try_acquire()


def test_asyncio_acquires_and_refuses_alike() -> None:
    limits.set_resource_limits("api", TWO)

    async def course() -> list[bool]:
        admitted = [bool(await limits.atry_acquire("api", entity="a")), bool(await limits.aacquire("api", entity="a"))]
        with pytest.raises(LimitExceeded):
            await limits.aacquire("api", entity="a")
        return [*admitted, bool(await limits.atry_acquire("api", entity="a"))]

    assert async_to_sync(course)() == [True, True, False]


def _until_somebody_waits() -> None:
    line = registry.store().line
    deadline = Event()
    while not line.busy:
        deadline.wait(0.001)


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        (CallLimit(5, 60), r"as in default_limits=\[limit\], not CallLimit"),
        (None, r"as in default_limits=\[limit\], not None"),
        (("tpm",), "limit 'tpm' must look like"),
        ((5,), "5 is not a limit: use RateLimit"),
        ([RateLimit("tpm", 5, 60), RateLimit("tpm", 6, 60)], "limit 'tpm' appears twice"),
    ],
)
def test_default_limits_that_cannot_be_are_named(defaults: Any, message: str) -> None:
    for ask in (limits.try_acquire, limits.check, limits.explain, limits.limit_set):
        with pytest.raises(InvalidLimit, match=message):
            ask("api", default_limits=defaults)
    with pytest.raises(InvalidLimit, match=message):
        asyncio.run(limits.atry_acquire("api", default_limits=defaults))


def test_entities_on_a_resource_are_warned_of_once_together(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_resource_limits("mail", [CallLimit(10, 60)])
    for name in ("api", "mail", "free"):
        for number in range(5):
            limits.acquire(name, entity=f"user:{number}", requested={"typo": 1})
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["call_count", "call_count", "none"]


def test_usage_is_warned_of_by_itself_and_once_too(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 60), RateLimit("rpm", 1000, 60)])
    for number in range(3):
        with limits.acquire("api", entity=f"user:{number}", requested={"tpm": 1}) as acquisition:
            acquisition.update({"tpm": 1, "rpm": 1, "typo": 1})
    assert [message.split(" ")[1] for message in caplog.messages] == ["'rpm'", "'typo'"]


def test_members_of_a_pool_and_several_resources_are_warned_of_once_too(caplog: pytest.LogCaptureFixture) -> None:
    serve("api", make_pool({"eu": [CallLimit(10, 60)], "us": [CallLimit(10, 60)]}))
    for number in range(4):
        limits.acquire("api", entity=f"user:{number}").update({"typo": 1})
    assert len(caplog.messages) == 1
    caplog.clear()
    limits.set_resource_limits("mail", [CallLimit(10, 60)])
    for number in range(3):
        who = f"user:{number}"
        shares = [Share("mail", who, {"typo": 1}), Share("free", who, {"typo": 1})]
        limits.try_acquire_all(shares).update({"nothing": 1})
        limits.try_acquire_all([Share("free", who), Share("none", who)]).update({"nothing": 1})
    assert sorted(message.split(" ")[1] for message in caplog.messages) == ["'nothing'"] * 2 + ["'typo'"] * 2


def test_a_rejecting_key_is_not_listed_as_skipped(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    settings.LIMITS = {**settings.LIMITS, "UNKNOWN_KEYS": "raise"}
    with pytest.raises(InvalidRequest, match="key 'typo' is not one of the limits of this request; the set has"):
        limits.acquire("api", requested={"typo": 1})
    assert caplog.messages == []
