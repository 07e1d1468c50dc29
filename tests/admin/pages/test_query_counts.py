"""Pages take at most 15 queries, and as many for a few rows as for many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from limits_app import limits
from limits_app.models import Denial, Endpoint
from tests.admin.browsing import address
from tests.admin.pages.snapshots import used

pytestmark = pytest.mark.django_db(transaction=True)
"""In a transaction that changed limits, each request would read the rules again."""

MOST_QUERIES = 15
FEW, MANY = 3, 9  # lists of clients show three resources
PAGES = (
    ("overview_changelist", ""),
    ("live_state", ""),
    ("denial_changelist", ""),
    ("denial_changelist", "?entity={user}"),
    ("usagesnapshot_changelist", ""),
    ("usagesnapshot_changelist", "?span=month"),
    ("usagesnapshot_changelist", "?span=today&entity={user}"),
    ("entity_changelist", ""),
    ("entity_changelist", "?q=Client"),
    ("client", "?find=Client"),
    ("client", "?entity={user}"),
    ("client", "?entity=ip:192.0.2.7"),
    ("client", "?entity=tenant:1"),
    ("policy_changelist", ""),
    ("policy_changelist", "?q=user"),
    ("auditevent_changelist", ""),
    ("auditevent_changelist", "?q=user"),
    ("exemptions", ""),
    ("resource_changelist", ""),
    ("endpoint_changelist", ""),
    ("plan_changelist", ""),
    ("candidate_changelist", ""),
)


def test_pages_take_as_many_queries_for_many_rows_as_for_few(admin_client: Client) -> None:
    limits.set_system_limits("calls=1000/min")
    user = get_user_model().objects.create_user("somebody")
    limits.set_entity("tenant:1", name="Team")
    fill(range(FEW), user=f"user:{user.pk}")
    few = queries_by_page(admin_client, f"user:{user.pk}")
    fill(range(FEW, MANY), user=f"user:{user.pk}")
    many = queries_by_page(admin_client, f"user:{user.pk}")
    assert many == few
    assert {page: queries for page, queries in many.items() if queries > MOST_QUERIES} == {}


def fill(numbers: range, *, user: str) -> None:
    """Add resources with limits and rules, and clients with names, policies, usage, rejections and changes.

    The user has of all of them, with a boost; the others are members of a team.
    """
    soon = datetime.now(UTC) + timedelta(days=2)
    for number in numbers:
        resource, client = f"api/{number}", f"key:{number}"
        limits.set_resource_limits(resource, "calls=100/min")
        Endpoint.objects.create(name=f"rule {number}", path=f"part/{number}/", limits="calls=50/min")
        limits.set_plan_limits(f"plan {number}", "calls=70/min")
        policy = limits.set_entity_limits(client, f"calls={number + 3}/min", resource=resource)
        limits.set_candidate(policy, "calls=2/min")
        limits.set_entity(client, name=f"Client {number}", parent="tenant:1")
        limits.set_entity_limits(user, f"calls={number + 5}/min", resource=resource)
        limits.boost(user, resource, 2, soon, "a fair")
        limits.set_entity(f"key:exempt{number}", unlimited=True)
        for entity in (client, user, "tenant:1"):
            used(resource, entity, "call_count", 4, refused=3)
            used(resource, entity, "call_count", 5, refused=1, hours_ago=30)
            minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=number + 1)
            Denial.objects.create(
                resource=resource, entity=entity, key="call_count", minute=minute, first=minute, last=minute, count=3
            )


def queries_by_page(browser: Client, user: str) -> dict[str, int]:
    """The queries of each page, when what is cached for requests was read before."""
    counts = {}
    for name, query in PAGES:
        for _round in range(2):
            with CaptureQueriesContext(connection) as captured:
                response = browser.get(address(name) + query.format(user=user))
            assert response.status_code in {200, 302}, (name, response.status_code)
        counts[name + query] = len(captured)
    return counts
