"""Endpoints: paths, views, methods and amounts."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from limits_app.models import Endpoint, Resource
from tests.configuration.rows import complaint

pytestmark = pytest.mark.django_db


def endpoint(resource: Resource, **fields: Any) -> Endpoint:
    """An endpoint for all requests to one path."""
    return Endpoint(**({"name": "orders", "path": "/api/orders/", "resource": resource} | fields))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("https://example.org/api/", "Enter only the path"),
        ("/api/?page=1", "Enter only the path"),
        ("/api/#top", "Enter only the path"),
        ("/api/\0", "NUL"),
        ("/api/<int:pk", "unmatched '<' bracket"),
        ("/api/pk>", "unmatched '>' bracket"),
        ("/api/<number:pk>/", "uses invalid converter 'number'"),
        ("/api/<int:1>/", "isn't a valid Python identifier"),
        ("/api/<int: pk>/", "cannot contain whitespace"),
        ("/<int:pk>/<int:pk>/", "This is not a valid route: redefinition of group name 'pk'"),
        ("^api/$", "begins with a '^', or ends with a '$'"),
        ("//api/", "has a route beginning with a '/'"),
        ("/<path:a>/<path:b>", "at most one “<path:…>”"),
        ("/<a>-<b>-<c>", "one parameter between two slashes"),
        ("/" + "x" * 10_240, "at most 255 characters"),
    ],
)
def test_a_bad_path_is_refused_with_what_to_write(path: str, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, path=path).full_clean, "path")


@pytest.mark.parametrize(
    ("view_name", "said"), [("order detail", "A view name must not contain spaces"), ("a\0", "NUL")]
)
def test_a_bad_view_name_is_refused(view_name: str, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, path="", view_name=view_name).full_clean, "view_name")


@pytest.mark.parametrize("fields", [{"path": "", "view_name": ""}, {"view_name": "orders:detail"}])
def test_either_a_path_or_a_view_is_given(fields: dict[str, str], api: Resource) -> None:
    assert complaint(endpoint(api, **fields).full_clean) == "Enter either a path or a view name."
    with pytest.raises(IntegrityError, match="limits_app_endpoint_path_or_view_name"), transaction.atomic():
        Endpoint.objects.bulk_create([endpoint(api, **fields)])


def test_an_endpoint_has_a_name(api: Resource) -> None:
    assert complaint(endpoint(api, name="").full_clean, "name") == "This field cannot be blank."
    with pytest.raises(IntegrityError, match="limits_app_endpoint_has_name"), transaction.atomic():
        Endpoint.objects.bulk_create([endpoint(api, name="")])


@pytest.mark.parametrize(
    ("methods", "kept"),
    [("", ""), ("post, get", "GET,POST"), ("GET,get, GET", "GET"), ("patch", "PATCH")],
)
def test_methods_are_kept_in_one_way(methods: str, kept: str, api: Resource) -> None:
    row = endpoint(api, methods=methods)
    row.full_clean()
    assert row.methods == kept
    assert row.method_set == frozenset(filter(None, kept.split(",")))


@pytest.mark.parametrize("methods", ["PSOT", "GET POST", "GET,,POST", "GET;POST", "\N{ROCKET}", "GET\0", ","])
def test_methods_that_do_not_exist_are_refused(methods: str, api: Resource) -> None:
    said = complaint(endpoint(api, methods=methods).full_clean, "methods")
    assert "is not an HTTP method: use CONNECT, DELETE, GET," in said


@pytest.mark.parametrize("amounts", [{}, {"tpm": 500}, {"tpm": 0, "connections": 2}, {"tpm": 0.125}])
def test_amounts_are_numbers_by_limit_key(amounts: dict[str, float], api: Resource) -> None:
    endpoint(api, amounts=amounts).full_clean()


@pytest.mark.parametrize("nothing", [None, "", [], {}])
def test_no_amounts_are_an_empty_object(nothing: object, api: Resource) -> None:
    row = endpoint(api, amounts=nothing)
    row.full_clean()
    assert row.amounts == {}


@pytest.mark.parametrize(
    ("amounts", "said"),
    [
        (500, "Must be a JSON object such as"),
        ("tpm", "Must be a JSON object such as"),
        ([["tpm", 500]], "Must be a JSON object such as"),
        ({"": 1}, "limit key '' must be a letter"),
        ({"a b": 1}, "limit key 'a b' must be a letter"),
        ({"tpm": -1}, "The amount of tpm must not be negative, not -1."),
        ({"tpm": "500"}, "The amount of tpm must be a number, not '500'."),
        ({"tpm": None}, "The amount of tpm must be a number, not None."),
        ({"tpm": True}, "The amount of tpm must be a number, not a boolean, not True."),
        ({"tpm": 0.0001}, "The amount of tpm must have at most three decimals"),
        ({"tpm": 10**13}, "The amount of tpm must not be more than 10^12"),
        ({"tpm": float("inf")}, "must be finite, not NaN or infinity"),
        ({"tpm": float("nan")}, "must be finite, not NaN or infinity"),
    ],
)
def test_bad_amounts_are_refused_with_what_to_write(amounts: object, said: str, api: Resource) -> None:
    assert said in complaint(endpoint(api, amounts=amounts).full_clean, "amounts")


def test_endpoints_come_in_their_order(api: Resource) -> None:
    for name, order in (("late", 200), ("early", 1), ("middle", 100)):
        endpoint(api, name=name, order=order).save()
    assert [str(row) for row in Endpoint.objects.all()] == ["early", "middle", "late"]
