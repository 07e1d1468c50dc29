"""Pages that stay reachable for clients that are blocked: these are charged there as if nothing blocked them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include
from django.urls import path as address
from django.views import View
from pytest_django import Settings
from rest_framework.views import APIView

from limits_app import conf, exempt, limited, limits
from limits_app.engine.limits import CallLimit
from limits_app.integrations.ratelimit import ratelimit
from limits_app.models import Entity
from limits_app.policies import configuration
from limits_app.services.url_matching import endpoints
from tests.integrations.conftest import MIDDLEWARE
from tests.integrations.site import afine, endpoint, fine, left, limit, who
from tests.integrations.test_access import INSIDE, NETWORK, OUTSIDE, Send, Throttled, ann, block, send, site

__all__ = ["ann", "send", "site"]

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("site"), pytest.mark.slow]

LOG_IN = "/admin/login/"


def guesses(times: int, ip: str = INSIDE, path: str = LOG_IN) -> list[int]:
    """The statuses of failed attempts to log in."""
    client = Client(REMOTE_ADDR=ip)
    return [client.post(path, {"username": "ann", "password": "guess"}).status_code for _ in range(times)]


def everything() -> None:
    limits.set_system_limits([], effect="blocked", counted="total")


BLOCKS = {
    "network": lambda: block(NETWORK),
    "address": lambda: block(f"ip:{INSIDE}"),
    "flag": lambda: Entity.objects.create(identifier=f"ip:{INSIDE}", blocked=True),
    "total": lambda: block(f"ip:{INSIDE}", counted="total"),
    "everything": everything,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_blocked_client_is_limited_at_the_log_in_of_the_admin(name: str) -> None:
    endpoint(limit("log-in", CallLimit(2, 60)), LOG_IN)
    BLOCKS[name]()
    assert guesses(4) == [200, 200, 429, 429]


def test_several_rules_and_members_of_a_log_in_are_charged_to_a_blocked_client() -> None:
    endpoint(limit("log-in", CallLimit(5, 60)), LOG_IN, order=1)
    endpoint(limit("all-log-ins", CallLimit(3, 60)), LOG_IN, counted_by="everyone", name="all", order=2)
    block(NETWORK)
    assert guesses(4) == [200, 200, 200, 429]
    assert left("log-in", f"ip:{OUTSIDE}") == {"call_count": 5}
    limits.delete_entity_limits(NETWORK)
    assert (left("log-in", f"ip:{INSIDE}"), left("all-log-ins", None)) == ({"call_count": 2}, {"call_count": 0})


def test_a_blocked_client_keeps_the_limits_that_are_not_those_of_the_block() -> None:
    endpoint(limit("log-in", CallLimit(5, 60)), LOG_IN)
    limits.set_entity_limits(f"ip:{INSIDE}", "1/min:fixed_window", resource="log-in")
    block(NETWORK)
    block("user:*")
    assert guesses(2) == [200, 429]


def test_a_blocked_and_exempt_client_is_charged_at_the_log_in(ann: User, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"ENTITIES": ["user:*"]}}
    endpoint(limit("log-in", CallLimit(2, 60)), LOG_IN)
    block(NETWORK)
    client = Client(REMOTE_ADDR=INSIDE)
    client.force_login(ann)
    assert [client.get(LOG_IN).status_code for _ in range(3)] == [200, 200, 429]


def test_a_block_of_the_resource_of_a_rule_rejects_also_at_the_log_in() -> None:
    endpoint(limit("log-in", CallLimit(2, 60)), LOG_IN)
    block(NETWORK, "log-in")
    assert guesses(1) == [403]


def test_a_block_in_shadow_mode_changes_nothing_at_the_log_in() -> None:
    endpoint(limit("log-in", CallLimit(2, 60)), LOG_IN)
    block(NETWORK, enforcement="shadow")
    assert guesses(3) == [200, 200, 429]


@pytest.mark.parametrize("decorate", [limited("own"), ratelimit(key="ip", rate="2/m", group="own")])
def test_decorators_of_the_log_in_count_blocked_clients(
    decorate: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit("own", CallLimit(2, 60))
    monkeypatch.setattr(admin.site, "login", decorate(admin.site.login), raising=False)
    settings.ROOT_URLCONF = (address("admin/", admin.site.urls),)
    block(NETWORK)
    assert guesses(3) == [200, 200, 429]


def test_another_site_of_the_admin_is_one_too(settings: Settings) -> None:
    site = admin.AdminSite(name="backoffice")
    settings.ROOT_URLCONF = (address("back/", site.urls), address("admin/", admin.site.urls))
    block(NETWORK)
    assert guesses(1, path="/back/login/") == [200]
    assert Client(REMOTE_ADDR=INSIDE).get("/back/").status_code == 403


@pytest.mark.parametrize("name", ["login", "limits_app_emergencyswitch_changelist"])
def test_views_of_the_site_that_are_named_like_those_of_the_admin_are_blocked(name: str, settings: Settings) -> None:
    views = [address("own/", fine, name=name), address("deep/", include(([address("own/", fine, name=name)], "admin")))]
    settings.ROOT_URLCONF = (address("shop/", include((views, "admin"), namespace="admin")),)
    block(NETWORK)
    statuses = [Client(REMOTE_ADDR=INSIDE).get(path).status_code for path in ("/shop/own/", "/shop/deep/own/")]
    assert statuses == [403, 403]


def test_views_in_the_namespace_of_the_admin_are_closed_to_superusers_while_everything_is_blocked(
    settings: Settings,
) -> None:
    views = include(([address("page/", fine, name="page")], "admin"), namespace="shop")
    settings.ROOT_URLCONF = (address("shop/", views), address("admin/", admin.site.urls))
    everything()
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    statuses = [client.get(path).status_code for path in ("/shop/page/", "/admin/", "/admin/auth/user/")]
    assert statuses == [403, 200, 200]


def test_superusers_are_charged_by_the_rules_while_everything_is_blocked(settings: Settings) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:2], "django.contrib.messages.middleware.MessageMiddleware", *MIDDLEWARE[2:]]
    endpoint(limit("admin", CallLimit(2, 60)), "/admin/auth/user/")
    everything()
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    assert [client.get("/admin/auth/user/").status_code for _ in range(3)] == [200, 200, 429]


class Health(Throttled):
    """A view of the REST framework without rules."""

    @exempt
    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(*args, **kwargs)


@pytest.mark.parametrize(
    "view",
    [
        exempt(limited("health")(fine)),
        limited("health")(exempt(fine)),
        exempt(limited("health")(afine)),
        exempt(ratelimit(key="ip", rate="3/m", group="health")(fine)),
        exempt(limited("health", entity="service:billing")(fine)),
        Health.as_view(throttle_scope="health"),
    ],
    ids=["outside", "inside", "async", "ratelimit", "entity", "throttle"],
)
def test_exempt_views_stay_reachable_and_their_decorators_count(view: Any, send: Send, settings: Settings) -> None:
    settings.ROOT_URLCONF = (address("health/", view),)
    limit("health", CallLimit(2, 60))
    block(NETWORK)
    block("service:billing")
    assert [send("/health/", ip=INSIDE) for _ in range(3)] == [200, 200, 429]


def test_exempt_views_stay_reachable_without_the_middleware(settings: Settings) -> None:
    settings.MIDDLEWARE = MIDDLEWARE[:2]
    settings.ROOT_URLCONF = (
        address("health/", exempt(limited("health")(fine))), address("page/", limited("health")(fine)),
    )  # fmt: skip
    limit("health", CallLimit(2, 60))
    block(NETWORK)
    statuses = [Client(REMOTE_ADDR=INSIDE).get(path).status_code for path in ("/health/", "/page/")]
    assert statuses == [200, 403]


def test_a_resource_that_is_blocked_is_blocked_in_exempt_views(send: Send, settings: Settings) -> None:
    settings.ROOT_URLCONF = (address("health/", exempt(limited("health")(fine))),)
    limits.set_resource_limits("health", [], effect="blocked")
    assert send("/health/") == 403
    limits.set_resource_limits("health", "9/min")
    block(NETWORK, "health")
    assert [send("/health/", ip=INSIDE), send("/health/")] == [403, 200]


class Answering(View):
    """Django answers OPTIONS."""

    def post(self, request: HttpRequest) -> HttpResponse:
        return fine(request)


class Framed(APIView):
    """The REST framework answers OPTIONS."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()


