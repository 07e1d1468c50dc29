"""The names of clients stand beside their identifiers, and both find them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from limits_app import CallLimit, limits
from limits_app.models import AlertRule, Denial, Entity, Policy
from tests.admin.browsing import address, changelist, said
from tests.admin.pages.snapshots import used


@pytest.fixture
def ada() -> str:
    """A user without a row, who was rejected."""
    identifier = f"user:{User.objects.create_user('ada').pk}"
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    limits.acquire("api", entity=identifier).release()
    used("api", identifier, "call_count", 5, refused=2)
    return identifier


def text(response: Any) -> str:
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


@pytest.mark.parametrize("page", ["overview", "usagesnapshot"])
def test_a_page_shows_the_name_of_a_user_without_a_row(page: str, ada: str, admin_client: Client) -> None:
    assert f"{ada} (ada)" in text(changelist(admin_client, page))


@pytest.mark.parametrize("asked", ["ada", "ADA", "{identifier}"])
def test_rejections_and_usage_are_found_by_name_and_by_identifier(asked: str, ada: str, admin_client: Client) -> None:
    at = timezone.now().replace(second=0, microsecond=0)
    Denial.objects.create(minute=at, first=at, last=at, resource="api", key="call_count", entity=ada, count=3)
    query = {"entity": asked.format(identifier=ada)}
    rejections = admin_client.get(address("denial_changelist"), query)
    assert f"{ada} (ada) reached the limit" in text(rejections)
    assert admin_client.get(address("usagesnapshot_changelist"), query).context["name"] == f"{ada} (ada)"


def test_a_name_that_two_clients_have_is_taken_as_an_identifier(ada: str, admin_client: Client) -> None:
    for name in ("tenant:1", "tenant:2"):
        Entity.objects.create(identifier=name, name="Acme")
    page = admin_client.get(address("usagesnapshot_changelist"), {"entity": "Acme"})
    assert page.context["name"] == "Acme"


def test_an_identifier_is_never_taken_as_the_name_of_another(ada: str, admin_client: Client) -> None:
    Entity.objects.create(identifier="tenant:1", name=ada)
    page = admin_client.get(address("usagesnapshot_changelist"), {"entity": ada})
    assert page.context["entity"] == ada


def test_block_says_what_it_does_and_why_it_was_made(ada: str, admin_client: Client) -> None:
    block, page = f"{address('entity_block')}?entity={ada}", f"{address('client')}?entity={ada}"
    asked = text(admin_client.get(block))
    assert f"All requests of {ada} (ada) will be rejected until you unblock it." in asked
    admin_client.post(block, {"reason": "misuse of a key"})
    assert "<strong>Blocked</strong>: misuse of a key" in text(admin_client.get(page))
    assert said(admin_client.post(page, {"_unblock": "1"}, follow=True)) == [f"{ada} (ada) is not blocked any more."]
    assert "<strong>Blocked</strong>" not in text(admin_client.get(page))


@pytest.mark.parametrize("model", ["entity", "policy"])
@pytest.mark.parametrize("most", [10_000, 0])
def test_lists_find_users_by_name(
    model: str, most: int, ada: str, admin_client: Client, count_at_most: Callable[[int], None]
) -> None:
    limits.set_entity_limits(ada, "7/min")
    limits.set_entity_limits("user:none", "7/min")
    count_at_most(max(most, 1))
    [row] = changelist(admin_client, model, "?q=ada").context["cl"].result_list
    assert f">{ada} (ada)" in text(changelist(admin_client, model, "?q=ada"))
    assert ada in str(row)


def test_the_name_of_a_user_blocks_that_user(ada: str, admin_client: Client) -> None:
    response = admin_client.post(address("entity_block"), {"entity": "Ada", "reason": "an attack"}, follow=True)
    assert said(response) == [f"“{ada} (ada)” is blocked: all requests are rejected."]
    assert [*Entity.objects.filter(blocked=True).values_list("identifier", flat=True)] == [ada]


@pytest.mark.parametrize("text", ["key:ada", "ip:192.0.2.1"])
def test_an_identifier_is_blocked_whatever_users_are_called(text: str, ada: str, admin_client: Client) -> None:
    User.objects.create_user("key:ada")
    admin_client.post(address("entity_block"), {"entity": text, "reason": "an attack"})
    assert [*Entity.objects.filter(blocked=True).values_list("identifier", flat=True)] == [text]


def blocked() -> list[str]:
    return [*Entity.objects.filter(blocked=True).values_list("identifier", flat=True)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("adda", "No client has the identifier or the name “adda”. .* Did you mean: user:[0-9]+ [(]ada[)][?]"),
        ("zoe", "No client has the identifier or the name “zoe”. .* made no request so far.<"),
        ("acme", "Several clients have the name “acme”: enter the identifier of one, tenant:1 [(]Acme[)], tenant:2"),
        ("initech", "“initech” is the identifier of one client, and the name of tenant:3 [(]Initech[)]."),
    ],
)
def test_a_text_that_is_not_clear_blocks_no_client(text: str, problem: str, ada: str, admin_client: Client) -> None:
    for identifier, name in {"tenant:1": "Acme", "tenant:2": "Acme", "tenant:3": "Initech", "initech": ""}.items():
        Entity.objects.create(identifier=identifier, name=name)
    page = admin_client.post(address("entity_block"), {"entity": text, "reason": "an attack"})
    assert re.search(problem, page.content.decode())
    field = page.context["form"]["entity"]
    assert (field.value(), field.is_hidden, bool(field.errors)) == (text, False, True)
    assert blocked() == []
    admin_client.post(address("entity_block"), {"entity": text, "entity-sure": text, "reason": "an attack"})
    assert blocked() == ([] if text == "acme" else [text])


def test_the_problem_of_one_text_confirms_no_other(ada: str, admin_client: Client) -> None:
    admin_client.post(address("entity_block"), {"entity": "zoe", "entity-sure": "adda"})
    assert blocked() == []


@pytest.mark.parametrize("text", ["ada@example.org", "ADA"])
def test_the_e_mail_address_and_the_log_in_name_of_a_named_user_block_it(text: str, admin_client: Client) -> None:
    ada = f"user:{User.objects.create_user('ada', 'ada@example.org').pk}"
    User.objects.create_user("ada2", "ada@example.org.uk")
    Entity.objects.create(identifier=ada, name="Ada Lovelace")
    response = admin_client.post(address("entity_block"), {"entity": text}, follow=True)
    assert said(response) == [f"“{ada} (Ada Lovelace)” is blocked: all requests are rejected."]


def test_block_that_must_be_confirmed_keeps_its_client(ada: str, admin_client: Client, admin_user: User) -> None:
    me = f"user:{admin_user.pk}"
    assert admin_client.get(address("entity_block"), {"entity": me}).context["form"]["confirm_block"].is_hidden
    page = admin_client.post(address("entity_block"), {"entity": admin_user.username})
    assert page.context["form"].errors.keys() == {"confirm_block"}
    assert page.context["form"]["entity"].is_hidden
    assert not page.context["form"]["confirm_block"].is_hidden
    again = {field.html_name: field.value() or "" for field in page.context["form"]} | {"confirm_block": "on"}
    admin_client.post(address("entity_block"), again)
    assert blocked() == [me]


@pytest.mark.parametrize("text", ["192.0.2.7", "::ffff:192.0.2.7"])
def test_an_address_is_blocked_as_requests_have_it(text: str, admin_client: Client) -> None:
    admin_client.post(address("entity_block"), {"entity": text})
    assert blocked() == ["ip:192.0.2.7"]


@pytest.mark.parametrize("page", ["exemptions", "policy_boost", "alertrule_add"])
def test_other_forms_name_a_text_that_is_no_client_at_the_field(page: str, ada: str, admin_client: Client) -> None:
    fields = {"entity": "adda", "whom": "entity", "name": "near", "kind": "threshold", "percent": "80"}
    fields |= {
        "channel": "email",
        "target": "ops@example.org",
        "factor": "2",
        "until": "2100-01-01T00:00",
        "reason": "r",
    }
    response = admin_client.post(address(page), fields)
    assert "Did you mean: " + ada in text(response)
    assert not Entity.objects.exists()
    assert not AlertRule.objects.exists()


def test_an_exemption_is_for_the_client_with_the_name(ada: str, admin_client: Client) -> None:
    admin_client.post(address("exemptions"), {"entity": "ada"})
    assert Policy.objects.get(effect="unlimited").entity == Entity.objects.get(identifier=ada)


@pytest.mark.parametrize(
    "fields", [{"who": "entity", "entity": "acme"}, {"who": "team", "entity": "team:x", "members": "acme"}]
)
def test_a_name_of_several_clients_is_a_problem_of_the_limit_form(fields: dict[str, str], admin_client: Client) -> None:
    for identifier in ("tenant:1", "tenant:2"):
        Entity.objects.create(identifier=identifier, name="Acme")
    base = {"target": "api", "number_1": "5", "unit_1": "requests", "per_1": "min", "shadow": "", "_save": "1"}
    page = admin_client.post(address("limit"), base | fields)
    name = "members" if "members" in fields else "entity"
    assert page.context["form"].errors[name] == [
        "Several clients have the name “acme”: enter the identifier of one, tenant:1 (Acme), tenant:2 (Acme)."
    ]


def test_an_alert_rule_is_for_the_user_with_the_name(ada: str, admin_client: Client) -> None:
    fields = {"name": "near", "enabled": "on", "kind": "threshold", "percent": "80", "entity": "ada"}
    fields |= {"channel": "email", "target": "ops@example.org"}
    assert admin_client.post(address("alertrule_add"), fields).status_code == 302
    assert AlertRule.objects.get().entity == ada


def test_a_limit_and_the_members_of_a_team_are_found_by_name(ada: str, admin_client: Client) -> None:
    base = {"number_1": "5", "unit_1": "requests", "per_1": "min", "shadow": "", "counts_members": "on"}
    for fields in ({"who": "entity", "entity": "ada"}, {"who": "team", "entity": "team:x", "members": "ada"}):
        admin_client.post(address("limit"), {"target": "api", "_save": "1", **base, **fields})
    rows = Policy.objects.filter(entity__isnull=False)
    assert {*rows.values_list("entity__identifier", flat=True)} == {ada, "team:x"}
    assert Entity.objects.get(identifier=ada).parent == Entity.objects.get(identifier="team:x")
    assert not Entity.objects.filter(identifier="ada").exists()
