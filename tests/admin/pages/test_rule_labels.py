"""Resources that were made for URL rules are named by their URLs on all pages."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.models import Denial, Endpoint, Policy
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
