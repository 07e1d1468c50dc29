"""Forward-auth: a proxy asks whether a request to another program is admitted."""

from __future__ import annotations

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.test import Client
from django.urls import path, re_path
from pytest_django import Settings
from redis import Redis

from limits_app import limits
from limits_app.engine.limits import CallLimit, ResourceLimit
from limits_app.integrations.forward_auth import STATUS_HEADER, ext_authz, forward_auth
from limits_app.models import CountedBy, Endpoint, Entity, Policy, PolicyEffect
from limits_app.testing import FakeClock
from tests.integrations.site import endpoint, fine, left, limit
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.django_db(transaction=True)

Asks = Callable[..., Any]
PROXY = "127.0.0.1"
CLIENT = "203.0.113.7"


@pytest.fixture(autouse=True)
def site(settings: Settings) -> None:
    """A site that proxies ask, and that has a page of its own."""
    settings.LIMITS = {"STORES": settings.LIMITS["STORES"], "TRUSTED_PROXIES": [PROXY]}
    settings.ROOT_URLCONF = (
        path("limits/forward-auth/", forward_auth),
        re_path("^limits/ext-authz/(?P<path>.*)$", ext_authz),
        path("own/", fine, name="own"),
    )


@pytest.fixture
def asks() -> Asks:
    """Ask as a proxy does, about the request of a client."""
    client = Client()

    def ask(uri: str, method: str = "GET", by: str = "", address: str = CLIENT, **headers: str) -> Any:
        described = {"X-Forwarded-Method": method, "X-Forwarded-Uri": uri, "X-Forwarded-For": address}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.get(f"/limits/forward-auth/{by}", headers=described | named)

    return ask


def test_a_request_is_admitted_until_the_limit_of_its_path_is_used_up(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(2, 60)), "/api/*")
    answers = [asks("/api/reports?page=1") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["RateLimit"].startswith('"call_count";r=1')
    assert int(answers[2].headers["Retry-After"]) > 0
    assert left("api", f"ip:{CLIENT}") == {"call_count": 0}


def test_another_path_and_another_client_have_their_own_limits(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    assert asks("/api/a").status_code == 200
    assert asks("/api/a").status_code == 429
    assert asks("/elsewhere").status_code == 200
    assert asks("/api/a", address="203.0.113.8").status_code == 200


def test_the_method_is_that_of_the_request(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", methods="POST")
    assert [asks("/api/a", method).status_code for method in ("GET", "POST", "GET", "POST")] == [200, 200, 200, 429]


@pytest.mark.parametrize(
    "uri",
    [
        "/free/../api/a",
        "//api//a",
        "/free/%2e%2e/api/a",
        "/free/..%2fapi/a",
        "/./api/./a",
        "/%61pi/a",
        "http://example.com/api/a",
        "/api/a#fragment",
        "/api/a/../../free",
        "/api/%2e%2e/free",
        "/api/a%2f..%2f..%2ffree",
        "http://[zz]/api/a",
        # Programs that read paths by the URL standard
        r"/api\a",
        r"/free\..\api/a",
        "/free%5c../api/a",
        # Servlets leave out what follows a semicolon
        "/free/..;/api/a",
        "/free;v=1/..;w=2/api;/a",
        "/api;x/a",
        "api/a",
    ],
)
def test_no_spelling_of_a_path_escapes_its_limit(asks: Asks, uri: str) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    assert asks("/api/a").status_code == 200
    assert asks(uri).status_code == 429


def test_no_spelling_of_an_exact_path_escapes_its_limit(asks: Asks) -> None:
    endpoint(limit("log-in", CallLimit(1, 60)), "/login")
    assert asks("/login?next=/").status_code == 200
    assert [asks(uri).status_code for uri in ("/login#x", "/login#?x", "/x/../login", "//login")] == [429] * 4


@pytest.mark.parametrize(
    "uri",
    [
        "/shops/1%2F2/orders",
        "/shops/%2f/orders?page=2",
        "/shops/1%2f..%2f..%2f/orders",
        "/shops/1#2/orders",
        "/shops//../1/orders",
        r"/shops/1\/../orders",
        "/shops/1;shop=2/orders;jsessionid=3",
        "/x/../shops/1%2F2/./orders",
    ],
)
def test_no_spelling_of_a_segment_escapes_its_limit(asks: Asks, uri: str) -> None:
    endpoint(limit("orders", CallLimit(1, 60)), "/shops/*/orders")
    assert asks("/shops/1/orders").status_code == 200
    assert asks(uri).status_code == 429


def test_long_paths_with_many_spellings_take_no_long_time(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60)), "/api/*")
    long = r"/x;\..//%2f.%5c/%3b" * 400
    assert asks("/" + long).status_code == 200  # nothing is resolved before the first request
    begun = process_time()
    assert asks(long + "#").status_code == 200
    assert process_time() - begun < 1


def test_a_path_that_is_spelled_in_two_ways_is_charged_once(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60)), "/api/*")
    endpoint(limit("all", CallLimit(9, 60)), "/*")
    assert asks("/api//a/../b").status_code == 200
    assert left("api", f"ip:{CLIENT}") == left("all", f"ip:{CLIENT}") == {"call_count": 8}


