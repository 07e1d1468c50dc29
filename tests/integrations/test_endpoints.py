"""Endpoints: which rule is about a request, at a cost that does not depend on how many rules there are."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import pytest
from django.db import transaction
from django.http import HttpRequest
from django.urls import ResolverMatch, register_converter
from django.urls.converters import REGISTERED_CONVERTERS, get_converters
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import conf
from limits_app.engine.errors import StoreUnavailable
from limits_app.models import Endpoint, Resource
from limits_app.services.url_matching import EndpointTable, endpoints
from limits_app.stores import registry
from tests.integrations.site import endpoint, fine, limit
from tests.opened import fail_at


def row(path: str = "", **fields: Any) -> Endpoint:
    """An endpoint that is in no database."""
    return Endpoint(**({"name": path, "path": path, "resource": Resource(name="api")} | fields))


def of(path: str, view_name: str | None = None, method: str = "GET") -> HttpRequest:
    """A request for a path, and for a view where one was found."""
    request = HttpRequest()
    request.path_info, request.method = path, method
    if view_name is not None:
        request.resolver_match = ResolverMatch(fine, (), {}, view_name)
    return request


def found(rows: list[Endpoint], path: str, view_name: str | None = None, method: str = "GET") -> str:
    """The names of the rules that match a request."""
    return " ".join(rule.name for rule in EndpointTable(rows).find(of(path, view_name, method)))


class Pair:
    """A converter that takes a slash, which no other one can know."""

    regex = "[a-z]+/[a-z]+"

    def to_python(self, value: str) -> str:
        return value


class Even:
    """A converter that refuses what its expression lets through."""

    regex = "[0-9]+"

    def to_python(self, value: str) -> int:
        if int(value) % 2:
            raise ValueError
        return int(value)


@pytest.fixture(scope="module", autouse=True)
def converters() -> Iterator[None]:
    register_converter(Pair, "pair")
    register_converter(Even, "even")
    yield
    REGISTERED_CONVERTERS.clear()
    get_converters.cache_clear()


@pytest.mark.parametrize(
    ("path", "fitting", "others"),
    [
        pytest.param("/", ["/"], ["", "//", "/x", "/\n"], id="the_root"),
        pytest.param("/api/orders/", ["/api/orders/"], ["/api/orders", "/api/orders//", "/API/orders/"], id="exact"),
        pytest.param("api/orders/", ["/api/orders/"], ["api/orders/x"], id="exact_without_its_first_slash"),
        pytest.param("/a.c+(d)", ["/a.c+(d)"], ["/abc+(d)"], id="special_characters_mean_themselves"),
        pytest.param("/\N{ROCKET}/", ["/\N{ROCKET}/"], ["/%F0%9F%9A%80/"], id="beyond_ascii"),
        pytest.param("/o/<int:pk>/", ["/o/7/", "/o/0/"], ["/o/x/", "/o//", "/o/7", "/o/7/x", "/o/-7/"], id="int"),
        pytest.param("/o/<int:pk>/", [], ["/o/" + "9" * 5000 + "/"], id="a_number_that_is_none_to_python"),
        pytest.param("/o/<pk>/", ["/o/x/", "/o/x\ny/", "/o/ /"], ["/o//", "/o/x/y/"], id="str"),
        pytest.param("/o/<slug:s>.pdf", ["/o/a-b.pdf"], ["/o/a b.pdf", "/o/.pdf", "/o/a.pdfx"], id="part_of_a_segment"),
        pytest.param("/f/<path:p>", ["/f/a", "/f/a/b/c", "/f/a/", "/f//"], ["/f/", "/f", "/fx/a"], id="path"),
        pytest.param("/f/<path:p>", ["/f/a\nb", "/f/\n"], [], id="a_line_break_is_no_way_round"),
        pytest.param("/f/<path:p>/x/", ["/f/a/x/", "/f/a/b/x/"], ["/f/x/", "/f/a/x"], id="path_in_the_middle"),
        pytest.param("/f/<path:p>-<int:n>", ["/f/a/b-1"], ["/f/a/b"], id="path_beside_another_parameter"),
        pytest.param("/<a>/<b>/", ["/x/y/"], ["/x/", "/x/y/z/"], id="parameters_only"),
        pytest.param("/p/<pair:p>/", ["/p/a/b/"], ["/p/a/", "/p/a/b/c/"], id="a_converter_that_takes_slashes"),
        pytest.param("/e/<even:n>/", ["/e/2/"], ["/e/3/"], id="a_converter_that_refuses"),
        pytest.param("/api/*", ["/api/", "/api/x", "/api/x/y/", "/api/\nx"], ["/api", "/apix/", "/x/api/"], id="below"),
        pytest.param("/*", ["/", "/x", "/x/y/"], [], id="everything"),
        pytest.param("/a/*/b/", ["/a/x/b/"], ["/a//b/", "/a/x/y/b/", "/a/b/", "/a/x/b"], id="any_one_segment"),
        pytest.param("/a/*/<int:n>/*", ["/a/x/7/", "/a/x/7/y/z"], ["/a/x/y/", "/a/7/"], id="wildcards_and_parameters"),
    ],
)
def test_a_path_fits_the_requests_that_it_means(path: str, fitting: list[str], others: list[str]) -> None:
    assert [request for request in fitting + others if found([row(path)], request)] == fitting


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW", "", "OPTIONS"]


@pytest.mark.parametrize(
    ("methods", "fitting"),
    [
        ("", METHODS),
        ("GET", ["GET", "HEAD"]),
        ("HEAD", ["HEAD"]),
        ("POST", ["POST"]),
        ("get, post", ["GET", "HEAD", "POST"]),
        ("OPTIONS", ["OPTIONS"]),
        ("GET,OPTIONS", ["GET", "HEAD", "OPTIONS"]),
    ],
)
def test_methods_select_requests(methods: str, fitting: list[str]) -> None:
    rows = [row("/", methods=methods)]
    assert [method for method in METHODS if found(rows, "/", method=method)] == fitting


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        pytest.param([row("/a/<x>/", name="1"), row("/a/b/", name="2")], "1 2", id="route_before_path"),
        pytest.param([row("/a/b/", name="1"), row("/a/<x>/", name="2")], "1 2", id="path_before_route"),
        pytest.param([row("/a/b/", name="1"), row("/a/b/", name="2")], "1 2", id="two_for_one_path"),
        pytest.param([row("/<path:p>", name="1"), row("/a/<x>/", name="2")], "1 2", id="an_open_route_before_another"),
        pytest.param([row("/a/<x>/", name="1"), row("/*", name="2")], "1 2", id="a_wildcard_after_it"),
        pytest.param([row(view_name="v", name="1"), row("/a/b/", name="2")], "1 2", id="view_before_path"),
        pytest.param([row("/a/b/", name="1"), row(view_name="v", name="2")], "1 2", id="path_before_view"),
        pytest.param([row("/a/b/", name="1", methods="POST"), row("/a/b/", name="2")], "2", id="by_method"),
        pytest.param([row("/a/<int:x>/", name="1"), row("/a/<x>/", name="2")], "2", id="by_converter"),
        pytest.param([row("/*", name="1", stop=True), row("/a/b/", name="2")], "1", id="until_one_stops"),
        pytest.param([row("/a/b/", name="1", stop=True, methods="PUT"), row("/*", name="2")], "2", id="not_by_another"),
        pytest.param(
            [row("/*", name="1", stop=True, exempt_staff=True), row("/*", name="2")], "1 2", id="exempt_do_not_stop"
        ),
        pytest.param([row(view_name="w", name="1"), row("/a/c/", name="2")], "", id="none_of_them"),
        pytest.param([], "", id="no_rules"),
    ],
)
def test_all_rules_that_match_are_found_in_their_order(rows: list[Endpoint], names: str) -> None:
    assert found(rows, "/a/b/", "v") == names


@pytest.mark.django_db(transaction=True)
def test_rules_are_tried_in_their_order_and_those_that_are_off_are_passed_over() -> None:
    api = limit("api")
    endpoint(api, "/<path:p>", name="all", order=300)
    endpoint(api, "/a/", name="one", order=200)
    endpoint(api, "/a/", name="off", order=1, enabled=False)
    endpoint(api, "/a/", name="later", order=200)
    names = [rule.name for rule in endpoints.current().candidates("/a/", None)]
    assert names == ["one", "later", "all"]


def many(kind: str, count: int) -> list[Endpoint]:
    """Rules that have as much in common as real ones, and one more at the end."""
    rows = {
        "paths": [row(f"/api/v1/things{n}/") for n in range(count)],
        "routes": [row(f"/api/v1/things{n}/<int:pk>/") for n in range(count)],
        "routes_that_differ_behind_a_parameter": [row(f"/api/v1/<int:pk>/things{n}/") for n in range(count)],
        "views": [row(view_name=f"api:things{n}") for n in range(count)],
        "open_routes": [row(f"/files{n}/<path:rest>") for n in range(count)],
        "wildcards": [row(f"/files{n}/*/x/*") for n in range(count)],
    }[kind]
    return [*rows, row("/api/v1/<int:pk>/", name="asked")]


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Count the calls of functions, built-in ones as well."""
    calls = [0]

    def note(frame: FrameType, event: str, argument: object) -> None:
        calls[0] += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["paths", "routes", "routes_that_differ_behind_a_parameter", "views", "open_routes", "wildcards"]
)
def test_hundreds_of_rules_cost_no_more_than_ten(kind: str) -> None:
    tables = [EndpointTable(many(kind, count)) for count in (10, 200)]
    for path in ("/api/v1/7/", "/api/v1/7/nothing/", "/somewhere/else/", "/" * 10_240):
        calls = []
        for table in tables:
            assert len(table.candidates(path, "api:none")) <= 1
            request = of(path, "api:none", "GET")
            with counted_calls() as counted:
                rules = table.find(request)
            assert bool(rules) == (path == "/api/v1/7/")
            calls.append(counted[0])
        assert calls[0] == calls[1], path


