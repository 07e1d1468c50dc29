"""The REST framework authenticates inside of the view, when the middleware has charged somebody already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app import services
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.integrations.charges import Charge, charge_all
from limits_app.integrations.decorators import limited
from limits_app.integrations.request import RequestLimits, limits_of
from tests.integrations.rest import Person, throttle, view_of
from tests.integrations.site import endpoint, left, limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("default_entities")]

CLIENT = "ip:127.0.0.1"
Send = Callable[..., Any]


def plain(self: APIView, request: Request) -> Response:
    return Response("fine")


def test_a_charge_that_was_transferred_within_its_view_reports_nothing(request_of_client: HttpRequest) -> None:
    limit("api", CallLimit(10, 60, RateLimitAlgorithm.TOKEN_BUCKET))

    @limited("api", usage=lambda _response: {"call_count": 3})
    def view(request: HttpRequest) -> HttpResponse:
        request.user = Person(1)  # type: ignore[assignment]  # as far as we look
        limits_of(request).charge("api", limits_of(request).entity)
        return HttpResponse("fine")

    assert view(request_of_client).status_code == 200
    assert [left("api", who)["call_count"] for who in (CLIENT, "user:1")] == [10, 9]


def test_the_requester_is_the_authenticated_user(send: Send, serve: Any) -> None:
    def get(self: APIView, request: Request) -> Response:
        given: RequestLimits = request.limits  # type: ignore[attr-defined]  # the middleware adds it
        given.acquire("own")
        return Response([given.entity, given.entity])

    serve({"": view_of(get=get)})
    endpoint(limit("api", CallLimit(10, 60)))
    limit("own", CallLimit(10, 60))
    assert send(1).json() == ["user:1"] * 2
    assert (left("own", "user:1"), left("own", CLIENT)) == ({"call_count": 9}, {"call_count": 10})
    assert send().json() == [CLIENT] * 2


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: view_of(throttle("api")), id="throttle"),
        pytest.param(lambda: view_of(throttle("api"), throttle("other")), id="throttles"),
        pytest.param(lambda: view_of(throttle("other"), throttle("api")), id="throttles_in_another_order"),
        pytest.param(lambda: view_of(throttle("api"), throttle("api")), id="twice_the_same"),
        pytest.param(lambda: view_of(get=method_decorator(limited("api"))(plain)), id="decorator"),
        pytest.param(lambda: view_of(throttle("api"), get=method_decorator(limited("api"))(plain)), id="both"),
    ],
)
def test_a_request_is_charged_once_to_the_authenticated_user(send: Send, serve: Any, make: Any) -> None:
    serve({"": make()})
    endpoint(limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 1)), amounts={"tpm": 30})
    limit("other", CallLimit(10, 60))
    response = send(1)
    assert response.status_code == 200
    assert "r=10" not in response["RateLimit"]
    assert left("api", "user:1") == {"call_count": 9, "tpm": 70, "slots": 1}
    assert left("api", CLIENT) == {"call_count": 10, "tpm": 100, "slots": 1}


def test_a_rejection_after_authentication_charges_no_client(send: Send, serve: Any) -> None:
    serve({"": view_of(throttle("api"))})
    endpoint(limit("api", CallLimit(2, 60)))
    assert [send(1).status_code for _ in range(4)] == [200, 200, 429, 429]
    assert (left("api", "user:1"), left("api", CLIENT)) == ({"call_count": 0}, {"call_count": 2})


def test_a_request_without_permission_was_charged_by_the_rule(send: Send, serve: Any) -> None:
    serve({"": view_of(throttle("api"), permission_classes=[])})
    endpoint(limit("api", CallLimit(10, 60, RateLimitAlgorithm.FIXED_WINDOW)))
    send()
    assert left("api", CLIENT) == {"call_count": 9}
    send(1)
    assert left("api", CLIENT) == {"call_count": 8}  # a fixed window gives nothing back
    assert left("api", "user:1") == {"call_count": 9}


def test_limits_of_a_throttle_hold_where_the_endpoint_had_none_to_charge(send: Send, serve: Any) -> None:
    serve({"": view_of(throttle("api", default_limits=[CallLimit(1, 60)]))})
    services.set_resource_limits("api", [CallLimit(1, 60)])
    endpoint(limit("api"))
    services.delete_resource_limits("api")
    assert [send(1).status_code for _ in range(2)] == [200, 429]


def test_unknown_amounts_of_another_entity_are_one_of_each(send: Send, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"UNKNOWN_KEYS": "raise"}
    serve({"": view_of(throttle("api"))})
    endpoint(limit("api", RateLimit("tpm", 100, 60)), amounts={"tpm": 30})
    services.set_entity_limits("user:1", [RateLimit("rpm", 10, 60)], resource="api")
    assert send(1).status_code == 200
    assert left("api", "user:1") == {"rpm": 9}


@pytest.fixture
def request_of_client() -> HttpRequest:
    return RequestFactory().get("/")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_every_way_in_carries_over(kind: str, request_of_client: HttpRequest, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"UNKNOWN_KEYS": "raise"}
    limits = limits_of(request_of_client)
    charge = limits.charge if kind == "sync" else async_to_sync(limits.acharge)

    def entity() -> str | None:
        return limits.entity if kind == "sync" else async_to_sync(limits.aentity)()

    limit("api", CallLimit(10, 60))
    limit("tokens", RateLimit("tpm", 100, 60))
    services.set_entity_limits("user:2", [RateLimit("rpm", 10, 60)], resource="tokens")
    charge("api", entity())
    charge("tokens", entity(), {"tpm": 30})
    request_of_client.user = Person(1)  # type: ignore[assignment]  # as far as we look
    assert [entity(), entity()] == ["user:1"] * 2
    charge("api", "user:1")
    charge("api", "tenant:acme")
    charge("tokens", "user:1", {"tpm": 99})
    request_of_client.user = Person(2)  # type: ignore[assignment]
    charge("api", entity())
    charge("tokens", entity())
    assert [left("api", who)["call_count"] for who in (CLIENT, "user:1", "user:2", "tenant:acme")] == [10, 10, 9, 9]
    assert (left("tokens", CLIENT), left("tokens", "user:1")) == ({"tpm": 100}, {"tpm": 100})
    assert left("tokens", "user:2") == {"rpm": 9}
    request_of_client.user = Person(1)  # type: ignore[assignment]
    charge("api", entity())
    assert [left("api", who)["call_count"] for who in (CLIENT, "user:1", "user:2")] == [10, 9, 10]


@pytest.mark.parametrize("users", [1, 2])
def test_charge_is_transferred_in_a_thread_only_after_the_user_has_changed(
    users: int, request_of_client: HttpRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    transferred = list[object]()
    monkeypatch.setattr(
        "limits_app.integrations.request.transfer_former_charge", lambda *given: transferred.append(given)
    )
    limits = limits_of(request_of_client)
    limit("api", CallLimit(10, 60))

    async def charge_twice() -> None:
        for number in range(2):
            if number < users - 1:
                await limits.aentity()
                request_of_client.user = Person(1)  # type: ignore[assignment]  # as far as we look
            await limits.acharge("api", await limits.aentity())

    async_to_sync(charge_twice)()
    assert len(transferred) == users - 1


def test_charges_of_resources_alone_and_together_are_transferred(request_of_client: HttpRequest) -> None:
    limits = limits_of(request_of_client)
    for name in ("a", "b"):
        limit(name, CallLimit(10, 60))
    charge_all(limits, [Charge("a", limits.entity)])
    assert limits.acquisitions["a"].acquisitions.keys() == {"call_count"}, "without the name of the resource"
    request_of_client.user = Person(1)  # type: ignore[assignment]  # as far as we look
    charge_all(limits, [Charge(name, limits.entity) for name in ("a", "b")])
    assert [left(name, who)["call_count"] for name in ("a", "b") for who in (CLIENT, "user:1")] == [10, 9, 10, 9]


def test_what_was_taken_in_one_step_with_something_else_stays_charged(request_of_client: HttpRequest) -> None:
    limits = limits_of(request_of_client)
    limit("a", CallLimit(10, 60))
    limit("b", CallLimit(10, 60))
    charge_all(limits, [Charge(name, limits.entity) for name in ("a", "b")])
    assert set(limits.acquisitions) == {"a", "b"}
    request_of_client.user = Person(1)  # type: ignore[assignment]
    limits.charge("a", limits.entity)
    assert [left("a", CLIENT), left("a", "user:1")] == [{"call_count": 9}] * 2


def test_setting_the_same_user_again_changes_nothing(request_of_client: HttpRequest) -> None:
    limits = limits_of(request_of_client)
    limit("api", CallLimit(10, 60))
    limits.charge("api", limits.entity)
    limits.acquisitions["api"].release()
    request_of_client.user = Person(1)  # type: ignore[assignment]
    limits.charge("api", limits.entity)
    request_of_client.user = Person(1)  # type: ignore[assignment]
    assert limits.entity == "user:1"
    limits.charge("api", limits.entity)
    assert (left("api", CLIENT), left("api", "user:1")) == ({"call_count": 9}, {"call_count": 9})
