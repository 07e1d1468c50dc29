"""Which identities of a request are looked at, when, and what each of them exempts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest
from django.test import Client, RequestFactory
from django.urls import path as address
from django.utils.functional import SimpleLazyObject
from pytest_django import DjangoAssertNumQueries, Settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response

from limits_app import limited, limits
from limits_app.engine.errors import LimitExceeded
from limits_app.engine.limits import CallLimit
from limits_app.integrations.identity import client_of, entity_of_key, entity_of_request
from limits_app.integrations.request import limits_of
from limits_app.models import Resource
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import endpoint, fine, left, limit
from tests.integrations.test_access import (
    INSIDE,
    NETWORK,
    OUTSIDE,
    OnlyVisitors,
    Send,
    Throttled,
    ann,
    block,
    free,
    key_of,
    on_plan,
    send,
    site,
)

__all__ = ["ann", "send", "site"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("site"), pytest.mark.slow]

_USER: dict[str, Callable[[HttpRequest], Any]] = {}


class Late(Throttled):
    """Limits each method by a decorator, after the user is known."""

    throttle_classes = ()

    @limited("rest")
    def get(self, request: Any) -> Response:
        return Response("fine")


class PutsUser:
    """Middleware of a site that finds the user."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        request.user = _USER["of"](request)
        return self.get_response(request)


def put_user(settings: Settings, found: Callable[[HttpRequest], Any]) -> None:
    """Have a middleware find the user of a request."""
    _USER["of"] = found
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], f"{__name__}.PutsUser", *MIDDLEWARE[2:]]


def lazy_bearer(request: HttpRequest) -> Any:
    """The user of a token in a header of the site, found when it is needed."""
    name = request.headers.get("X-Bearer")
    return SimpleLazyObject(lambda: User.objects.get(username=name) if name else AnonymousUser())


@pytest.mark.parametrize("view", [Throttled.as_view(), Late.as_view()], ids=["throttle", "decorator"])
@pytest.mark.parametrize("resource", [None, "rest"])
def test_a_user_found_by_the_view_is_checked_though_the_resource_was_charged_before(
    view: Any, resource: str | None, send: Send, ann: User, settings: Settings
) -> None:
    settings.ROOT_URLCONF = (address("rest/", view),)
    endpoint(Resource.objects.get(name="rest"), "/rest/")
    block(f"user:{ann.pk}", resource)
    assert [send("/rest/", X_Token="ann", **key) for key in ({}, {"X_Key": "k"})] == [403, 403]
    assert [send("/rest/", **key) for key in ({}, {"X_Key": "k"})] == [200, 200]


@pytest.mark.parametrize(
    "view",
    [Throttled.as_view(), Late.as_view(), OnlyVisitors.as_view()],
    ids=["throttle", "decorator", "throttle that charges nothing"],
)
def test_exempt_user_found_by_the_view_is_refunded_the_charge_of_its_key(
    view: Any, send: Send, ann: User, settings: Settings
) -> None:
    settings.ROOT_URLCONF = (address("rest/", view),)
    endpoint(Resource.objects.get(name="rest"), "/rest/")
    free("user:*")
    assert [send("/rest/", X_Token="ann", X_Key="k") for _ in range(7)] == [200] * 7
    assert left("rest", entity_of_key("k")) == {"call_count": 5}


@pytest.mark.parametrize("path", ["/", "/ruled/", "/limited/", "/missing/"])
@pytest.mark.parametrize("counted_by", ["entity", "ip", "everyone"])
def test_a_lazy_user_of_a_middleware_of_the_site_is_checked(
    path: str, counted_by: str, ann: User, settings: Settings
) -> None:
    put_user(settings, lazy_bearer)
    endpoint(limit("counted", CallLimit(50, 60)), path, name="counted", counted_by=counted_by)
    block("user:*")
    client = Client(REMOTE_ADDR=OUTSIDE)
    bearer = {"X-Bearer": "ann"}
    statuses = [client.get(path, headers=headers).status_code for headers in (bearer, bearer | {"X-Key": "made up"})]
    assert statuses == [403, 403]
    assert client.get(path, headers={"X-Key": "made up"}).status_code in {200, 404}


def test_a_user_of_a_session_without_its_cookie_is_checked(ann: User, settings: Settings) -> None:
    client = Client()
    client.force_login(ann)
    key = client.cookies["sessionid"].value

    class ByHeader:
        def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
            self.get_response = get_response

        def __call__(self, request: HttpRequest) -> Any:
            request.session = SessionStore(request.headers.get("X-Session"))
            return self.get_response(request)

    globals()["ByHeader"] = ByHeader
    settings.MIDDLEWARE = [MIDDLEWARE[0], f"{__name__}.ByHeader", *MIDDLEWARE[1:]]
    block(f"user:{ann.pk}")
    assert [Client().get("/", headers=sent).status_code for sent in ({"X-Session": key}, {})] == [403, 200]


