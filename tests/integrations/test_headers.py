"""What clients are told about their limits, on responses and on refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import time_machine
from django.core.cache import caches
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.test import Client
from django.views.decorators.cache import cache_page
from pytest_django import Settings

from limits_app import services
from limits_app.engine.errors import LimitExceeded
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.integrations.decorators import limited
from limits_app.testing import FakeClock
from tests.docs.pages import DOCS, rows
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, afine, endpoint, fine, limit

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = ("RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


def told(response: Any) -> dict[str, str]:
    """The headers about limits, also those that this module does not know."""
    return {name: value for name, value in response.headers.items() if "ratelimit" in name.lower()}


@pytest.mark.parametrize(
    ("limits", "policy", "left"),
    [
        pytest.param([CallLimit(10, 60)], '"call_count";q=10;w=60', '"call_count";r=9;t=6', id="calls"),
        pytest.param([RateLimit("rpm", 100, 60)], '"rpm";q=100;w=60', '"rpm";r=99;t=1', id="a_rate"),
        pytest.param([RateLimit("rpm", 100, 60, burst=5)], '"rpm";q=100;w=60', '"rpm";r=4;t=1', id="a_burst"),
        pytest.param(
            [RateLimit("rpm", 100, 60, burst=200)], '"rpm";q=100;w=60', '"rpm";r=100;t=1', id="a_larger_burst"
        ),
        pytest.param([RateLimit("rate", 0.5, 60, burst=3)], '"rate";q=1;w=120', '"rate";r=1;t=120', id="half_of_one"),
        pytest.param([RateLimit("rps", 4, 0.5)], '"rps";q=4', '"rps";r=3;t=1', id="a_window_of_less_than_a_second"),
        pytest.param([RateLimit("rate", 2.5, 10)], '"rate";q=2;w=10', '"rate";r=1;t=4', id="a_capacity_with_decimals"),
        pytest.param(
            [ResourceLimit("slots", 3)],
            '"slots";q=3;qu="concurrent-requests"',
            '"slots";r=2',
            id="permits_have_no_time",
        ),
        pytest.param(
            [CallLimit(10, 60, RateLimitAlgorithm.FIXED_WINDOW)],
            '"call_count";q=10;w=60',
            '"call_count";r=9;t=60',
            id="a_fixed_window",
        ),
        pytest.param(
            [QuotaLimit("tokens", 50, session_seconds=600)],
            '"tokens";q=50;w=600',
            '"tokens";r=49;t=600',
            id="a_quota_of_a_session",
        ),
        pytest.param(
            [CallLimit(10, 60), RateLimit("tpm", 500, 3600), ResourceLimit("slots", 3)],
            '"call_count";q=10;w=60, "slots";q=3;qu="concurrent-requests", "tpm";q=500;w=3600',
            '"call_count";r=9;t=6, "slots";r=2, "tpm";r=499;t=8',
            id="several",
        ),
    ],
)
def test_a_response_has_policy_and_remainder(
    limits: list[LimitDefinition], policy: str, left: str, ask: Ask, serve: Any
) -> None:
    serve({"": fine})
    endpoint(limit("api", *limits))
    assert told(ask()) == {"RateLimit-Policy": policy, "RateLimit": left}


@pytest.mark.parametrize(("period", "policy"), [("day", '"tokens";q=50;w=86400'), ("month", '"tokens";q=50')])
def test_a_calendar_quota_has_a_window_of_fixed_length(period: str, policy: str, ask: Ask, serve: Any) -> None:
    serve({"": fine})
    endpoint(limit("api", QuotaLimit("tokens", 50, period)))
    assert told(ask())["RateLimit-Policy"] == policy


@pytest.mark.parametrize(
    ("name", "headers"), [("draft", NAMES[:2]), ("legacy", NAMES[2:]), ("both", NAMES), ("none", ())]
)
def test_the_site_chooses_the_headers(
    name: str, headers: tuple[str, ...], ask: Ask, serve: Any, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": name}
    serve({"": fine})
    endpoint(limit("api", CallLimit(1, 60)))
    assert tuple(told(ask())) == headers
    refused = ask()
    assert (refused.status_code, tuple(told(refused))) == (429, headers)


def test_the_documentation_lists_the_headers_that_are_sent(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "both"}
    serve({"": fine, "free/": fine})
    endpoint(limit("api", CallLimit(1, 60)))
    unlimited, allowed, rejected = ask("/free/"), ask(), ask()
    assert (allowed.status_code, rejected.status_code) == (200, 429)
    page = (DOCS / "requests.md").read_text().partition("\n## Rejections\n")[2]
    missing = [name for name in {*allowed.headers, *rejected.headers} - {*unlimited.headers} if f"`{name}" not in page]
    assert not missing, "list them in docs/requests.md"
    named = re.findall(r"`([\w-]*RateLimit[\w-]*)", "".join(cell for _, cell in rows(DOCS / "requests.md", "Headers")))
    assert set(named) == {*told(allowed)}, "docs/requests.md lists headers that are not sent"
    exposed = (DOCS / "howto" / "placement.md").read_text().partition("\n## Let scripts")[2].partition("\n## ")[0]
    unexposed = [name for name in named if f"`{name}`" not in exposed and f'"{name}"' not in exposed]
    assert not unexposed, "list them in docs/howto/placement.md"


@time_machine.travel("2026-01-01T00:00:00Z", tick=False)
def test_the_older_headers_are_about_the_limit_that_is_closest_to_its_end(
    ask: Ask, serve: Any, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    serve({"": fine})
    endpoint(limit("api", CallLimit(2, 60), RateLimit("tpm", 100, 3600), ResourceLimit("slots", 9)))
    now = 1767225600
    assert told(ask()) == {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1", "X-RateLimit-Reset": str(now + 30)}
    assert told(ask())["X-RateLimit-Remaining"] == "0"
    refused = told(ask())
    assert (refused["X-RateLimit-Limit"], refused["X-RateLimit-Reset"]) == ("2", str(now + 60))


@time_machine.travel("2026-01-01T00:00:00Z", tick=False)
def test_reset_of_a_permit_is_left_out(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    serve({"": fine})
    endpoint(limit("api", ResourceLimit("slots", 2)))
    assert told(ask()) == {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1"}


def test_a_limit_that_refuses_counts_more_than_one_with_less_left(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    serve({"": fine})
    endpoint(limit("api", CallLimit(1, 60), RateLimit("tpm", 1000, 60)), amounts={"tpm": 600, "call_count": 0})
    ask()
    assert told(ask())["X-RateLimit-Limit"] == "1000"


def test_a_rejection_has_remaining_amounts_and_is_not_cached(ask: Ask, serve: Any, clock: FakeClock) -> None:
    serve({"": fine})
    endpoint(limit("api", CallLimit(2, 60), RateLimit("tpm", 10, 600)), amounts={"tpm": 6})
    ask()
    clock.advance(30)
    refused = ask()
    assert told(refused) == {
        "RateLimit-Policy": '"call_count";q=2;w=60, "tpm";q=10;w=600',
        "RateLimit": '"call_count";r=2;t=0, "tpm";r=4;t=330',
    }
    assert refused["Cache-Control"] == "no-store"


def test_amounts_refunded_by_a_rejection_are_not_in_headers(ask: Ask, serve: Any) -> None:
    serve({"": limited("exports")(fine)})
    endpoint(limit("api", CallLimit(9, 60)))
    limit("exports", CallLimit(1, 60))
    assert told(ask())["RateLimit"] == '"api:call_count";r=8;t=7, "exports:call_count";r=0;t=60'
    assert told(ask())["RateLimit"] == '"call_count";r=0;t=60'
    services.set_system_limits([CallLimit(9, 60)], counted="total")
    assert told(ask(who="bob"))["RateLimit"].startswith('"api:call_count";r=8;t=7, "call_count";r=7;t=14, ')


def test_of_two_scopes_with_the_same_limit_the_fuller_one_is_reported(ask: Ask, serve: Any) -> None:
    serve({"": limited("api", entity="tenant:acme")(fine)})
    endpoint(limit("api", CallLimit(5, 60)))
    ask(who="bob")
    assert told(ask())["RateLimit"] == '"call_count";r=3;t=24'


def test_a_client_that_a_rule_blocks_has_nothing_of_the_limit_until_the_block_ends(
    ask: Ask, serve: Any, clock: FakeClock
) -> None:
    serve({"x/": fine})
    endpoint(None, "/x/", limits="5/min:sliding_window, db=2:permits", counted_by="ip", block_for="10m")
    assert [ask("/x/").status_code for _ in range(6)] == [200] * 5 + [429]
    for _ in range(2):
        clock.advance(90)
        rejected = ask("/x/")
        seconds = rejected.headers["Retry-After"]
        assert told(rejected)["RateLimit-Policy"] == '"call_count";q=5;w=60, "db";q=2;qu="concurrent-requests"'
        assert told(rejected)["RateLimit"] == f'"call_count";r=0;t={seconds}, "db";r=0'
    assert seconds == "420"
    clock.advance(420)
    assert told(ask("/x/"))["RateLimit"].startswith('"call_count";r=4;t=60')


def test_a_blocked_client_has_no_remaining_amount(ask: Ask, serve: Any) -> None:
    serve({"": fine})
    endpoint(limit("api"))
    services.set_entity_limits("ann", [], effect="blocked")
    assert told(ask()) == {"RateLimit-Policy": '"blocked";q=0', "RateLimit": '"blocked";r=0'}


def test_where_nothing_is_limited_nothing_is_reported(ask: Ask, serve: Any) -> None:
    serve({"": fine})
    services.set_entity_limits("ann", [], effect="unlimited")
    assert told(ask()) == {}
    endpoint(limit("api"))
    assert told(ask()) == {}


def test_a_policy_in_shadow_mode_has_no_headers(ask: Ask, serve: Any) -> None:
    serve({"": limited("api")(fine)})
    services.set_resource_limits("api", [CallLimit(1, 60)], enforcement="shadow")
    assert [(one.status_code, told(one)) for one in (ask(), ask())] == [(200, {}), (200, {})]


def test_headers_report_amounts_acquired_by_a_view(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        request.limits.acquire("api", requested={"tpm": 4})  # type: ignore[attr-defined]  # the middleware adds it
        return fine(request)

    serve({"": view})
    limit("api", RateLimit("tpm", 10, 60))
    assert told(ask())["RateLimit"] == '"tpm";r=6;t=24'
    ask()
    refused = ask()
    assert (refused.status_code, told(refused)["RateLimit"]) == (429, '"tpm";r=2;t=48')


@pytest.mark.parametrize(
    "acquire",
    [
        lambda _request: services.limit_set("api", "ann").acquire(timeout=0),
        lambda _request: services.acquire("api", entity="ann"),
    ],
    ids=["of_a_set", "of_a_service"],
)
def test_a_rejection_that_a_view_raises(acquire: Callable[[HttpRequest], object], ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        acquire(request)
        return fine(request)

    serve({"": view})
    limit("api")
    ask()
    refused = ask()
    assert (refused.status_code, refused["Retry-After"]) == (429, "60")
    assert told(refused)["RateLimit"] == '"call_count";r=0;t=60'


@pytest.mark.parametrize("view", [fine, afine])
def test_a_hopeless_wait_is_rejected_with_the_headers_of_its_limit(
    view: Callable[..., Any], ask: Ask, serve: Any
) -> None:
    serve({"": limited("api", timeout=30)(view)})
    limit("api")
    services.set_entity_limits("ann", [], effect="blocked")
    blocked = ask()  # at once, since no waiting helps
    assert (blocked.status_code, told(blocked)["RateLimit"]) == (403, '"blocked";r=0')


def test_of_several_rejections_headers_describe_the_one_that_is_returned(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        assert not request.limits.try_acquire("other", entity="ann")  # type: ignore[attr-defined]
        services.acquire("api", entity="ann")
        return fine(request)

    serve({"": view})
    limit("api")
    limit("other")
    services.try_acquire("api", entity="ann")
    services.try_acquire("other", entity="ann")
    assert '"call_count"' in told(ask())["RateLimit"]


def test_a_stream_has_them_too(ask: Ask, serve: Any) -> None:
    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"a", b"b"]))

    serve({"": view})
    endpoint(limit("api", CallLimit(10, 60)))
    assert told(ask())["RateLimit"] == '"call_count";r=9;t=6'


def test_without_the_middleware_the_decorator_sets_headers(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    serve({"": limited("api")(fine)})
    limit("api")
    assert told(ask())["RateLimit"] == '"call_count";r=0;t=60'
    assert told(ask())["RateLimit"] == '"call_count";r=0;t=60'


def test_no_headers_during_an_outage(ask: Ask, serve: Any, settings: Settings, take_down: Any) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNAVAILABLE": "allow"}
    serve({"": fine})
    endpoint(limit("api", CallLimit(10, 60)))
    take_down()
    response = ask()
    assert (response.status_code, told(response)) == (200, {})


def refuse(request: HttpRequest, error: Exception) -> HttpResponse:
    """What a site says instead."""
    return HttpResponse(f"no: {type(error).__name__}", status=420, headers={"Cache-Control": "max-age=60"})


async def arefuse(request: HttpRequest, error: Exception) -> HttpResponse:
    """The same from a coroutine."""
    return refuse(request, error)


def word(request: HttpRequest, _error: Exception) -> Any:
    """No response, of a type that each kind of request has to itself: a type is reported once."""
    return type(f"WordFor{type(request).__name__}", (str,), {})("no")


def template(name: str) -> Callable[[HttpRequest, Exception], HttpResponse]:
    return lambda request, _error: TemplateResponse(request, name, {"title": "no: "}, status=420)


@pytest.mark.parametrize(
    ("handler", "status", "logged"),
    [
        pytest.param(f"{__name__}.refuse", 420, 0, id="a_path"),
        pytest.param(arefuse, 420, 0, id="a_coroutine"),
        pytest.param(template("limits_app/429.html"), 420, 0, id="a_template"),
        pytest.param(lambda request, error: None, 429, 0, id="nothing"),
        pytest.param(template("nowhere.html"), 429, 2, id="a_template_that_is_missing"),
        pytest.param(lambda request, error: 1 / 0, 429, 2, id="an_error"),
        pytest.param(word, 429, 1, id="no_response"),
    ],
)
def test_a_site_may_replace_the_response_of_a_rejection(
    handler: Any, status: int, logged: int, ask: Ask, serve: Any, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.LIMITS = settings.LIMITS | {"REFUSAL_HANDLER": handler}
    serve({})
    endpoint(limit("api"))
    assert ask().status_code == 404
    for refused in (ask(), ask()):
        assert refused.status_code == status
        assert (b"no: " if status == 420 else b"Too many requests") in refused.content
        assert (refused["Retry-After"], refused["Cache-Control"]) == ("60", "no-store")
        assert told(refused)["RateLimit"] == '"call_count";r=0;t=60'
    assert caplog.text.count("LIMITS['REFUSAL_HANDLER']") == logged


def test_a_view_that_goes_on_after_a_refusal_reports_all_that_holds(ask: Ask, serve: Any) -> None:
    def view(request: Any) -> HttpResponse:
        try:
            request.limits.acquire("inner")
        except LimitExceeded:
            return HttpResponse("from before")
        return HttpResponse("new")

    serve({"": view})
    endpoint(limit("outer", CallLimit(10, 60)))
    limit("inner", CallLimit(1, 60))
    ask()
    told = ask()
    assert (told.status_code, told.content) == (200, b"from before")
    assert told["RateLimit"] == '"outer:call_count";r=8;t=12, "inner:call_count";r=0;t=60'


def forwarded(**headers: str) -> Callable[[HttpRequest], HttpResponse]:
    """A view that forwards a response with headers of an upstream."""
    return lambda request: HttpResponse(headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("decorated", [False, True], ids=["rule", "decorator"])
def test_draft_headers_of_the_view_are_continued_once(ask: Ask, serve: Any, decorated: bool) -> None:
    upstream = {"RateLimit": '"llm";r=2;t=8', "RateLimit_Policy": '"llm";q=9;w=30'}
    view = forwarded(**upstream, X_RateLimit_Limit="9")
    serve({"": limited("more")(limited("api")(view)) if decorated else view})
    limit("more", CallLimit(100, 60))
    endpoint(limit("api", CallLimit(10, 60)))
    headers = told(ask())
    assert headers["RateLimit"].startswith('"llm";r=2;t=8, "')
    assert headers["RateLimit-Policy"].startswith('"llm";q=9;w=30, "')
    assert headers["RateLimit"].count("call_count") == headers["RateLimit-Policy"].count("call_count") == 1 + decorated
    assert headers["X-RateLimit-Limit"] == "9"


LEGACY = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")
NOW = 1767225600
OWN = ("10", "7", str(NOW + 18))
"""The headers of the third request of ten a minute."""


@pytest.mark.parametrize(
    ("of_view", "sent"),
    [
        (("50", "6", "9"), ("50", "6", "9")),
        (("50", "8", "9"), OWN),
        (("50", "7", str(NOW + 17)), OWN),
        (("50", "7", str(NOW + 19)), ("50", "7", str(NOW + 19))),
        (("50", "7", "17"), OWN),
        (("50", "7", "19"), ("50", "7", "19")),
        (("50", "7", None), OWN),
        (("50", "0", None), ("50", "0", None)),
        (("50", None, None), ("50", None, None)),
        (("50", "many", "9"), ("50", "many", "9")),
        (("50", "9" * 5000, "9"), ("50", "9" * 5000, "9")),
        ((None, "8", None), OWN),
    ],
)
@time_machine.travel("2026-01-01T00:00:00Z", tick=False)
def test_stricter_legacy_headers_are_sent(ask: Ask, serve: Any, settings: Settings, of_view: Any, sent: Any) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    headers = {name: value for name, value in zip(LEGACY, of_view, strict=True) if value is not None}
    serve({"": forwarded(**headers)})
    endpoint(limit("api", CallLimit(10, 60)))
    for _ in range(2):
        ask()
    response = ask()
    assert tuple(response.headers.get(name) for name in LEGACY) == sent


def test_reset_of_the_view_is_not_sent_with_another_limit(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    serve({"": forwarded(X_RateLimit_Limit="5", X_RateLimit_Remaining="4", X_RateLimit_Reset="9")})
    endpoint(limit("api", ResourceLimit("slots", 2)))
    assert told(ask()) == {"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "1"}


def test_limit_below_one_is_sent_as_one(ask: Ask, serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"HEADERS": "legacy"}
    serve({"": fine})
    endpoint(limit("api", RateLimit("rate", 0.25, 60)), amounts={"rate": 0.25})
    assert (ask()["X-RateLimit-Limit"], ask().status_code) == ("1", 429)


@pytest.mark.usefixtures("shared_cache")
def test_cached_page_keeps_the_headers_of_its_view(ask: Ask, serve: Any) -> None:
    serve({"": forwarded(RateLimit='"llm";r=2;t=8', Cache_Control="max-age=60")})
    endpoint(limit("api", CallLimit(10, 60)))
    assert ask()["RateLimit"] == '"llm";r=2;t=8, "call_count";r=9;t=6'
    assert ask()["RateLimit"] == '"llm";r=2;t=8, "call_count";r=8;t=12'


def own_headers(get_response: Any) -> Any:
    """A middleware that answers by itself, with limits of its own in the headers."""
    return lambda request: HttpResponse("busy", status=429, headers={"RateLimit": '"gateway";r=0;t=9'})


def test_headers_that_another_middleware_sets_stay(client: Client, serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE, f"{__name__}.own_headers"]
    serve({"": fine})
    assert client.get("/")["RateLimit"] == '"gateway";r=0;t=9'


@pytest.fixture
def shared_cache(settings: Settings) -> Iterator[None]:
    """A cache of whole responses, around the limits."""
    cache, fetch = "django.middleware.cache.UpdateCacheMiddleware", "django.middleware.cache.FetchFromCacheMiddleware"
    settings.MIDDLEWARE = [cache, *MIDDLEWARE, fetch]
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "headers"}}
    yield
    caches["default"].clear()


@pytest.mark.usefixtures("shared_cache")
def test_cached_responses_do_not_reveal_remaining_amounts_of_other_clients(ask: Ask, serve: Any) -> None:
    limit("api", CallLimit(10, 60))
    serve({"": limited("api")(fine)})
    assert "RateLimit" in ask(who="ann")
    found = ask(who="bob")
    assert "Age" in found
    assert "RateLimit" not in found
    assert "RateLimit-Policy" not in found


@pytest.mark.usefixtures("shared_cache")
def test_a_cached_response_has_the_headers_of_its_client(ask: Ask, serve: Any) -> None:
    endpoint(limit("api", CallLimit(10, 60)))
    serve({"": fine})
    assert [ask(who=who)["RateLimit"] for who in ("ann", "ann", "bob")] == [
        '"call_count";r=9;t=6',
        '"call_count";r=8;t=12',
        '"call_count";r=9;t=6',
    ]


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("guarded", [False, True])
def test_a_cached_page_is_charged_to_each_client(ask: Ask, serve: Any, settings: Settings, *, guarded: bool) -> None:
    settings.MIDDLEWARE = MIDDLEWARE if guarded else []
    limit("api", CallLimit(2, 60))
    made: list[object] = []

    def view(request: HttpRequest) -> HttpResponse:
        made.append(request)
        return HttpResponse("kept")

    serve({"": limited("api")(cache_page(60)(view))})
    asked = [ask(who=who) for who in ("ann", "bob", "ann", "ann")]
    assert [response.status_code for response in asked] == [200, 200, 200, 429]
    assert [response["RateLimit"] for response in asked] == [
        f'"call_count";r={left};t={seconds}' for left, seconds in ((1, 30), (1, 30), (0, 60), (0, 60))
    ]
    assert len(made) == 1
