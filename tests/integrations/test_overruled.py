"""Refusals that do not become the response: whoever overrules one goes on, and so does what the request holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse
from pytest_django import Settings
from rest_framework.exceptions import APIException, Throttled
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app.engine.errors import LimitExceeded
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.drf import rates
from limits_app.integrations.drf.throttle import LimitThrottle, ThrottleRejection
from limits_app.integrations.ratelimit import ratelimit
from limits_app.integrations.refusals import refusal
from limits_app.integrations.request import limits_of
from limits_app.models import Resource
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, View, afine, endpoint, fine, left, limit
from tests.integrations.test_drf_async import AsyncView

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

Put = Callable[[View], None]

HELD = [{"call_count": 1, "permits": 0}, {"call_count": 0, "permits": 0}]
"""What is left of `work` while a view runs, the first time and the second."""


@pytest.fixture(autouse=True)
def work() -> Resource:
    """A resource with one permit and two calls."""
    return limit("work", ResourceLimit("permits", 1), CallLimit(2, 60))


@pytest.fixture(params=["with_the_middleware", "without_it"])
def put(request: pytest.FixtureRequest, serve: Any, settings: Settings, work: Resource) -> Put:
    """Serve a view that is charged for `work`: by an endpoint, or by a decorator where there is no middleware."""
    if request.param == "with_the_middleware":
        endpoint(work)
        return lambda view: serve({"": view})
    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    return lambda view: serve({"": limited("work")(view)})


class LetsPass(rates.AnonRateThrottle):
    """Asks, and lets everybody pass."""

    rate = "1/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Let it pass."""
        return super().allow_request(request, view) or True


class Once(rates.AnonRateThrottle):
    """Refuses the second request, and says itself how long to wait."""

    rate = "1/min"

    def wait(self) -> float | None:
        """Say so."""
        return 7


def throttled(self: APIView, request: Request, wait: float | None) -> None:
    """Let it pass."""


def check_throttles(self: APIView, request: Request) -> None:
    """Let pass whom throttles refuse."""
    with suppress(Throttled):
        APIView.check_throttles(self, request)


def serve_rest(put: Put, *throttles: type, is_async: bool, **attributes: Any) -> list[dict[str, object]]:
    """Serve a view of the framework; gives what is left of `work` while it runs, request by request."""
    seen: list[dict[str, object]] = []

    def get(self: APIView, request: Request) -> Response:
        seen.append(left("work"))
        return Response("fine")

    async def aget(self: APIView, request: Request) -> Response:
        return await sync_to_async(get)(self, request)

    named = {"throttle_classes": throttles, "authentication_classes": [], "permission_classes": []} | attributes
    bases, handler = ((AsyncView,), aget) if is_async else ((APIView,), get)
    put(type("Rest", bases, {"get": handler} | named).as_view())
    return seen


kinds = pytest.mark.parametrize(("ask", "is_async"), [("wsgi", False), ("asgi", True)], indirect=["ask"])
by_wsgi = pytest.mark.parametrize("ask", ["wsgi"], indirect=True)


@kinds
@pytest.mark.parametrize(
    ("throttle", "attributes"),
    [
        pytest.param(LetsPass, {}, id="a_throttle"),
        pytest.param(Once, {"throttled": throttled}, id="a_view"),
        pytest.param(Once, {"check_throttles": check_throttles}, id="a_view_that_catches"),
    ],
)
def test_an_overruled_throttle(throttle: type, attributes: dict[str, Any], is_async: bool, ask: Ask, put: Put) -> None:
    seen = serve_rest(put, throttle, is_async=is_async, **attributes)
    _, passed, refused = (ask() for _ in range(3))
    assert [passed.status_code, refused.status_code] == [200, 429]
    assert seen == HELD
    assert not passed.has_header("Cache-Control")
    assert passed["RateLimit"].startswith('"work:')
    assert refused["Cache-Control"] == "no-store"
    assert left("work") == {"call_count": 0, "permits": 1}