def tenant_by_header(request: HttpRequest) -> str | None:
    """A counted entity of one of the usual kinds."""
    value = request.headers.get("X-Tenant")
    return value or entity_of_request(request)


def edge_address(request: HttpRequest) -> str:
    """The address as a proxy of the site names it."""
    return f"ip:{request.headers.get('X-Edge', '192.0.2.1')}"


@pytest.mark.parametrize("path", ["/", "/ruled/", "/missing/"])
@pytest.mark.parametrize(
    ("function", "blocked", "header"),
    [
        (tenant_by_header, "key:abc-*", {"X-Tenant": "key:abc-def"}),
        (tenant_by_header, "user:77", {"X-Tenant": "user:77"}),
        (tenant_by_header, "team:red", {"X-Tenant": "team:red"}),
        (edge_address, "ip:203.0.113.64/26", {"X-Edge": "203.0.113.70"}),
    ],
)
def test_the_counted_entity_of_a_function_of_the_site_is_checked_on_every_url(
    function: Any, blocked: str, header: dict[str, str], path: str, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": function}
    block(blocked)
    client = Client(REMOTE_ADDR=OUTSIDE)
    assert client.get(path, headers=header).status_code == 403
    assert client.get(path).status_code != 403


def by_vault(request: HttpRequest) -> str:
    return f"vault:{request.headers.get('X-Vault', 'none')}"


def test_an_exempt_entity_that_a_decorator_charges_exempts_that_charge_alone(send: Send, settings: Settings) -> None:
    view = limited("decorated", entity=by_vault)(limited("other")(fine))
    settings.ROOT_URLCONF = (address("vault/", view),)
    limit("other", CallLimit(3, 60))
    endpoint(limit("rule", CallLimit(9, 60)), "/vault/")
    limits.set_resource_limits("decorated", "1/min")
    free("vault:open")
    assert [send("/vault/", X_Vault="open") for _ in range(4)] == [200, 200, 200, 429]
    assert left("rule", f"ip:{OUTSIDE}") == {"call_count": 6}
    assert left("decorated", "vault:none") == {"call_count": 1}


def test_an_exempt_entity_of_the_settings_that_is_only_charged_exempts_that_charge_alone(
    send: Send, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"ENTITIES": ["vault:*"]}}
    settings.ROOT_URLCONF = (address("vault/", limited("decorated", entity=by_vault)(fine)),)
    endpoint(limit("rule", CallLimit(7, 60)), "/vault/")
    assert [send("/vault/") for _ in range(8)] == [200] * 7 + [429]


def test_a_blocked_entity_that_a_decorator_charges_rejects(send: Send, settings: Settings) -> None:
    settings.ROOT_URLCONF = (address("vault/", limited("decorated", entity=by_vault)(fine)),)
    block("vault:shut")
    assert [send("/vault/", X_Vault="shut"), send("/vault/")] == [403, 200]


class Unsaved(BaseAuthentication):
    """Authenticates as a user that has no row yet."""

    def authenticate(self, request: Any) -> Any:
        return User(username="new", is_staff=False), None


@dataclass
class Account:
    """A user by other names, which is not hashable."""

    number: int = 7

    def is_authenticated(self) -> bool:
        return self.number > 0


USERS = [None, "ann", 7, {"pk": 1}, [1], object(), Account(), Account(0), User(username="new"), User(pk=10**9)]


@pytest.mark.parametrize("user", USERS, ids=lambda user: type(user).__name__)
@pytest.mark.parametrize("path", ["/", "/ruled/", "/limited/", "/ratelimit/", "/health/"])
def test_anything_may_be_the_user_of_a_request(user: Any, path: str, ann: User, settings: Settings) -> None:
    put_user(settings, lambda _: user)
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"STAFF": True, "SUPERUSERS": True, "GROUPS": ["Friends"]}}
    on_plan(ann, "bad", "blocked")
    block("user:12")
    assert Client().get(path).status_code == 200


def test_a_user_that_is_not_saved_is_counted_by_its_address(ann: User, settings: Settings) -> None:
    settings.ROOT_URLCONF = (address("new/", Throttled.as_view(authentication_classes=[Unsaved])),)
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"GROUPS": ["Friends"]}}
    on_plan(ann, "bad", "blocked")
    assert Client(REMOTE_ADDR=OUTSIDE).get("/new/").status_code == 200
    assert left("rest", f"ip:{OUTSIDE}") == {"call_count": 4}


@dataclass
class ByField:
    """A function of a site that is an object without a hash."""

    name: str

    def __call__(self, request: HttpRequest) -> str:
        return f"team:{request.headers.get(self.name, 'none')}"


