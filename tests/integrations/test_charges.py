"""A request is charged once for each limit, however many ways in see it, and `request.limits` tells it all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Thread
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from limits_app import services
from limits_app.engine import Claim
from limits_app.engine.errors import InvalidRequest, LimitExceeded
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.releasing import finish
from limits_app.integrations.request import RequestLimits, limits_of
from limits_app.policies import resolve, resolver
from limits_app.signals import limit_exceeded
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, afine, endpoint, fine, left, limit
from tests.opened import put_store

pytestmark = pytest.mark.django_db(transaction=True)

FULL = {"call_count": 10, "tpm": 100, "slots": 5}


@pytest.fixture
def request_of_ann() -> HttpRequest:
    """A request that lives as long as its test."""
    return RequestFactory().get("/", headers={"X-Who": "ann"})


@pytest.fixture
def limits(request_of_ann: HttpRequest) -> RequestLimits:
    """The limits of a request from Ann, on an API with calls, tokens and slots."""
    limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 5))
    return limits_of(request_of_ann)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("charges", "held", "after"),
    [
        pytest.param([{}], (9, 99, 4), (9, 99, 5), id="one_of_each"),
        pytest.param([{}, {}], (9, 99, 4), (9, 99, 5), id="once"),
        pytest.param([{"tpm": 40}, {}], (9, 60, 4), (9, 60, 5), id="the_first_says_how_much"),
        pytest.param([{"tpm": 40}, {"tpm": 70}], (9, 60, 4), (9, 60, 5), id="and_it_stays_at_that"),
        pytest.param([{}, {"tpm": 40}], (9, 59, 4), (9, 60, 5), id="the_second_says_how_much"),
        pytest.param([{}, {"tpm": 40}, {"tpm": 40}, {}], (9, 59, 4), (9, 60, 5), id="and_that_is_all"),
        pytest.param([{}, {"tpm": 0}], (9, 99, 4), (9, 100, 5), id="the_second_says_nothing"),
        pytest.param([{}, {"slots": 3}], (9, 99, 2), (9, 99, 5), id="more_permits"),
        pytest.param([{}, {"slots": 5}], (9, 99, 0), (9, 99, 5), id="as_many_as_there_are"),
        pytest.param([{}, {"slots": 0}], (9, 99, 4), (9, 99, 5), id="fewer_permits"),
        pytest.param([{}, {"call_count": 4}], (5, 99, 4), (6, 99, 5), id="more_calls"),
        pytest.param([{"call_count": 4}, {"tpm": 10}], (6, 89, 4), (6, 90, 5), id="two_share_the_keys"),
        pytest.param([{}, {"tpm": 40}, {"call_count": 2}], (7, 59, 4), (8, 60, 5), id="three_ways_in"),
        pytest.param([{}, {"call_count": 2}, {"tpm": 40}], (7, 59, 4), (8, 60, 5), id="in_any_order"),
        pytest.param([{}, {"slots": 2}, {"tpm": 40}, {"slots": 5}], (9, 59, 3), (9, 60, 5), id="permits_add_up"),
        pytest.param([{}, {"other": 4}], (9, 99, 4), (9, 99, 5), id="what_is_not_limited"),
    ],
)
def test_charged_request_is_not_charged_again(
    kind: str, charges: list[dict[str, Any]], held: Any, after: Any, limits: RequestLimits
) -> None:
    charge = limits.charge if kind == "sync" else async_to_sync(limits.acharge)
    for named in charges:
        charge("api", "ann", named)
    assert tuple(left("api")[key] for key in FULL) == held
    limits.end()
    assert tuple(left("api")[key] for key in FULL) == after


def test_reported_use_stays_when_more_is_named_later(limits: RequestLimits) -> None:
    limits.charge("api", "ann")
    limits.acquisitions["api"].update({"tpm": 30})
    limits.charge("api", "ann", {"tpm": 40})
    limits.end()
    assert left("api")["tpm"] == 30


def test_tasks_of_a_view_that_charge_at_the_same_time_charge_once(limits: RequestLimits) -> None:
    async def view() -> list[Any]:
        return await asyncio.gather(*(limits.acharge("api", "ann", {"tpm": 10}) for _ in range(5)))

    resolver.clear()  # so that the first one asks the database, and the others come meanwhile
    first, *others = async_to_sync(view)()
    assert all(other is first for other in others)
    assert left("api")["call_count"] == FULL["call_count"] - 1
    assert left("api")["tpm"] == FULL["tpm"] - 10


def test_concurrent_threads_of_a_view_charge_once(limits: RequestLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    second = Thread(target=lambda: limits.charge("api", "ann"))

    class Slow(MemoryStore):
        def acquire(self, claim: Claim) -> bool:
            if second.ident is None:
                second.start()
                second.join(0.2)  # as long as it would take the other one to be charged, too
            return super().acquire(claim)

    put_store(monkeypatch, Slow(clock=FakeClock()))  # which refills nothing meanwhile
    limits.charge("api", "ann")
    second.join()
    assert left("api")["call_count"] == FULL["call_count"] - 1
    assert len(limits.acquired) == 1


def test_a_receiver_of_a_rejection_may_charge_the_same_request(limits: RequestLimits) -> None:
    heard: list[object] = []

    def charge() -> None:
        with suppress(LimitExceeded):
            limits.charge("api", "ann", {"tpm": 1})

    def hear(**_: Any) -> None:
        if not heard:
            heard.append(None)
            charge()

    services.acquire("api", entity="ann", requested={"tpm": 100})
    limit_exceeded.connect(hear)
    try:
        thread = Thread(target=charge, daemon=True)  # or a lock that nobody opens would keep the tests
        thread.start()
        thread.join(10)
    finally:
        limit_exceeded.disconnect(hear)
    assert heard
    assert not thread.is_alive()


def test_a_part_that_waits_for_a_limit_delays_no_other(limits: RequestLimits, clock: FakeClock) -> None:
    limit("calls", CallLimit(1, 60))
    services.acquire("calls", entity="ann")
    waits = Thread(target=lambda: limits.charge("calls", "ann", timeout=90))
    waits.start()
    while not registry.store().line.busy:
        pass
    with pytest.raises(LimitExceeded):
        limits.charge("calls", "ann")
    clock.advance(60)
    waits.join()
    assert len(limits.acquired) == 1


def test_a_part_that_was_refused_lets_the_next_one_try(limits: RequestLimits) -> None:
    async def view() -> list[Any]:
        asked = (limits.acharge("api", "ann", {"tpm": amount}) for amount in (101, 100))
        return await asyncio.gather(*asked, return_exceptions=True)

    refused, admitted = async_to_sync(view)()
    assert isinstance(refused, LimitExceeded)
    assert admitted.acquisitions["tpm"].requested == 100


def test_other_entities_and_resources_are_charged_for_themselves(limits: RequestLimits) -> None:
    limit("other", CallLimit(10, 60))
    for resource, entity in [("api", "ann"), ("api", "bob"), ("api", None), ("other", "ann")] * 2:
        limits.charge(resource, entity)
    assert [left("api", who)["call_count"] for who in ("ann", "bob", None)] == [9, 9, 9]
    assert left("other") == {"call_count": 9}
    assert list(limits.acquisitions) == ["api", "other"]
    assert len(limits.outcomes) == 4


def test_refunded_request_is_charged_again(limits: RequestLimits) -> None:
    limits.charge("api", "ann", {"tpm": 40})
    limits.fail(ValueError())
    assert left("api") == FULL | {"call_count": 9}
    limits.charge("api", "ann", {"tpm": 40})
    assert left("api") == {"call_count": 8, "tpm": 60, "slots": 4}


def test_a_changed_policy_in_the_middle_of_a_request_counts(limits: RequestLimits) -> None:
    limits.charge("api", "ann")
    services.set_resource_limits("api", [CallLimit(10, 60), RateLimit("new", 10, 60), ResourceLimit("permits", 5)])
    limits.charge("api", "ann", {"new": 4})
    assert left("api") == {"call_count": 9, "new": 6, "permits": 4}
    services.set_entity_limits("ann", [], effect="blocked")
    with pytest.raises(LimitExceeded):
        limits.charge("api", "ann", {"tpm": 4})


def test_charges_of_all_integrations_are_undone_once_and_acquired_calls_count(limits: RequestLimits) -> None:
    limits.charge("api", "ann")
    limits.charge("api", "ann", {"tpm": 40})
    limits.acquire("api", requested={"tpm": 20})
    limits.undo()
    limits.undo()
    assert left("api") == FULL | {"call_count": 9}


@pytest.mark.parametrize("view", [fine, afine])
def test_middleware_and_decorators_charge_once(ask: Ask, serve: Any, view: Any) -> None:
    again = limited("api", requested={"tpm": 30})(limited("api")(limited("other")(view)))
    serve({"": again})
    endpoint(limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60)))
    limit("other", CallLimit(10, 60))
    assert ask().status_code == 200
    assert left("api") == {"call_count": 9, "tpm": 70}
    assert left("other") == {"call_count": 9}


def nested(request: HttpRequest) -> HttpResponse:
    with request.limits.acquire("api"):  # type: ignore[attr-defined]  # of the middleware
        return HttpResponse(str(left("api")))


async def anested(request: HttpRequest) -> HttpResponse:
    async with await request.limits.aacquire("api"):  # type: ignore[attr-defined]  # of the middleware
        return HttpResponse(str(await sync_to_async(left)("api")))


@pytest.mark.parametrize("view", [nested, anested])
def test_a_view_does_not_take_the_permit_again_that_the_endpoint_took(ask: Ask, serve: Any, view: Any) -> None:
    serve({"": view})
    endpoint(limit("api", ResourceLimit("slots", 1)))
    # The first request reads the endpoints in a thread; later ones are charged in the task of an asynchronous handler.
    assert [ask().content for _ in range(3)] == [b"{'slots': 0}"] * 3
    assert left("api") == {"slots": 1}


def test_of_the_parts_of_a_view_one_shares_the_permit_that_the_endpoint_took(ask: Ask, serve: Any) -> None:
    async def view(request: HttpRequest) -> HttpResponse:
        limits: RequestLimits = request.limits  # type: ignore[attr-defined]  # of the middleware
        held = await asyncio.gather(*[limits.atry_acquire("api") for _ in range(4)])
        return HttpResponse(str([one.successful for one in held]))

    serve({"": view})
    endpoint(limit("api", ResourceLimit("slots", 3)))
    assert [ask().content for _ in range(2)] == [b"[True, True, True, False]"] * 2
    assert left("api") == {"slots": 3}


@pytest.mark.parametrize("view", [fine, afine])
def test_a_second_way_in_that_refuses_costs_nothing(ask: Ask, serve: Any, view: Any) -> None:
    serve({"": limited("inner")(view)})
    endpoint(limit("outer", CallLimit(10, 60)))
    limit("inner", CallLimit(1, 60))
    assert [ask().status_code for _ in range(5)] == [200, 429, 429, 429, 429]
    assert left("outer") == {"call_count": 9}


def test_a_rejecting_endpoint_refunds_earlier_charges(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE, "tests.integrations.test_charges.early"]
    serve({"": fine})
    limit("early", CallLimit(10, 60))
    endpoint(limit("api"))
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]
    assert left("early") == {"call_count": 9}


def early(get_response: Any) -> Any:
    """A way in of the site's own, before all endpoints."""

    def charge(request: HttpRequest) -> Any:
        limits_of(request).charge("early", "ann")
        return get_response(request)

    async def acharge(request: HttpRequest) -> Any:
        await limits_of(request).acharge("early", "ann")
        return await get_response(request)

    return acharge if iscoroutinefunction(get_response) else charge


