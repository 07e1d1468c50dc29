"""The sample data of `make run`: every task of an administrator can be tried with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from limits_app import CallLimit, audit, limits
from limits_app.models import AuditEvent, UsagePeriod, UsageSnapshot
from limits_app.policies import resolver
from limits_app.stores.memory import MemoryStore
from project.demo.seed import ADMIN, COLLEAGUE, seed
from tests.opened import put_store


@pytest.fixture
def admin(db: None, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The browser of the first administrator of the demo."""
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    put_store(monkeypatch, MemoryStore())
    resolver.clear()
    assert seed()
    client = Client()
    client.force_login(User.objects.get(username=ADMIN))
    yield client
    resolver.clear()


def test_data_are_added_once(admin: Client) -> None:
    assert not seed()


def test_last_month_has_rows_in_its_file(admin: Client) -> None:
    page = reverse("admin:limits_app_usagesnapshot_changelist")
    lines = admin.get(page, {"span": "last_month", "format": "csv"}).content.decode().splitlines()
    assert [name in line for name, line in zip(("amber", "basil", "cedar", "fern"), lines[1:], strict=True)] == [
        True
    ] * 4


def test_days_are_the_sums_of_their_hours_and_end_yesterday(admin: Client) -> None:
    for day in UsageSnapshot.objects.filter(period=UsagePeriod.DAY):
        ends = day.start + timedelta(days=1)
        hours = UsageSnapshot.objects.filter(
            period=UsagePeriod.HOUR, entity=day.entity, start__gte=day.start, start__lt=ends
        )
        assert sum(hour.admitted_milli for hour in hours) == day.admitted_milli
        assert sum(hour.refused for hour in hours) == day.refused
        assert ends <= timezone.now()


def test_the_change_of_a_colleague_is_of_yesterday_and_can_be_undone(admin: Client) -> None:
    event = AuditEvent.objects.get(actor=COLLEAGUE)
    assert timezone.now() - event.when >= timedelta(days=1)
    assert audit.verify().ok
    admin.post(reverse("admin:limits_app_auditevent_revert", args=[event.pk]), {"confirmed": "1"})
    assert (limits.get_resource_limits("reports") or [None])[0] == CallLimit(20, 3600)