def test_an_object_without_a_hash_may_find_the_counted_entity(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": ByField("X-Team")}
    block("team:red")
    for path in ("/", "/ruled/"):
        statuses = [Client().get(path, headers={"X-Team": team}).status_code for team in ("red", "blue")]
        assert statuses == [403, 200]


CALLS: list[str | None] = []


def checked_key(request: HttpRequest) -> str | None:
    """Note each check of a key."""
    CALLS.append(request.headers.get("X-Key"))
    return CALLS[-1]


@pytest.mark.parametrize("path", ["/", "/ruled/", "/limited/", "/rest/", "/visitors/", "/missing/"])
@pytest.mark.parametrize("headers", [{"X_Key": "k"}, {"X_Key": "k", "X_Token": "ann"}])
def test_the_key_of_a_request_is_read_once(
    path: str, headers: dict[str, str], send: Send, ann: User, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": checked_key}
    endpoint(limit("by-key", CallLimit(9, 60)), path, name="by key", counted_by="api_key", exempt_entities="key:none")
    block("key:none")
    block("key:none", "ruled")
    send(path, **headers)
    CALLS.clear()
    send(path, **headers)
    assert CALLS == ["k"]


def key_of_token(request: HttpRequest) -> str | None:
    """The key that the view has authenticated."""
    return getattr(request, "auth", None)


class ByToken(BaseAuthentication):
    """Authenticates by a key."""

    def authenticate(self, request: Any) -> Any:
        key = request.headers.get("X-Key")
        return (User.objects.get(username="ann"), key) if key else None


def test_a_key_that_the_view_authenticates_is_found_then(send: Send, ann: User, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": key_of_token}
    settings.ROOT_URLCONF = (address("rest/", Throttled.as_view(authentication_classes=[ByToken])),)
    endpoint(Resource.objects.get(name="rest"), "/rest/")
    block(entity_of_key("stolen"))
    assert [send("/rest/", X_Key="stolen"), send("/rest/", X_Key="other")] == [403, 200]


@pytest.mark.parametrize("function", [client_of, lambda _: None, entity_of_request])
@pytest.mark.parametrize("is_known", [True, False])
def test_request_that_is_over_is_charged_by_its_known_identity(
    function: Any, is_known: bool, ann: User, settings: Settings, rf: RequestFactory
) -> None:
    exempt = {"NETWORKS": ["192.0.2.0/24"], "STAFF": True, "ENTITIES": ["key:z*"]}
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": function, "API_KEY_OF_REQUEST": key_of, "EXEMPT": exempt}
    on_plan(ann, "bad", "blocked")
    block("user:12")
    request = rf.get("/", REMOTE_ADDR=OUTSIDE)
    kept = limits_of(request)
    entity = kept.entity if is_known else None
    del request
    gc.collect()
    assert kept.is_over
    kept.charge("ruled", entity)
    assert left("ruled", entity) == {"call_count": 4}


def test_a_request_that_is_over_stays_blocked(rf: RequestFactory) -> None:
    block(NETWORK)
    request = rf.get("/", REMOTE_ADDR=INSIDE)
    kept = limits_of(request)
    assert kept.entity == f"ip:{INSIDE}"
    del request
    gc.collect()
    with pytest.raises(LimitExceeded):
        kept.charge("ruled", "order:1")


def test_a_block_in_shadow_mode_is_counted_once_when_the_user_changes(send: Send, ann: User) -> None:
    block(NETWORK, enforcement="shadow")
    before = limits.shadow_refusals().get("", {}).get("blocked", 0)
    assert send("/rest/", ip=INSIDE, X_Token="ann") == 200
    assert limits.shadow_refusals()[""]["blocked"] == before + 1


@pytest.mark.parametrize("path", ["/ruled/", "/limited/"])
def test_a_shadow_block_of_a_resource_is_counted_for_every_entity(path: str, send: Send, ann: User) -> None:
    resource = "ruled" if path == "/ruled/" else "decorated"
    block(NETWORK, resource, enforcement="shadow")
    before = limits.shadow_refusals().get(resource, {}).get("blocked", 0)
    assert [send(path, ip=INSIDE, user=user) for user in (ann, None)] == [200, 200]
    assert limits.shadow_refusals()[resource]["blocked"] == before + 2


@pytest.mark.parametrize("path", ["/ruled/", "/limited/", "/rest/"])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_charged_responses_vary_by_cookie(path: str, is_blocked: bool) -> None:
    if is_blocked:
        block(NETWORK)
    responses = [Client().get(path, headers=sent) for sent in ({}, {"X-Key": "k"})]
    assert "Cookie" in responses[0].headers["Vary"]
    assert path == "/rest/" or not responses[1].has_header("Vary")


@pytest.mark.parametrize("function", [edge_address, tenant_by_header])
def test_a_function_of_the_site_leaves_anonymous_pages_without_a_query_and_vary(
    function: Any, settings: Settings, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": function}
    block("ip:198.51.100.0/30")
    Client().get("/")
    with django_assert_num_queries(0):
        response = Client().get("/")
    assert (response.status_code, response.has_header("Vary")) == (200, False)
