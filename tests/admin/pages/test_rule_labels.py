"""Resources that were made for URL rules are named by their URLs on all pages."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any, Final

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.models import AuditEvent, Candidate, Denial, Endpoint, Entity, Policy, Resource
from limits_app.services import boost_each
from limits_app.services.rule_labels import resource_of
from tests.admin.browsing import act, address, said
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import words

pytestmark = pytest.mark.django_db


_SUBJECT: Final = "user:8 on /api/reports/<id>/"
LISTS = ["overview_changelist", "usagesnapshot_changelist", "denial_changelist", "resource_changelist", "explain"]


@pytest.mark.parametrize("page", LISTS)
def test_a_page_names_the_url_and_not_the_generated_resource(admin_client: Client, page: str) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/", limits="2/min")
    rule.refresh_from_db()
    name = rule.limits_resource
    assert name.startswith("rule-")
    for _ in range(3):
        limits.try_acquire(name, entity="user:7")
    used(name, "user:7", "call_count", 2, refused=1)
    now = timezone.now()
    row = {"resource": name, "key": "call_count", "entity": "user:7", "bucket": "entity", "count": 1}
    Denial.objects.create(**row, minute=now.replace(second=0, microsecond=0), first=now, last=now)
    text = words(admin_client.get(address(page)))
    assert "/api/reports/" in text
    assert name not in text


def test_the_effective_limits_of_a_url_are_asked_for_by_its_path(admin_client: Client) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/*", limits="2/min")
    rule.refresh_from_db()
    for resource in ("/api/reports/*", rule.limits_resource):
        text = words(admin_client.get(address("explain"), {"resource": resource, "entity": "user:7"}))
        assert "user:7 on /api/reports/*" in text
        assert "2 requests per minute" in text
        assert rule.limits_resource not in text


def test_paths_that_two_rules_limit_differently_name_no_resource() -> None:
    for method in ("GET", "POST"):
        Endpoint.objects.create(name=method, path="/api/reports/", methods=method, limits="2/min")
    names = set(Endpoint.objects.values_list("limits_resource", flat=True))
    assert resource_of("/api/reports/") == "/api/reports/" or len(names) == 1
    assert {resource_of(name) for name in names} == names


@pytest.mark.parametrize("page", ["client", "overview_changelist", "auditevent_changelist"])
def test_a_boost_names_the_url_and_not_the_generated_resource(admin_client: Client, page: str) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/", limits="2/min")
    rule.refresh_from_db()
    used(rule.limits_resource, "user:7", "call_count", 1)
    boost_each("user:7", 2, timezone.now() + timedelta(hours=1), "a sale", plan="")
    policy = Policy.objects.get(resource__name=rule.limits_resource, entity=None)
    limits.set_candidate(policy, "calls=1/min")
    limits.set_entity_limits("user:8", [], resource=rule.limits_resource, effect="blocked")
    text = words(admin_client.get(address(page), {"entity": "user:7"} if page == "client" else None))
    assert "/api/reports/" in text
    assert rule.limits_resource not in text


@pytest.mark.parametrize("term", ["/api/rep", "rule-", ""])
@pytest.mark.parametrize(("model", "field"), [("policy", "resource"), ("candidate", "policy")])
def test_a_picker_offers_the_url_and_not_the_generated_resource(
    admin_client: Client, model: str, field: str, term: str
) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/", limits="2/min")
    rule.refresh_from_db()
    query = {"app_label": "limits_app", "model_name": model, "field_name": field}
    target = {"resource": "resource", "policy": "policy"}[field]
    term = "" if field == "policy" else term
    rows = admin_client.get(address(f"{target}_autocomplete"), {**query, "term": term}).json()["results"]
    assert [row["text"] for row in rows if "/api/reports/" in row["text"]]
    assert not [row["text"] for row in rows if rule.limits_resource in row["text"]]


@pytest.mark.parametrize("kind", ["policy", "resource", "candidate", "event", "undo", "rule_event"])
def test_the_page_of_a_row_names_the_url_and_not_the_generated_resource(admin_client: Client, kind: str) -> None:
    rule = Endpoint.objects.create(name="reports", path="/api/reports/", limits="2/min")
    rule.refresh_from_db()
    client = limits.set_entity_limits("user:8", "9/min", resource=rule.limits_resource)
    events = AuditEvent.objects.filter(object_type="policy", object_label=str(client))
    limits.set_candidate(Policy.objects.get(resource__name=rule.limits_resource, entity=None), "calls=1/min")
    pages = {
        "policy": ("policy_change", client.pk),
        "candidate": ("candidate_change", Candidate.objects.get().pk),
        "event": ("auditevent_change", events.latest("number").pk),
        "undo": ("auditevent_revert", events.latest("number").pk),
        "rule_event": ("auditevent_change", AuditEvent.objects.filter(object_type="resource").latest("number").pk),
        "resource": ("resource_change", Resource.objects.get(name=rule.limits_resource).pk),
    }
    text = words(admin_client.get(address(*pages[kind])))
    assert "/api/reports/" in text
    assert rule.limits_resource not in text


@pytest.fixture
def generated() -> str:
    """The name of the resource that was made for a URL rule, which a policy of a client and a trial refer to."""
    rule = Endpoint.objects.create(name="reports", path="/api/reports/<id>/", limits="2/min")
    rule.refresh_from_db()
    policy = limits.set_entity_limits("user:8", "9/min", resource=rule.limits_resource)
    limits.set_candidate(policy, "calls=1/min")
    return rule.limits_resource


def rows_about(resource: str) -> dict[str, Any]:
    """The rows that a URL rule has on the pages of the admin, by their kind."""
    policies = Policy.objects.filter(resource__name=resource)
    return {
        "resource": Resource.objects.get(name=resource),
        "policy": policies.get(entity__identifier="user:8"),
        "candidate": Candidate.objects.get(),
    }


def printed(response: Any) -> str:
    """What a page shows, and what it tells screen readers."""
    page = response.content.decode()
    return unescape(" ".join([words(response), *re.findall(r'aria-label="([^"]*)"', page)]))


@pytest.mark.parametrize("kind", ["resource", "policy", "candidate"])
@pytest.mark.parametrize("page", ["changelist", "change", "delete", "history"])
def test_no_page_of_a_row_prints_the_generated_resource(
    admin_client: Client, generated: str, kind: str, page: str
) -> None:
    row = rows_about(generated)[kind]
    response = admin_client.get(address(f"{kind}_{page}", *[row.pk] * (page != "changelist")), follow=True)
    assert "/api/reports/<id>/" in printed(response)
    assert generated not in printed(response)
    if page in {"change", "delete"}:  # what other admins print above their pages
        assert "/api/reports/<id>/" in str(response.context["original" if page == "change" else "object"])


@pytest.mark.parametrize("kind", ["policy", "candidate", "resource"])
def test_users_who_may_only_view_read_the_url(client: Client, generated: str, kind: str) -> None:
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.set(Permission.objects.filter(codename=f"view_{kind}"))
    client.force_login(reader)
    row = rows_about(generated)[kind]
    for page in ("change", "history"):
        text = printed(client.get(address(f"{kind}_{page}", row.pk)))
        assert "/api/reports/<id>/" in text
        assert text.count(generated) == (kind == "resource" and page == "change")  # its name in code


@pytest.mark.parametrize("kind", ["policy", "candidate"])
def test_a_deleted_row_is_named_by_its_url(admin_client: Client, generated: str, kind: str) -> None:
    response = admin_client.post(address(f"{kind}_delete", rows_about(generated)[kind].pk), {"post": "yes"})
    name = {"policy": "policy", "candidate": "trial"}[kind]
    assert said(response) == [f"The {name} “{_SUBJECT}” was deleted successfully."]
    assert LogEntry.objects.get().object_repr == _SUBJECT


@pytest.mark.parametrize("sent", [{}, {"_continue": "1"}, {"_popup": "1"}])
def test_a_saved_resource_is_named_by_its_url(admin_client: Client, generated: str, sent: dict[str, str]) -> None:
    resource = rows_about(generated)["resource"]
    form = {"name": generated, "description": "for reports", **sent}
    response = admin_client.post(address("resource_change", resource.pk), form)
    texts = [unescape(text) for text in said(response)] or [unescape(unescape(response.content.decode()))]
    assert "/api/reports/<id>/" in texts[0]
    assert generated not in texts[0]
    assert LogEntry.objects.get().object_repr == "/api/reports/<id>/"


@pytest.mark.parametrize("kind", ["policy", "resource"])
def test_rows_that_are_to_be_deleted_are_named_by_their_urls(admin_client: Client, generated: str, kind: str) -> None:
    page = act(admin_client, "delete_selected", rows_about(generated)[kind])
    assert "on /api/reports/<id>/" in printed(page)
    assert "<id>" not in page.content.decode()
    assert generated not in printed(page)


def test_the_form_for_limits_suggests_the_url(admin_client: Client, generated: str) -> None:
    page = admin_client.get(address("limit")).content.decode()
    assert '<option value="/api/reports/&lt;id&gt;/">' in page
    assert generated not in page


def test_a_resource_of_a_rule_is_found_by_its_url(admin_client: Client) -> None:
    Endpoint.objects.create(name="reports", path="/api/reports/", limits="2/min")
    Endpoint.objects.create(name="search", path="/api/search/", limits="2/min")
    text = words(admin_client.get(address("resource_changelist"), {"q": "/api/rep"}))
    assert "/api/reports/" in text
    assert "/api/search/" not in text


@pytest.mark.parametrize(("model", "name"), [("entity", "client"), ("candidate", "trial")])
def test_lists_and_forms_have_the_names_of_the_menu(admin_client: Client, model: str, name: str) -> None:
    assert Entity._meta.verbose_name == "client"
    texts = [words(admin_client.get(address(f"{model}_{page}"))) for page in ("changelist", "add")]
    assert f"0 {name}s" in texts[0]
    for text in texts:
        assert f"dd {name}" in text
        assert "ntities" not in text
        assert "andidate" not in text