def test_a_refusal_of_one_spelling_charges_nothing_for_the_other(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60)), "/api/*")
    endpoint(limit("few", CallLimit(1, 60)), "/few/*")
    assert [asks("/few/a").status_code, asks("/api/../few/a").status_code] == [200, 429]
    assert left("api", f"ip:{CLIENT}") == {"call_count": 9}


def test_the_methods_of_programs_are_known(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", methods="GET")
    assert asks("/api/a", "VERSION-CONTROL").status_code == 200
    assert [asks("/api/a", method).status_code for method in ("get", "GET")] == [200, 429]


def test_a_query_with_many_fields_is_admitted(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60)), "/api/*")
    assert asks(f"/api/a?{'&'.join(f'f{number}=1' for number in range(1_500))}").status_code == 200


def test_a_key_in_a_cookie_is_found_without_sessions(settings: Settings) -> None:
    settings.MIDDLEWARE = []
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": lambda request: request.COOKIES.get("key")}
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", counted_by=CountedBy.API_KEY)
    described = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/api/a", "X-Forwarded-For": CLIENT}

    def ask(key: str) -> int:
        client = Client()
        client.cookies["key"] = key
        return client.get("/limits/forward-auth/", headers=described).status_code

    assert [ask("ann"), ask("bob"), ask("ann")] == [200, 200, 429]


def test_forwarded_addresses_added_by_the_client_are_not_trusted(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    answers = [asks("/api/a", address=f"198.51.100.{number}, {CLIENT}") for number in range(3)]
    assert [answer.status_code for answer in answers] == [200, 429, 429]


def test_only_a_trusted_proxy_is_answered(settings: Settings, asks: Asks) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["10.0.0.1"]}
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    answer = asks("/api/a")
    assert answer.status_code == 403
    assert "TRUSTED_PROXIES" in answer.content.decode()
    assert left("api", f"ip:{CLIENT}") == {"call_count": 1}


@pytest.mark.parametrize("missing", ["X-Forwarded-Method", "X-Forwarded-Uri", "X-Forwarded-For"])
def test_a_proxy_without_the_headers_of_the_request_gets_an_error(asks: Asks, missing: str) -> None:
    described = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/a", "X-Forwarded-For": CLIENT}
    described[missing] = ""
    answer = Client().get("/limits/forward-auth/", headers=described)
    assert answer.status_code == 400
    assert missing in answer.content.decode()


def test_nginx_gets_403_for_every_refusal_and_the_status_in_a_header(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    assert STATUS_HEADER not in asks("/api/a", by="?as=403").headers
    answer = asks("/api/a", by="?as=403")
    assert answer.status_code == 403
    assert answer.headers[STATUS_HEADER] == "429"
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("own", "status"), [(200, 429), (202, 429), (299, 429), (204, 429), (302, 302), (401, 401), (451, 451)]
)
def test_no_page_of_the_site_for_refusals_admits_a_request(
    settings: Settings, asks: Asks, own: int, status: int
) -> None:
    settings.LIMITS = settings.LIMITS | {"REFUSAL_HANDLER": lambda *_: HttpResponse("errors: too many", status=own)}
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    answers = [asks("/api/a") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, status, status]
    assert answers[2].content == b"errors: too many"
    assert left("api", f"ip:{CLIENT}") == {"call_count": 0}


def test_a_page_of_the_site_has_the_status_of_a_block(settings: Settings, asks: Asks) -> None:
    settings.LIMITS = settings.LIMITS | {"REFUSAL_HANDLER": lambda *_: HttpResponse("go away")}
    Policy.objects.create(entity=Entity.objects.create(identifier="ip:203.0.113.0/24"), effect=PolicyEffect.BLOCKED)
    assert asks("/elsewhere").status_code == 403


def test_a_client_cannot_choose_how_it_is_refused(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    assert [asks("/api/a?as=403").status_code for _ in range(2)] == [200, 429]


def test_a_blocked_network_is_refused_also_where_no_rule_matches(asks: Asks) -> None:
    network = Entity.objects.create(identifier="ip:203.0.113.0/24")
    Policy.objects.create(entity=network, effect=PolicyEffect.BLOCKED)
    assert asks("/elsewhere").status_code == 403
    assert asks("/elsewhere", address="198.51.100.1").status_code == 200


def test_the_user_of_the_session_is_counted() -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", counted_by=CountedBy.USER)
    user = User.objects.create_user("ann")
    client = Client()
    client.force_login(user)
    described = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/api/a", "X-Forwarded-For": CLIENT}
    assert client.get("/limits/forward-auth/", headers=described).status_code == 200
    assert left("api", f"user:{user.pk}") == {"call_count": 0}
    assert left("api", f"ip:{CLIENT}") == {"call_count": 1}


def test_no_permits_are_taken_and_the_calls_are(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60), ResourceLimit("slots", 1)), "/api/*")
    with limits.acquire("api", entity=f"ip:{CLIENT}"):
        assert asks("/api/a").status_code == 200
    assert asks("/api/a").status_code == 200
    assert left("api", f"ip:{CLIENT}") == {"call_count": 6, "slots": 1}


