"""The page of the emergency switch: the reason first, an end by name, and a confirmation that repeats both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.models import EmergencySwitch
from tests.admin.browsing import address

NOW = datetime(2026, 3, 11, 15, 30, tzinfo=UTC)  # a Wednesday
TONIGHT = NOW.replace(hour=23, minute=59, second=59)


def send(client: Client, **form: str) -> Any:
    return client.post(address("emergencyswitch_changelist"), {"mode": "off", "reason": "an outage", **form})


@pytest.mark.parametrize(
    ("ends", "until"),
    [
        ("hour", NOW + timedelta(hours=1)),
        ("today", TONIGHT),
        ("friday", TONIGHT + timedelta(days=2)),
        ("date", datetime(2026, 3, 12, 9, 5, tzinfo=UTC)),
        ("", None),
    ],
)
def test_each_end_is_repeated_and_then_set(
    ends: str, until: datetime | None, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timezone, "now", lambda: NOW)
    form = {"ends": ends, "until": "2026-03-12T09:05"}
    form = form if ends == "date" else {"ends": ends}
    question = send(admin_client, **form)
    assert limits.emergency().mode == "enforce"
    words = question.content.decode()
    for part in ("<dd>an outage</dd>", "Nothing will be limited", 'value="off"'):
        assert part in words
    assert (question.context["ends_at"] != "") is (until is not None)
    assert send(admin_client, **form, confirmed="1").status_code == 302
    switch = EmergencySwitch.objects.get()
    assert (switch.mode, switch.reason, switch.until) == ("off", "an outage", until)


def test_an_hour_is_chosen_and_the_reason_comes_first(admin_client: Client) -> None:
    page = admin_client.get(address("emergencyswitch_changelist")).content.decode()
    assert page.index('name="reason"') < page.index('value="hour"') < page.index('value="off"')
    assert "checked" in page[page.index('value="hour"') :].partition(">")[0]
    assert 'value="enforce"' not in page


@pytest.mark.parametrize(
    ("form", "field"),
    [({"reason": ""}, "reason"), ({"ends": "date"}, "until"), ({"ends": "date", "until": "x"}, "until")],
)
def test_an_error_stands_at_its_field(form: dict[str, str], field: str, admin_client: Client) -> None:
    assert send(admin_client, **form, confirmed="1").context["form"].errors.keys() == {field}
    assert limits.emergency().mode == "enforce"


def test_the_banner_leads_to_the_confirmation_of_the_way_back(admin_client: Client) -> None:
    limits.set_emergency("shadow", reason="an outage")
    page = admin_client.get(address("overview_changelist")).content.decode()
    back = f"{address('emergencyswitch_changelist')}?mode=enforce"
    assert f'href="{back}"' in page
    question = admin_client.get(back).content.decode()
    assert 'name="confirmed"' in question
    assert limits.emergency().mode == "shadow"
    admin_client.post(address("emergencyswitch_changelist"), {"mode": "enforce", "confirmed": "1"})
    assert limits.emergency().mode == "enforce"


@pytest.mark.parametrize("page", ["policy_boost", "entity_erase", "emergencyswitch_changelist"])
def test_pages_with_a_question_have_the_menu_and_its_banner(page: str, admin_client: Client) -> None:
    limits.set_emergency("off", reason="an outage")
    assert "All limits are off" in admin_client.get(address(page)).content.decode()