def finalize_in_an_envelope(self: APIView, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
    """Answer everything with another response."""
    APIView.finalize_response(self, request, response, *args, **kwargs)
    enveloped = Response({"data": response.data}, status=response.status_code)
    return APIView.finalize_response(self, request, enveloped, *args, **kwargs)


PROBLEMS = {"EXCEPTION_HANDLER": "limits_app.integrations.drf.problems.exception_handler"}


@kinds
@pytest.mark.parametrize(
    ("framework", "attributes"),
    [
        pytest.param({}, {}, id="as_the_framework_answers"),
        pytest.param(PROBLEMS, {}, id="as_problem_details"),
        pytest.param({}, {"finalize_response": finalize_in_an_envelope}, id="as_the_view_rewrites_it"),
    ],
)
def test_a_throttle_that_rejects(
    framework: Any, attributes: Any, is_async: bool, ask: Ask, put: Put, settings: Settings
) -> None:
    settings.REST_FRAMEWORK = framework
    seen = serve_rest(put, Once, is_async=is_async, **attributes)
    passed, *answers = [ask() for _ in range(3)]
    assert (passed.status_code, len(seen)) == (200, 1)
    assert passed["RateLimit"].startswith('"')
    assert left("work") == {"call_count": 1, "permits": 1}
    for refused in answers:
        assert refused.status_code == 429
        assert refused["Cache-Control"] == "no-store"
        assert refused["RateLimit"] == '"call_count";r=0;t=60'


@by_wsgi
def test_a_view_may_refuse_in_an_error_of_its_own(ask: Ask, put: Put) -> None:
    class Busy(APIException):
        status_code = 429

    def refuse(self: APIView, request: Request, wait: float | None) -> None:
        raise Busy

    serve_rest(put, Once, is_async=False, throttled=refuse)
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]
    assert left("work") == {"call_count": 1, "permits": 1}


@by_wsgi
def test_an_error_of_a_view_that_runs_all_the_same_is_no_refusal(ask: Ask, put: Put) -> None:
    class Wrong(APIException):
        status_code = 422

    def get(self: APIView, request: Request) -> Response:
        raise Wrong

    serve_rest(put, LetsPass, is_async=False, get=get)
    assert [ask().status_code for _ in range(3)] == [422, 422, 429]


@by_wsgi
@pytest.mark.parametrize("lets_pass", [False, True], ids=["refused", "overruled"])
@pytest.mark.parametrize(("cost", "down", "status"), [(10, False, 422), (1, True, 503)], ids=["too_much", "store_down"])
def test_a_rejection_that_is_no_429_may_be_overruled_too(
    cost: int, down: bool, status: int, lets_pass: bool, ask: Ask, put: Put, settings: Settings, take_down: Any
) -> None:
    class Far(LimitThrottle):
        resource = "far"

        def allow_request(self, request: Request, view: APIView) -> bool:
            with suppress(ThrottleRejection) if lets_pass else nullcontext():
                return super().allow_request(request, view)
            return True

    settings.LIMITS = {**settings.LIMITS, "STORES": settings.LIMITS["STORES"] | {"other": {"KIND": "memory"}}}
    limit("far", CallLimit(9, 60))
    Resource.objects.filter(name="far").update(store="other")
    if down:
        take_down("other")
    Far.cost = cost
    seen = serve_rest(put, Far, is_async=False)
    assert [ask().status_code for _ in range(3)] == ([200, 200, 429] if lets_pass else [status] * 3)
    assert seen == (HELD if lets_pass else [])
    assert left("work") == {"call_count": 0 if lets_pass else 2, "permits": 1}