early.async_capable = True  # type: ignore[attr-defined]  # as Django has it


def test_charges_can_be_read_after_the_request() -> None:
    limit("calls", CallLimit(10, 60))
    request = RequestFactory().get("/", headers={"X-Who": "ann"})
    limits = limits_of(request)
    assert limits.entity == "ann"
    limits.charge("calls", "ann")
    del request
    assert limits.acquisitions["calls"].successful
    assert limits.entity == "ann"
    with pytest.raises(RuntimeError, match="after the request was garbage-collected"):
        limits.request  # noqa: B018 - asking is enough


def test_a_permit_in_shadow_mode_is_held_until_the_response_was_sent(limits: RequestLimits) -> None:
    limit("tried", CallLimit(9, 60))
    services.set_entity_limits("ann", [ResourceLimit("slots", 1)], resource="tried", enforcement="shadow")
    shadow = resolve("tried", "ann").resolved.shadow
    assert shadow is not None
    limits.charge("tried", "ann")
    response = HttpResponse()
    finish(response, limits, limits)
    assert shadow.get_stats()["slots"]["available"] == 0
    response.close()
    assert shadow.get_stats()["slots"]["available"] == 1


def test_generator_reports_earlier_charges_of_the_request(request_of_ann: HttpRequest) -> None:
    @limited("calls", usage=lambda result: {"call_count": 0})
    def rows(request: HttpRequest) -> Any:
        yield "one"

    limit("calls", CallLimit(10, 60))
    limits_of(request_of_ann).charge("calls", "ann")  # as a throttle does where no middleware is
    assert list(rows(request_of_ann)) == ["one"]
    assert left("calls") == {"call_count": 10}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_verbs_without_an_entity_charge_the_client_of_the_request(kind: str, limits: RequestLimits) -> None:
    def ask(verb: str, **options: Any) -> Any:
        method = getattr(limits, verb) if kind == "sync" else async_to_sync(getattr(limits, f"a{verb}"))
        return method("api", requested={"tpm": 10}, **options)

    with ask("acquire", timeout=60) as acquisition:
        acquisition.update({"tpm": 10})
    assert ask("try_acquire")
    assert ask("acquire", entity="bob")
    assert ask("acquire", entity=None)
    assert ask("check").allowed
    assert not ask("check", entity="bob").violations
    assert left("api") == {"call_count": 8, "tpm": 80, "slots": 4}
    assert left("api", "bob") == left("api", None) == {"call_count": 9, "tpm": 90, "slots": 4}
    limits.end()
    assert left("api")["slots"] == left("api", "bob")["slots"] == left("api", None)["slots"] == 5


