"""`@ratelimit` takes what django-ratelimit takes, and does what it does, unless refusing is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.utils.decorators import method_decorator
from django.views import View
from pytest_django import Settings
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from limits_app import services
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.integrations.ratelimit import ALL, UNSAFE, ratelimit
from limits_app.models import Resource
from limits_app.stores import registry
from limits_app.testing import FakeClock
from tests.integrations.rest import Person
from tests.integrations.site import Ask, afine, fine, left, limit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("default_entities")]


def get(view: Callable[..., Any], path: str = "/", person: int | None = None, **extra: Any) -> Any:
    """Ask a view by itself."""
    request = RequestFactory().get(path, **extra)
    if person is not None:
        request.user = Person(person)  # type: ignore[assignment]  # as far as limits look
    return view(request)


def statuses(view: Callable[..., Any], times: int, **extra: Any) -> list[int]:
    return [get(view, **extra).status_code for _ in range(times)]


@pytest.mark.parametrize(
    ("rate", "allowed", "seconds"),
    [
        ("2/s", 2, 1),
        ("3/m", 3, 60),
        ("2/h", 2, 3_600),
        ("1/d", 1, 86_400),
        ("2/10s", 2, 10),
        ("2/5m", 2, 300),
        ("2/minute", 2, 60),
        ("1/2hours", 1, 7_200),
        ("1/", 1, 1),
        pytest.param((2, 90), 2, 90, id="a_pair"),
        pytest.param(lambda group, request: "2/m", 2, 60, id="a_function"),
        pytest.param(f"{__name__}.rate_of", 2, 60, id="a_dotted_path"),
    ],
)
def test_a_rate_is_so_many_requests_in_a_window(rate: Any, allowed: int, seconds: int, clock: FakeClock) -> None:
    view = ratelimit(key="ip", rate=rate)(fine)
    assert statuses(view, allowed + 1) == [200] * allowed + [429]
    clock.advance(seconds - 0.1)
    assert statuses(view, 1) == [429]
    clock.advance(0.1)
    assert statuses(view, 1) == [200]


def log(request: HttpRequest) -> HttpResponse:
    """Another view."""
    return HttpResponse("logged")


def rate_of(group: str, request: HttpRequest) -> str:
    """A rate by dotted path."""
    return "2/m"


def key_of(group: str, request: HttpRequest) -> str:
    """A key by dotted path."""
    return request.headers.get("X-Device", "")


def test_no_rate_limits_nothing_and_zero_limits_everything() -> None:
    assert statuses(ratelimit(key="ip", rate=None)(fine), 3) == [200] * 3
    assert statuses(ratelimit(key="ip", rate=lambda *_: None)(fine), 3) == [200] * 3
    assert statuses(ratelimit(key="ip", rate="0/s", group="none")(fine), 1) == [403]


@pytest.mark.parametrize(
    ("key", "one", "another"),
    [
        pytest.param("ip", {"REMOTE_ADDR": "203.0.113.1"}, {"REMOTE_ADDR": "203.0.113.2"}, id="address"),
        pytest.param("user", {"person": 1}, {"person": 2}, id="user"),
        pytest.param("user_or_ip", {"person": 1}, {"REMOTE_ADDR": "203.0.113.2"}, id="user_or_address"),
        pytest.param("get:q", {"path": "/?q=a"}, {"path": "/?q=b"}, id="a_parameter"),
        pytest.param("header:x-device", {"headers": {"X-Device": "a"}}, {"headers": {"X-Device": "b"}}, id="a_header"),
        pytest.param(key_of, {"headers": {"X-Device": "a"}}, {"headers": {"X-Device": "b"}}, id="a_function"),
        pytest.param(
            f"{__name__}.key_of", {"headers": {"X-Device": "a"}}, {"headers": {"X-Device": "b"}}, id="a_dotted_path"
        ),
        pytest.param("header:x-device", {"headers": {"X-Device": "a" * 9999}}, {}, id="a_long_header_and_none"),
    ],
)
def test_a_key_selects_the_entity(key: Any, one: dict[str, Any], another: dict[str, Any]) -> None:
    view = ratelimit(key=key, rate="1/m")(fine)
    assert statuses(view, 2, **one) + statuses(view, 2, **another) == [200, 429, 200, 429]


@pytest.mark.parametrize("effect", ["blocked", "unlimited"])
@pytest.mark.parametrize("value", ["a", "user:7", "key:a"])
def test_policies_for_keys_and_users_do_not_apply_to_the_values_of_a_function(effect: str, value: str) -> None:
    for pattern in ("key:*", "user:*"):
        services.set_entity_limits(pattern, [], effect=effect)
    view = ratelimit(key=key_of, rate="1/m")(fine)
    assert statuses(view, 2, headers={"X-Device": value}) == [200, 429]
    services.set_entity_limits(f"ratelimit:{value}", [], effect="unlimited")
    assert statuses(view, 2, headers={"X-Device": value}) == [200, 200]


def test_posted_field_may_be_the_key() -> None:
    view = ratelimit(key="post:email", rate="1/m")(fine)
    posted = [view(RequestFactory().post("/", {"email": email})).status_code for email in ("a@b.c", "d@e.f", "a@b.c")]
    assert posted == [200, 200, 429]


@pytest.mark.parametrize("spelling", [" ann", "ann\t", "ANN", "\uff41nn", "\u00a0Ann\u2003"])
@pytest.mark.parametrize("kind", ["post", "get"])
def test_no_spelling_of_a_value_has_a_counter_of_its_own(kind: str, spelling: str) -> None:
    view = ratelimit(key=f"{kind}:name", rate="1/m")(fine)
    send = getattr(RequestFactory(), kind)
    assert [view(send("/", {"name": name})).status_code for name in ("ann", spelling, "anna", "")] == [
        200,
        429,
        200,
        200,
    ]


def test_long_values_that_differ_at_their_end_have_counters_of_their_own() -> None:
    view = ratelimit(key="header:authorization", rate="1/m")(fine)
    tokens = [f"Bearer {'e' * 2000}{end}" for end in ("A", "B", "A")]
    assert [get(view, headers={"Authorization": token}).status_code for token in tokens] == [200, 200, 429]


@pytest.mark.parametrize("charset", ["base64", "undefined"])
def test_a_form_that_cannot_be_read_is_counted_for_its_client(charset: str) -> None:
    view = ratelimit(key="post:email", rate="1/m")(fine)
    part = b'--b\r\nContent-Disposition: form-data; name="email"\r\n\r\nx\r\n--b--\r\n'
    kind = f"multipart/form-data; boundary=b; charset={charset}"
    assert [view(RequestFactory().generic("POST", "/", part, content_type=kind)).status_code for _ in range(2)] == [
        200,
        429,
    ]


@pytest.mark.parametrize(
    ("key", "seen"),
    [
        pytest.param("user", [200, 429, 429], id="visitors_are_one_user"),
        pytest.param("header:x-device", [200, 200, 429], id="a_header_that_is_missing_is_the_client_and_not_everybody"),
    ],
)
def test_a_key_without_a_value(key: str, seen: list[int]) -> None:
    view = ratelimit(key=key, rate="1/m")(fine)
    assert [get(view, REMOTE_ADDR=f"203.0.113.{last}").status_code for last in (1, 2, 1)] == seen


@pytest.mark.parametrize(
    ("method", "limited"),
    [
        ("GET", ["get", "head"]),
        ("post", ["post"]),
        (["PUT", "POST"], ["post", "put"]),
        (UNSAFE, ["post", "put", "patch", "delete"]),
        (ALL, ["get", "post", "put", "patch", "delete", "head", "options"]),
    ],
)
def test_a_method_selects_the_requests_that_count(method: Any, limited: list[str]) -> None:
    for verb in ["get", "post", "put", "patch", "delete", "head", "options"]:
        view = ratelimit(key="ip", rate="1/m", method=method, group=f"of.{verb}")(fine)
        seen = [view(getattr(RequestFactory(), verb)("/")).status_code for _ in range(2)]
        assert seen == ([200, 429] if verb in limited else [200, 200])


def test_groups_count_together() -> None:
    views = [ratelimit(key="ip", rate="2/m", group="shared")(view) for view in (fine, log)]
    assert [get(view).status_code for view in (*views, *views)] == [200, 200, 429, 429]


def test_several_rates_of_one_view_all_hold(clock: FakeClock) -> None:
    view = ratelimit(key="ip", rate="3/h")(ratelimit(key="ip", rate="1/s")(fine))
    seen = []
    for _ in range(4):
        seen += statuses(view, 1)
        clock.advance(1)
    assert seen == [200, 200, 200, 429]
    assert statuses(view, 1) == [429]


def test_administrators_have_the_last_word() -> None:
    view = ratelimit(key="ip", rate="1/m", group="search")(fine)
    assert statuses(view, 2) == [200, 429]
    limit("search", CallLimit(3, 60))
    assert statuses(view, 3) == [200, 200, 429]


def test_without_blocking_the_view_is_notified() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.limited))  # type: ignore[attr-defined]  # the decorator adds it

    outer = ratelimit(key="ip", rate="9/m", block=False)(ratelimit(key="ip", rate="1/m", block=False)(view))
    assert [get(outer).content for _ in range(2)] == [b"False", b"True"]
    inner = ratelimit(key="ip", rate="1/m", block=False, group="a")(
        ratelimit(key="ip", rate="9/m", block=False, group="b")(view)
    )
    assert [get(inner).content for _ in range(2)] == [b"False", b"True"]


@pytest.mark.parametrize("block", [True, False])
def test_while_the_store_is_down_it_is_too_often(block: bool, take_down: Any) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(request.limited))  # type: ignore[attr-defined]  # the decorator adds it

    take_down()
    response = get(ratelimit(key="ip", rate="9/m", block=block)(view))
    assert response.status_code == (503 if block else 200)
    assert block or response.content == b"True"


@pytest.mark.parametrize("view", [fine, afine], ids=["sync", "async"])
@pytest.mark.parametrize("block", [True, False])
def test_behind_the_middleware_and_in_coroutines(block: bool, view: Callable[..., Any], ask: Ask, serve: Any) -> None:
    serve({"": ratelimit(key="ip", rate="1/m", block=block)(view)})
    assert ask()["RateLimit"].endswith(";r=0;t=60")
    second = ask()
    assert (second.status_code, second["RateLimit"].split(";")[1]) == (429 if block else 200, "r=0")


def test_a_coroutine_by_itself_is_reported_too(serve: Any, settings: Settings, ask: Ask) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]
    serve({"": ratelimit(key="ip", rate=None)(ratelimit(key="ip", rate="1/m")(afine))})
    assert [ask().status_code for _ in range(2)] == [200, 429]


class Login(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


class Orders(APIView):
    authentication_classes = ()

    def get(self, request: Request) -> Response:
        return Response("fine")


class Shelf(ViewSet):
    authentication_classes = ()

    def list(self, request: Request) -> Response:
        return Response("fine")


@api_view(["GET"])
@authentication_classes([])
def first(request: Request) -> Response:
    """A view."""
    return Response("fine")


@api_view(["GET"])
@authentication_classes([])
def second(request: Request) -> Response:
    """Another view."""
    return Response("fine")


once = ratelimit(key="ip", rate="1/m")


@method_decorator(once, name="get")
class Listing(Login):
    """A page whose inherited method is limited."""


@method_decorator(once, name="get")
class Search(Login):
    """Another one."""


@pytest.mark.parametrize(
    ("one", "another"),
    [
        pytest.param(Listing.as_view(), Search.as_view(), id="methods"),
        pytest.param(once(Login.as_view()), once(type("Logout", (Login,), {}).as_view()), id="django"),
        pytest.param(once(Orders.as_view()), once(type("Invoices", (Orders,), {}).as_view()), id="rest_framework"),
        pytest.param(
            *[once(kind.as_view({"get": "list"})) for kind in (Shelf, type("Desk", (Shelf,), {}))], id="view_sets"
        ),
        pytest.param(once(first), once(second), id="api_views"),
    ],
)
def test_views_made_of_classes_are_counted_by_class(one: Callable[..., Any], another: Callable[..., Any]) -> None:
    assert [statuses(view, 2) for view in (one, another)] == [[200, 429], [200, 429]]


@method_decorator(ratelimit(key="user_or_ip", rate="1/m"), name="dispatch")
class Plain(Login):
    """A class view."""


@method_decorator(ratelimit(key="user_or_ip", rate="1/m"), name="dispatch")
class Awaited(View):
    """A class view whose method is a coroutine."""

    async def get(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


@pytest.mark.parametrize("kind", [Plain, Awaited])
def test_the_dispatch_of_a_class_view_is_limited(kind: type[View], ask: Ask, serve: Any) -> None:
    serve({"": kind.as_view()})
    assert [ask().status_code for _ in range(3)] == [200, 429, 429]


def test_the_resource_of_a_class_view_is_named_like_the_class() -> None:
    view = ratelimit(key="ip", rate="1/m")(Orders.as_view())
    limit(f"{__name__}.Orders", CallLimit(3, 60))
    assert statuses(view, 4) == [200, 200, 200, 429]


def by_the_method(group: str, request: HttpRequest) -> str:
    """Few, or many in a shorter window."""
    return "3/h" if request.method == "GET" else "100/m"


@pytest.mark.parametrize(
    ("few", "many"),
    [
        pytest.param({"rate": "3/h", "group": "windows"}, {"rate": "100/m", "group": "windows"}, id="of_a_group"),
        pytest.param({"rate": (3, 3600)}, {"rate": (100, 60)}, id="of_one_view"),
        pytest.param({"rate": by_the_method}, {"rate": by_the_method}, id="of_a_function"),
    ],
)
def test_a_short_window_never_ends_a_long_one(few: dict[str, Any], many: dict[str, Any], clock: FakeClock) -> None:
    seldom, often = (ratelimit(key="ip", **options)(fine) for options in (few, many))
    assert statuses(seldom, 4) == [200, 200, 200, 429]
    for _ in range(5):
        clock.advance(61)
        assert often(RequestFactory().post("/")).status_code == 200
        assert statuses(seldom, 1) == [429]
    clock.advance(3600)
    assert statuses(seldom, 1) == [200]


def test_the_longest_window_has_the_name_of_the_group_and_others_end_in_theirs() -> None:
    minute, hour = (ratelimit(key="ip", rate=rate, group="orders")(fine) for rate in ("1/m", "1/h"))
    limit("orders", CallLimit(2, 60))
    limit("orders.60s", CallLimit(3, 60))
    assert statuses(hour, 3) == [200, 200, 429]
    assert statuses(minute, 4) == [200, 200, 200, 429]


def seldom_or_often(group: str, request: HttpRequest) -> str:
    """A rate in a long window where somebody asks for it."""
    return "5/h" if request.GET else "2/m"


@pytest.mark.parametrize("rate", [seldom_or_often, f"{__name__}.seldom_or_often"], ids=["function", "path"])
def test_each_rate_of_a_function_has_its_own_window(rate: Any) -> None:
    group = f"found.{callable(rate)}"
    view = ratelimit(key="ip", rate=rate, group=group)(fine)
    assert statuses(view, 1) + statuses(view, 1, path="/?long=1") + statuses(view, 2) == [200, 200, 200, 429]
    limit(f"{group}.60s", CallLimit(3, 60))
    assert statuses(view, 4, REMOTE_ADDR="203.0.113.1") == [200, 200, 200, 429]
    limit(f"{group}.3600s", CallLimit(1, 60))
    assert statuses(view, 2, path="/?long=1", REMOTE_ADDR="203.0.113.1") == [200, 429]


def test_a_rate_function_keeps_the_names_of_static_rates() -> None:
    known = ratelimit(key="ip", rate="1/m", group="both")(fine)
    found = ratelimit(key="ip", rate=lambda *_: "1/h", group="both")(fine)
    limit("both", CallLimit(2, 60))
    assert statuses(found, 2) + statuses(known, 3) == [200, 429, 200, 200, 429]


def test_a_rate_that_is_zero_for_a_time_keeps_the_use() -> None:
    rates = iter(["2/h", "2/h", "0/h", "2/h"])
    view = ratelimit(key="ip", rate=lambda group, request: next(rates), group="banned")(fine)
    assert statuses(view, 4) == [200, 200, 403, 429]


def of_the_database(group: str, request: HttpRequest) -> str:
    """A rate that the database says, or a key."""
    return f"{Resource.objects.count() + 1}/m"


async def of_a_coroutine(group: str, request: HttpRequest) -> str:
    """A rate that has to be waited for, or a key."""
    return f"{await Resource.objects.acount() + 1}/m"


@pytest.mark.parametrize("view", [fine, afine], ids=["sync", "async"])
@pytest.mark.parametrize("function", [of_the_database, of_a_coroutine])
def test_functions_may_ask_the_database(view: Any, function: Any, ask: Ask, serve: Any) -> None:
    serve({"": ratelimit(key=function, rate=function, group=f"asks.{view.__name__}.{function.__name__}")(view)})
    assert [ask().status_code for _ in range(2)] == [200, 429]


def test_a_view_of_the_rest_framework_gives_permits_back_without_a_middleware(serve: Any, settings: Settings) -> None:
    settings.MIDDLEWARE = settings.MIDDLEWARE[:-1]

    class Reports(Orders):
        @method_decorator(ratelimit(key="ip", rate="9/m", group="reports"))
        def get(self, request: Request) -> Response:
            return Response("fine")

    serve({"": Reports.as_view()})
    limit("reports", ResourceLimit("slots", 1))
    assert [Client().get("/").status_code for _ in range(2)] == [200, 200]
    assert left("reports", "ip:127.0.0.1") == {"slots": 1}


def test_a_view_that_returns_nothing_is_the_error_that_django_makes_of_it(serve: Any) -> None:
    serve({"": ratelimit(key="ip", rate="1/m", group="nothing")(lambda request: None)})
    with pytest.raises(ValueError, match="returned None instead"):
        Client().get("/")


@pytest.mark.parametrize("found", [None, 3, {"total": 3}], ids=str)
def test_a_helper_may_be_limited_and_return_anything(found: Any, rf: RequestFactory) -> None:
    @ratelimit(key="ip", rate="1/m", group="helper", block=False)
    def helper(request: HttpRequest, word: str, *, times: int) -> Any:
        return (request.limited, word * times, found)  # type: ignore[attr-defined]  # the decorator sets it

    request = rf.get("/")
    assert helper(request, "a", times=2) == (False, "aa", found)
    assert helper(rf.get("/"), "a", times=2) == (True, "aa", found)
    limit("helper", ResourceLimit("slots", 1))
    assert helper(rf.get("/"), "b", times=1) == (False, "b", found)
    assert left("helper", "ip:127.0.0.1") == {"slots": 1}


@pytest.mark.parametrize(
    ("key", "rate", "message"),
    [
        (None, "1/m", "needs a key"),
        ("", "1/m", "needs a key"),
        ("session", "1/m", "has no key 'session'"),
        ("cookie:id", "1/m", "has no key 'cookie:id'"),
        ("ip", "often", "must be such as"),
        ("ip", "2/week", "'2/week' must be such as"),
        ("ip", "2/10month", "'2/10month' must be such as"),
        ("ip", "2/M", "'2/M' must be such as"),
        ("ip", (1, 0), "must be above 0"),
    ],
)
def test_invalid_arguments_are_errors(key: Any, rate: Any, message: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=message):
        get(ratelimit(key=key, rate=rate)(fine))


@pytest.mark.parametrize("key", ["session", "param:page", "user:{user.id}", "get", "header", "ip:", "a b.c"])
def test_an_unknown_key_is_an_error_where_the_view_is_decorated(key: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="has no key"):
        ratelimit(key=key, rate="1/m")


@pytest.mark.parametrize("key", ["user_or_ip", "get:page", "header:x.y", "a.module.function"])
def test_a_key_is_accepted_where_the_view_is_decorated(key: str) -> None:
    assert callable(ratelimit(key=key, rate="1/m")(fine))


def test_the_words_are_where_django_ratelimit_has_them() -> None:
    assert (ratelimit.ALL, ratelimit.UNSAFE) == (ALL, UNSAFE)  # type: ignore[attr-defined]  # set on the function


def test_nothing_is_kept_of_a_secret_key() -> None:
    view = ratelimit(key="post:email", rate="5/m", group="login")(fine)
    view(RequestFactory().post("/", {"email": "ann@example.org"}))
    assert "example.org" not in repr(vars(registry.store()))
