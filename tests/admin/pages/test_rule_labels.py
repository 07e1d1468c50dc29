"""Resources that were made for URL rules are named by their URLs on all pages."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.models import Denial, Endpoint
from tests.admin.browsing import address
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import words

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("page", ["overview_changelist", "usagesnapshot_changelist", "denial_changelist"])
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