@pytest.mark.parametrize(
    ("path", "method"), [("/" + "p" * 60_000, "GET"), ("/", "M" * 60_000)], ids=["a_long_path", "a_long_method"]
)
def test_long_requests_do_not_fill_the_memory(path: str, method: str) -> None:
    table = EndpointTable([row("/")])
    tracemalloc.start()
    try:
        for number in range(30):
            table.find(of(f"{path}{number}", None, f"{method}{number}"))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 60_000


@pytest.mark.django_db(transaction=True)
def test_a_change_is_read_with_two_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    api = limit("api")
    for number in range(20):
        with django_assert_num_queries(2):  # the rules, and who is blocked or exempt
            assert len(endpoints.current().candidates("/", None)) == number
        with django_assert_num_queries(0):
            endpoints.current()
        endpoint(api, "/")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda row: Endpoint.objects.filter(pk=row.pk).update(path="/new/"),
        lambda row: Endpoint.objects.bulk_update([_with_path(row, "/new/")], ["path"]),
        lambda row: Endpoint.objects.bulk_create([Endpoint(name="n", path="/new/", resource=row.resource)]),
        lambda row: Endpoint.save(_with_path(row, "/new/")),
    ],
    ids=["update", "bulk_update", "bulk_create", "save"],
)
def test_every_way_of_writing_counts_immediately(change: Any) -> None:
    row = endpoint(limit("api"), "/old/")
    assert endpoints.current().find(of("/new/")) == ()
    change(row)
    assert endpoints.current().find(of("/new/"))
    Endpoint.objects.all().delete()
    assert endpoints.current().find(of("/new/")) == ()


