"""Resources that were made for URL rules are named by their URLs on all pages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.models import AuditEvent, Candidate, Denial, Endpoint, Entity, Policy, Resource
from limits_app.services import boost_each
from limits_app.services.rule_labels import resource_of
from tests.admin.browsing import address
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import words

pytestmark = pytest.mark.django_db


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
