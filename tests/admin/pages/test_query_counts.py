"""Pages take at most 15 queries, with prices too, and not more for many rows than for a few."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
import time_machine
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from limits_app import limits
from limits_app.models import Denial, Endpoint, Price
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
    ("limit", ""),
    ("limit", "?entity={user}"),
    ("policy_boost", "?entity={user}"),
    ("policy_add", ""),
    ("endpoint_add", ""),
    ("entity_add", ""),
    ("plan_add", ""),
    ("alertrule_changelist", ""),
    ("explain", "?entity={user}"),
)


@pytest.mark.parametrize("has_prices", [False, True])
def test_pages_take_as_many_queries_for_many_rows_as_for_few(admin_client: Client, *, has_prices: bool) -> None:
    limits.set_system_limits("calls=1000/min")
    user = get_user_model().objects.create_user("somebody")
    limits.set_entity("tenant:1", name="Team")
    fill(range(FEW), has_prices=has_prices, user=f"user:{user.pk}")
    few = queries_by_page(admin_client, f"user:{user.pk}")
    fill(range(FEW, MANY), has_prices=has_prices, user=f"user:{user.pk}")
    many = queries_by_page(admin_client, f"user:{user.pk}")
    more = 1  # for names of a kind that only one of the two shows
    assert {page: queries for page, queries in many.items() if queries > few[page] + more} == {}
    assert {page: queries for page, queries in many.items() if queries > MOST_QUERIES} == {}


def fill(numbers: range, *, user: str, has_prices: bool) -> None:
    """Add resources with limits and rules, and clients with names, policies, usage, rejections and changes.

    The user has of all of them, with a boost; the others are members of a team.
    """
    soon = datetime.now(UTC) + timedelta(days=2)
    for number in numbers:
        resource, client = f"api/{number}", f"key:{number}"
        limits.set_resource_limits(resource, "calls=100/min")
        if has_prices:
            add_price(resource, "0.01", datetime(2026, 1, 1, tzinfo=UTC))
            add_price(resource, "0.02", datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0))
        limits.set_plan_limits(f"plan {number}", "calls=70/min")
        policy = limits.set_entity_limits(client, f"calls={number + 3}/min", resource=resource)
        limits.set_candidate(policy, "calls=2/min")
        limits.set_entity(client, name=f"Client {number}", parent="tenant:1")
        limits.set_entity_limits(user, f"calls={number + 5}/min", resource=resource)
        limits.boost(user, resource, 2, soon, "a fair")
        limits.set_entity(f"key:exempt{number}", unlimited=True)
        Endpoint.objects.create(name=f"rule {number}", path=f"part/{number}/", limits="calls=50/min")
        for entity in (client, user, "tenant:1"):
            used(resource, entity, "call_count", 4, refused=3)
            used(resource, entity, "call_count", 5, refused=1, hours_ago=30)
            minute = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(minutes=number + 1)
            Denial.objects.create(
                resource=resource, entity=entity, key="call_count", minute=minute, first=minute, last=minute, count=3
            )


def add_price(resource: str, amount: str, valid_from: datetime) -> None:
    values = {"unit": "call_count", "currency": "eur", "valid_from": valid_from}
    Price.objects.create(resource=resource, amount=Decimal(amount), **values)


def test_changes_of_prices_within_days_take_no_query_more_for_a_client_and_one_for_usage(admin_client: Client) -> None:
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    with time_machine.travel(day + timedelta(hours=12), tick=False):
        limits.set_system_limits("calls=1000/min")
        limits.set_entity("tenant:1", name="Team")
        user = f"user:{get_user_model().objects.create_user('somebody').pk}"
        fill(range(FEW), has_prices=True, user=user)
        pages = (("client", "?entity={user}"), ("usagesnapshot_changelist", "?span=7-days&entity={user}"))
        of_client, of_usage = queries_by_page(admin_client, user, pages).values()
        assert max(of_client, of_usage) <= MOST_QUERIES
        for number in range(5):
            add_price("api/1", f"0.1{number}", day + timedelta(hours=number + 1 - 24 * (number % 2)))
            after = queries_by_page(admin_client, user, pages)
            assert [*after.values()] == [of_client, of_usage + 1], number


def queries_by_page(browser: Client, user: str, pages: Iterable[tuple[str, str]] = PAGES) -> dict[str, int]:
    """The least queries of each page: now and then a request reads what is cached."""
    counts = {}
    for name, query in pages:
        rounds = []
        for _round in range(3):
            with CaptureQueriesContext(connection) as captured:
                response = browser.get(address(name) + query.format(user=user))
            assert response.status_code in {200, 302}, (name, response.status_code)
            rounds.append(len(captured))
        counts[name + query] = min(rounds)
    return counts
