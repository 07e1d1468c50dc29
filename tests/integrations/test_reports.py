"""What a view says of its own cost, and what of a view that fails inside another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.test import AsyncClient, RequestFactory
from django.utils.decorators import method_decorator
from django.views.generic import TemplateView
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app import CallLimit, RateLimit, ResourceLimit, services
from limits_app.integrations.decorators import limited
from limits_app.integrations.ratelimit import ratelimit
from limits_app.stores.redis import RedisStore
from tests.integrations.site import Ask, endpoint, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

Serve = Callable[[dict[str, Any]], None]


@pytest.fixture(params=[True, False], ids=["middleware", "alone"])
def _site(request: pytest.FixtureRequest, settings: Settings) -> None:
    if not request.param:
        settings.MIDDLEWARE = []


def in_bytes(response: HttpResponse) -> dict[str, int]:
    return {"bytes": len(response.content)}


class Page(TemplateView):
    template_name = "limits_app/429.html"


class Handler(APIView):
    @method_decorator(limited("out", usage=in_bytes))
    def get(self, request: Request) -> Response:
        return Response("fine")


def of_a_template(request: HttpRequest) -> TemplateResponse:
    return TemplateResponse(request, "limits_app/429.html")


VIEWS = {
    "function": limited("out", usage=in_bytes)(of_a_template),
    "class": method_decorator(limited("out", usage=in_bytes), name="dispatch")(Page).as_view(),
    "handler": Handler.as_view(),
}


@pytest.mark.usefixtures("_site")
@pytest.mark.parametrize("name", VIEWS)
def test_cost_of_a_response_may_depend_on_late_rendering(name: str, serve: Serve, ask: Ask) -> None:
    limit("out", RateLimit("bytes", 100_000, 3600))
    serve({"": VIEWS[name]})
    answer: Any = ask()
    assert answer.status_code == 200
    assert left("out") == {"bytes": 100_000 - len(answer.content)}


@pytest.mark.parametrize("named", [None, {"tokens": 10}])
@pytest.mark.parametrize("counts", [True, False])
def test_uncounted_responses_are_refunded(named: dict[str, int] | None, counts: bool, serve: Serve, ask: Ask) -> None:
    endpoint(limit("login", CallLimit(5, 3600), RateLimit("tokens", 100, 3600)))

    @limited("login", requested=named, counts=lambda _: counts)
    @limited("login", requested={"rows": 10} if named else None)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("x")

    services.set_resource_limits(
        "login", [CallLimit(5, 3600), RateLimit("tokens", 100, 3600), RateLimit("rows", 100, 3600)]
    )
    serve({"": view})
    assert ask().status_code == 200
    used = (1, 10, 10) if named else (1, 1, 1)
    expected = {"call_count": 5, "tokens": 100, "rows": 100}
    taken = dict(zip(expected, used if counts else (0, 0, 0), strict=True))
    assert left("login") == {key: whole - taken[key] for key, whole in expected.items()}


@pytest.mark.parametrize("charged_before", [True, False])
def test_usage_is_reported_to_the_acquisition(charged_before: bool, serve: Serve, ask: Ask) -> None:
    resource = limit("rep", RateLimit("rows", 1000, 3600), RateLimit("pages", 100, 3600))
    if charged_before:
        endpoint(resource)

    @limited("rep", requested={"rows": 100}, usage=lambda _: {"rows": 40, "pages": 7})
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("x")

    serve({"": view})
    assert ask().status_code == 200
    assert left("rep") == {"rows": 960, "pages": 93}


@pytest.mark.usefixtures("_site")
def test_a_view_that_fails_inside_another_takes_nothing_away_from_that(serve: Serve, ask: Ask) -> None:
    limit("slots", ResourceLimit("slot", 1), RateLimit("tokens", 100, 3600))
    limit("other", CallLimit(10, 60), RateLimit("tokens", 100, 3600))
    meanwhile = SimpleNamespace(left=None)

    @limited("other", requested={"tokens": 7})
    def inner(request: HttpRequest) -> HttpResponse:
        raise ValueError("inner")

    @limited("slots", requested={"tokens": 50})
    def outer(request: HttpRequest) -> HttpResponse:
        with pytest.raises(ValueError, match="inner"):
            inner(request)
        meanwhile.left = left("slots")
        return HttpResponse("x")

    serve({"": outer})
    assert ask().status_code == 200
    assert meanwhile.left == {"slot": 0, "tokens": 50}
    assert left("slots") == {"slot": 1, "tokens": 50}


def test_failing_view_refunds_charges_of_nested_views(settings: Settings, serve: Serve, ask: Ask) -> None:
    settings.MIDDLEWARE = []
    limit("outer", RateLimit("tokens", 100, 3600))
    limit("inner", RateLimit("tokens", 100, 3600))

    @limited("outer")
    def view(request: HttpRequest) -> HttpResponse:
        limited("inner")(lambda request: HttpResponse("x"))(request)
        raise ValueError("outer")

    serve({"": view})
    assert ask().status_code == 500
    assert (left("outer"), left("inner")) == ({"tokens": 100}, {"tokens": 100})


def test_an_asynchronous_handler_gives_permits_back_when_the_request_of_django_closes(settings: Settings) -> None:
    settings.MIDDLEWARE = []
    services.set_resource_limits("g", [ResourceLimit("slot", 1)])

    @ratelimit(key="ip", rate="1/m", group="g")
    async def handler(request: Request) -> HttpResponse:
        return HttpResponse("x")

    django = RequestFactory().get("/")
    response = async_to_sync(handler)(Request(django))
    assert left("g", "ip:127.0.0.1") == {"slot": 0}
    response.close()
    assert left("g", "ip:127.0.0.1") == {"slot": 1}


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("way", ["function", "block"])
def test_coroutines_settle_without_blocking(way: str, fails: bool, settled: list[str]) -> None:
    services.set_resource_limits("db", [ResourceLimit("slot", 1)])
    guarded = limited("db")

    async def work() -> None:
        if fails:
            raise ValueError("failed")

    async def block() -> None:
        async with guarded:
            await work()

    with pytest.raises(ValueError, match="failed") if fails else nullcontext():
        async_to_sync(guarded(work) if way == "function" else block)()
    assert settled == ["asettle"]
    assert services.status("db").limits["slot"]["available"] == 1


@pytest.mark.parametrize("stops", ["at_the_end", "early", "by_an_error"])
def test_async_generators_settle_without_blocking(stops: str, settled: list[str]) -> None:
    services.set_resource_limits("db", [ResourceLimit("slot", 1)])

    @limited("db")
    async def rows() -> AsyncIterator[int]:
        yield 1
        if stops == "by_an_error":
            raise ValueError("failed")
        yield 2

    async def read() -> None:
        async with aclosing(rows()) as items:
            async for _ in items:
                if stops == "early":
                    break

    with pytest.raises(ValueError, match="failed") if stops == "by_an_error" else nullcontext():
        async_to_sync(read)()
    assert settled == ["asettle"]
    assert services.status("db").limits["slot"]["available"] == 1


@pytest.mark.parametrize("how", ["fails", "passes_a_refusal_on"])
def test_a_view_settles_in_a_thread(how: str, settings: Settings, serve: Serve, settled: list[str]) -> None:
    settings.MIDDLEWARE = []
    limit("slots", RateLimit("tokens", 100, 3600))
    limit("used_up", CallLimit(1, 3600))
    services.try_acquire("used_up", entity="ann")

    @limited("slots", requested={"tokens": 7})
    async def view(request: HttpRequest) -> HttpResponse:
        if how == "fails":
            raise ValueError("failed")
        refused: HttpResponse = await limited("used_up")(view)(request)
        return refused

    serve({"": view})
    response = async_to_sync(AsyncClient(raise_request_exception=False).get)("/", headers={"X-Who": "ann"})
    assert response.status_code == (500 if how == "fails" else 429)
    assert settled == ["settle in a thread"]
    assert left("slots") == {"tokens": 100}


@pytest.fixture
def settled(on_redis: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which verbs, and where, something was settled in a Redis."""
    found: list[str] = []

    def note(verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any) -> Any:
            found.append(verb if verb == "asettle" or _is_on_a_loop() else f"{verb} in a thread")
            return method(*args)

        return noting

    for verb in ("settle", "asettle"):
        monkeypatch.setattr(RedisStore, verb, note(verb, getattr(RedisStore, verb)))
    return found


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
