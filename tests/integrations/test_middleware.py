"""The middleware enforces what administrators set, on requests through the synchronous and the asynchronous handler."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.core.exceptions import PermissionDenied
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import services
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.integrations.decorators import exempt, limited
from limits_app.integrations.middleware import LimitsMiddleware
from limits_app.models import Endpoint
from limits_app.testing import FakeClock
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, afine, endpoint, fine, left, limit
from tests.opened import fail_at

pytestmark = pytest.mark.django_db(transaction=True)

VIEWS = [pytest.param(fine, id="view"), pytest.param(afine, id="async_view")]


def statuses(ask: Ask, count: int, *args: Any, **kwargs: Any) -> list[int]:
    """The status codes of as many requests."""
    return [ask(*args, **kwargs).status_code for _ in range(count)]


@pytest.mark.parametrize("view", VIEWS)
def test_each_entity_is_limited_and_refilled(ask: Ask, serve: Any, view: Any, clock: FakeClock) -> None:
    serve({"": view})
    endpoint(limit("api", CallLimit(2, 60)))
    assert statuses(ask, 3) == [200, 200, 429]
    assert statuses(ask, 3, who="bob") == [200, 200, 429]
    clock.advance(30)
    assert statuses(ask, 2) == [200, 429]


@pytest.mark.parametrize(
    "fields",
    [{"path": "/things/7/"}, {"path": "/things/<int:pk>/"}, {"path": "/<path:anything>"}, {"view_name": "thing"}],
    ids=["path", "route", "open_route", "view_name"],
)
def test_requests_are_found_by_path_route_and_view(ask: Ask, settings: Settings, fields: Any) -> None:
    settings.ROOT_URLCONF = (path("things/<int:pk>/", fine, name="thing"), path("", fine))
    endpoint(limit("api"), **fields)
    assert statuses(ask, 2, "/things/7/") == [200, 429]
    assert statuses(ask, 2, "/") == [200, 200]


@pytest.mark.parametrize(("stop", "later"), [(False, 4), (True, 5)])
def test_all_rules_that_match_charge_a_request_until_one_stops(ask: Ask, serve: Any, stop: bool, later: int) -> None:
    serve({"a/": fine})
    endpoint(limit("second", CallLimit(5, 60)), "/a/", order=2)
    endpoint(limit("first", CallLimit(5, 60)), view_name="a", order=1, stop=stop)
    endpoint(limit("off", CallLimit(5, 60)), "/a/", order=0, enabled=False)
    for _ in range(2):  # the second request finds the rules in the cache
        ask("/a/")
    expected = {"call_count": 3}, {"call_count": 2 * later - 5}, {"call_count": 5}
    assert (left("first"), left("second"), left("off")) == expected


def test_every_change_counts_on_the_next_request(ask: Ask, serve: Any) -> None:
    serve({"": fine})
    row = endpoint(limit("api"), enabled=False)
    assert statuses(ask, 2) == [200, 200]
    for enabled in [True, False] * 3:
        Endpoint.objects.filter(pk=row.pk).update(enabled=enabled)
        assert statuses(ask, 2, who=f"visitor {enabled}") in ([[200, 429], [429, 429]] if enabled else [[200, 200]])
    Endpoint.objects.update(enabled=True)
    services.set_resource_limits("api", [CallLimit(100, 60)])
    assert statuses(ask, 5) == [200] * 5


@pytest.mark.parametrize(
    ("amounts", "after"),
    [
        pytest.param({}, {"call_count": 9, "tpm": 99, "rpm": 49}, id="one_of_each"),
        pytest.param({"tpm": 20}, {"call_count": 9, "tpm": 80, "rpm": 49}, id="what_is_named_and_one_of_the_others"),
        pytest.param({"rpm": 0, "call_count": 0}, {"call_count": 10, "tpm": 99, "rpm": 50}, id="zero_leaves_out"),
        pytest.param({"tpm": 2.5}, {"call_count": 9, "tpm": 97.5, "rpm": 49}, id="decimals_where_they_can_be"),
        pytest.param({"rpm": 2.5}, {"call_count": 9, "tpm": 99, "rpm": 49}, id="one_of_each_where_they_cannot"),
        pytest.param({"rpm": -1}, {"call_count": 9, "tpm": 99, "rpm": 49}, id="and_for_what_is_no_amount"),
        pytest.param({"other": 5}, {"call_count": 9, "tpm": 99, "rpm": 49}, id="what_is_not_limited_does_not_matter"),
    ],
)
def test_a_request_uses_the_amounts(ask: Ask, serve: Any, amounts: dict[str, Any], after: dict[str, Any]) -> None:
    serve({"": fine})
    rpm = RateLimit("rpm", 50, 60, RateLimitAlgorithm.FIXED_WINDOW)
    endpoint(limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), rpm), amounts=amounts)
    assert ask().status_code == 200
    assert left("api") == after


def test_invalid_amounts_are_logged(ask: Ask, serve: Any, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    settings.LIMITS = settings.LIMITS | {"UNKNOWN_KEYS": "raise"}
    serve({"": fine})
    endpoint(limit("api", RateLimit("tpm", 2, 60)), amounts={"tmp": 5}, name="chat")
    assert statuses(ask, 3) == [200, 200, 429]
    complaints = [record.getMessage() for record in caplog.records if "the rule" in record.getMessage()]
    assert len(complaints) == 1
    assert "rule chat takes 1 of each limit until its amounts are corrected: key 'tmp' is not" in complaints[0]


def test_the_view_may_report_the_amount_used(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        request.limits.acquisitions["llm"].update({"tpm": 30})  # type: ignore[attr-defined]
        return fine(request)

    serve({"": view, "silent/": fine})
    llm = limit("llm", RateLimit("tpm", 1000, 60))
    endpoint(llm, amounts={"tpm": 500})
    endpoint(llm, "/silent/", amounts={"tpm": 500})
    ask()
    assert left("llm") == {"tpm": 970}
    ask("/silent/")
    assert left("llm") == {"tpm": 470}


@pytest.mark.parametrize(("effect", "status"), [("blocked", 403), ("unlimited", 200)])
def test_blocked_and_unlimited_are_obeyed(
    ask: Ask, serve: Any, settings: Settings, caplog: pytest.LogCaptureFixture, effect: str, status: int
) -> None:
    settings.LIMITS = settings.LIMITS | {"UNKNOWN_KEYS": "raise"}
    serve({"": fine})
    endpoint(limit("api"), amounts={"call_count": 1})
    services.set_entity_limits("ann", [], effect=effect)
    assert statuses(ask, 3) == [status] * 3
    assert statuses(ask, 2, who="bob") == [200, 429]
    assert "amounts" not in caplog.text


def test_a_resource_without_limits_admits(ask: Ask, serve: Any) -> None:
    serve({"": fine})
    resource = limit("api")
    services.delete_resource_limits("api")
    endpoint(resource, amounts={"tpm": 5})
    assert statuses(ask, 3) == [200] * 3


@pytest.mark.parametrize(
    "unlisted", [pytest.param("/nothing/here/", id="no_view"), pytest.param("/closed/", id="something_else_answers")]
)
def test_requests_without_a_view_are_charged(ask: Ask, serve: Any, settings: Settings, unlisted: str) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE, "tests.integrations.test_middleware.aclosed"]
    serve({"": fine})
    endpoint(limit("api", CallLimit(2, 60)), "/<path:anything>")
    usual = 404 if unlisted == "/nothing/here/" else 410
    assert statuses(ask, 3, unlisted) == [usual, usual, 429]


def closed(get_response: Any) -> Any:
    """A synchronous middleware that answers itself."""

    def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=410) if request.path == "/closed/" else get_response(request)

    return answer


def aclosed(get_response: Any) -> Any:
    """The same for both kinds of handlers."""

    async def answer(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=410) if request.path == "/closed/" else await get_response(request)

    return answer if iscoroutinefunction(get_response) else closed(get_response)


aclosed.async_capable = True  # type: ignore[attr-defined]  # as Django has it


@method_decorator(exempt, name="dispatch")
class ExemptView(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(exempt(fine), id="view"),
        pytest.param(exempt(afine), id="async_view"),
        pytest.param(ExemptView.as_view(), id="class_view"),
    ],
)
def test_an_exempt_view_is_left_alone(ask: Ask, serve: Any, view: Any) -> None:
    serve({"": view, "other/": fine})
    endpoint(limit("api"), "/<path:anything>")
    endpoint(limit("root"))
    assert statuses(ask, 3) == [200] * 3
    assert statuses(ask, 2, "/other/") == [200, 429]


def unavailable(*args: object) -> None:
    raise StoreUnavailable("gone")


@pytest.mark.parametrize(("error", "status"), [(PermissionDenied, 403), (Http404, 404), (ValueError, 500)])
def test_failed_views_are_refunded(ask: Ask, serve: Any, error: type[Exception], status: int) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        raise error("no")

    serve({"": view})
    endpoint(limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60), ResourceLimit("slots", 3)), amounts={"tpm": 40})
    assert ask().status_code == status
    assert left("api") == {"call_count": 9, "tpm": 100 if status == 500 else 60, "slots": 3}


def test_a_refusal_inside_a_view_is_the_same_refusal_and_gives_no_call_back(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with request.limits.acquire("inner"):  # type: ignore[attr-defined]  # the middleware adds it
            return fine(request)

    serve({"": view})
    endpoint(limit("outer", CallLimit(10, 60), ResourceLimit("slots", 3)))
    limit("inner", CallLimit(1, 60))
    assert statuses(ask, 1) == [200]
    refused = ask(Accept="application/json")
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert refused.json()["violated-policies"] == ["call_count"]
    assert left("outer") == {"call_count": 8, "slots": 3}


def test_use_reported_before_a_rejection_stays(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        request.limits.acquisitions["outer"].update({"tpm": 10})  # type: ignore[attr-defined]
        services.acquire("inner", entity=None)
        return fine(request)

    serve({"": view})
    endpoint(limit("outer", RateLimit("tpm", 100, 60), RateLimit("rpm", 100, 60)), amounts={"tpm": 50})
    services.set_resource_limits("inner", [], effect="blocked")
    assert ask().status_code == 403
    assert left("outer") == {"tpm": 90, "rpm": 100}


def test_requests_without_a_rule_need_no_database_store_or_identity(
    serve: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": unavailable}
    serve({"": fine})
    endpoint(limit("api"), "/other/")
    client = Client()
    client.get("/")
    fail_at(monkeypatch, "acquire")
    with django_assert_num_queries(0):
        assert client.get("/").status_code == 200


def test_cached_limits_need_no_query(ask: Ask, serve: Any, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    serve({"": fine})
    endpoint(limit("api", CallLimit(10, 60)))
    with django_assert_num_queries(3):  # the rules, who is blocked or exempt, and the policies
        ask()
    with django_assert_num_queries(0):
        ask()


def test_the_middleware_works_inside_and_around_synchronous_ones(ask: Ask, serve: Any, settings: Settings) -> None:
    around = "tests.integrations.test_middleware.closed"
    settings.MIDDLEWARE = [around, *MIDDLEWARE, around]
    serve({"": fine})
    endpoint(limit("api"))
    assert statuses(ask, 2) == [200, 429]


@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_an_unhandled_error_refunds_the_request(kind: str) -> None:
    def broken(request: HttpRequest) -> HttpResponse:
        request.limits.acquire("api", entity="ann", requested={"tpm": 40})  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    async def abroken(request: HttpRequest) -> HttpResponse:
        await request.limits.aacquire("api", entity="ann", requested={"tpm": 40})  # type: ignore[attr-defined]
        raise KeyboardInterrupt

    limit("api", RateLimit("tpm", 100, 60), ResourceLimit("slots", 1))
    run: Any = LimitsMiddleware(broken) if kind == "wsgi" else async_to_sync(LimitsMiddleware(abroken))
    with pytest.raises(KeyboardInterrupt):
        run(RequestFactory().get("/"))
    assert left("api") == {"tpm": 100, "slots": 1}


def test_guesses_that_a_view_is_refused_something_for_are_not_free(ask: Ask, serve: Any) -> None:
    def log_in(request: Any) -> HttpResponse:
        if request.headers.get("X-Password") == "right":
            return HttpResponse(status=302)
        request.limits.acquire("mail", entity="account:ann")
        return HttpResponse("wrong")

    limit("mail", CallLimit(1, 3600))
    limit("login", CallLimit(3, 3600))
    serve({"": limited("login", counts=lambda response: response.status_code == 200)(log_in)})
    assert statuses(ask, 3) == [200, 429, 429]
    assert left("login") == {"call_count": 0}
    assert ask(X_Password="right").status_code == 429


def filed(get_response: Any) -> Any:
    """A middleware that answers all requests with a file."""

    def answer(request: HttpRequest) -> FileResponse:
        OPENED.append(BytesIO(b"file"))
        return FileResponse(OPENED[-1])

    return answer


OPENED: list[BytesIO] = []


def test_the_response_of_another_middleware_is_closed(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE, "tests.integrations.test_middleware.filed"]
    serve({"": fine})
    endpoint(limit("api", CallLimit(1, 60)))
    ask().close()
    assert ask().status_code == 429
    assert [file.closed for file in OPENED] == [True, True]
    OPENED.clear()
