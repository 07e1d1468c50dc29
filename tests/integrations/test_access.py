"""Access: blocked, exempt or limited, by all identities of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.conf import settings as django_settings
from django.contrib import admin
from django.contrib.auth.models import Group, User
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path as address
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from pytest_django import DjangoAssertNumQueries, Settings
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from limits_app import exempt, limited, limits
from limits_app.engine.limits import CallLimit
from limits_app.integrations.drf.rates import AnonRateThrottle
from limits_app.integrations.drf.throttle import LimitThrottle
from limits_app.integrations.identity import entity_of_key
from limits_app.integrations.ratelimit import ratelimit
from limits_app.models import Denial, Endpoint, Entity, Limit, Plan, PlanGroup, Policy
from limits_app.services import set_emergency
from limits_app.testing import FakeClock
from limits_app.usage.denial_counter import denials
from tests.flushing import made_once
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import afine, endpoint, fine, left, limit
from tests.replacing import resolve_at
from tests.services.pool_rows import make_pool, serve

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("site"), pytest.mark.slow]

INSIDE, OUTSIDE = "203.0.113.9", "198.51.100.9"
NETWORK = "ip:203.0.113.0/24"
Send = Callable[..., int]


def key_of(request: HttpRequest) -> str | None:
    """The API key of a request."""
    return request.headers.get("X-Key")


def team_of(request: HttpRequest) -> str:
    """A tenant by a header, as the counted entity."""
    return f"team:{request.headers.get('X-Team', 'none')}"


def plan_of(request: HttpRequest) -> str | None:
    """A plan by a header."""
    return request.headers.get("X-Plan")


class ByHeader(BaseAuthentication):
    """Authenticates inside the view."""

    def authenticate(self, request: Any) -> Any:
        name = request.headers.get("X-Token")
        return (User.objects.get(username=name), None) if name else None


class Throttled(APIView):
    """A view that throttles count."""

    authentication_classes = (ByHeader, SessionAuthentication)
    throttle_scope = "rest"
    throttle_classes: Any = (LimitThrottle,)

    def get(self, request: Any) -> Response:
        return Response("fine")


class OnlyVisitors(Throttled):
    """A view whose throttle charges nothing for users."""

    throttle_classes = (AnonRateThrottle,)


@pytest.fixture
def site(settings: Settings, default_entities: None) -> None:
    """Views without limits, with those of rules, decorators and throttles, and an admin."""
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": key_of, "TRUSTED_PROXIES": ["127.0.0.1"]}
    settings.REST_FRAMEWORK = {"DEFAULT_THROTTLE_RATES": {"anon": "100/min"}}
    views: dict[str, Any] = {
        "": fine, "ruled/": fine, "a/": afine, "health/": exempt(fine),
        "limited/": limited("decorated")(fine), "alimited/": limited("decorated")(afine),
        "ratelimit/": ratelimit(key="ip", rate="5/m", group="decorated")(fine),
        "rest/": Throttled.as_view(), "both/": fine, "visitors/": OnlyVisitors.as_view(),
    }  # fmt: skip
    settings.ROOT_URLCONF = (
        address("admin/", admin.site.urls),
        *[address(where, view, name=where.strip("/") or "index") for where, view in views.items()],
    )
    made_once("access", make_limits)


def make_limits() -> None:
    """Limit the views."""
    for name in ("ruled", "decorated", "rest"):
        limit(name, CallLimit(5, 60))
    endpoint(limit("ruled", CallLimit(5, 60)), "/ruled/")


@pytest.fixture
def ann() -> User:
    return User.objects.create_user("ann", password="secret")


@pytest.fixture(params=["wsgi", "asgi"])
def send(request: pytest.FixtureRequest) -> Send:
    """Send a request from an address, with a user and headers, and return the status."""
    clients: dict[Any, Any] = {}

    def sent(path: str = "/", *, user: User | None = None, ip: str = OUTSIDE, **headers: str) -> int:
        key = None if user is None else user.pk
        if key not in clients:
            clients[key] = Client() if request.param == "wsgi" else AsyncClient()
            if user is not None:
                clients[key].force_login(user)
        get = clients[key].get if request.param == "wsgi" else async_to_sync(clients[key].get)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return int(get(path, headers={**named, "X-Forwarded-For": ip}).status_code)

    return sent


def block(entity: str, resource: str | None = None, **options: Any) -> None:
    limits.set_entity_limits(entity, [], resource=resource, effect="blocked", **options)


def free(entity: str, resource: str | None = None) -> None:
    limits.set_entity_limits(entity, [], resource=resource, effect="unlimited")


def replacing(entity: str) -> None:
    limits.set_entity_limits(entity, "9/min")


def extending(entity: str) -> None:
    limits.set_entity_limits(entity, "9/min", extends=True)


def on_plan(user: User, name: str, effect: str) -> None:
    """Put a user into a group whose plan has an effect."""
    plan = Plan.objects.create(name=name)
    Policy.objects.create(plan=plan, effect=effect)
    user.groups.add(group := Group.objects.create(name=f"group of {name}"))
    PlanGroup.objects.create(plan=plan, group=group)


def below_blocked(user: User) -> None:
    above = Entity.objects.create(identifier="tenant:a", blocked=True)
    team = Entity.objects.create(identifier="team:a", parent=above, cascade=True)
    Entity.objects.create(identifier=f"user:{user.pk}", parent=team, cascade=True)


BLOCKS: Mapping[str, tuple[Callable[[User], Any], set[str]]] = {
    "network": (lambda _: block(NETWORK), {"inside", "user inside", "key inside", "both inside"}),
    "address": (lambda _: block(f"ip:{INSIDE}"), {"inside", "user inside", "key inside", "both inside"}),
    "user": (lambda ann: block(f"user:{ann.pk}"), {"user", "both", "user inside", "both inside"}),
    "flag": (
        lambda ann: Entity.objects.create(identifier=f"user:{ann.pk}", blocked=True),
        {"user", "both", "user inside", "both inside"},
    ),
    "users": (lambda _: block("user:*"), {"user", "both", "user inside", "both inside"}),
    "key": (lambda _: block(entity_of_key("k")), {"key", "both", "key inside", "both inside"}),
    "keys": (lambda _: block("key:*"), {"key", "both", "key inside", "both inside"}),
    "group": (lambda ann: on_plan(ann, "bad", "blocked"), {"user", "both", "user inside", "both inside"}),
    "parent": (below_blocked, {"user", "both", "user inside", "both inside"}),
    "total": (
        lambda ann: block(f"user:{ann.pk}", counted="total"),
        {"user", "both", "user inside", "both inside"},
    ),
    "nobody": (lambda _: block("ip:192.0.2.0/24"), set()),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_rejects_every_request_of_the_identity(name: str, send: Send, ann: User, clock: FakeClock) -> None:
    act, rejected = BLOCKS[name]
    act(ann)
    clients: dict[str, dict[str, Any]] = {
        "outside": {}, "user": {"user": ann}, "key": {"X_Key": "k"}, "both": {"user": ann, "X_Key": "k"},
    }  # fmt: skip
    clients |= {f"{who} inside".removeprefix("outside "): {**sent, "ip": INSIDE} for who, sent in clients.items()}
    for path in ("/", "/ruled/", "/a/", "/missing/", "/limited/", "/alimited/"):
        statuses = {who: send(path, **sent) for who, sent in clients.items()}
        assert {who for who, status in statuses.items() if status == 403} == rejected
        assert {*statuses.values()} <= {200, 403, 404}
        clock.advance(120)  # until the limits of the views are unused again


@pytest.mark.parametrize(
    ("policies", "status"),
    [
        ([("ip:203.0.113.9", free), (NETWORK, block)], 200),
        ([("ip:203.0.113.9", block), (NETWORK, free)], 403),
        ([("ip:203.0.113.0/28", free), (NETWORK, block)], 200),
        ([("ip:203.0.113.0/28", block), (NETWORK, free)], 403),
        ([("ip:203.*", block), (NETWORK, free)], 200),
        ([("ip:203.0.113.9", replacing), (NETWORK, block)], 200),
        ([("ip:203.0.113.9", extending), (NETWORK, block)], 403),
        ([("user:*", free), (NETWORK, block)], 403),
        ([("user:*", block), (NETWORK, free)], 403),
    ],
)  # fmt: skip
def test_the_most_specific_policy_of_each_identity_decides_and_a_block_of_one_precedes(
    policies: Any, status: int, send: Send, ann: User
) -> None:
    for name, act in policies:
        act(name)
    assert send(user=ann, ip=INSIDE) == status


def test_a_plan_of_a_user_does_not_lift_the_block_of_an_address(send: Send, ann: User) -> None:
    on_plan(ann, "pro", "limits")
    block(NETWORK)
    block("key:*")
    assert [send(user=ann, ip=ip, **headers) for ip in (INSIDE, OUTSIDE) for headers in ({}, {"X_Key": "k"})] == [
        403, 403, 200, 200,
    ]  # fmt: skip


@pytest.mark.parametrize("subject", [NETWORK, "key:*", "user"])
def test_a_block_on_a_resource_rejects_where_it_is_charged(subject: str, send: Send, ann: User) -> None:
    block(f"user:{ann.pk}" if subject == "user" else subject, "ruled")
    statuses = {path: send(path, user=ann, ip=INSIDE, X_Key="k") for path in ("/", "/ruled/", "/limited/")}
    assert statuses == {"/": 200, "/ruled/": 403, "/limited/": 200}


@pytest.mark.parametrize("path", ["/ruled/", "/limited/", "/alimited/", "/ratelimit/", "/rest/"])
def test_a_block_on_a_resource_rejects_exempt_clients_too(path: str, send: Send, ann: User) -> None:
    free(NETWORK)
    for resource in ("ruled", "decorated", "rest"):
        block(f"user:{ann.pk}", resource)
    assert [send(where, user=ann, ip=INSIDE) for where in ("/", path)] == [200, 403]
    assert [send(path, ip=INSIDE) for _ in range(7)] == [200] * 7


EXEMPTS: Mapping[str, tuple[Callable[[User], Any], dict[str, Any]]] = {
    "network": (lambda _: free(NETWORK), {}),
    "user": (lambda ann: free(f"user:{ann.pk}"), {}),
    "group": (lambda ann: on_plan(ann, "free", "unlimited"), {}),
    "keys": (lambda _: free("key:*"), {}),
    "staff": (lambda ann: User.objects.filter(pk=ann.pk).update(is_staff=True), {"STAFF": True}),
    "superuser": (lambda ann: User.objects.filter(pk=ann.pk).update(is_superuser=True), {"SUPERUSERS": True}),
    "named group": (lambda ann: ann.groups.add(Group.objects.create(name="Friends")), {"GROUPS": ["Friends"]}),
    "setting of a network": (lambda _: None, {"NETWORKS": ["203.0.113.0/24"]}),
    "setting of an entity": (lambda _: None, {"ENTITIES": ["key:*"]}),
}


@pytest.mark.parametrize("name", EXEMPTS)
def test_exempt_client_is_charged_nothing(name: str, send: Send, ann: User, settings: Settings) -> None:
    act, setting = EXEMPTS[name]
    settings.LIMITS = settings.LIMITS | {"EXEMPT": setting}
    act(ann)
    for resource in ("ruled", "decorated", "rest"):
        limits.set_resource_limits(resource, "1/min")
    Limit.objects.update(shared=True)
    paths = ("/ruled/", "/limited/", "/alimited/", "/ratelimit/", "/rest/")
    assert {send(path, user=ann, ip=INSIDE, X_Key="k") for path in paths for _ in range(2)} == {200}
    bob = User.objects.create_user("bob")
    assert [send(path, user=bob) for path in paths] == [200, 200, 429, 429, 200]
    assert [send(path, user=bob) for path in paths] == [429] * 5


def test_exempt_client_takes_no_member_of_a_pool_and_no_total(send: Send, ann: User) -> None:
    serve("ruled", make_pool({"m": [CallLimit(1, 60)]}))
    limits.set_system_limits("1/min", counted="total")
    free(NETWORK)
    assert {send("/ruled/", user=ann, ip=INSIDE) for _ in range(3)} == {200}


def test_a_client_whose_policy_is_unlimited_is_charged_for_its_own_total(send: Send, ann: User) -> None:
    name = f"user:{ann.pk}"
    limits.set_system_limits("1/min:fixed_window")
    limits.set_entity_limits(name, [], effect="unlimited")
    assert {send("/ruled/", user=ann) for _ in range(9)} == {200}
    limits.set_entity_limits(name, "7/day", counted="total")
    assert [send("/ruled/", user=ann) for _ in range(8)] == [200] * 7 + [429]
    limits.set_entity(name, unlimited=True)
    assert send("/ruled/", user=ann) == 200


def test_an_exempt_member_counts_for_the_total_of_an_unlimited_team(send: Send, ann: User) -> None:
    above = Entity.objects.create(identifier="tenant:a")
    Entity.objects.create(identifier=f"user:{ann.pk}", parent=above, cascade=True, unlimited=True)
    limits.set_entity_limits("tenant:a", [], effect="unlimited")
    limits.set_entity_limits("tenant:a", "2/day", counted="total")
    assert [send("/ruled/", user=ann) for _ in range(3)] == [200, 200, 429]


def test_an_unlimited_client_is_charged_for_the_members_of_a_pool_with_its_total(send: Send, ann: User) -> None:
    serve("ruled", make_pool({"m": [CallLimit(1, 60)]}))
    limits.set_entity_limits(f"user:{ann.pk}", [], effect="unlimited")
    limits.set_entity_limits(f"user:{ann.pk}", "7/day", counted="total")
    assert [send("/ruled/", user=ann) for _ in range(2)] == [200, 429]


def test_a_parent_of_an_exempt_client_keeps_its_limits(send: Send, ann: User) -> None:
    above = Entity.objects.create(identifier="tenant:a")
    Entity.objects.create(identifier=f"user:{ann.pk}", parent=above, cascade=True, unlimited=True)
    limits.set_entity_limits("tenant:a", "2/min:fixed_window")
    assert [send("/ruled/", user=ann) for _ in range(3)] == [200, 200, 429]


def test_the_default_of_the_system_blocks_and_exempts_no_client(send: Send) -> None:
    limits.set_system_limits([], effect="unlimited")
    assert [send("/ruled/") for _ in range(6)] == [200] * 5 + [429]
    limits.set_system_limits([], effect="blocked")
    assert [send("/"), send("/limited/")] == [200, 200]


@pytest.mark.parametrize("path", ["/rest/", "/visitors/"])
def test_a_user_authenticated_by_the_view_is_checked_in_throttles(path: str, send: Send, ann: User) -> None:
    block(f"user:{ann.pk}")
    assert [send(path, X_Token="ann"), send(path), send("/", X_Token="ann")] == [403, 200, 200]


def test_charges_before_authentication_are_refunded_to_exempt_users(send: Send, ann: User) -> None:
    endpoint(limit("early", CallLimit(5, 60)), "/rest/")
    free(f"user:{ann.pk}")
    assert send("/rest/", X_Token="ann") == 200
    assert left("early", f"ip:{OUTSIDE}") == {"call_count": 5}


def test_the_counted_entity_of_the_site_is_checked(send: Send, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": team_of}
    block("team:red")
    assert [send(X_Team="red"), send(X_Team="blue")] == [403, 200]


@pytest.mark.parametrize("path", ["/", "/ruled/", "/a/", "/missing/", "/limited/", "/alimited/", "/rest/"])
def test_a_blocked_plan_of_the_request_rejects_every_counted_entity(
    path: str, send: Send, ann: User, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": plan_of}
    limits.set_plan_limits("ended", [], effect="blocked")
    clients: list[dict[str, Any]] = [{}, {"user": ann}, {"X_Key": "k"}, {"user": ann, "X_Key": "k"}]
    assert {send(path, X_Plan="ended", **client) for client in clients} == {403}
    assert {send(path, X_Plan="other", **client) for client in clients} <= {200, 404}


def test_a_plan_of_the_request_is_for_the_counted_entity(send: Send, ann: User, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": plan_of}
    limits.set_plan_limits("trial", [], effect="unlimited")
    limits.set_plan_limits("pro", "3/min")
    assert [send("/ruled/", X_Plan="trial") for _ in range(7)] == [200] * 7
    block(NETWORK)
    block(f"user:{ann.pk}")
    statuses = [send(user=ann, X_Plan="pro", X_Key="k"), send(ip=INSIDE, X_Plan="pro"), send(ip=INSIDE, X_Plan="trial")]
    assert statuses == [403] * 3


def test_pages_by_which_a_block_is_lifted_stay_reachable(ann: User, settings: Settings) -> None:
    User.objects.filter(pk=ann.pk).update(is_staff=True, is_superuser=True)
    client = Client(REMOTE_ADDR=INSIDE)
    block(NETWORK)
    page = "/admin/limits_app/emergencyswitch/"
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], "django.contrib.messages.middleware.MessageMiddleware", *MIDDLEWARE[2:]]
    statuses = [client.get(path).status_code for path in ("/health/", "/admin/login/", "/", "/admin/")]
    assert statuses == [200, 200, 403, 403]
    log_in = client.post("/admin/login/", {"username": "ann", "password": "secret", "next": page})
    assert (log_in.status_code, client.get(page).status_code, client.get("/admin/").status_code) == (302, 200, 403)
    data = {"mode": "off", "reason": "locked out", "confirmed": "1"}
    assert client.post(page, data).status_code == 302
    assert client.get("/admin/").status_code == 200


def test_failed_log_ins_from_a_blocked_network_are_limited(ann: User, settings: Settings) -> None:
    backend = "limits_app.integrations.login.LoginLimitBackend"
    settings.AUTHENTICATION_BACKENDS = [backend, *django_settings.AUTHENTICATION_BACKENDS]
    User.objects.filter(pk=ann.pk).update(is_staff=True)
    client = Client(REMOTE_ADDR=INSIDE)
    block(NETWORK)
    statuses = [client.post("/admin/login/", {"username": "ann", "password": "guess"}).status_code for _ in range(7)]
    assert statuses == [200] * 5 + [429] * 2
    assert Client(REMOTE_ADDR=INSIDE).post("/admin/login/", {"username": "x", "password": "y"}).status_code == 200


def test_a_system_that_blocks_everything_leaves_superusers_in_the_admin(send: Send, ann: User) -> None:
    boss = User.objects.create_superuser("boss")
    User.objects.filter(pk=ann.pk).update(is_staff=True)
    limits.set_system_limits([], effect="blocked", counted="total")
    free(f"user:{ann.pk}")
    assert [send("/admin/", user=boss), send("/", user=boss), send("/admin/", user=ann), send()] == [200, 403, 403, 403]
    assert send("/health/") == 200


@pytest.mark.parametrize("entity", ["user:7", "key:*", "team:*", NETWORK, "plan"])
@pytest.mark.parametrize("of_request", [None, plan_of])
def test_an_anonymous_page_makes_no_query_and_does_not_vary_by_cookie(
    entity: str, of_request: Any, ann: User, settings: Settings, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": of_request}
    on_plan(ann, "free", "unlimited") if entity == "plan" else block(entity)
    Client().get("/")
    with django_assert_num_queries(0):
        response = Client().get("/")
    assert (response.status_code, response.has_header("Vary")) == (200, False)


def lazy_user(get_response: Any) -> Any:
    """A middleware that reads users from a header when they are first looked at, as a site may have one."""

    def middleware(request: HttpRequest) -> Any:
        name = request.headers.get("X-Token")
        if name:
            request.user = SimpleLazyObject(lambda: User.objects.get(username=name))  # type: ignore[assignment]
        return get_response(request)

    return middleware


@pytest.mark.parametrize("place", [2, 3], ids=["before the limits", "behind the limits"])
def test_user_of_another_middleware_is_checked_without_a_session(place: int, ann: User, settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:place], f"{__name__}.lazy_user", *MIDDLEWARE[place:]]
    block(f"user:{ann.pk}")
    statuses = [Client().get("/", headers=headers).status_code for headers in ({}, {"X-Token": "ann"}, {})]
    assert statuses == [200, 403, 200]


def test_a_client_that_was_not_blocked_before_is_blocked_by_the_next_request(send: Send, ann: User) -> None:
    block(NETWORK)
    block("user:0")
    assert [send(user=ann), send(), send(user=ann)] == [200, 200, 200]
    block(f"user:{ann.pk}")
    assert [send(user=ann), send()] == [403, 200]
    block("ip:*")
    assert send() == 403


def test_a_blocked_client_costs_no_query(ann: User, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    block(NETWORK)
    block("ip:192.0.2.7")
    addresses = ["203.0.113.1", "192.0.2.7"]
    assert {Client(REMOTE_ADDR=ip).get("/").status_code for ip in addresses} == {403}
    with django_assert_num_queries(0):
        statuses = [Client(REMOTE_ADDR=ip).get("/").status_code for ip in (*addresses, "203.0.113.2", "192.0.2.8")]
    assert statuses == [403, 403, 403, 200]


@pytest.mark.parametrize("path", ["/", "/ruled/", "/limited/", "/rest/"])
@pytest.mark.parametrize("subject", ["user:999", "key:x-*", "team:x", NETWORK, "plan"])
def test_the_second_request_of_a_client_reads_only_its_session_and_user(
    subject: str, path: str, ann: User, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    on_plan(User.objects.create_user("bob"), "bad", "blocked") if subject == "plan" else block(subject)
    client = Client()
    client.force_login(ann)
    for headers in ({}, {"X-Key": "k"}):
        client.get(path, headers=headers)
        with django_assert_max_num_queries(2):
            assert client.get(path, headers=headers).status_code == 200


def test_rejections_are_counted_for_the_pattern_that_is_blocked(send: Send, ann: User) -> None:
    block(NETWORK)
    block(f"user:{ann.pk}", "ruled")
    denials.clear()
    for number in range(1, 6):
        send("/ruled/", ip=f"203.0.113.{number}")
    send("/ruled/", user=ann, X_Key="k")
    limits.roll_up()
    counted = Denial.objects.values_list("resource", "entity", "key").annotate(number=Sum("count"))
    numbers = {(resource, entity, key): number for resource, entity, key, number in counted}
    assert numbers == {
        ("", NETWORK, "blocked"): 5,
        ("ruled", f"user:{ann.pk}", "blocked"): 1,
    }


def test_the_emergency_switch_lifts_blocks_and_counts_them_in_shadow(send: Send) -> None:
    block(NETWORK)
    before = limits.shadow_refusals().get("", {}).get("blocked", 0)
    set_emergency("off", reason="test")
    assert send(ip=INSIDE) == 200
    set_emergency("shadow", reason="test")
    assert send(ip=INSIDE) == 200
    assert limits.shadow_refusals()[""]["blocked"] == before + 1
    set_emergency("enforce")
    assert send(ip=INSIDE) == 403


def test_a_block_in_shadow_mode_rejects_nothing_and_is_counted(send: Send, ann: User) -> None:
    block(NETWORK, enforcement="shadow")
    before = limits.shadow_refusals().get("", {}).get("blocked", 0)
    assert send(ip=INSIDE, user=ann) == 200
    assert limits.shadow_refusals()[""]["blocked"] == before + 1


def shadowed_blocks(send: Send, path: str, **client: Any) -> int:
    """How many rejections by blocks in shadow mode one request adds."""

    def number() -> int:
        return sum(one.get("blocked", 0) for one in limits.shadow_refusals().values())

    before = number()
    assert send(path, **client) == 200
    return number() - before


PATHS = ["/", "/ruled/", "/a/", "/limited/", "/alimited/", "/rest/", "/ratelimit/", "/both/"]
SUBJECTS = [NETWORK, f"ip:{INSIDE}", "user", "user:*", "key:*", "parent", "system", "total"]


@pytest.mark.parametrize(
    ("subject", "path"),
    [
        pytest.param(subject, path, marks=[pytest.mark.release] * (subject != "user" and path != "/ruled/"))
        for subject in SUBJECTS
        for path in PATHS
    ],
)
def test_a_block_in_shadow_mode_is_counted_once_for_a_request(subject: str, path: str, send: Send, ann: User) -> None:
    endpoint(limit("second", CallLimit(5, 60)), "/both/")
    endpoint(limit("third", CallLimit(5, 60)), "/both/", name="third", counted_by="ip")
    match subject:
        case "parent":
            above = Entity.objects.create(identifier="tenant:a")
            Entity.objects.create(identifier=f"user:{ann.pk}", parent=above, cascade=True)
            block("tenant:a", enforcement="shadow")
        case "system":
            limits.set_system_limits([], effect="blocked", counted="total", enforcement="shadow")
        case _:
            name, counted = (f"user:{ann.pk}", "total") if subject == "total" else (subject, "each")
            block(f"user:{ann.pk}" if subject == "user" else name, enforcement="shadow", counted=counted)
    assert shadowed_blocks(send, path, user=ann, ip=INSIDE, X_Key="k") == 1
    is_of_user = subject in {"user", "user:*", "parent", "total"}
    if is_of_user:
        assert shadowed_blocks(send, path, user=ann) == 1
    assert shadowed_blocks(send, path, user=ann if not is_of_user else None) == int(subject == "system")


@pytest.mark.parametrize("subject", [NETWORK, "user", "key:*", "ruled", "both"])
def test_a_block_of_a_resource_in_shadow_mode_is_counted_once_where_that_is_charged(
    subject: str, send: Send, ann: User
) -> None:
    if subject == "ruled":
        limits.set_resource_limits("ruled", [], effect="blocked", enforcement="shadow")
    elif subject == "both":
        block("key:*", "ruled", enforcement="shadow")
        block(NETWORK, "ruled", enforcement="shadow")
    else:
        block(f"user:{ann.pk}" if subject == "user" else subject, "ruled", enforcement="shadow")
    client = {"user": ann, "ip": INSIDE, "X_Key": "k"}
    expected = 2 if subject == "both" else 1
    assert [shadowed_blocks(send, path, **client) for path in ("/", "/limited/", "/ruled/")] == [0, 0, expected]


def test_a_block_in_shadow_mode_of_another_client_is_counted_in_a_request(send: Send, settings: Settings) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        limits.acquire("jobs", entity="tenant:a").release()
        return HttpResponse("fine")

    settings.ROOT_URLCONF = (address("jobs/", view),)
    block("tenant:a", enforcement="shadow")
    block(NETWORK, enforcement="shadow")
    assert shadowed_blocks(send, "/jobs/", ip=INSIDE) == 2


def test_a_block_begins_and_ends_at_its_dates(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    now = timezone.now()
    block(NETWORK, valid_from=now + timedelta(hours=1), valid_until=now + timedelta(hours=2))
    statuses = []
    for hours in (0, 1.5, 3):
        resolve_at(monkeypatch, lambda hours=hours: now.timestamp() + hours * 3600)
        statuses.append(send(ip=INSIDE))
    assert statuses == [200, 403, 200]


def test_a_change_counts_on_the_next_request(send: Send) -> None:
    statuses = []
    for _ in range(2):
        block(NETWORK)
        statuses.append(send(ip=INSIDE))
        limits.delete_entity_limits(NETWORK)
        statuses.append(send(ip=INSIDE))
    assert statuses == [403, 200, 403, 200]


def test_without_limits_nothing_is_blocked(send: Send, settings: Settings) -> None:
    block(NETWORK)
    settings.LIMITS = settings.LIMITS | {"ENABLED": False}
    assert send(ip=INSIDE) == 200


def test_the_plan_of_a_group_is_for_the_keys_of_the_user(send: Send, ann: User) -> None:
    on_plan(ann, "pro", "limits")
    limits.set_plan_limits("pro", "2/min:fixed_window")
    key = entity_of_key("k")
    assert [send("/limited/", user=ann, X_Key="k") for _ in range(3)] == [200, 200, 429]
    limits.set_plan_limits("free", "4/min:fixed_window")
    Entity.objects.create(identifier=key, plan=Plan.objects.get(name="free"))
    limits.reset("decorated", entity=key)
    assert [send("/limited/", user=ann, X_Key="k") for _ in range(5)] == [200] * 4 + [429]
    assert send("/limited/", X_Key="other") == 200


def test_a_membership_counts_on_the_next_request(send: Send, ann: User) -> None:
    on_plan(ann, "pro", "limits")
    limits.set_plan_limits("pro", [], effect="blocked")
    assert send(user=ann) == 403
    ann.groups.clear()
    assert send(user=ann) == 200


def test_a_client_that_changes_is_checked_again_on_the_next_request(send: Send, ann: User) -> None:
    limits.set_plan_limits("banned", [], effect="blocked")
    team = Entity.objects.create(identifier="team:9", plan=Plan.objects.get(name="banned"))
    assert [send(where, user=ann, X_Key="k") for where in ("/", "/ruled/")] == [200, 200]
    row = Entity.objects.create(identifier=f"user:{ann.pk}", plan=team.plan)
    assert [send(where, user=ann, X_Key="k") for where in ("/ruled/", "/")] == [403, 403]
    row.plan = None
    row.save()
    assert [send(where, user=ann, X_Key="k") for where in ("/ruled/", "/")] == [200, 200]
    row.parent, row.cascade = team, True
    row.save()
    assert [send(where, user=ann, X_Key="k") for where in ("/ruled/", "/")] == [403, 403]
    row.delete()
    assert [send(where, user=ann, X_Key="k") for where in ("/ruled/", "/")] == [200, 200]


CHANGES_ABOVE: Mapping[str, Callable[[], dict[str, Any]]] = {
    "plan": lambda: {"plan": Plan.objects.get(name="banned")},
    "parent": lambda: {"parent": Entity.objects.get(identifier="tenant:banned"), "cascade": True},
    "cascade": lambda: {"cascade": True},
    "name": lambda: {"identifier": "gone:9"},
}


@pytest.mark.parametrize("change", CHANGES_ABOVE)
def test_a_change_above_a_client_counts_on_its_next_request(change: str, send: Send, ann: User) -> None:
    limits.set_plan_limits("banned", [], effect="blocked")
    block("gone:*")
    banned = Entity.objects.create(identifier="tenant:banned", blocked=True)
    team = Entity.objects.create(identifier="team:9", parent=banned if change == "cascade" else None)
    Entity.objects.create(identifier=f"user:{ann.pk}", parent=team, cascade=True)
    assert send(user=ann) == 200
    changed = CHANGES_ABOVE[change]()
    before = {name: getattr(team, name) for name in changed}
    for fields, status in ((changed, 403), (before, 200)):
        Entity.objects.filter(pk=team.pk).update(**fields)
        assert [send(where, user=ann) for where in ("/", "/ruled/")] == [status, status]


@pytest.mark.parametrize("rules", [1, 2])
def test_the_end_of_a_block_of_a_resource_counts_on_the_next_request(rules: int, send: Send) -> None:
    if rules == 2:
        endpoint(limit("second", CallLimit(5, 60)), "/ruled/")
    for _ in range(2):
        block(NETWORK, "ruled")
        assert send("/ruled/", ip=INSIDE) == 403
        limits.delete_entity_limits(NETWORK, resource="ruled")
        assert send("/ruled/", ip=INSIDE) == 200


def test_exemption_of_the_entity_of_a_rule_ends_with_the_next_request(send: Send) -> None:
    Endpoint.objects.update(counted_by="header", header="X-Device")
    limits.set_resource_limits("ruled", "1/min:fixed_window")
    assert [send("/ruled/", X_Device="a") for _ in range(2)] == [200, 429]
    for _ in range(2):
        free("header:*")
        assert send("/ruled/", X_Device="a") == 200
        limits.delete_entity_limits("header:*")
        assert send("/ruled/", X_Device="a") == 429


def test_a_change_of_one_client_costs_others_no_query(
    ann: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_entity_limits(NETWORK, [], effect="blocked")
    client = Client()
    assert [client.get("/ruled/").status_code for _ in range(2)] == [200, 200]
    limits.set_entity_limits(f"user:{ann.pk}", "9/min")
    with django_assert_num_queries(0):
        assert client.get("/ruled/").status_code == 200


def test_a_membership_counts_where_only_the_settings_exempt_groups(send: Send, ann: User, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"GROUPS": ["Friends"]}}
    limits.set_resource_limits("ruled", "1/min:fixed_window")
    assert [send("/ruled/", user=ann) for _ in range(2)] == [200, 429]
    ann.groups.add(group := Group.objects.create(name="Friends"))
    assert [send("/ruled/", user=ann) for _ in range(2)] == [200, 200]
    group.name = "Others"
    group.save()
    assert send("/ruled/", user=ann) == 429
