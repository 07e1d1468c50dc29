"""Who makes a request, and that nobody can pretend to be somebody else or nobody at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import limits
from limits_app.acquiring.acquisition import Acquisition
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit
from limits_app.integrations.decorators import limited
from limits_app.integrations.identity import entity_of_account, entity_of_key, entity_of_request, normalize_entity
from limits_app.integrations.request import RequestLimits, limits_of
from limits_app.models import Limit, Plan, Policy
from limits_app.services.url_matching import endpoints
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import Ask, fine, limit

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


def of_request(request: HttpRequest) -> str | None:
    """The entity of a request."""
    return RequestLimits(request).entity


def of_task(request: HttpRequest) -> str | None:
    """The entity of a request in a task."""
    return async_to_sync(RequestLimits(request).aentity)()


@pytest.mark.parametrize(
    ("request_", "entity"),
    [
        pytest.param(request_from("203.0.113.7"), "ip:203.0.113.7", id="an_ipv4_address"),
        pytest.param(request_from("2001:DB8:0:0::1"), "ip:2001:db8::/64", id="the_network_of_an_ipv6_address"),
        pytest.param(request_from("2001:db8:0000::ffff:2"), "ip:2001:db8::/64", id="of_which_customers_have_one"),
        pytest.param(request_from("2001:db8:0:1::1"), "ip:2001:db8:0:1::/64", id="another_is_somebody_else"),
        pytest.param(request_from("::ffff:203.0.113.7"), "ip:203.0.113.7", id="ipv4_mapped_to_ipv6_is_ipv4"),
        pytest.param(request_from("::FFFF:cb00:7107"), "ip:203.0.113.7", id="however_it_is_written"),
        pytest.param(request_from("fe80::1%eth0"), "ip:fe80::/64", id="a_zone_says_nothing"),
        pytest.param(request_from("fe80::1%" + "z" * 999), "ip:unknown", id="least_of_all_a_long_one"),
        pytest.param(request_from("64:ff9b::cb00:7107"), "ip:203.0.113.7", id="ipv4_behind_nat64_is_ipv4"),
        pytest.param(request_from("::1"), "ip:::/64", id="the_machine_itself"),
        pytest.param(request_from(""), "ip:unknown", id="a_unix_socket_has_no_address"),
        pytest.param(request_from("unix:"), "ip:unknown", id="or_a_name"),
        pytest.param(request_from("203.0.113.7, 198.51.100.9"), "ip:unknown", id="a_list_is_no_address"),
        pytest.param(request_from("203.0.113.7:8000"), "ip:203.0.113.7", id="a_port_is_no_part_of_an_address"),
        pytest.param(request_from("[2001:db8::1]:8000"), "ip:2001:db8::/64", id="nor_are_brackets"),
        pytest.param(request_from("203.0.113.7:99999"), "ip:unknown", id="a_port_that_cannot_be_is_no_address"),
        pytest.param(request_from("255.255.255.255"), "ip:unknown", id="nor_is_everybody"),
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
def test_a_user_or_an_address(request_: HttpRequest, entity: str, settings: Settings) -> None:
    settings.LIMITS = {}
    assert of_request(request_) == entity


PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48", "unix"]


@pytest.mark.parametrize(
    ("peer", "forwarded", "entity"),
    [
        pytest.param("10.0.0.1", "203.0.113.7", "ip:203.0.113.7", id="a_proxy_says_who_it_is"),
        pytest.param("10.0.0.1:80", "203.0.113.7:1234", "ip:203.0.113.7", id="with_ports"),
        pytest.param("2001:db8:ffff::1", "[2001:db8::1]:443", "ip:2001:db8::/64", id="with_ipv6"),
        pytest.param("", "203.0.113.7", "ip:203.0.113.7", id="through_a_unix_socket"),
        pytest.param("::ffff:10.0.0.1", "203.0.113.7", "ip:203.0.113.7", id="however_its_address_is_written"),
        pytest.param("10.0.0.1", "203.0.113.7, 10.0.0.2, 10.0.0.3", "ip:203.0.113.7", id="a_chain_of_proxies"),
        pytest.param("10.0.0.1", "198.51.100.9, 203.0.113.7", "ip:203.0.113.7", id="what_stands_before_is_forged"),
        pytest.param("10.0.0.1", "10.0.0.9, 203.0.113.7", "ip:203.0.113.7", id="even_as_a_proxy"),
        pytest.param("10.0.0.1", "x" * 9999 + ",203.0.113.7", "ip:203.0.113.7", id="or_is_rubbish"),
        pytest.param("10.0.0.1", "," * 9999 + "203.0.113.7", "ip:203.0.113.7", id="or_nothing_many_times"),
        pytest.param("10.0.0.1", "203.0.113.7,198.51.100.9", "ip:198.51.100.9", id="a_header_twice_is_one_list"),
        pytest.param("10.0.0.1", "10.0.0.2", "ip:10.0.0.2", id="a_client_among_the_proxies"),
        pytest.param("10.0.0.1", "", "ip:10.0.0.1", id="a_proxy_that_says_nothing"),
        pytest.param("10.0.0.1", "unknown", "ip:unknown", id="or_does_not_know"),
        pytest.param("10.0.0.1", "203.0.113.7, ", "ip:unknown", id="or_whose_last_word_is_nothing"),
        pytest.param("10.0.0.1", "fe80::1%a, fe80::1%b", "ip:fe80::/64", id="a_zone_makes_nobody_else"),
        pytest.param("203.0.113.7", "198.51.100.9", "ip:203.0.113.7", id="others_are_not_believed"),
        pytest.param("11.0.0.1", "198.51.100.9", "ip:11.0.0.1", id="not_even_neighbours"),
        pytest.param("rubbish", "198.51.100.9", "ip:unknown", id="nor_who_has_no_address"),
        pytest.param("10.0.0.1", "10.0.0.1," * 5_000 + "10.0.0.1", "ip:10.0.0.1", id="nobody_walks_a_long_way"),
    ],
)
def test_trusted_proxies(peer: str, forwarded: str, entity: str, settings: Settings) -> None:
    settings.LIMITS = {"TRUSTED_PROXIES": PROXIES}
    assert of_request(request_from(peer, **{"X-Forwarded-For": forwarded})) == entity


def test_a_socket_without_an_address_is_trusted_only_by_setting(settings: Settings) -> None:
    settings.LIMITS = {"TRUSTED_PROXIES": ["10.0.0.0/8"]}
    assert of_request(request_from("", **{"X-Forwarded-For": "203.0.113.7"})) == "ip:unknown"


def test_the_ipv6_prefix_of_a_client_is_a_setting(settings: Settings) -> None:
    entities = []
    for prefix in (48, 128):
        settings.LIMITS = {"IPV6_PREFIX": prefix}
        entities.append(of_request(request_from("2001:db8:7:8::9")))
    assert entities == ["ip:2001:db8:7::/48", "ip:2001:db8:7:8::9"]


@pytest.mark.parametrize(
    ("key", "entity"),
    [
        ("s3cret", entity_of_key("s3cret")),
        ("s3cret ", entity_of_key("s3cret ")),
        ("k" * 10_000, entity_of_key("k" * 10_000)),
        ("", "user:42"),
        (None, "user:42"),
    ],
    ids=["a_key", "a_key_with_a_space", "a_long_key", "an_empty_key", "no_key"],
)
def test_api_key_precedes_the_user(key: str | None, entity: str, settings: Settings) -> None:
    settings.LIMITS = {"API_KEY_OF_REQUEST": lambda request: key}
    assert of_request(request_from("203.0.113.7", User(pk=42))) == entity


def test_a_key_is_never_shown(settings: Settings) -> None:
    assert "s3cret" not in entity_of_key("s3cret")
    settings.LIMITS = {"API_KEY_OF_REQUEST": lambda request: b"s3cret"}
    with pytest.raises(TypeError, match="must return text or None") as caught:
        of_request(request_from("203.0.113.7"))
    assert "s3cret" not in str(caught.value)


def test_a_request_without_an_address_at_all_is_from_an_unknown_client() -> None:
    request = request_from("203.0.113.7")
    del request.META["REMOTE_ADDR"]
    assert entity_of_request(request) == "ip:unknown"


@pytest.mark.parametrize("as_configured", [of_request, of_task], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("answer", "entity"),
    [
        ("tenant:acme", "tenant:acme"),
        (None, None),
        ("", "ip:203.0.113.7"),
        ("t" * 255, "t" * 255),
        ("t" * 256, normalize_entity("t" * 256)),
        ("\N{ROCKET} and a space ", "\N{ROCKET} and a space "),
        ("a\0b", normalize_entity("a\0b")),
        ("half \ud800", normalize_entity("half \ud800")),
        (normalize_entity("a\0b"), normalize_entity(normalize_entity("a\0b"))),
    ],
)
def test_entity_of_request(as_configured: Any, answer: str | None, entity: str | None, settings: Settings) -> None:
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: answer}
    assert as_configured(request_from("203.0.113.7")) == entity


def test_unsound_identifiers_stay_apart_and_short() -> None:
    given = ["a\0b", "a\0c", "x" * 256, "x" * 257, "\ud800", "\udfff", "digest:", normalize_entity("a\0b")]
    assert len({normalize_entity(one) for one in given} | {normalize_entity("a\0b")}) == len(given)
    assert all(len(normalize_entity(one)) < 50 for one in given)


def test_a_function_that_returns_no_text_is_rejected(settings: Settings) -> None:
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: 42}
    with pytest.raises(TypeError, match=r"LIMITS\['ENTITY_OF_REQUEST'\] must return text or None, not 42"):
        of_request(request_from("203.0.113.7"))


def test_the_identity_is_found_once_per_request(settings: Settings) -> None:
    asked = []
    settings.LIMITS = {"ENTITY_OF_REQUEST": lambda request: asked.append(request) or f"visit:{len(asked)}"}
    request = request_from("203.0.113.7")
    limits = limits_of(request)
    assert (limits.entity, limits.entity, async_to_sync(limits.aentity)()) == ("visit:1", "visit:1", "visit:1")
    assert len(asked) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
def test_users_are_distinguished_by_their_sessions_and_visitors_cost_no_query(
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


def impersonating(get_response: Any) -> Any:
    """A middleware that knows users by a header, and tells `request.user` alone."""

    def answer(request: HttpRequest) -> Any:
        number = request.headers.get("X-User")
        if number == "plain":
            request.user = User(pk=7)
        elif number is not None:
            request.user = SimpleLazyObject(lambda: User.objects.get(pk=number))  # type: ignore[assignment]  # as Django
        return get_response(request)

    return answer


@pytest.mark.django_db(transaction=True)
def test_a_user_of_another_middleware_makes_the_request(settings: Settings, serve: Any, ask: Ask) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], "tests.integrations.test_identity.impersonating", *MIDDLEWARE[2:]]
    ann = User.objects.create_user("ann")

    async def aview(request: Any) -> HttpResponse:
        return HttpResponse(await request.limits.aentity())

    serve({"": aview})
    assert ask(X_User=str(ann.pk)).content == f"user:{ann.pk}".encode()
    assert ask(X_User="plain").content == b"user:7"
    assert ask().content == b"ip:127.0.0.1"


def plan_of(request: HttpRequest) -> Any:
    return {"": None, "7": 7}.get(request.GET.get("plan", ""), request.GET.get("plan"))


@pytest.mark.parametrize(
    ("query", "capacity"), [("", 5), ("?plan=pro", 7), ("?plan=nosuch", 5), ("?plan=%00", 5), ("?plan=" + "x" * 65, 5)]
)
def test_the_plan_of_a_request_applies(query: str, capacity: int, settings: Settings, transactional_db: None) -> None:
    settings.LIMITS = {**settings.LIMITS, "PLAN_OF_REQUEST": plan_of}
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    policy = Policy.objects.create(plan=Plan.objects.create(name="pro"))
    Limit.from_definition(policy, CallLimit(7, 60)).save()

    def found(ask: Callable[[RequestLimits], Acquisition]) -> list[Any]:
        request = RequestFactory().get(f"/{query}")
        return [one.capacity for one in ask(RequestLimits(request)).outcome.passed]

    who = of_request(RequestFactory().get("/"))
    assert found(lambda one: one.try_acquire("api")) == [capacity]
    assert found(lambda one: one.try_acquire("api", entity=who)) == [capacity]
    assert found(lambda one: one.try_acquire("api", entity="tenant:other")) == [5]
    assert found(lambda one: one.charge("api", who)) == [capacity]
    assert found(lambda one: async_to_sync(one.acharge)("api", who)) == [capacity]
    assert found(lambda one: async_to_sync(one.atry_acquire)("api")) == [capacity]
    assert found(lambda one: one.charge("api", "tenant:other")) == [5]
    assert found(lambda one: one.charge("api", None)) == [5]


def test_a_plan_of_a_request_that_is_not_text_is_an_error(settings: Settings, transactional_db: None) -> None:
    settings.LIMITS = {**settings.LIMITS, "PLAN_OF_REQUEST": plan_of}
    with pytest.raises(TypeError, match="must return the name of a plan or None, not 7"):
        assert RequestLimits(RequestFactory().get("/?plan=7")).entity
    with pytest.raises(InvalidLimit, match="plan must be the name of a plan, of at most 64 characters, or None, not 7"):
        limits.try_acquire("api", plan=7)  # type: ignore[arg-type]  # what is tested


def account(request: HttpRequest) -> str:
    """Whose password is tried."""
    return entity_of_account(request.POST.get("username", ""))


def failed(response: HttpResponse) -> bool:
    return response.status_code == 200


@method_decorator(limited("login.account", entity=account, counts=failed), name="dispatch")
class LogIn(LoginView):
    def form_invalid(self, form: object) -> HttpResponse:
        return HttpResponse("try again")


def attempt(username: str, password: str) -> int:
    return Client().post("/", {"username": username, "password": password}).status_code


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "spelling",
    [
        pytest.param(" ann", id="a_space_before"),
        pytest.param("ann\t\n", id="white_space_after"),
        pytest.param("\u3000ann\u2003", id="wide_spaces"),
        pytest.param("\uff41n\uff4e", id="full_width_letters"),
        pytest.param("\N{MATHEMATICAL BOLD SMALL A}nn", id="mathematical_letters"),
    ],
)
def test_the_form_of_django_takes_no_spelling_that_is_counted_apart(spelling: str, serve: Any) -> None:
    User.objects.create_user("ann", password="correct horse")
    serve({"": LogIn.as_view()})
    limit("login.account", CallLimit(3, 3600))
    assert attempt(spelling, "correct horse") == 302
    assert [attempt("ann", f"guess {number}") for number in range(4)] == [200, 200, 200, 429]
    assert attempt(spelling, "correct horse") == 429
    assert attempt("bob", "a guess") == 200


def test_the_entity_of_a_name_is_a_digest() -> None:
    assert entity_of_account("Ann") == entity_of_account(" \uff21NN") != entity_of_account("Anne")
    for name in ("ann", "a" * 9999, "a\x00", "*"):
        assert entity_of_account(name).startswith("account:")
        assert len(entity_of_account(name)) == 40
        assert name not in entity_of_account(name)