@pytest.mark.parametrize("view", [Answering, Framed])
@pytest.mark.parametrize("is_ruled", [False, True])
def test_a_preflight_is_answered_by_current_rules(
    view: Any, is_ruled: bool, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": None}
    settings.ROOT_URLCONF = (address("form/", view.as_view()),)
    if is_ruled:
        endpoint(limit("form", CallLimit(1, 60)), "/form/")
    client = Client(REMOTE_ADDR=INSIDE)
    headers = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    statuses = [client.options("/form/", headers=headers).status_code for _ in range(2)]
    outdated = endpoints.cached(conf.current())
    block(f"ip:{INSIDE}")
    monkeypatch.setattr(configuration.current(), "url_rules", outdated)
    statuses.append(client.options("/form/", headers=headers).status_code)
    assert statuses == [200, 200, 403]


@pytest.mark.parametrize("view", [limited("rest")(fine), limited("rest")(afine), Throttled.as_view()])
def test_without_the_middleware_a_charge_applies_new_blocks(view: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"ENTITY_OF_REQUEST": who}
    settings.MIDDLEWARE = MIDDLEWARE[:-1]
    settings.ROOT_URLCONF = (address("page/", view),)
    limit("rest", CallLimit(9, 60))
    client = Client(REMOTE_ADDR=INSIDE, headers={"X-Who": "ann"})
    assert client.get("/page/").status_code == 200
    block(f"ip:{INSIDE}")  # which is not who is counted
    kept = endpoints.cached(conf.current())
    assert kept is not None
    assert not kept.needs_verdict  # nothing has told the process of the change yet
    assert client.get("/page/").status_code == 403
    assert left("rest", "ann") == {"call_count": 8}
