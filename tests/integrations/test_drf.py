"""What throttles do beyond the framework's own: limits of administrators, one acquisition, costs, headers, schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.http import StreamingHttpResponse
from django.test import Client
from django.urls import path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import OpenApiResponse, extend_schema
from drf_spectacular.validation import validate_schema
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView

from limits_app import services
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.drf import rates
from limits_app.integrations.drf.schema import LimitsAutoSchema
from limits_app.integrations.drf.throttle import LimitThrottle
from limits_app.integrations.identity import entity_of_key, entity_of_request
from limits_app.integrations.request import limits_of
from limits_app.models import Limit, Pool, PoolMember, Resource
from limits_app.testing import FakeClock
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.rest import ask, of, throttle, view_of
from tests.integrations.site import endpoint, left, limit
from tests.integrations.test_holding import wsgi

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("default_entities")]


@pytest.fixture(autouse=True)
def api(settings: Settings) -> None:
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"user": "3/min", "anon": "2/min", "uploads": "1/hour"}}


def statuses(view: Callable[..., Any], times: int, person: int | None = 1) -> list[int]:
    return [ask(view, person).status_code for _ in range(times)]


def test_a_throttle_is_about_a_resource_on_which_administrators_set_limits() -> None:
    view = view_of(throttle())
    assert statuses(view, 3) == [200] * 3
    limit("api", CallLimit(2, 60))
    assert statuses(view, 3) == [200, 200, 429]
    services.set_entity_limits("user:1", [], resource="api", effect="unlimited")
    assert statuses(view, 3) == [200] * 3


def test_without_a_resource_it_is_about_the_scope_of_the_view_and_without_either_it_throttles_nothing() -> None:
    for resource in ("reports", "system"):
        limit(resource, CallLimit(1, 60))
    services.set_system_limits([CallLimit(1, 60)])
    assert statuses(view_of(LimitThrottle), 3) == [200] * 3
    assert statuses(view_of(LimitThrottle, throttle_scope="reports"), 2) == [200, 429]


def test_limits_of_the_class_hold_where_nothing_is_set_also_after_an_endpoint() -> None:
    view = view_of(throttle(default_limits=[CallLimit(1, 60)]))

    def status() -> int:
        request = APIRequestFactory().get("/")
        limits_of(request).charge("api", limits_of(request).entity)
        response = view(request)
        request.close()
        return int(response.status_code)

    assert [status(), status()] == [200, 429]
    limit("api", CallLimit(4, 60))  # of which one is used
    assert [status() for _ in range(3)] == [200] * 3  # each is charged once


def test_a_change_counts_from_the_next_request_on() -> None:
    view = view_of(rates.UserRateThrottle)
    assert statuses(view, 4) == [200, 200, 200, 429]
    limit("user", CallLimit(5, 60))
    assert statuses(view, 6)[-1] == 429
    services.set_entity_limits("user:1", [CallLimit(100, 60)], resource="user")
    assert statuses(view, 6) == [200] * 6
    assert statuses(view, 6, person=2) == [200] * 5 + [429]


@pytest.mark.parametrize(
    ("cost", "limits", "after"),
    [
        pytest.param(1, [CallLimit(10, 60)], {"call_count": 9}, id="one"),
        pytest.param(4, [CallLimit(10, 60)], {"call_count": 6}, id="several"),
        pytest.param(4, [RateLimit("rpm", 10, 60)], {"rpm": 6}, id="of_a_rate"),
        pytest.param(1, [RateLimit("rpm", 10, 60)], {"rpm": 9}, id="one_of_a_rate"),
        pytest.param(2.5, [RateLimit("rpm", 10, 60)], {"rpm": 7.5}, id="with_decimals"),
        pytest.param(0, [CallLimit(10, 60)], {"call_count": 10}, id="nothing"),
        pytest.param(
            4, [CallLimit(10, 60), ResourceLimit("slots", 2)], {"call_count": 6, "slots": 2}, id="and_one_permit"
        ),
    ],
)
def test_a_request_has_a_cost(cost: float, limits: list[Any], after: dict[str, float]) -> None:
    limit("api", *limits)
    ask(view_of(throttle(cost=cost)), 1)
    assert left("api", "user:1") == after


def test_the_cost_may_depend_on_the_request() -> None:
    def get_cost(self: object, request: Request, view: APIView) -> int:
        return int(request.headers["X-Cost"])

    limit("api", CallLimit(10, 60))
    view = view_of(throttle(get_cost=get_cost))
    seen = [ask(view, 1, headers={"X-Cost": cost}).status_code for cost in ("6", "5", "4", "1")]
    assert seen == [200, 429, 200, 429]


def test_an_inadmissible_cost_charges_nothing_and_headers_show_the_remaining_amount() -> None:
    limit("api", CallLimit(3, 60))
    assert ask(view_of(throttle(cost=4)), 1)["RateLimit"] == '"call_count";r=3;t=0'
    assert left("api", "user:1") == {"call_count": 3}


def test_a_cost_that_cannot_be_is_an_error() -> None:
    limit("api", CallLimit(3, 60))
    with pytest.raises(ValueError, match="must not be negative"):
        ask(view_of(throttle(cost=-1)), 1)


def test_permits_are_released_without_the_middleware_and_the_mixin(serve: Any, settings: Settings) -> None:
    class View(APIView):
        throttle_classes = (throttle(),)
        permission_classes = ()

        def get(self, request: Request) -> Response:
            return Response(left("api", "ip:127.0.0.1"))

    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": entity_of_request}
    serve({"": View.as_view()})
    limit("api", ResourceLimit("slots", 1), CallLimit(2, 60))
    answers = [Client().get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[1].json()["slots"] == 0
    assert left("api", "ip:127.0.0.1")["slots"] == 1
    assert (answers[2]["Retry-After"], answers[2].has_header("RateLimit")) == ("30", False)


def test_a_missing_permit_is_worth_another_try_soon() -> None:
    limit("api", ResourceLimit("slots", 1))
    with ThreadPoolExecutor(1) as somewhere_else:
        held = somewhere_else.submit(services.acquire, "api", entity="user:1").result()
        refused = ask(view_of(throttle()), 1)
        held.release()
    assert (refused.status_code, refused["Retry-After"]) == (429, "1")


def test_the_entity_is_found_after_authentication(settings: Settings) -> None:
    limit("api", CallLimit(5, 60))
    ask(view_of(throttle()), 7)
    assert left("api", "user:7") == {"call_count": 4}
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": lambda request: request.headers.get("X-Key")}
    ask(view_of(throttle()), 7, headers={"X-Key": "s3cret"})
    assert left("api", entity_of_key("s3cret")) == {"call_count": 4}


def test_the_site_itself_may_be_charged() -> None:
    limit("api", CallLimit(2, 60))
    view = view_of(throttle(get_entity=lambda *_: None))
    assert [ask(view, person).status_code for person in (1, 2, 3)] == [200, 200, 429]


@pytest.mark.parametrize("scope", ["a b", "1st", "x" * 80, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "a:b", ""])
def test_scopes_of_any_name_have_a_resource_of_their_own(scope: str) -> None:
    views = [view_of(of(rates, "UserRateThrottle", scope=f"{scope}{end}", rate="1/min")) for end in ("!", "?")]
    assert [statuses(view, 2) for view in views] == [[200, 429], [200, 429]]


def test_request_rejected_by_one_throttle_is_not_charged_by_others(clock: FakeClock) -> None:
    limit("first", CallLimit(9, 60, RateLimitAlgorithm.FIXED_WINDOW))
    limit("second", CallLimit(1, 60, RateLimitAlgorithm.FIXED_WINDOW))
    view = view_of(throttle("first"), throttle("second"))
    assert statuses(view, 4) == [200, 429, 429, 429]
    assert (left("first", "user:1"), left("second", "user:1")) == ({"call_count": 8}, {"call_count": 0})


def test_costs_are_those_of_each_throttle() -> None:
    limit("first", CallLimit(10, 60), RateLimit("rpm", 10, 60))
    limit("second", CallLimit(10, 60), ResourceLimit("slots", 2))
    ask(view_of(throttle("first", cost=3), throttle("second", cost=2)), 1)
    assert left("first", "user:1") == {"call_count": 7, "rpm": 7}
    assert left("second", "user:1") == {"call_count": 8, "slots": 2}


def test_a_view_may_have_throttles_of_other_kinds_and_none_of_ours_that_matter() -> None:
    class Open(BaseThrottle):
        def allow_request(self, request: object, view: object) -> bool:
            return True

    limit("api", CallLimit(1, 60))
    assert statuses(view_of(Open, throttle(), LimitThrottle, rates.ScopedRateThrottle), 2) == [200, 429]


def test_two_rates_for_one_scope_both_hold(clock: FakeClock) -> None:
    burst = of(rates, "UserRateThrottle", rate="1/sec")
    sustained = type("Sustained", (rates.UserRateThrottle,), {"rate": "2/hour"})
    view = view_of(burst, sustained)
    seen = []
    for _ in range(3):
        seen += statuses(view, 2)
        clock.advance(1)
    assert seen == [200, 429, 200, 429, 429, 429]
    limit("user.Sustained", CallLimit(9, 60))
    assert statuses(view, 2) == [200, 429]


@pytest.fixture
def pooled() -> None:
    """A resource that a pool serves, twice an hour."""
    pool = Pool.objects.create(name="regions")
    Limit.from_definition(PoolMember.objects.create(pool=pool, name="east"), CallLimit.per_hour(2)).save()
    Resource.objects.create(name="llm", pool=pool)


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("own", [None, 1, 99], ids=["the_pool_alone", "less_than_the_pool", "more_than_the_pool"])
def test_throttle_rejects_as_its_pool(own: int | None) -> None:
    if own is not None:
        limit("llm", CallLimit(own, 60))
    view = view_of(throttle("llm"))
    allowed = min(own or 2, 2)
    assert statuses(view, 4) == [200] * allowed + [429] * (4 - allowed)
    refused = ask(view, 1)
    assert (refused["Retry-After"], refused["Cache-Control"]) == ("60" if own == 1 else "1800", "no-store")


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("order", [1, -1])
def test_view_with_several_throttles_rejects_as_a_pool(order: int) -> None:
    limit("api", CallLimit(9, 60))
    view = view_of(*[throttle("llm"), throttle("api")][::order])
    assert statuses(view, 4) == [200, 200, 429, 429]
    assert ask(view, 1)["Retry-After"] == "1800"
    assert left("api", "user:1") == {"call_count": 7}


def test_a_request_is_charged_once_by_a_throttle_and_an_endpoint(send: Any, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": lambda request: "tenant:acme"}
    serve({"": view_of(throttle())})
    endpoint(limit("api", CallLimit(5, 60)))
    assert send(1).status_code == 200
    assert left("api", "tenant:acme") == {"call_count": 4}


def test_request_rejected_by_a_throttle_is_refunded_to_the_endpoint(send: Any, serve: Any) -> None:
    serve({"": view_of(throttle("exports"))})
    endpoint(limit("api", CallLimit(5, 60)))
    limit("exports", CallLimit(1, 60))
    assert [send(1).status_code for _ in range(3)] == [200, 429, 429]
    assert left("api", "ip:127.0.0.1") == {"call_count": 4}


def test_amount_named_later_does_not_refund_shared_charges() -> None:
    def get(self: APIView, request: Request) -> Response:
        limits_of(request).charge("first", "user:1", {"call_count": 3})
        return Response("fine")

    limit("first", CallLimit(10, 60))
    limit("second", CallLimit(10, 60))
    ask(view_of(throttle("first"), throttle("second"), get=get), 1)
    assert (left("first", "user:1"), left("second", "user:1")) == ({"call_count": 7}, {"call_count": 9})


@pytest.mark.parametrize(
    ("options", "held", "after"),
    [
        ({}, (99, 4), (99, 5)),
        ({"requested": {"tpm": 10}}, (89, 4), (90, 5)),
        ({"requested": {"slots": 3}}, (99, 2), (99, 5)),
        ({"usage": lambda response: {"tpm": 0}}, (99, 4), (100, 5)),
        ({"counts": lambda response: False}, (99, 4), (100, 5)),
    ],
)
def test_a_decorator_adds_to_several_throttles(send: Any, serve: Any, options: Any, held: Any, after: Any) -> None:
    during: list[dict[str, object]] = []

    @limited("first", **options)
    def get(self: APIView, request: Request) -> Response:
        during.append(left("first", "user:1"))
        return Response("fine")

    for name in ("first", "second"):
        limit(name, RateLimit("tpm", 100, 60), ResourceLimit("slots", 5))
    serve({"": view_of(throttle("first"), throttle("second"), get=get)})
    send(1)
    assert during == [{"tpm": held[0], "slots": held[1]}]
    assert left("first", "user:1") == {"tpm": after[0], "slots": after[1]}
    assert left("second", "user:1") == {"tpm": 99, "slots": 5}


def test_a_decorator_reports_the_usage_of_its_entity_among_those_charged_in_one_step(send: Any, serve: Any) -> None:
    @limited("api", entity="tenant:1", counts=lambda response: False)
    def get(self: APIView, request: Request) -> Response:
        return Response("fine")

    limit("api", RateLimit("tpm", 100, 60))
    serve(
        {
            "": view_of(
                *[throttle(get_entity=lambda *_, entity=entity: entity) for entity in ("user:1", "tenant:1")], get=get
            )
        }
    )
    send(1)
    assert (left("api", "user:1"), left("api", "tenant:1")) == ({"tpm": 99}, {"tpm": 100})


def told(response: Any) -> Any:
    return response.get("RateLimit")


def test_the_middleware_reports_throttles_too(send: Any, serve: Any) -> None:
    serve({"": view_of(throttle("first"), throttle("second"))})
    limit("first", CallLimit(2, 60))
    limit("second", CallLimit(9, 60))
    assert told(send(1)) == '"first:call_count";r=1;t=30, "second:call_count";r=8;t=7'
    send(1)
    refused = send(1)
    assert (refused.status_code, told(refused)) == (429, '"first:call_count";r=0;t=60, "second:call_count";r=7;t=14')
    assert (refused["Retry-After"], refused["Cache-Control"]) == ("30", "no-store")


def test_without_the_middleware_headers_include_charges_of_the_view(serve: Any, settings: Settings) -> None:
    def get(self: APIView, request: Request) -> Response:
        limits_of(request).acquire("files", entity="ann")
        return Response("fine")

    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    serve({"": view_of(throttle(), get=get)})
    limit("api", CallLimit(1, 60))
    limit("files", CallLimit(10, 60))
    allowed, refused = (Client().get("/") for _ in range(2))
    assert told(allowed) == '"api:call_count";r=0;t=60, "files:call_count";r=9;t=6'
    assert told(refused) == '"call_count";r=0;t=60'
    assert (allowed.has_header("Cache-Control"), refused["Cache-Control"]) == (False, "no-store")


def test_stream_without_the_middleware_may_report_the_use_of_its_throttle(serve: Any, settings: Settings) -> None:
    def get(self: APIView, request: Request) -> StreamingHttpResponse:
        def content() -> Iterator[bytes]:
            limits_of(request).acquisitions["api"].update({"call_count": 0})
            yield b"nothing"

        return StreamingHttpResponse(content())

    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    serve({"": view_of(throttle(), get=get)})
    limit("api", CallLimit(2, 60))
    response = wsgi(HTTP_X_PERSON="1")
    assert list(response) == [b"nothing"]
    assert left("api", "user:1") == {"call_count": 1}
    response.close()
    assert left("api", "user:1") == {"call_count": 2}


def test_a_header_is_not_believed_where_the_framework_would(settings: Settings) -> None:
    view = view_of(of(rates, "AnonRateThrottle", rate="1/min"))
    seen = [ask(view, headers={"X-Forwarded-For": f"198.51.100.{last}"}).status_code for last in range(3)]
    assert seen == [200, 429, 429]


def test_but_from_trusted_proxies(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["127.0.0.1"]}
    view = view_of(of(rates, "AnonRateThrottle", rate="1/min"))
    seen = [ask(view, headers={"X-Forwarded-For": f"1.2.3.4, 198.51.100.{last}"}).status_code for last in (1, 2, 1)]
    assert seen == [200, 200, 429]


@pytest.fixture
def described(settings: Settings) -> type[APIView]:
    """A view of which the schema says something."""
    settings.REST_FRAMEWORK = {"DEFAULT_SCHEMA_CLASS": "limits_app.integrations.drf.schema.LimitsAutoSchema"}

    class Described(APIView):
        throttle_classes = (throttle(),)
        schema = LimitsAutoSchema()

        @extend_schema(responses={200: str})
        def get(self, request: Request) -> Response:
            return Response("fine")

        @extend_schema(responses={201: str, 429: OpenApiResponse(str, description="Slow down.")})
        def post(self, request: Request) -> Response:
            return Response("fine")

        @extend_schema(exclude=True)
        def put(self, request: Request) -> Response:
            return Response("fine")

    return Described


def operations(view: type[APIView]) -> Any:
    """The operations of a view in a schema that is sound."""
    schema = SchemaGenerator(patterns=[path("x/", view.as_view())]).get_schema(request=None, public=True)
    validate_schema(schema)
    return schema["paths"]["/x/"]


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("draft", ["RateLimit-Policy", "RateLimit"]),
        ("legacy", ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
        ("none", []),
    ],
)
def test_the_schema_has_429_and_headers(
    form: str, names: list[str], settings: Settings, described: type[APIView]
) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": form}
    responses = operations(described)["get"]["responses"]
    assert list(responses) == ["200", "429"]
    assert list(responses["200"].get("headers", {})) == names
    assert list(responses["429"]["headers"]) == ["Retry-After", *names]
    assert responses["429"]["content"]["application/json"]["schema"]["required"] == ["detail"]
    limit("api", CallLimit(5, 60))
    sent = [name for name in ask(view_of(throttle()), 1).headers if "RateLimit" in name]
    assert sent == names, "describe the headers in integrations/drf/schema.py"


def test_headers_of_a_view_are_kept(described: type[APIView]) -> None:
    found = operations(described)
    assert list(found) == ["get", "post"]
    refused = found["post"]["responses"]["429"]
    assert (refused["description"], next(iter(refused["headers"]))) == ("Slow down.", "Retry-After")
    assert refused["content"]["application/json"]["schema"] == {"type": "string"}


def test_views_without_throttles_of_ours_have_none(described: type[APIView]) -> None:
    described.throttle_classes = ()
    assert list(operations(described)["get"]["responses"]) == ["200"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_redis")
@pytest.mark.parametrize("several", [False, True], ids=["one_throttle", "two_throttles"])
def test_a_hundred_are_a_hundred(several: bool) -> None:
    hourly = of(rates, "UserRateThrottle", scope="hourly", rate="100/hour")
    daily = of(rates, "UserRateThrottle", scope="daily", rate="1000/day")
    limit("unrelated", CallLimit(1, 60))
    view = view_of(hourly, *([daily] if several else []))

    def one(_: int) -> int:
        try:
            status: int = ask(view, 1).status_code
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as pool:
        seen = Counter(pool.map(one, range(500)))
    assert seen == {200: 100, 429: 400}