def _with_path(row: Endpoint, path: str) -> Endpoint:
    row.path = path
    return row


@pytest.mark.django_db(transaction=True)
def test_rules_that_may_be_rolled_back_are_not_kept() -> None:
    api = limit("api")
    endpoints.clear()
    with transaction.atomic():
        endpoint(api, "/")
        assert endpoints.current().find(of("/"))
        transaction.set_rollback(True)
    assert endpoints.current().find(of("/")) == ()


@pytest.mark.django_db(transaction=True)
def test_writes_that_bypass_the_app_apply_when_kept_rules_are_too_old(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"RESOLVER_TTL_SECONDS": 1e-9}
    endpoint(limit("api"), "/")
    assert endpoints.current().find(of("/"))
    assert endpoints.cached(conf.current()) is None


def unopened(alias: str) -> NoReturn:
    """Open no store."""
    raise StoreUnavailable("gone")


@pytest.mark.django_db(transaction=True)
def test_while_the_store_is_down_the_endpoints_are_those_known_last(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    api = limit("api")
    endpoint(api, "/")
    endpoints.current()
    fail_at(monkeypatch, "version")
    endpoint(api, "/new/")
    assert endpoints.current().find(of("/new/")) == ()
    assert endpoints.current().find(of("/"))


@pytest.mark.django_db(transaction=True)
def test_endpoints_first_read_while_the_store_is_down_are_kept_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    endpoint(limit("api"), "/")
    with registry.instead(unopened), django_assert_num_queries(2):
        assert endpoints.current().find(of("/"))
        assert endpoints.current().find(of("/"))


@pytest.mark.parametrize(
    "fields",
    [
        {"path": "/<int:1>/"},
        {"path": "/<number:pk>/"},
        {"path": "/<int:pk>/<int:pk>/"},
        {"path": "/", "amounts": [1]},
        {"path": "/", "amounts": None},
        {"path": "/", "resource": Resource(name="no name")},
    ],
    ids=repr,
)
def test_an_invalid_row_is_ignored_and_logged(fields: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert found([row(**fields, name="broken"), row("/", name="sound")], "/") == "sound"
    assert "the rule 'broken' is ignored until it is corrected" in caplog.text
