"""The page “Exemptions”: who is charged nothing and why, in one place, and adding an exemption."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path, reverse
from django.views import View
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import exempt, limits
from limits_app.checks import check_settings
from limits_app.integrations.identity import client_at
from limits_app.models import AuditEvent, Endpoint, Entity, Plan, Policy, Resource
from limits_app.policies import Access, verdict_on
from tests.admin.browsing import said
from tests.admin.conftest import Visitor
from tests.admin.pages.test_pages import get, words

PAGE = "limits_app_exemptions"
CLIENTS, FLAGS, RULES, VIEWS = (
    "Clients, patterns, networks and plans",
    "Unlimited entities",
    "Exemptions of URL rules",
    "Views with @exempt",
)


def tables(response: Any) -> dict[str, dict[str, tuple[str, bool, str]]]:
    """The rows of each table by their names: the chip, whether it is on, and the details."""
    return {
        str(one["table"].title): {row.name: (row.chip, row.is_on, " · ".join(row.details)) for row in one["rows"]}
        for one in response.context["sections"]
    }


def add(client: Client, **fields: Any) -> Any:
    return client.post(reverse(f"admin:{PAGE}"), fields)


def test_what_the_settings_exempt(admin_client: Client, settings: Settings) -> None:
    page = words(get(admin_client, PAGE))
    assert "The settings exempt no client." in page
    assert "No policy, client, URL rule or view has an exemption." in page
    exempted = {
        "STAFF": True, "SUPERUSERS": True, "GROUPS": ["Support"], "NETWORKS": ["10.0.0.0/8"],
        "ENTITIES": ["user:7", "key:partner-*"],
    }  # fmt: skip
    settings.LIMITS = settings.LIMITS | {"EXEMPT": exempted}
    response = get(admin_client, PAGE)
    assert {row.name: row.details for row in response.context["settings"]} == {
        "Staff": ["users with the staff status"],
        "Superusers": ["users with the superuser status"],
        "Groups": ["Support"],
        "Networks": ["10.0.0.0/8"],
        "Entities": ["user:7", "key:partner-*"],
    }
    assert 'To change them, edit LIMITS["EXEMPT"] in the settings file' in words(response).replace("&quot;", '"')


def test_policies_and_entities_and_whether_they_exempt_now(admin_client: Client) -> None:
    soon = datetime.now(UTC) + timedelta(days=1)
    limits.set_entity_limits("user:1", [], effect="unlimited", reason="our own")
    limits.set_entity_limits("key:*", [], effect="unlimited", rollout_percent=50)
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="unlimited", valid_from=soon)
    limits.set_entity_limits("user:2", [], effect="unlimited", enforcement="shadow")
    limits.set_entity_limits("user:3", [], effect="unlimited")
    limits.set_entity("user:3", blocked=True)
    limits.set_entity_limits("user:4", [], effect="unlimited")
    limits.set_entity("user:4", parent="tenant:a", cascade=True)
    limits.set_entity("user:5", unlimited=True, name="Eva", parent="tenant:b", cascade=True)
    limits.set_entity("tenant:b", unlimited=True)
    Plan.objects.create(name="partners")
    limits.set_plan_limits("partners", [], effect="unlimited", enforcement="off")
    # These exempt nobody from all limits.
    limits.set_entity_limits("user:6", [], effect="unlimited", resource="api")
    limits.set_resource_limits("api", [], effect="unlimited")
    limits.set_system_limits([], effect="unlimited")
    limits.set_entity_limits("user:7", [], effect="blocked")
    response = get(admin_client, PAGE)
    found = tables(response)
    assert found[FLAGS] == {
        "tenant:b": ("active", True, ""),
        "user:5": ("active", True, "Eva · only while tenant:b is exempt too"),
    }
    when = found[CLIENTS].pop("ip:10.0.0.0/8")
    assert (when[:2], when[2].startswith("from ")) == (("not in force now", False), True)
    assert found[CLIENTS] == {
        "key:*": ("active", True, "50 % of them"),
        "user:1": ("active", True, "our own"),
        "user:2": ("shadow mode", False, ""),
        "user:3": ("overridden", False, ""),
        "user:4": ("not exempt now", False, "only while tenant:a is exempt too"),
        "plan partners": ("off", False, ""),
    }
    for number in (1, 3, 4, 5):
        is_on = any(found[title].get(f"user:{number}", ("", False))[1] for title in (CLIENTS, FLAGS))
        assert is_on is (verdict_on(f"user:{number}").access is Access.EXEMPT)
    link = reverse(
        "admin:limits_app_policy_change", args=[Policy.objects.get(entity__identifier="user:1", resource=None).pk]
    )
    assert f'<a href="{link}">user:1</a>' in response.content.decode()


@exempt
def health(_request: HttpRequest) -> HttpResponse:
    return HttpResponse()


class Exempted(View):
    dispatch = exempt(View.dispatch)


def test_rules_and_views(admin_client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    Endpoint.objects.create(
        name="search", path="/s/", limits="calls=1/min", exempt_staff=True, exempt_networks="10.0.0.0/8"
    )
    lines = "\n".join(f"user:{n}" for n in range(12))
    Endpoint.objects.create(name="off", path="/o/", limits="calls=1/min", exempt_entities=lines, enabled=False)
    Endpoint.objects.create(name="none", path="/n/", limits="calls=1/min")
    urls: Any = ModuleType("exempt_urls")
    inner = [path("status/", Exempted.as_view(), name="status"), path("x/", lambda _request: HttpResponse(), name="x")]
    urls.urlpatterns = [
        path("admin/", admin.site.urls),
        path("health/", health, name="health"),
        path("api/", include((inner, "api"))),
    ]
    monkeypatch.setitem(sys.modules, "exempt_urls", urls)
    settings.ROOT_URLCONF = "exempt_urls"
    found = tables(get(admin_client, PAGE))
    shown = ", ".join(f"user:{n}" for n in range(10))
    assert found[RULES] == {"search": ("active", True, "staff · 10.0.0.0/8"), "off": ("off", False, f"{shown}, …")}
    assert found[VIEWS] == {"/health/": ("", False, "health"), "/api/status/": ("", False, "api:status")}


def test_many_are_on_pages_with_as_many_queries(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    rows = [Entity(identifier=f"user:{n:03}", unlimited=n % 2 == 0) for n in range(240)]
    Entity.objects.bulk_create(rows)
    entities = Entity.objects.filter(unlimited=False)
    Policy.objects.bulk_create([Policy(entity=one, effect="unlimited") for one in entities])
    for n in range(60):
        Endpoint.objects.create(name=f"r{n}", path=f"/{n}/", limits="calls=1/min", exempt_staff=True, order=n)
    get(admin_client, PAGE)
    with django_assert_max_num_queries(20):  # of which seven are of the middleware and the log-in
        first = get(admin_client, PAGE, entities=3)
    sizes = [
        (len(one["rows"]), one["page"].number, one["page"].paginator.num_pages) for one in first.context["sections"]
    ]
    assert sizes == [(50, 1, 3), (20, 3, 3), (50, 1, 2)]
    page = first.content.decode()
    assert 'href="?entities=3&amp;policies=2" rel="next"' in page
    assert 'href="?entities=2" rel="prev"' in page
    assert 'href="?entities=3&amp;rules=2" rel="next"' in page
    assert [one["page"].number for one in get(admin_client, PAGE, policies="x", rules=99).context["sections"]] == [
        1,
        1,
        2,
    ]


@pytest.mark.parametrize(
    ("written", "identifier", "client"),
    [
        ("user:7", "user:7", "user:7"), ("key:partner-*", "key:partner-*", "key:partner-1"),
        ("10.0.0.0/8", "ip:10.0.0.0/8", "ip:10.9.9.9"), ("10.1.2.3/8", "ip:10.0.0.0/8", "ip:10.9.9.9"),
        ("203.0.113.7", "ip:203.0.113.7", "ip:203.0.113.7"), (" 203.0.113.7 ", "ip:203.0.113.7", "ip:203.0.113.7"),
        ("2001:db8::1", "ip:2001:db8::/64", "ip:2001:db8::/64"), ("ip:10.0.0.0/8", "ip:10.0.0.0/8", "ip:10.9.9.9"),
        ("2001:db8::/32", "ip:2001:db8::/32", "ip:2001:db8:1::/64"),
    ],
)  # fmt: skip
def test_adding_an_exemption_of_a_client(written: str, identifier: str, client: str, admin_client: Client) -> None:
    assert verdict_on(client).access is Access.LIMITED
    done = add(admin_client, entity=written, plan="", reason="a partner")
    from_there = "requests from there are charged nothing, also those of logged-in users."
    charged = from_there if identifier.startswith("ip:") else "requests are charged nothing."
    assert said(done) == [f"“{identifier}” is exempt: {charged}"]
    assert verdict_on(client).access is Access.EXEMPT
    event = AuditEvent.objects.order_by("number").last()
    assert event is not None
    assert (event.actor, event.source, event.reason, event.object_type) == ("admin", "admin", "a partner", "policy")
    assert tables(get(admin_client, PAGE))[CLIENTS] == {identifier: ("active", True, "a partner")}


def test_an_exempt_network_exempts_users_who_are_logged_in(admin_client: Client, client: Client) -> None:
    limits.set_resource_limits("pages", "1/min")
    Endpoint.objects.create(name="pages", path="/limits/*", resource=Resource.objects.get(name="pages"))
    client.force_login(User.objects.create_user("ada"))
    statuses = [client.get("/limits/", REMOTE_ADDR="203.0.113.7").status_code for _ in range(3)]
    assert statuses[-1] == 429
    add(admin_client, entity="203.0.113.0/24", plan="", reason="the office")
    assert client.get("/limits/", REMOTE_ADDR="203.0.113.7").status_code == statuses[0]
    assert client.get("/limits/", REMOTE_ADDR="198.51.100.7").status_code == 429


@pytest.mark.parametrize("written", ["2001:db8::5/128", "ip:2001:db8::5/128", "2001:db8::/65", "ip:2001:db8::5"])
def test_network_that_matches_no_request_is_rejected(written: str, admin_client: Client, settings: Settings) -> None:
    message = "matches no request, since clients are identified by 64 bits of their IPv6 address"
    page = words(add(admin_client, entity=written, plan="", reason=""))
    assert message in page
    assert "write “ip:2001:db8::/64”, or a larger network" in page
    assert not Policy.objects.exists()
    identifier = written if written.startswith("ip:") else f"ip:{written}"
    with pytest.raises(ValidationError, match=message):
        Endpoint(name="All", path="/", resource=Resource(name="api"), exempt_entities=identifier).clean_fields()
    settings.LIMITS = settings.LIMITS | {"EXEMPT": {"ENTITIES": [identifier]}}
    assert any(message in error.msg for error in check_settings())


def test_single_address_is_exempt_where_clients_are_addresses(admin_client: Client, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"IPV6_PREFIX": 128}
    add(admin_client, entity="2001:db8::5/128", plan="", reason="")
    assert verdict_on(client_at("2001:db8::5")).access is Access.EXEMPT
    assert verdict_on(client_at("2001:db8::6")).access is Access.LIMITED


def test_adding_an_exemption_of_a_plan(admin_client: Client) -> None:
    plan = Plan.objects.create(name="partners")
    limits.set_entity("user:1", plan="partners")
    assert add(admin_client, entity="", plan=plan.pk, reason="").status_code == 302
    assert verdict_on("user:1").access is Access.EXEMPT


def test_an_invalid_exemption_is_rejected_and_changes_nothing(admin_client: Client) -> None:
    plan = Plan.objects.create(name="pro")
    limits.set_entity_limits("user:1", "calls=5/min")
    before = Policy.objects.get()
    for fields, error in (
        ({"entity": "", "plan": ""}, "Enter a client, a pattern or a network, or choose a plan; not both."),
        ({"entity": "user:2", "plan": plan.pk}, "Enter a client, a pattern or a network, or choose a plan; not both."),
        ({"entity": "user*", "plan": ""}, "A pattern needs one of"),
        ({"entity": "ip:10.1.2.3/8", "plan": ""}, "Write the network as “ip:10.0.0.0/8”"),
        (
            {"entity": "user:1", "plan": ""},
            "There is a policy already: change its effect to “unlimited”, or delete it.",
        ),
        ({"entity": "", "plan": "99"}, "Select a valid choice."),
    ):
        response = add(admin_client, **fields)
        assert error in words(response)
    assert [one.notation() for one in Policy.objects.get().limits.all()] == ["calls=5/min"]
    link = reverse("admin:limits_app_policy_change", args=[before.pk])
    assert f'<a href="{link}">entity user:1</a>' in add(admin_client, entity="user:1", plan="").content.decode()


def test_an_exemption_without_effect_shows_a_warning(admin_client: Client) -> None:
    limits.set_entity("user:1", blocked=True)
    limits.set_entity("user:2", parent="tenant:a", cascade=True)
    assert said(add(admin_client, entity="user:1"))[-1] == "It is still blocked by user:1: unblock that first."
    assert "It is not exempt yet" in said(add(admin_client, entity="user:2"))[-1]


def test_users_with_view_and_add_permission_may_open_the_page(visitor: Visitor, django_user_model: type[User]) -> None:
    limits.set_entity("user:1", unlimited=True)
    limits.set_entity_limits("key:*", [], effect="unlimited")
    Endpoint.objects.create(name="r", path="/", limits="calls=1/min", exempt_staff=True)
    viewer = visitor("view_policy")
    response = get(viewer, PAGE)
    assert {*tables(response)} == {CLIENTS}
    assert response.context["form"] is None
    assert {*tables(get(visitor("view_policy", "view_entity", "view_endpoint"), PAGE))} == {CLIENTS, FLAGS, RULES}
    for client, status, name in (
        (viewer, 200, "user:8"),
        (visitor("add_policy"), 403, "user:8"),
        (visitor("view_policy", "add_policy"), 403, "user:8"),  # which has no row
        (visitor("view_policy", "add_policy"), 302, "user:1"),
        (visitor("view_policy", "add_policy", "add_entity"), 302, "user:8"),
    ):
        assert add(client, entity=name).status_code == status
        assert Policy.objects.filter(entity__identifier=name).exists() is (status == 302)


def test_the_forms_explain_unlimited(admin_client: Client) -> None:
    shared = "limits that all clients share, totals and members of pools"
    pages = {"limits_app_policy_add": "limits that the client has on a resource", "limits_app_entity_add": "not for"}
    for name, own in pages.items():
        page = words(admin_client.get(reverse(f"admin:{name}")))
        assert shared in page
        assert own in page
    page = words(admin_client.get(reverse(f"admin:{PAGE}")))
    assert "exempt clients are neither counted nor rejected, unless the client or the resource is blocked" in page
    assert "To end the exemption" in page
