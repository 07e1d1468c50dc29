"""Rules for URLs: who is counted, who is exempt, and several rules for one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.test import Client
from pytest_django import Settings

from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.integrations.identity import entity_of_key
from limits_app.models import Endpoint, Resource
from limits_app.testing import FakeClock
from tests.integrations.site import Ask, endpoint, fine, left, limit

pytestmark = pytest.mark.django_db(transaction=True)

LOGGED_IN = ("ann", "bob")
SLIDING = RateLimitAlgorithm.SLIDING_WINDOW


def key_of(request: HttpRequest) -> str | None:
    """The API key of a request."""
    return request.headers.get("X-Key")


@pytest.fixture
def clients() -> Mapping[str, Client]:
    """Clients of two users, and of nobody."""
    found = {name: Client() for name in ("ann", "bob", "nobody", "other")}
    for name in LOGGED_IN:
        found[name].force_login(User.objects.create_user(name))
    return found


@pytest.mark.parametrize(
    ("counted_by", "first", "same", "another"),
    [
        pytest.param("entity", ("ann", {"X-Who": "a"}), ("bob", {"X-Who": "a"}), ("ann", {"X-Who": "b"}), id="entity"),
        pytest.param("user", ("ann", {"X-Who": "a"}), ("ann", {"X-Who": "b"}), ("bob", {"X-Who": "a"}), id="user"),
        pytest.param("user", ("nobody", {}), ("other", {}), ("ann", {}), id="the_address_without_a_user"),
        pytest.param("ip", ("ann", {}), ("bob", {}), ("ann", {"X-Forwarded-For": "1.2.3.4"}), id="ip"),
        pytest.param("api_key", ("ann", {"X-Key": "k"}), ("bob", {"X-Key": "k"}), ("ann", {"X-Key": "l"}), id="key"),
        pytest.param("api_key", ("ann", {}), ("bob", {}), ("ann", {"X-Key": "l"}), id="the_address_without_a_key"),
        pytest.param("header", ("ann", {"X-T": "t"}), ("bob", {"X-T": "t"}), ("ann", {"X-T": "u"}), id="header"),
        pytest.param("header", ("ann", {}), ("bob", {"X-T": " "}), ("ann", {"X-T": "u"}), id="no_header"),
        pytest.param("session", ("ann", {}), ("ann", {"X-T": "t"}), ("bob", {}), id="session"),
        pytest.param(
            "session", ("nobody", {"Cookie": "sessionid=x"}), ("other", {"Cookie": "sessionid=y"}), ("ann", {}),
            id="the_address_for_sessions_that_clients_invent",
        ),
        pytest.param("everyone", ("ann", {}), ("bob", {"X-Forwarded-For": "1.2.3.4"}), None, id="everyone"),
    ],
)  # fmt: skip
def test_each_counted_client_has_its_own_counter(
    counted_by: str, first: Any, same: Any, another: Any, clients: Mapping[str, Client], serve: Any, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": key_of, "TRUSTED_PROXIES": ["127.0.0.1"]}
    serve({"x/": fine})
    header = "X-T" if counted_by == "header" else ""
    endpoint(limit("api"), "/x/", counted_by=counted_by, header=header)

    def status(who: Any) -> int:
        name, headers = who
        return clients[name].get("/x/", headers=headers).status_code

    assert [status(first), status(same)] == [200, 429]
    if another is not None:
        assert status(another) == 200


def test_secrets_are_counted_by_their_digest(clients: Mapping[str, Client], serve: Any, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": key_of}
    serve({"x/": fine})
    endpoint(limit("api"), "/x/", counted_by="api_key")
    clients["ann"].get("/x/", headers={"X-Key": "secret"})
    assert left("api", entity_of_key("secret")) == {"call_count": 0}


@pytest.mark.parametrize(
    ("exemption", "exempt"),
    [
        ({}, set()),
        ({"exempt_staff": True}, {"staff"}),
        ({"exempt_superusers": True}, {"boss"}),
        ({"exempt_groups": "Editors\nFriends"}, {"friend"}),
        ({"exempt_networks": "10.0.0.0/8\n2001:db8::/32"}, {"inside", "inside6"}),
        ({"exempt_networks": "::ffff:10.1.0.0/112"}, {"inside"}),
        ({"exempt_entities": "me\nuser:0"}, {"named"}),
        ({"exempt_staff": True, "exempt_superusers": True, "exempt_entities": "me"}, {"staff", "boss", "named"}),
    ],
    ids=["none", "staff", "superusers", "groups", "networks", "mapped network", "entities", "several"],
)
def test_an_exempt_request_is_not_charged(exemption: dict[str, Any], exempt: set[str], serve: Any) -> None:
    serve({"x/": fine})
    endpoint(limit("api", CallLimit(100, 60)), "/x/", order=1, stop=True, **exemption)
    endpoint(limit("later", CallLimit(100, 60)), "/*", order=2)
    accounts = {
        "staff": User.objects.create_user("staff", is_staff=True),
        "boss": User.objects.create_user("boss", is_superuser=True),
        "friend": User.objects.create_user("friend"),
        "gone": User.objects.create_user("gone", is_staff=True, is_active=False),
    }
    accounts["friend"].groups.add(Group.objects.create(name="Friends"))
    sent = {
        **{name: {} for name in accounts},
        "inside": {"REMOTE_ADDR": "10.1.2.3"},
        "inside6": {"REMOTE_ADDR": "2001:db8::1"},
        "outside": {"REMOTE_ADDR": "11.1.2.3"},
        "unknown": {"REMOTE_ADDR": ""},
        "named": {"HTTP_X_WHO": "me"},
    }
    for name, environ in sent.items():
        client = Client()
        if name in accounts:
            client.force_login(accounts[name])
        client.get("/x/", **({"HTTP_X_WHO": name} | environ))
    entities = {name: environ.get("HTTP_X_WHO", name) for name, environ in sent.items()}
    assert {name for name, entity in entities.items() if left("api", entity)["call_count"] == 100} == exempt
    assert {name for name, entity in entities.items() if left("later", entity)["call_count"] == 99} == exempt


def test_a_refusal_by_one_rule_charges_nothing_in_the_others(ask: Ask, serve: Any) -> None:
    serve({"x/": fine})
    endpoint(limit("each", CallLimit(10, 60, SLIDING), ResourceLimit("connections", 5)), "/x/")
    endpoint(limit("all", CallLimit(3, 60)), "/*", counted_by="everyone")
    for _ in range(2):
        assert [ask("/x/").status_code for _ in range(3)] in ([200, 200, 200], [429, 429, 429])
    assert left("each") == {"call_count": 7, "connections": 5}
    assert left("all", None) == {"call_count": 0}


@pytest.mark.parametrize(
    ("one", "other", "after"),
    [
        pytest.param({}, {}, {"call_count": 9, "tpm": 99}, id="both_default"),
        pytest.param({"tpm": 5}, {}, {"call_count": 9, "tpm": 95}, id="one_names_an_amount"),
        pytest.param({"tpm": 5}, {"tpm": 7, "call_count": 2}, {"call_count": 8, "tpm": 93}, id="the_larger_one"),
        pytest.param({"tpm": 0}, {}, {"call_count": 9, "tpm": 99}, id="zero_is_smaller_than_the_default"),
        pytest.param({"tpm": 0.5}, {"call_count": 0.5}, {"call_count": 9, "tpm": 99}, id="fractions_are_smaller"),
    ],
)
def test_two_rules_charge_once(ask: Ask, serve: Any, one: Any, other: Any, after: dict[str, object]) -> None:
    serve({"x/": fine})
    api = limit("api", CallLimit(10, 60), RateLimit("tpm", 100, 60))
    endpoint(api, "/x/", amounts=one)
    endpoint(api, "/*", amounts=other)
    assert ask("/x/").status_code == 200
    assert left("api") == after


@pytest.mark.parametrize(("one", "after"), [({}, 5), ({"usd": 0.000125}, 4.999875)], ids=["no_money", "an_amount"])
def test_two_rules_charge_only_the_money_that_one_names(
    ask: Ask, serve: Any, one: dict[str, float], after: float
) -> None:
    serve({"x/": fine})
    chat = limit("chat", QuotaLimit.per_month("usd", 5))
    endpoint(chat, "/x/", amounts=one)
    endpoint(chat, "/*")
    assert ask("/x/").status_code == 200
    assert left("chat") == {"usd": after}


@pytest.mark.parametrize("amounts", [{}, {"call_count": 2}, {"call_count": 0.5}], ids=str)
def test_rules_and_views_charge_once(ask: Ask, serve: Any, amounts: Any, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[set[str]] = []

    def view(request: Any) -> HttpResponse:
        seen.append({*request.limits.acquisitions})
        request.limits.charge("first", request.limits.entity)
        return HttpResponse("fine")

    serve({"x/": view})
    endpoint(limit("first", CallLimit(10, 60, SLIDING)), "/x/", amounts=amounts)
    endpoint(limit("second", CallLimit(10, 60)), "/*")
    assert ask("/x/").status_code == 200
    taken = amounts.get("call_count", 1)
    assert left("first") == {"call_count": 10 - (max(taken, 1))}
    assert left("second") == {"call_count": 9}
    assert seen == [{"first", "second"}]
    assert ("until its amounts are corrected" in caplog.text) == (taken < 1)


def test_rules_in_several_stores(ask: Ask, serve: Any, settings: Settings, clock: FakeClock) -> None:
    settings.LIMITS = settings.LIMITS | {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    serve({"x/": fine})
    limit("there", CallLimit(2, 60))
    Resource.objects.filter(name="there").update(store="other")
    endpoint(limit("here", CallLimit(10, 60)), "/x/", order=1)
    endpoint(Resource.objects.get(name="there"), "/x/", order=2)
    assert [ask("/x/").status_code for _ in range(4)] == [200, 200, 429, 429]
    assert left("here") == {"call_count": 8}


@pytest.mark.parametrize("counted_by", ["entity", "everyone"])
def test_limits_of_a_rule_count_on_the_next_request(ask: Ask, serve: Any, counted_by: str) -> None:
    serve({"x/": fine})
    row = endpoint(None, "/x/", limits="2/h tpm=100/min", counted_by=counted_by)
    assert [ask("/x/").status_code for _ in range(3)] == [200, 200, 429]
    assert ask("/x/", who="bob").status_code == (200 if counted_by == "entity" else 429)
    Endpoint.objects.update(limits="9/h:sliding_window")
    assert ask("/x/", who="eve").status_code == 200
    row.delete()
    assert ask("/x/").status_code == 200


def test_two_rules_compare_amounts_in_text_as_numbers(ask: Ask, serve: Any) -> None:
    serve({"x/": fine})
    chat = limit("chat", QuotaLimit.per_month("usd", 60))
    for pattern, amount in (("/x/", "9.5"), ("/*", 10)):
        rule = endpoint(chat, pattern)
        Endpoint.objects.filter(pk=rule.pk).update(amounts={"usd": amount})  # past the validation of the model
    assert ask("/x/").status_code == 200
    assert left("chat") == {"usd": 50}
