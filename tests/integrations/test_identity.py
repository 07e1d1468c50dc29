"""Who makes a request, and that nobody can pretend to be somebody else or nobody at all."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest
from django.test import AsyncClient, Client, RequestFactory
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app.integrations.endpoints import endpoints
from limits_app.integrations.identity import aidentify, entity_of_request, identify, sound
from limits_app.integrations.request_limits import limits_of
from tests.integrations.site import fine

FORGED = {
    "X-Forwarded-For": "198.51.100.9",
    "X-Real-Ip": "198.51.100.9",
    "Forwarded": "for=198.51.100.9",
    "Client-Ip": "198.51.100.9",
    "X-Api-Key": "somebody-else",
    "Remote-Addr": "198.51.100.9",
}


def request_from(address: object, user: object = None, **headers: str) -> HttpRequest:
    """A request over a connection from an address."""
    request = RequestFactory().get("/", headers=headers, REMOTE_ADDR=address)
    if user is not None:
        request.user = user  # type: ignore[assignment]  # whatever a site puts there
    return request


@pytest.mark.parametrize("as_configured", [identify, async_to_sync(aidentify)], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("request_", "entity"),
    [
        pytest.param(request_from("203.0.113.7"), "ip:203.0.113.7", id="an_ipv4_address"),
        pytest.param(request_from("2001:DB8:0:0::1"), "ip:2001:db8::1", id="an_ipv6_address_in_one_spelling"),
        pytest.param(request_from("2001:db8:0000::0001"), "ip:2001:db8::1", id="and_the_other_spelling_too"),
        pytest.param(request_from("::ffff:203.0.113.7"), "ip:203.0.113.7", id="ipv4_mapped_to_ipv6_is_ipv4"),
        pytest.param(request_from("::FFFF:cb00:7107"), "ip:203.0.113.7", id="however_it_is_written"),
        pytest.param(request_from("fe80::1%eth0"), "ip:fe80::1%eth0", id="a_zone_belongs_to_the_address"),
        pytest.param(request_from("::1"), "ip:::1", id="the_machine_itself"),
        pytest.param(request_from(""), "ip:unknown", id="a_unix_socket_has_no_address"),
        pytest.param(request_from("unix:"), "ip:unknown", id="or_a_name"),
        pytest.param(request_from("203.0.113.7, 198.51.100.9"), "ip:unknown", id="a_list_is_no_address"),
        pytest.param(request_from("203.0.113.7:8000"), "ip:unknown", id="nor_is_one_with_a_port"),
        pytest.param(request_from("010.0.0.1"), "ip:unknown", id="nor_one_that_may_be_octal"),
        pytest.param(request_from("203.0.113.7\0"), "ip:unknown", id="nor_one_with_more_behind_it"),
        pytest.param(request_from("x" * 10_240), "ip:unknown", id="nor_ten_kilobytes"),
        pytest.param(request_from(None), "ip:unknown", id="nor_nothing"),
        pytest.param(request_from("203.0.113.7", **FORGED), "ip:203.0.113.7", id="no_header_is_trusted"),
        pytest.param(request_from("", **FORGED), "ip:unknown", id="not_even_without_an_address"),
        pytest.param(request_from("203.0.113.7", User(pk=42)), "user:42", id="a_user"),
        pytest.param(request_from("", User(pk=42), **FORGED), "user:42", id="wherever_they_come_from"),
        pytest.param(request_from("203.0.113.7", AnonymousUser()), "ip:203.0.113.7", id="a_visitor_is_an_address"),
        pytest.param(request_from("203.0.113.7", User()), "ip:203.0.113.7", id="a_user_who_was_never_saved_too"),
        pytest.param(request_from("203.0.113.7", User(pk="")), "ip:203.0.113.7", id="or_has_an_empty_key"),
    ],
)
def test_a_request_comes_from_a_user_or_an_address(
    as_configured: Any, request_: HttpRequest, entity: str, settings: Settings
) -> None:
    settings.LIMITS = {}
    assert as_configured(request_) == entity


def test_a_request_without_an_address_at_all_is_from_an_unknown_client() -> None:
    request = request_from("203.0.113.7")
    del request.META["REMOTE_ADDR"]
    assert entity_of_request(request) == "ip:unknown"


@pytest.mark.parametrize("as_configured", [identify, async_to_sync(aidentify)], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("answer", "entity"),
    [
        ("tenant:acme", "tenant:acme"),
        (None, None),
        ("", "ip:203.0.113.7"),
        ("t" * 255, "t" * 255),
        ("t" * 256, sound("t" * 256)),
        ("\N{ROCKET} and a space ", "\N{ROCKET} and a space "),
        ("a\0b", sound("a\0b")),
        ("half \ud800", sound("half \ud800")),
        (sound("a\0b"), sound(sound("a\0b"))),
    ],
)
def test_a_function_of_the_site_says_who_it_is_and_every_answer_is_a_sound_identifier(
    as_configured: Any, answer: str | None, entity: str | None, settings: Settings
) -> None:
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: answer}
    assert as_configured(request_from("203.0.113.7")) == entity


def test_unsound_identifiers_stay_apart_and_short() -> None:
    given = ["a\0b", "a\0c", "x" * 256, "x" * 257, "\ud800", "\udfff", "digest:", sound("a\0b")]
    assert len({sound(one) for one in given} | {sound("a\0b")}) == len(given)
    assert all(len(sound(one)) < 50 for one in given)


def test_a_function_that_gives_no_text_is_an_error_that_says_so(settings: Settings) -> None:
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: 42}
    with pytest.raises(TypeError, match=r"LIMITS\['ENTITY_OF_REQUEST'\] must give text or None, not 42"):
        identify(request_from("203.0.113.7"))


def test_who_it_is_is_asked_once_per_request(settings: Settings) -> None:
    asked = []
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: asked.append(request) or f"visit:{len(asked)}"}
    limits = limits_of(request_from("203.0.113.7"))
    assert (limits.entity, limits.entity, async_to_sync(limits.aentity)()) == ("visit:1", "visit:1", "visit:1")
    assert len(asked) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_users_are_told_apart_by_their_sessions_and_visitors_cost_no_query(
    kind: str, settings: Settings, serve: Any, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    heard: list[str | None] = []

    def view(request: HttpRequest) -> Any:
        heard.append(request.limits.entity)  # type: ignore[attr-defined]  # the middleware adds it
        return fine(request)

    async def aview(request: HttpRequest) -> Any:
        heard.append(await request.limits.aentity())  # type: ignore[attr-defined]  # the middleware adds it
        return fine(request)

    serve({"": view if kind == "wsgi" else aview})
    client: Any = Client() if kind == "wsgi" else AsyncClient()
    get = client.get if kind == "wsgi" else async_to_sync(client.get)
    endpoints.current()
    with django_assert_num_queries(0):
        get("/")
    user = User.objects.create_user("ann")
    client.force_login(user)
    get("/")
    assert heard == ["ip:127.0.0.1", f"user:{user.pk}"]
