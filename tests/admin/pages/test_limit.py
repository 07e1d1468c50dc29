"""The page “Limit something”: what it makes, what it reads back, and what it says about mistakes."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from limits_app import limits
from limits_app.models import AuditEvent, Endpoint, Plan, Policy, Resource

pytestmark = pytest.mark.django_db(transaction=True)

URL = "/admin/limits_app/limitsentry/limit/"


@pytest.fixture
def admin() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    return client


def post(client: Client, address: str = URL, **fields: Any) -> Any:
    """Send the form as a browser does, with the first row set to 100 requests per minute."""
    row = {"number_1": "100", "unit_1": "requests", "periods_1": "1", "period_1": "min"}
    return client.post(address, {"what": "url", "who": "user", "shadow": "", **row, **fields})


API = {"what": "resource", "resource": "api"}
DB = {"what": "resource", "resource": "db", "period_1": ""}
EVERYTHING = {"what": "everything"}
ACME = API | {"who": "entity", "entity": "tenant:acme"}
TOKENS = {"number_2": "1M", "unit_2": "tokens", "period_2": "d"}
TOGETHER = DB | {"who": "together", "unit_1": "connections"}


@pytest.mark.parametrize(
    ("fields", "policy", "sentence"),
    [
        (API | {"who": "client"}, "resource api", "Each client may make 100 requests per minute on api."),
        (API | {"who": "user"}, "pattern user:* on api", "Each user may make 100 requests per minute on api."),
        (ACME, "entity tenant:acme on api", "tenant:acme may make 100 requests per minute on api."),
        (ACME | {"number_1": "1"}, "entity tenant:acme on api", "tenant:acme may make 1 request per minute on api."),
        (
            EVERYTHING | {"who": "plan", "plan": "pro"},
            "plan pro in total",
            "Each member of the plan pro may make 100 requests per minute over all resources together.",
        ),
        (
            EVERYTHING | {"who": "client"},
            "system in total",
            "Each client may make 100 requests per minute over all resources together.",
        ),
        (
            EVERYTHING | {"who": "address"} | TOKENS,
            "pattern ip:* in total",
            "Each IP address may make 100 requests per minute and use 1,000,000 tokens per day "
            "over all resources together.",
        ),
        (TOGETHER, "resource db", "Everyone together may hold 100 connections at the same time on db."),
        (
            DB | {"who": "client", "number_1": "5"},
            "resource db",
            "Each client may hold 5 requests at the same time on db.",
        ),
    ],
)
def test_a_sentence_is_a_policy_and_is_read_back(admin: Client, fields: Any, policy: str, sentence: str) -> None:
    Plan.objects.create(name="pro")
    response = post(admin, **fields)
    assert response.status_code == 302, response.context["form"].errors
    made = Policy.objects.get()
    assert str(made) == policy
    assert sentence.casefold() in admin.get("/admin/").content.decode().casefold()
    page = admin.get(f"{URL}?policy={made.pk}")
    assert post(admin, f"{URL}?policy={made.pk}", **page.context["form"].initial | {"number_1": ""}).status_code == 302
    assert Policy.objects.get().pk == made.pk


def test_a_url_is_limited_by_a_rule_with_its_limits(admin: Client) -> None:
    assert post(admin, path="/api/*", shadow="1", reason="too much traffic").status_code == 302
    rule = Endpoint.objects.get()
    assert (rule.path, rule.counted_by, rule.limits) == ("/api/*", "user", "calls=100/min:sliding_window")
    assert Policy.objects.get().enforcement == "shadow"
    assert AuditEvent.objects.filter(object_type="endpoint", reason="too much traffic", actor="root").exists()
    assert post(admin, f"{URL}?rule={rule.pk}", path="/api/*", who="address", number_1="5").status_code == 302
    rule.refresh_from_db()
    assert (rule.counted_by, rule.limits) == ("ip", "calls=5/min:sliding_window")
    assert Policy.objects.get().enforcement == "enforce"


def test_what_it_made_may_become_something_else(admin: Client) -> None:
    post(admin, path="/api/*")
    rule = Endpoint.objects.get()
    assert post(admin, f"{URL}?rule={rule.pk}", what="resource", resource="api", who="client").status_code == 302
    assert not Endpoint.objects.exists()
    assert str(Policy.objects.get()) == "resource api"


@pytest.mark.parametrize(
    ("fields", "field", "error"),
    [
        ({}, "path", "This field is required."),
        ({"what": "resource"}, "resource", "This field is required."),
        ({"what": "everything", "who": "entity"}, "entity", "This field is required."),
        ({"path": "/a/", "who": "plan", "plan": "pro"}, "who", "choose the resource of the URL"),
        ({"path": "/a/", "number_1": ""}, "number_1", "Enter how much, such as 100."),
        ({"path": "/a/", "number_1": "lots"}, "number_1", "lots"),
        ({"path": "/a/", "text": "100/fortnight"}, "text", "fortnight"),
        ({"what": "resource", "resource": "api", "text": "100/min:shared"}, "text", "choose “everyone together”"),
        ({"path": "no route<"}, "path", "unmatched"),
        ({"what": "resource", "resource": "no name"}, "resource", "letter"),
    ],
)
def test_a_mistake_is_named_at_its_field_and_nothing_is_made(
    admin: Client, fields: Any, field: str, error: str
) -> None:
    Plan.objects.create(name="pro")
    response = post(admin, **fields)
    assert response.status_code == 200
    assert error in str(response.context["form"].errors.get(field))
    assert [model.objects.count() for model in (Policy, Endpoint, Resource)] == [0, 0, 0]


def test_limits_that_exist_are_not_replaced(admin: Client) -> None:
    limits.set_resource_limits("api", ["calls=5/min"])
    response = post(admin, what="resource", resource="api", who="client")
    page = response.content.decode()
    assert "Edit them instead." in page
    assert f'<a href="/admin/limits_app/policy/{Policy.objects.get().pk}/change/">resource api</a>' in page
    assert limits.list_resources()["api"][0].capacity == 5


@pytest.mark.parametrize(("entity", "is_warned"), [("ann", True), ("user:7", False), ("key:*", False)])
def test_an_entity_without_usage_may_be_misspelled(admin: Client, entity: str, is_warned: bool) -> None:
    limits.set_resource_limits("api", ["calls=5/min"])
    limits.acquire("api", entity="user:7").release()
    limits.roll_up()
    post(admin, what="resource", resource="api", who="entity", entity=entity)
    page = admin.get("/admin/limits_app/").content.decode()
    assert ("No request has used the identifier" in page) == is_warned


@pytest.mark.parametrize(("path", "warned"), [("/admin/*", False), ("admin/", True)])
def test_a_path_without_a_view_is_pointed_out(admin: Client, path: str, warned: bool) -> None:
    post(admin, path=path)
    page = admin.get("/admin/limits_app/").content.decode()
    assert "Saved: " in page
    assert (f"No URL pattern matches “{path}”." in page) is warned


def test_the_preview_saves_nothing(admin: Client) -> None:
    response = post(admin, what="resource", resource="api", who="client", _preview="Preview")
    page = response.content.decode()
    assert "Each client may make 100 requests per minute on api." in page
    assert "Nothing has been saved." in page
    assert not Policy.objects.exists()


def test_templates_and_links_fill_the_form_in(admin: Client) -> None:
    assert admin.get(f"{URL}?template=llm").context["form"].initial["resource"] == "llm"
    advice = "use LoginLimitBackend: see “Log-in throttling” in the documentation (docs/howto/logging-in.md)"
    assert advice in admin.get(f"{URL}?template=login").content.decode()
    assert advice not in admin.get(f"{URL}?template=llm").content.decode()
    assert admin.get(f"{URL}?entity=user:7").context["form"].initial["what"] == "everything"
    page = admin.get(URL).content.decode()
    assert '<option value="/api/ping/">' in page
    assert URL in admin.get("/admin/limits_app/").content.decode()


def test_who_may_not_add_limits_may_not_see_the_form(client: Client) -> None:
    user = User.objects.create_user("staff", is_staff=True)
    client.force_login(user)
    assert client.get(URL).status_code == 403
    names = ["add_policy", "add_resource", "add_endpoint"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    assert client.get(URL).status_code == 200
    policy = limits.set_resource_limits("api", ["calls=5/min"])
    assert post(client, f"{URL}?policy={policy.pk}", what="resource", resource="api", who="client").status_code == 403
    user.user_permissions.add(*Permission.objects.filter(codename__in=["change_policy", "delete_policy"]))
    assert post(client, f"{URL}?policy={policy.pk}", what="resource", resource="api", who="client").status_code == 302


def test_what_no_sentence_can_express_is_not_opened(admin: Client) -> None:
    for policy in (
        limits.set_resource_limits("api", ["calls=5/min"], extends=True),
        limits.set_resource_limits("b", ["calls=5/min", "tokens=9/min"], shared=["tokens"]),
        limits.set_resource_limits("c", ["calls=5/min"], enforcement="off"),
        limits.set_resource_limits("d", ["calls=5/min"], rollout_percent=50),
        limits.set_system_limits(["calls=5/min"]),
    ):
        assert admin.get(f"{URL}?policy={policy.pk}").status_code == 404
    rule = Endpoint.objects.create(name="x", path="/x/", limits="5/min:shared")
    assert admin.get(f"{URL}?rule={rule.pk}").status_code == 404
    assert admin.get(f"{URL}?rule=999").status_code == 404
