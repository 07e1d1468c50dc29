"""Hostile requests: whatever comes in, the limiter makes no error of it, and nobody slips through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import RequestFactory
from django.urls import re_path
from pytest_django import Settings

from limits_app.engine.limits import CallLimit
from limits_app.stores import registry
from tests.flushing import made_once
from tests.integrations.site import endpoint, fine, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

PATHS = {
    "ten_kilobytes": b"/" + b"x" * 10_240,
    "ten_thousand_slashes": b"/" * 10_240,
    "as_many_segments": b"/a" * 5_120,
    "a_long_number": b"/items/" + b"9" * 10_240 + b"/",
    "nul": b"/a\0b",
    "line_breaks": b"/a\nb\r\nc",
    "broken_utf8": b"/\xff\xfe\xfd",
    "half_a_character": b"/\xed\xa0\x80",
    "overlong_utf8": b"/\xc0\xaf",
    "emoji": "/\N{ROCKET}".encode(),
    "right_to_left": "/\u202egpj.exe".encode(),
    "dots": b"/../../etc/passwd",
    "percent_signs": b"/%00%ff%zz%",
    "markup": b"/<script>alert(1)</script>",
    "a_route": b"/<int:pk>/",
    "an_expression": b"/(a+)+$",
    "nothing": b"",
    "no_slash": b"x",
    "a_star": b"*",
    "a_whole_address": b"http://evil.example/",
    "spaces": b"/ \t ",
    "a_semicolon": b"/a;b=c",
}
METHODS = ["BREW", "get", "GET ", "", "\N{ROCKET}", "X" * 10_240, "OPTIONS", "CONNECT", "<SCRIPT>"]
HEADERS: dict[str, dict[str, str]] = {
    "an_accept_of_twenty_kilobytes": {"HTTP_ACCEPT": "text/html;" + "x" * 20_000},
    "an_accept_of_commas": {"HTTP_ACCEPT": "," * 10_000},
    "an_accept_that_says_nothing": {"HTTP_ACCEPT": "text/html;q=;;=;q*=x''%"},
    "an_unknown_encoding": {"HTTP_ACCEPT": "text/html;a*=nonsense''x"},
    "markup_in_accept": {"HTTP_ACCEPT": "text/html;<script>"},
    "an_unknown_language": {"HTTP_ACCEPT_LANGUAGE": "xx-" * 1_000},
    "bytes_beyond_ascii": {"HTTP_ACCEPT": "\xff\xfe", "HTTP_USER_AGENT": "\xff"},
    "a_cookie_that_is_none": {"HTTP_COOKIE": "sessionid=\0\xff; " * 50},
    "forged_addresses": {"HTTP_X_FORWARDED_FOR": "198.51.100.9", "HTTP_FORWARDED": "for=198.51.100.9"},
    "a_host_that_is_none": {"HTTP_HOST": "evil.example\0"},
}


@pytest.fixture(autouse=True)
def everything_is_limited(settings: Settings) -> None:
    """One call for all requests of an address, whatever they are."""
    settings.LIMITS = {key: value for key, value in settings.LIMITS.items() if key != "ENTITY_OF_REQUEST"}
    settings.ALLOWED_HOSTS = ["*"]
    settings.ROOT_URLCONF = (re_path(r"(?s)^(?!none).*", fine),)
    made_once("hostile", make_rules)


def make_rules() -> None:
    api = limit("api", CallLimit(1, 3600))
    for path in ["/items/<int:pk>/", "/<a>/<b>/<path:rest>", "/<path:rest>", "/", "/<slug:x>-<int:y>.html"]:
        endpoint(api, path, methods="")


def wsgi(**environ: str) -> int:
    """Ask through the synchronous handler."""
    got: list[int] = []
    scope = RequestFactory(REMOTE_ADDR="203.0.113.7")._base_environ(**environ)
    WSGIHandler()(scope, lambda status, headers: got.append(int(status.split()[0]))).close()  # type: ignore[attr-defined]
    return got[0]


def asgi(**scope: Any) -> int:
    """Ask through the asynchronous handler."""
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        messages = [{"type": "http.request", "body": b""}]

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        usual = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        await ASGIHandler()({**usual, "client": ("203.0.113.7", 1), **scope}, receive, send)

    async_to_sync(run)()
    status: int = sent[0]["status"]
    return status


@pytest.mark.parametrize("name", PATHS)
def test_no_path_is_an_error_or_a_way_round(name: str) -> None:
    path = PATHS[name]
    usual = 200 if path[:1] in (b"", b"/") else 404
    assert [wsgi(PATH_INFO=path.decode("latin-1")) for _ in range(2)] == [usual, 429]
    assert asgi(path=path.decode("utf-8", "replace")) == (429 if path else 404)
    assert left("api", "ip:203.0.113.7") == {"call_count": 0}


@pytest.mark.parametrize("method", METHODS)
def test_no_method_is_an_error_or_a_way_round(method: str) -> None:
    answers = [wsgi(REQUEST_METHOD=method), wsgi(REQUEST_METHOD=method), asgi(method=method)]
    assert answers == [200, 429, 429]


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_headers_cause_no_error_and_no_other_identity(name: str) -> None:
    headers = HEADERS[name]
    assert [wsgi(**headers) for _ in range(2)] == [200, 429]
    named = [(key[5:].replace("_", "-").lower().encode(), value.encode("latin-1")) for key, value in headers.items()]
    assert asgi(headers=named) == 429


@pytest.mark.parametrize("address", ["", "unix:", "203.0.113.7, 198.51.100.9", "x" * 10_240, "\0", "\xff"])
def test_no_address_is_an_error_or_unlimited(address: str) -> None:
    assert [wsgi(REMOTE_ADDR=address) for _ in range(2)] == [200, 429]
    assert asgi(client=(address, 1)) == 429


def test_addresses_that_are_none_leave_nothing_behind_each() -> None:
    for number in range(200):
        wsgi(REMOTE_ADDR=f"nonsense {number}")
    assert len(registry.store()) == 1  # type: ignore[arg-type]  # the memory store has a length