def nested(inner: View, *, is_async: bool, passes_on: bool) -> tuple[View, list[dict[str, object]]]:
    """A view that asks another one; and what is left of `work` afterwards, request by request."""
    seen: list[dict[str, object]] = []

    def outer(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = inner(request)
        seen.append(left("work"))
        return response if passes_on else HttpResponse(str(response.status_code))

    async def aouter(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = await inner(request)
        seen.append(await sync_to_async(left)("work"))
        return response if passes_on else HttpResponse(str(response.status_code))

    return (aouter if is_async else outer), seen


ONCE = {
    "limited": limited("once"),
    "ratelimit": ratelimit(group="once", key="header:x-who", rate="1/m"),
    "both": lambda view: limited("twice")(limited("once")(view)),
}


@kinds
@pytest.mark.parametrize("decorate", ONCE.values(), ids=list(ONCE))
def test_a_view_that_ignores_a_rejection_keeps_its_permits(decorate: Any, is_async: bool, ask: Ask, put: Put) -> None:
    limit("once")
    limit("twice", CallLimit(2, 60))
    outer, seen = nested(decorate(afine if is_async else fine), is_async=is_async, passes_on=False)
    put(outer)
    allowed, passed, refused = (ask() for _ in range(3))
    assert (allowed.content, passed.content, refused.status_code) == (b"200", b"429", 429)
    assert seen == HELD
    assert not passed.has_header("Cache-Control")
    assert passed["RateLimit"].startswith('"work:call_count";r=0')
    assert left("work") == {"call_count": 0, "permits": 1}


@kinds
@pytest.mark.parametrize("decorate", ONCE.values(), ids=list(ONCE))
def test_a_view_that_returns_a_rejection_is_refunded(decorate: Any, is_async: bool, ask: Ask, put: Put) -> None:
    limit("once")
    limit("twice", CallLimit(2, 60))
    outer, _ = nested(decorate(afine if is_async else fine), is_async=is_async, passes_on=True)
    put(outer)
    _, *answers = [ask() for _ in range(3)]
    for refused in answers:
        assert (refused.status_code, refused["Cache-Control"]) == (429, "no-store")
        assert refused["RateLimit"].startswith('"call_count";r=0')
    assert left("work") == {"call_count": 1, "permits": 1}


@by_wsgi
def test_of_several_refusals_the_one_that_is_the_response_is_reported(ask: Ask, put: Put) -> None:
    first, second = (limited(name)(fine) for name in ("first", "second"))

    def outer(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = first(request)
        second(request)
        return response

    limit("first", CallLimit(1, 60))
    limit("second", CallLimit(1, 3600))
    put(outer)
    _, refused = ask(), ask()
    assert (refused.status_code, refused["RateLimit"]) == (429, '"call_count";r=0;t=60')
    assert left("work") == {"call_count": 1, "permits": 1}


@kinds
def test_cost_of_a_rejection_is_not_computed(is_async: bool, ask: Ask, serve: Any, put: Put) -> None:
    limit("work", RateLimit("tokens", 100, 60))
    limit("once")
    view = limited("once")(afine if is_async else fine)
    put(limited("work", requested={"tokens": 10}, usage=lambda response: {"tokens": len(response.content)})(view))
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]
    assert left("work") == {"tokens": 96}


@by_wsgi
def test_a_view_that_makes_a_refusal_itself_has_run(ask: Ask, put: Put) -> None:
    def guess(request: Any) -> Any:
        try:
            limits_of(request).acquire("once")
        except LimitExceeded as error:
            return refusal(request, error)
        return HttpResponse("fine")

    limit("once")
    put(guess)
    _, refused, _ = (ask() for _ in range(3))
    assert (refused.status_code, refused["RateLimit"]) == (429, '"call_count";r=0;t=60')
    assert left("work") == {"call_count": 0, "permits": 1}


def test_what_is_no_response_may_follow_a_refusal() -> None:
    def outer(request: HttpRequest) -> list[int]:
        response: HttpResponse = limited("once")(fine)(request)
        return [response.status_code]

    view = limited("work", usage=lambda codes: {})(outer)
    limit("once")
    for status in (200, 429):
        request = HttpRequest()
        assert view(request) == [status]
        request.close()


@by_wsgi
def test_a_refusal_of_another_request_is_none_of_this_one(ask: Ask, put: Put) -> None:
    inner = limited("once")(fine)

    def outer(request: HttpRequest) -> HttpResponse:
        other = HttpRequest()
        other.META = request.META
        response: HttpResponse = inner(other)
        other.close()
        return response

    limit("once")
    put(outer)
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]
    assert left("work") == {"call_count": 0, "permits": 1}
