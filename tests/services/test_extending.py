"""Extending what the service acquired: changed configurations, pools, several resources, shadow mode, outages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from limits_app import (
    CallLimit,
    LimitExceeded,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
    StoreUnavailable,
    limits,
    signals,
)
from limits_app.acquiring.acquisition import Acquisition
from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.outcome import Outcome
from limits_app.models import PoolMember
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.opened import put_store
from tests.services.failing import FailingStore, recover_by
from tests.services.pool_rows import NAME, make_pool, serve
from tests.services.wall import NOW, Wall

TOKENS = RateLimit("tokens", 100, 3600)

Extend = Callable[[Acquisition, Mapping[str, Any]], None]


def extend(acquisition: Acquisition, requested: Mapping[str, Any]) -> None:
    acquisition.extend(requested)


def aextend(acquisition: Acquisition, requested: Mapping[str, Any]) -> None:
    async_to_sync(acquisition.aextend)(requested)


WAYS = pytest.mark.parametrize("extend", [extend, aextend])


def used(key: str = "tokens", resource: str = "llm") -> object:
    return limits.status(resource).limits[key]["used"]


@WAYS
def test_an_extension_is_charged_by_the_limits_that_apply_now(extend: Extend) -> None:
    limits.set_resource_limits("llm", [TOKENS])
    with limits.acquire("llm", requested={"tokens": 60}) as acquisition:
        limits.set_resource_limits("llm", [RateLimit("tokens", 80, 3600), ResourceLimit("db", 2)])
        with pytest.raises(LimitExceeded):
            extend(acquisition, {"tokens": 30})
        limits.set_resource_limits("llm", [RateLimit("tokens", 10**9, 3600), ResourceLimit("db", 2)])
        extend(acquisition, {"tokens": 30, "db": 1})
        assert (used(), used("db")) == (90, 1)
        acquisition.update({"tokens": 71})
    assert (used(), used("db")) == (71, 0)


@WAYS
def test_a_limit_that_is_added_while_nothing_was_limited_charges_the_extension(extend: Extend) -> None:
    acquisition = limits.acquire("llm")
    limits.set_resource_limits("llm", [TOKENS])
    extend(acquisition, {"tokens": 30})
    acquisition.cancel()
    assert used() == 0


@WAYS
def test_a_pool_serves_the_extension_by_the_same_member(extend: Extend) -> None:
    serve(NAME, make_pool({name: [RateLimit("tokens", 10, 3600)] for name in ("a", "b")}))
    acquisition = limits.acquire(NAME, requested={"tokens": 6})
    member = acquisition.config["member"]
    extend(acquisition, {"tokens": 3})
    PoolMember.objects.exclude(name=member).update(weight=5)
    with pytest.raises(LimitExceeded):
        extend(acquisition, {"tokens": 3})
    PoolMember.objects.filter(name=member).update(enabled=False)
    with pytest.raises(StaleConfiguration, match="the members of the pool have changed"):
        extend(acquisition, {"tokens": 1})
    acquisition.cancel()


@WAYS
def test_several_resources_are_extended_by_their_keys(extend: Extend) -> None:
    limits.set_resource_limits("llm", [TOKENS])
    limits.set_resource_limits("api", [CallLimit(5, 3600)])
    acquisition = limits.acquire({"llm": {"tokens": 10}, "api": None})
    extend(acquisition, {"llm:tokens": 20, "api:call_count": 1})
    limits.set_resource_limits("other", [TOKENS])
    extend(acquisition, {"llm:tokens": 5})
    acquisition.update({"llm:tokens": 35})
    acquisition.release()
    assert (used(), used("call_count", "api")) == (35, 2)


@WAYS
def test_limits_in_shadow_mode_are_extended_too_and_reject_nothing(
    extend: Extend, caplog: pytest.LogCaptureFixture
) -> None:
    limits.set_system_limits([TOKENS, ResourceLimit("db", 2)])
    limits.set_resource_limits("llm", [RateLimit("tokens", 50, 3600)], enforcement="shadow")
    with limits.acquire("llm", requested={"tokens": 20}) as acquisition:
        caplog.clear()
        extend(acquisition, {"db": 1})
        assert caplog.messages == []
        extend(acquisition, {"tokens": 20, "other": 1})
        assert not acquisition.outcome.shadowed
        extend(acquisition, {"tokens": 20})
        assert [one.key for one in acquisition.outcome.shadowed] == ["tokens"]
        acquisition.update({"tokens": 45})
    assert used() == 45
    assert limits.shadow_refusals()["llm"] == {"tokens": 1}
    assert acquisition.acquisitions["tokens"].requested == 60


@WAYS
def test_a_rejected_extension_is_counted_and_reported(extend: Extend, heard: Callable[..., list[Outcome]]) -> None:
    limits.set_resource_limits("llm", [TOKENS])
    reported = heard(signals.limit_exceeded)
    acquisition = limits.acquire("llm", entity="user:1", requested={"tokens": 60})
    with pytest.raises(LimitExceeded) as caught:
        extend(acquisition, {"tokens": 60})
    assert reported == [caught.value.outcome]
    acquisition.cancel()


@WAYS
def test_extension_of_a_repeated_request_is_charged(extend: Extend) -> None:
    limits.set_resource_limits("llm", [TOKENS, CallLimit(10, 3600)])

    def request(*, fails: bool = False) -> None:
        acquisition = limits.acquire("llm", requested={"call_count": 1}, idempotency_key="order 7")
        extend(acquisition, {"tokens": 20})
        if fails:
            acquisition.cancel()
        else:
            acquisition.update({"tokens": 15})
            acquisition.release()

    request(fails=True)
    assert used() == 0
    request()
    assert used() == 15
    request()
    assert used() == 30, "the key does not cover what the repetition takes in addition"


@WAYS
def test_the_fallback_decides_on_extensions(extend: Extend, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FailingStore(MemoryStore(clock=clock))
    put_store(monkeypatch, store)
    recover_by(clock, monkeypatch)
    limits.set_resource_limits("llm", [TOKENS], on_unavailable="local")
    before = limits.acquire("llm", requested={"tokens": 10})
    store.down = True
    with limits.acquire("llm", requested={"tokens": 60}) as acquisition:
        assert acquisition.outcome.degraded
        extend(acquisition, {"tokens": 30})
        with pytest.raises(LimitExceeded):
            extend(acquisition, {"tokens": 30})
        acquisition.update({"tokens": 90})
    with pytest.raises(StoreUnavailable):
        extend(before, {"tokens": 1})
    assert before.acquisitions["tokens"].requested == 10


@WAYS
def test_extension_is_charged_by_the_limits_of_the_date_that_has_come(extend: Extend, wall: Wall) -> None:
    limits.set_resource_limits("llm", [TOKENS])
    limits.set_resource_limits("llm", [RateLimit("tokens", 400, 3600)], valid_from=NOW + timedelta(hours=1))
    with limits.acquire("llm", requested={"tokens": 70}) as acquisition:
        with pytest.raises(LimitExceeded):
            extend(acquisition, {"tokens": 80})
        wall.advance(hours=1)
        extend(acquisition, {"tokens": 80})
        assert used() == 150
        acquisition.update({"tokens": 140})
    assert used() == 140


@WAYS
def test_extensions_of_a_repeated_request_have_used_what_exceeds_its_first_amounts(extend: Extend) -> None:
    limits.set_resource_limits("llm", [TOKENS, ResourceLimit("db", 2)])
    first = limits.acquire("llm", requested={"tokens": 30}, idempotency_key="order 8")
    repeated = limits.acquire("llm", requested={"tokens": 30}, idempotency_key="order 8")
    extend(repeated, {"tokens": 25})
    assert used() == 55
    repeated.update({"tokens": 42})
    repeated.release()
    assert used() == 42
    first.update({"tokens": 30})
    first.release()
    assert used() == 42


@WAYS
def test_cancel_frees_an_idempotency_key_where_only_an_extension_is_refunded(extend: Extend) -> None:
    limits.set_resource_limits("llm", [TOKENS, CallLimit(9, 3600)])
    for calls in (1, 2):
        acquisition = limits.acquire("llm", requested={"tokens": 0}, idempotency_key="order 9")
        assert not acquisition.is_repeated
        extend(acquisition, {"tokens": 45})
        acquisition.cancel()
        assert (used(), used("call_count")) == (0, calls)


@pytest.mark.parametrize("algorithm", list(RateLimitAlgorithm))
def test_undo_refunds_an_acquisition_and_its_extensions_with_every_algorithm(algorithm: RateLimitAlgorithm) -> None:
    limits.set_resource_limits("llm", [RateLimit("tokens", 100, 3600, algorithm)])
    acquisition = limits.acquire("llm", requested={"tokens": 35})
    acquisition.extend({"tokens": 15})
    assert used() == 50
    acquisition.undo()
    assert used() == 0
