"""Where alerts would not be sent, their form, their list and saving say so."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from limits_app.models import Alert, AlertRule
from tests.admin.browsing import address, changelist, said

OFF = "Alerts are switched off on this site, so nothing is sent: set LIMITS['ALERTS'] = True."
CONSOLE = "django.core.mail.backends.console.EmailBackend"
SMTP = "django.core.mail.backends.smtp.EmailBackend"
NOT_SENT = f"E-mail is not sent by this site: its EMAIL_BACKEND is {CONSOLE}."
NOT_ENABLED = "This rule is not enabled, so it sends nothing."


def rule(**fields: Any) -> AlertRule:
    return AlertRule.objects.create(name="full", kind="emergency", target="ops@example.org", **fields)


@pytest.mark.parametrize(
    ("are_on", "backend", "fields", "notices"),
    [
        (True, SMTP, {}, []),
        (False, SMTP, {}, [OFF]),
        (True, CONSOLE, {}, [NOT_SENT]),
        (True, CONSOLE, {"channel": "slack"}, []),
        (True, SMTP, {"enabled": False}, [NOT_ENABLED]),
        (False, CONSOLE, {"enabled": False}, [OFF, NOT_ENABLED, NOT_SENT]),
    ],
)
def test_the_form_warns_when_a_rule_would_send_nothing(
    admin_client: Client,
    settings: Settings,
    are_on: bool,
    backend: str,
    fields: dict[str, Any],
    notices: list[str],
) -> None:
    settings.LIMITS = {**settings.LIMITS, "ALERTS": are_on}
    settings.EMAIL_BACKEND = backend
    page = admin_client.get(address("alertrule_change", rule(**fields).pk))
    assert page.context["notices"] == notices
    for notice in notices:
        assert notice.partition("'")[0] in page.content.decode()


@pytest.mark.parametrize(
    ("mailers", "notices"),
    [
        ({"default": {"BACKEND": CONSOLE}}, [NOT_SENT]),
        ({"default": {"BACKEND": SMTP}, "news": {"BACKEND": CONSOLE}}, []),
        ({"default": {"OPTIONS": {"host": "mail.example.org"}}}, []),
        ({}, []),
    ],
)
def test_the_default_mailer_of_a_site_with_several_counts(
    admin_client: Client, settings: Settings, mailers: dict[str, Any], notices: list[str]
) -> None:
    settings.LIMITS = {**settings.LIMITS, "ALERTS": True}
    settings.MAILERS = mailers
    page = admin_client.get(address("alertrule_change", rule().pk))
    assert page.context["notices"] == notices


def test_a_new_rule_warns_before_and_after_saving_that_alerts_are_off(admin_client: Client) -> None:
    page = admin_client.get(address("alertrule_add"))
    assert page.context["notices"] == [OFF]
    fields = {"name": "full", "enabled": "on", "kind": "emergency", "channel": "email", "target": "ops@example.org"}
    assert OFF in said(admin_client.post(address("alertrule_add"), fields))


def test_an_empty_list_of_rules_shows_that_no_alerts_are_sent(admin_client: Client, settings: Settings) -> None:
    assert changelist(admin_client, "alertrule").context["notices"] == [OFF]
    settings.LIMITS = {**settings.LIMITS, "ALERTS": True}
    [notice] = changelist(admin_client, "alertrule").context["notices"]
    assert notice == "There is no alert rule, so nobody is notified of anything."
    rule()
    assert changelist(admin_client, "alertrule").context["notices"] == []


@pytest.mark.parametrize(
    ("fields", "event"),
    [
        ({"kind": "threshold", "percent": 80}, "a limit has reached a threshold: 80 %"),
        ({"kind": "threshold"}, "a limit has reached a threshold<"),
        (
            {"kind": "rejections", "rejections": 1500},
            "many requests of a client were rejected: more than 1,500 per minute",
        ),
        ({"kind": "emergency"}, "the emergency switch was set<"),
    ],
)
def test_the_list_of_rules_says_what_each_is_for(fields: dict[str, Any], event: str, admin_client: Client) -> None:
    AlertRule.objects.create(name="near", target="ops@example.org", **fields)
    assert f">{event}" in changelist(admin_client, "alertrule").content.decode()


def test_the_list_of_alerts_has_their_texts(admin_client: Client) -> None:
    rule = AlertRule.objects.create(name="near", kind="threshold", percent=80, target="ops@example.org")
    payload = {"text": "at least 80 % of the limit of requests on api is used"}
    key = {"about": "call_count of api", "dedupe_key": "one", "created_at": timezone.now()}
    Alert.objects.create(rule=rule, payload=payload, **key)
    page = changelist(admin_client, "alert").content.decode()
    assert "at least 80 % of the limit of requests on api is used" in page
    assert "call_count" not in page
