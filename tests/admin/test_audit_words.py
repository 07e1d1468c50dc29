"""How the admin names what the audit log keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from limits_app import limits
from limits_app.admin.audit_log import field_in_words, value_in_words
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent
from tests.admin.browsing import address, changelist


def test_the_audit_log_is_read_in_the_words_of_the_forms(admin_client: Client) -> None:
    made = limits.set_resource_limits("api", [CallLimit(10, 60)])
    made.reason = "because"
    made.save()
    limits.set_resource_limits("api", [CallLimit(20, 60)])
    [changed, written] = AuditEvent.objects.filter(object_type="policy", verb="update").order_by("-number")
    AuditEvent.objects.create(verb="reset", source="cron", object_type="state", after={"resource": "api"})
    page = changelist(admin_client, "auditevent").content.decode()
    shown = [admin_client.get(address("auditevent_change", event.pk)).content.decode() for event in (changed, written)]
    for kind, source in (("policy", "app function"), ("usage", "cron")):
        assert f'<td class="field-kind">{kind}</td>' in page
        assert f'<td class="field-way">{source}</td>' in page
        assert len(re.findall(f">\\s*(?:{kind}|{source})\\s*</a>", page)) == 2  # what the list can be filtered by
    assert '<th scope="row">limits requests: limit</th>' in shown[0]
    assert '<th scope="row">reason</th>' in shown[1]


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        ("policy", "rollout_percent", "rollout (%)"),
        ("pool", "members eu: limits tpm: shared", "members eu: limits tpm: shared by all entities"),
        ("policy", "limits a: b", "limits a: b"),
        ("policy", "colour", "colour"),
        ("policy", "candidates", "candidates"),
        ("state", "resource", "resource"),
        ("gone", "parts a: b", "parts a: b"),
    ],
)
def test_a_field_is_named_as_its_form_does_if_there_still_is_one(kind: str, field: str, words: str) -> None:
    assert field_in_words(kind, field) == words


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("policy", "effect", "unlimited", "unlimited"),
        ("policy", "effect", "gone", "gone"),
        ("policy", "reason", "limits", "limits"),
        ("policy", "extends", True, "yes"),
        ("policy", "rollout_percent", 50, "50"),
        ("policy", "valid_until", None, "-"),
        ("pool", "members eu: limits tpm: period", "day", "day"),
        ("pool", "members eu: config", {"region": "eu"}, '{"region": "eu"}'),
        ("gone", "effect", "limits", "limits"),
    ],
)
def test_a_value_that_can_be_chosen_is_called_as_its_form_does(kind: str, field: str, value: Any, words: str) -> None:
    assert value_in_words(kind, field, value) == words