def test_a_refused_try_is_falsy_and_among_the_outcomes(limits: RequestLimits) -> None:
    assert limits.try_acquire("api", requested={"tpm": 100})
    assert not limits.try_acquire("api", requested={"tpm": 100})
    assert [outcome.allowed for outcome in limits.outcomes] == [True, False]
    limits.undo()
    assert left("api") == FULL | {"call_count": 9}


def test_the_verbs_charge_each_time_and_need_their_amounts(limits: RequestLimits) -> None:
    limits.charge("api", "ann", {"tpm": 40})
    limits.acquire("api", requested={"tpm": 40})
    assert left("api")["tpm"] == 20
    with pytest.raises(InvalidRequest, match="nothing is requested of tpm"):
        limits.acquire("api")


def test_every_request_has_its_limits(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        given: RequestLimits = request.limits  # type: ignore[attr-defined]  # the middleware adds it
        return HttpResponse(f"{given.entity} {given.acquisitions} {given.outcomes} {bool(given.acquired)}")

    serve({"": view})
    assert ask(who="bob").content == b"bob {} () False"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_acquisitions_of_several_resources_are_found_by_each_name(kind: str, limits: RequestLimits) -> None:
    limit("other", CallLimit(10, 60))
    asked = {"api": {"tpm": 4}, "other": None}
    for verb in ("acquire", "try_acquire"):
        take: Any = getattr(limits, verb) if kind == "sync" else async_to_sync(getattr(limits, f"a{verb}"))
        acquisition = take(asked)
        assert limits.acquisitions == {"api": acquisition, "other": acquisition}
    assert len(limits.outcomes) == 2
    limits.acquisitions["other"].update({"api:tpm": 1})
    limits.end()
    assert left("api") == {"call_count": 8, "tpm": 95, "slots": 5}
