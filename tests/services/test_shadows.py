"""Policies in the shadow: tried on real requests, in buckets of their own, and never seen by those who ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import pytest
from asgiref.sync import async_to_sync

from limits_app import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit, limits, signals
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.amounts import Amount
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.outcome import Outcome
from limits_app.models import Entity, Policy
from limits_app.policies import resolve, resolver
from limits_app.services.shadow import afollow, forget_shadow_refusals
from limits_app.testing import FakeClock
from tests.replacing import at_next_call


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    forget_shadow_refusals()


def shadow(*definitions: Any, **options: Any) -> None:
    """Try limits on the resource, under a system that allows 5 calls."""
    limits.set_system_limits([CallLimit(5, 60)])
    limits.set_resource_limits("api", definitions, enforcement="shadow", **options)


def left_in_the_shadow(entity: str | None = None) -> dict[str, float]:
    found = resolve("api", entity).resolved.shadow
    return {key: stats["available"] for key, stats in found.get_stats().items()}


def test_limits_in_shadow_mode_admit_and_count(heard: Callable[..., list[Outcome]]) -> None:
    told = heard(signals.limit_shadowed)
    shadow(CallLimit(2, 60))
    outcomes = [limits.acquire("api", entity="user:1").outcome for _ in range(5)]
    assert [outcome.allowed for outcome in outcomes] == [True] * 5
    assert [[one.key for one in outcome.shadowed] for outcome in outcomes] == [[], []] + [["call_count"]] * 3
    assert outcomes[2].shadowed[0].capacity == 2
    assert [one.capacity for one in outcomes[2].passed] == [5]
    assert outcomes[2].as_dict()["shadowed"][0]["level"] == "resource"
    assert limits.shadow_refusals() == {"api": {"call_count": 3}}
    assert [outcome.allowed for outcome in told] == [False] * 3


def test_rejected_requests_are_evaluated_in_shadow_mode_too(heard: Callable[..., list[Outcome]]) -> None:
    told = heard(signals.limit_shadowed)
    shadow(CallLimit(6, 60))
    acquired = [limits.try_acquire("api") for _ in range(8)]
    assert left_in_the_shadow() == {"call_count": 0}
    assert [one.outcome.shadowed for one in acquired] == [()] * 8
    assert limits.shadow_refusals() == {}, "of requests that were allowed"
    assert told == []


def test_a_shadow_has_buckets_of_its_own() -> None:
    shadow(CallLimit(9, 60))
    limits.acquire("api")
    assert limits.status("api").limits["call_count"]["used"] == 1
    Policy.objects.update(enforcement="enforce")
    assert limits.status("api").limits["call_count"]["used"] == 1


def test_usage_that_is_reported_counts_in_the_shadow_too() -> None:
    shadow(RateLimit("tpm", 10, 60))
    limits.set_system_limits([RateLimit("tpm", 100, 60), RateLimit("other", 5, 60)])
    with limits.acquire("api", requested={"tpm": 8, "other": 1}) as acquisition:
        acquisition.update({"tpm": 3, "other": 1})
        assert acquisition.acquisitions["tpm"].used == 3
    assert acquisition.claim.settled
    assert left_in_the_shadow() == {"tpm": 7}
    with pytest.raises(ZeroDivisionError), limits.acquire("api", requested={"tpm": 7}):
        _ = 1 / 0
    assert left_in_the_shadow() == {"tpm": 7}
    cancelled = limits.acquire("api", requested={"tpm": 7})
    cancelled.cancel()
    assert left_in_the_shadow() == {"tpm": 7}


def test_permits_are_held_in_the_shadow_until_the_request_is_done() -> None:
    shadow(ResourceLimit("slot", 1))
    first, second = [limits.acquire("api", requested={"slot": 1}) for _ in range(2)]
    assert [one.outcome.shadowed != () for one in (first, second)] == [False, True]
    assert left_in_the_shadow() == {"slot": 0}
    first.release()
    second.release()
    assert left_in_the_shadow() == {"slot": 1}
    assert first.successful
    assert first


def test_coroutines_are_shadowed_alike() -> None:
    shadow(ResourceLimit("slot", 1), RateLimit("tpm", 10, 60))
    limits.set_system_limits([RateLimit("tpm", 100, 60)])

    async def ask() -> list[bool]:
        seen = []
        async with await limits.aacquire("api", requested={"tpm": 5}) as outer:
            for end in ("arelease", "acancel"):
                inner = await limits.atry_acquire("api", requested={"tpm": 5, "slot": 1})
                seen.append(bool(inner.outcome.shadowed))
                await getattr(inner, end)()
            outer.update({"tpm": 1})
        waited = await limits.aacquire("api", requested={"tpm": 5}, timeout=1)
        seen.append(bool(waited.outcome.shadowed))
        await waited.acancel()
        return seen

    assert async_to_sync(ask)() == [True, True, False]
    assert left_in_the_shadow() == {"slot": 1, "tpm": 9}


def test_rates_that_a_request_does_not_name_are_ignored() -> None:
    shadow(RateLimit("tpm", 10, 60))
    assert limits.check("api").shadowed == limits.acquire("api").outcome.shadowed == ()
    shadow(RateLimit("tpm", 10, 60), CallLimit(1, 60))
    assert limits.acquire("api").outcome.shadowed == ()
    assert [one.key for one in limits.acquire("api").outcome.shadowed] == ["call_count"]


def test_functions_that_name_amounts_see_the_limits_that_are_tried() -> None:
    shadow(RateLimit("tpm", 1, 60))
    outcomes = [limits.acquire("api", requested=lambda found: dict.fromkeys(found.rates, 1)).outcome for _ in range(2)]
    assert [[one.key for one in outcome.shadowed] for outcome in outcomes] == [[], ["tpm"]]


def test_more_than_the_shadow_can_ever_admit_would_be_refused() -> None:
    shadow(RateLimit("tpm", 10, 60))
    limits.set_system_limits([RateLimit("tpm", 100, 60)])
    with limits.acquire("api", requested={"tpm": 50}) as acquisition:
        acquisition.update({"tpm": 50})
    assert acquisition.outcome.shadowed[0].never
    assert limits.check("api", requested={"tpm": 50}).shadowed[0].never
    assert limits.shadow_refusals() == {"api": {"tpm": 1}}


def test_an_amount_that_the_shadow_cannot_have_is_no_trouble() -> None:
    shadow(RateLimit("tpm", 10, 60, RateLimitAlgorithm.FIXED_WINDOW))
    limits.set_system_limits([RateLimit("tpm", 100, 60)])
    with limits.acquire("api", requested={"tpm": 1.5}) as acquisition:
        acquisition.update({"tpm": 1.5})
    assert acquisition.outcome.shadowed == ()

    async def cancelled() -> Outcome:
        acquired = await limits.aacquire("api", requested={"tpm": 1.5})
        await acquired.aextend({"tpm": 1})
        await acquired.acancel()
        return acquired.outcome

    assert async_to_sync(cancelled)().shadowed == ()
    assert limits.status("api").limits["tpm"]["used"] == 1.5


def test_a_store_that_goes_down_before_the_shadow_is_tried_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    shadow(CallLimit(1, 60))
    tried = resolver.get(("api", None, (), None)).shadow

    def unreachable(*_: object) -> Any:
        raise StoreUnavailable("connection refused")

    at_next_call(monkeypatch, tried, "try_acquire", unreachable)
    assert limits.acquire("api").outcome.shadowed == ()


def test_checking_and_explaining_show_decisions_in_shadow_mode() -> None:
    shadow(CallLimit(1, 60))
    assert limits.check("api").shadowed == ()
    limits.acquire("api")
    assert [one.key for one in limits.check("api").shadowed] == ["call_count"]
    assert str(limits.explain("api")).splitlines()[1:] == [
        "In effect: the policy of the system (limits).",
        "In shadow mode: the policy of the resource (limits).",
        "requests: 4 of 5 left, 1 requested.",
        "requests: a token bucket, up to 10 can pass within 60 s.",
        "In shadow mode, requests: 0 of 1 left, 1 requested; it would reject the request.",
    ]
    for _ in range(4):
        limits.acquire("api")
    assert limits.check("api").shadowed == ()  # refused as it is
    assert not asyncio.run(limits.atry_acquire("api"))
    assert limits.shadow_refusals() == {"api": {"call_count": 4}}


def test_a_shadow_that_frees_or_is_off_tries_nothing_and_one_that_blocks_would_refuse_everything() -> None:
    limits.set_system_limits([CallLimit(5, 60)])
    limits.set_resource_limits("api", [], effect="unlimited", enforcement="shadow")
    assert resolve("api", None).resolved.shadow is None
    limits.set_resource_limits("api", [CallLimit(1, 60)], enforcement="off")
    assert resolve("api", None).resolved.shadow is None
    assert [bool(limits.try_acquire("api")) for _ in range(3)] == [True] * 3
    limits.set_resource_limits("api", [], effect="blocked", enforcement="shadow")
    assert [one.key for one in limits.acquire("api").outcome.shadowed] == ["blocked"]


def test_policies_above_are_tried_too() -> None:
    parent = Entity.objects.create(identifier="tenant:acme")
    Entity.objects.create(identifier="user:1", parent=parent, cascade=True)
    limits.set_system_limits([CallLimit(5, 60)])
    limits.set_entity_limits("tenant:acme", [CallLimit(1, 60)], enforcement="shadow")
    outcomes = [limits.acquire("api", entity="user:1").outcome for _ in range(2)]
    assert [[(one.entity, one.key) for one in outcome.shadowed] for outcome in outcomes] == [
        [],
        [("tenant:acme", "call_count")],
    ]
    assert [one.entity for one in outcomes[1].passed] == ["user:1", "tenant:acme"]


def test_coroutine_that_is_cancelled_in_shadow_mode_refunds_its_charge() -> None:
    class Cancelled(LimitSet):
        """Limits in the shadow whose store is asked when the task is cancelled."""

        async def atry_acquire(self, requested: Mapping[str, Amount] | None = None) -> NoReturn:
            raise asyncio.CancelledError

    limits.set_resource_limits("api", [ResourceLimit("db", 2)])
    found = limits.limit_set("api")
    resolved = replace(resolve("api", None).resolved, shadow=Cancelled([ResourceLimit("db", 1)], store=found.store))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(afollow(found.try_acquire(), resolved, None))
    assert found.get_stats()["db"]["holders"] == 0


@pytest.mark.parametrize("has_run", [False, True])
def test_undone_request_leaves_in_the_shadow_what_it_leaves_elsewhere(clock: FakeClock, *, has_run: bool) -> None:
    definitions = [RateLimit("tpm", 60, 60), CallLimit(7, 3600)]
    shadow(*definitions)
    limits.set_system_limits(definitions)
    earlier = limits.acquire("api", requested={"tpm": 40})
    clock.advance(10)
    undone = limits.acquire("api", requested={"tpm": 20})
    clock.advance(5)
    earlier.undo()
    undone.undo(has_run=has_run)
    found = limits.status("api").limits
    assert left_in_the_shadow() == {key: found[key]["available"] for key in ("tpm", "call_count")}
    assert left_in_the_shadow()["call_count"] > 6.9