def test_no_permits_are_taken_where_several_rules_match(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(9, 60), ResourceLimit("slots", 1)), "/api/*")
    endpoint(limit("all", CallLimit(9, 60)), "/*")
    with limits.acquire("api", entity=f"ip:{CLIENT}"):
        assert asks("/api/a").status_code == 200
    assert left("api", f"ip:{CLIENT}") == {"call_count": 7, "slots": 1}
    assert left("all", f"ip:{CLIENT}") == {"call_count": 8}


def test_rules_for_views_and_for_the_page_that_proxies_ask_do_not_apply(asks: Asks) -> None:
    endpoint(limit("views", CallLimit(1, 60)), view_name="own")
    endpoint(limit("asked", CallLimit(1, 60)), "/limits/*")
    assert [asks("/own/").status_code for _ in range(3)] == [200] * 3


def test_a_changed_rule_applies_to_the_next_request(asks: Asks) -> None:
    rule = endpoint(limit("api", CallLimit(1, 60)), "/api/*")
    assert asks("/api/a").status_code == 200
    Endpoint.objects.filter(pk=rule.pk).first().delete()  # type: ignore[union-attr]
    assert asks("/api/a").status_code == 200


def test_a_site_that_redirects_to_https_answers_proxies(settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT = True
    settings.MIDDLEWARE = ["django.middleware.security.SecurityMiddleware", *settings.MIDDLEWARE]
    paths = ("/limits/forward-auth/", "/limits/ext-authz/api/orders/")
    described = {"X-Forwarded-Uri": "/api/orders/", "X-Forwarded-Method": "GET", "X-Forwarded-For": CLIENT}
    assert [Client().get(path, headers=described).status_code for path in paths] == [301, 301]
    settings.SECURE_REDIRECT_EXEMPT = ["^limits/(forward-auth|ext-authz)/"]
    assert [Client().get(path, headers=described).status_code for path in paths] == [200, 200]


def test_envoy_asks_with_the_method_and_the_path_of_the_request() -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", methods="POST")
    client = Client(enforce_csrf_checks=True)
    invented = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/free", "X-Forwarded-For": CLIENT}
    answers = [client.post("/limits/ext-authz/api/a?as=403", headers=invented) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert client.get("/limits/ext-authz/", headers={"X-Forwarded-For": CLIENT}).status_code == 200


@pytest.mark.usefixtures("on_redis")
def test_the_store_is_asked_once(server_of_limits: RedisServer, asks: Asks) -> None:
    endpoint(limit("api", CallLimit(900, 60), ResourceLimit("slots", 9)), "/api/*")
    endpoint(limit("all", CallLimit(900, 60)), "/*")
    assert [asks("/api/a").status_code for _ in range(2)] == [200, 200]
    with Redis(port=server_of_limits.port) as client:
        before = int(client.info("stats")["total_reads_processed"])
        assert [asks("/api/a").status_code for _ in range(10)] == [200] * 10
        assert int(client.info("stats")["total_reads_processed"]) - before == 11  # with that of `info`


@pytest.mark.parametrize("field", [{"responses": "4xx"}, {"cost": "header:X-Cost"}])
def test_rules_that_need_the_response_do_not_apply(asks: Asks, field: dict[str, str]) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", **field)
    endpoint(limit("site", CallLimit(3, 60)), "/api/*")
    assert [asks("/api/a").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert left("api", f"ip:{CLIENT}") == {"call_count": 1}


def test_a_rule_blocks_for_a_time(asks: Asks, clock: FakeClock) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", block_for="1h")
    assert [asks("/api/a").status_code for _ in range(2)] == [200, 429]
    clock.advance(120)
    assert asks("/api/a").headers["Retry-After"] == "3480"
    assert asks("/api/a", address="203.0.113.8").status_code == 200


def test_parts_of_a_request_are_those_that_the_proxy_passes_on(asks: Asks) -> None:
    endpoint(limit("api", CallLimit(1, 60)), "/api/*", combined_with="query:q\nheader:X-Device\nform:name\npath:pk")
    requests = [("/api/a?q=1", "x"), ("/api/b?q=1", "x"), ("/api/a?q=2", "x"), ("/api/a?q=1", "y")]
    assert [asks(uri, X_Device=device).status_code for uri, device in requests] == [200, 429, 200, 200]
