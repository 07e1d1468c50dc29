"""The page of the emergency switch: the reason first, an end by name, and a confirmation that repeats both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.admin.audit_words import in_sentences
from limits_app.models import AuditEvent, EmergencySwitch
from tests.admin.browsing import address, said


def send(client: Client, **form: str) -> Any:
    return client.post(address("emergencyswitch_changelist"), {"mode": "off", "reason": "an outage", **form})


@pytest.mark.parametrize(
    ("ends", "weekday", "most"),
    [("hour", None, timedelta(hours=1)), ("today", None, timedelta(days=1)), ("friday", 4, timedelta(days=7))],
)
def test_each_end_is_repeated_and_then_set(
    ends: str, weekday: int | None, most: timedelta, admin_client: Client
) -> None:
    question = send(admin_client, ends=ends)
    assert limits.emergency().mode == "enforce"
    words = question.content.decode()
    for part in ("<dd>an outage</dd>", "Nothing will be limited", 'value="off"'):
        assert part in words
    assert question.context["ends_at"]
    assert send(admin_client, ends=ends, confirmed="1").status_code == 302
    switch = EmergencySwitch.objects.get()
    assert (switch.mode, switch.reason) == ("off", "an outage")
    assert switch.until is not None
    assert timedelta(0) < switch.until - timezone.now() <= most
    assert weekday in (None, switch.until.weekday())
    assert ends == "hour" or (switch.until.hour, switch.until.minute) == (23, 59)


@pytest.mark.parametrize(
    ("form", "until"),
    [({"ends": "date", "until": "2100-03-12T09:05"}, datetime(2100, 3, 12, 9, 5, tzinfo=UTC)), ({"ends": ""}, None)],
)
def test_the_emergency_ends_at_its_time_or_when_it_is_switched_off(
    form: dict[str, str], until: datetime | None, admin_client: Client
) -> None:
    assert bool(send(admin_client, **form).context["ends_at"]) is (until is not None)
    send(admin_client, **form, confirmed="1")
    assert EmergencySwitch.objects.get().until == until


@pytest.mark.parametrize(
    ("mode", "done"),
    [
        ("off", "All limits are switched off."),
        ("shadow", "Limits are only reported: nothing is rejected."),
        ("enforce", "All limits are enforced again."),
    ],
)
def test_change_is_confirmed_and_the_overview_links_to_the_switch(mode: str, done: str, admin_client: Client) -> None:
    limits.set_emergency("off" if mode != "off" else "shadow", reason="an outage")
    assert said(send(admin_client, mode=mode, ends="", confirmed="1")) == [done]
    switch = address("emergencyswitch_changelist")
    assert (
        f'<a href="{switch}"><span class="limits-chip'
        in admin_client.get(address("overview_changelist")).content.decode()
    )


@pytest.mark.parametrize(
    ("mode", "done", "line"),
    [
        ("off", "All limits are switched off until {}.", "Switched all limits off until {}"),
        (
            "shadow",
            "Limits are only reported until {}: nothing is rejected.",
            "Set all limits to be only reported until {}",
        ),
        ("enforce", "All limits are enforced again.", "Enforced all limits again"),
    ],
)
def test_message_and_audit_log_say_what_was_switched_and_until_when(
    mode: str, done: str, line: str, admin_client: Client
) -> None:
    limits.set_emergency("off" if mode != "off" else "shadow", reason="an outage")
    until = "2100-03-12 09:05 (UTC)"
    answer = send(admin_client, mode=mode, ends="date", until="2100-03-12T09:05", confirmed="1")
    assert said(answer) == [done.format(until)]
    assert in_sentences([AuditEvent.objects.latest("number")]) == [line.format(until)]


def test_switch_made_the_first_time_is_a_sentence_in_the_audit_log() -> None:
    limits.set_emergency("off", reason="an outage")
    assert in_sentences([*AuditEvent.objects.all()]) == ["Switched all limits off"]


def test_required_reason_is_marked_except_to_enforce_again(admin_client: Client) -> None:
    page = address("emergencyswitch_changelist")
    assert '<label for="id_reason" class="required">' in admin_client.get(page).content.decode()
    limits.set_emergency("off", reason="an outage")
    assert send(admin_client, mode="enforce", reason="").context["confirming"]


def test_an_hour_is_preselected_and_the_reason_is_the_first_field(admin_client: Client) -> None:
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
