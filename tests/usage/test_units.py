"""Requests are one unit of usage for people, whatever limits have counted them."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.engine import KEYS_OF_REQUESTS
from limits_app.models import UsageSnapshot
from limits_app.services.clients import RecentUsage
from limits_app.services.usage import usage_by_unit
from tests.admin.browsing import address
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import words

pytestmark = pytest.mark.django_db

DAY = "day"


def test_a_request_that_two_limits_count_is_one() -> None:
    used("api", "user:1", "call_count", 7, refused=1)
    used("api", "user:1", "calls", 7, refused=2)
    (use,) = usage_by_unit(unit="call_count")
    assert (use.key, use.admitted, use.refused, use.refused_share) == ("call_count", 7, 3, 0.3)


def test_requests_of_clients_with_different_limits_add_up() -> None:
    used("api", "user:1", "call_count", 7)
    used("api", "user:2", "calls", 5)
    used("api", "user:3", "calls", 4)
    used("api", "user:3", "requests", 4)
    used("api", "user:3", "tokens", 900)
    assert [(use.key, use.admitted) for use in usage_by_unit()] == [("tokens", 900), ("call_count", 16)]
    by_client = usage_by_unit(unit="calls", by="entity", most=2)
    assert [(use.entity, use.admitted) for use in by_client] == [("user:1", 7), ("user:2", 5)]


@pytest.mark.parametrize("by", [(), ("entity",), ("resource", "plan"), ("entity", "resource", "plan", "below")])
def test_sums_are_those_of_the_largest_row_of_each_client(by: tuple[str, ...]) -> None:
    random, start = Random(len(by)), timezone.now().replace(minute=0, second=0, microsecond=0)
    expected: dict[tuple[object, ...], list[int]] = {}
    for place in range(40):
        row = {"resource": f"api{place % 3}", "entity": f"user:{place % 5}", "plan": ("", "gold")[place % 2]}
        row |= {"below": place % 4 == 0, "period": DAY, "start": start - timedelta(hours=place)}
        amounts = {key: random.choice([0, 3, 8]) for key in sorted(KEYS_OF_REQUESTS) if random.random() < 0.7}
        for key, units in amounts.items():
            UsageSnapshot.objects.create(**row, key=key, admitted_milli=units * 1000, refused=2)
        if amounts:
            sums = expected.setdefault(tuple(row[name] for name in by), [0, 0])
            sums[0] += max(amounts.values())
            sums[1] += 2 * len(amounts)
    uses = usage_by_unit(period=DAY, by=by)
    assert {tuple(getattr(use, name) for name in by): [use.admitted, use.refused] for use in uses} == expected


def test_a_client_sees_its_requests_once_for_each_day() -> None:
    used("api", "user:1", "call_count", 7, refused=1)
    used("api", "user:1", "calls", 9, refused=1)
    units = RecentUsage("user:1").in_units(None)
    assert [(use.key, use.admitted, use.refused) for use in units] == [("call_count", 9, 2)]


@pytest.mark.parametrize("page", ["usagesnapshot_changelist", "overview_changelist"])
def test_a_page_counts_requests_of_quotas_too(page: str, admin_client: Client) -> None:
    limits.set_resource_limits("api", "calls=2000/day@UTC")
    used("api", "user:1", "calls", 1234)
    text = words(admin_client.get(address(page)))
    assert "1,234" in text
    assert "calls" not in text
