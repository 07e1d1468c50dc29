"""How the admin names what the audit log keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from limits_app import limits
from limits_app.admin.audit_log import ObjectFilter
from limits_app.admin.audit_words import field_in_words, in_sentences, value_in_words
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Endpoint, Plan, Policy, Pool, PoolMember
from tests.admin.browsing import address, changelist
from tests.admin.pages.test_pages import words


def test_the_audit_log_is_read_in_the_words_of_the_forms(admin_client: Client) -> None:
    made = limits.set_resource_limits("api", [CallLimit(10, 60)])
    made.reason = "because"
    made.save()
    limits.set_resource_limits("api", [CallLimit(20, 60)])
    [changed, written] = AuditEvent.objects.filter(object_type="policy", verb="update").order_by("-number")
    AuditEvent.objects.create(verb="reset", source="cron", object_type="state", after={"resource": "api"})
    page = changelist(admin_client, "auditevent").content.decode()
    shown = [admin_client.get(address("auditevent_change", event.pk)).content.decode() for event in (changed, written)]
    for kind, source in (("policy", "the site&#x27;s code"), ("usage", "cron")):
        assert f'<td class="field-who">{source}</td>' in page
        assert len(re.findall(f">\\s*(?:{kind}|{source})\\s*</a>", page)) == 2  # what the list can be filtered by
    assert '<th scope="row">limit of requests: limit</th>' in shown[0]
    assert '<th scope="row">reason</th>' in shown[1]


@pytest.mark.parametrize(
    ("kind", "field", "words"),
    [
        ("policy", "rollout_percent", "rollout (%)"),
        ("pool", "members eu: limits tpm: shared", "member eu: limit of tpm: shared by all clients"),
        ("policy", "limits a: b", "limits a: b"),
        ("policy", "colour", "colour"),
        ("policy", "candidates", "candidates"),
        ("state", "resource", "resource"),
        ("gone", "parts a: b", "parts a: b"),
    ],
)
def test_existing_fields_are_named_as_in_their_form(kind: str, field: str, words: str) -> None:
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
        ("pool", "members eu: config", {"region": "eu"}, "region: eu"),
        ("policy", "limits call_count: text", "60/min", "60 requests per minute"),
        ("pool", "members eu: limits tpm: text", "5/h", "5 tpm per hour"),
        ("endpoint", "limits", "60/min tokens=1M/day@UTC", "60 requests per minute, 1,000,000 tokens per day"),
        ("endpoint", "limits", "", ""),
        ("gone", "effect", "limits", "limits"),
    ],
)
def test_a_value_that_can_be_chosen_is_called_as_its_form_does(kind: str, field: str, value: Any, words: str) -> None:
    assert value_in_words(kind, field, value) == words


def last_sentence() -> str:
    return in_sentences([AuditEvent.objects.latest("number")])[0]


def test_an_event_is_a_sentence(db: None) -> None:
    ada = User.objects.create_user("ada")
    name, label = f"user:{ada.pk}", f"user:{ada.pk} (ada)"
    limits.set_resource_limits("api", "10/min connections=3")
    assert last_sentence() == "Each client on api: added 10 requests per minute, 3 connections at the same time"
    limits.set_resource_limits("api", "3/min connections=3")
    assert last_sentence() == "Each client on api: 10 → 3 requests per minute"
    limits.set_resource_limits("api", "3/h tokens=5k/day")
    assert last_sentence() == (
        "Each client on api: 3 requests per minute → 3 requests per hour, "
        "removed 3 connections at the same time, added 5,000 tokens per day"
    )
    limits.set_entity_limits(name, "7/min")
    assert last_sentence() == f"{label}, on each resource: added 7 requests per minute"
    Policy.objects.get(entity__identifier=name).delete()
    assert last_sentence() == f"{label}, on each resource: removed 7 requests per minute"
    limits.set_entity(name, blocked=True)
    assert last_sentence() == f"Blocked {label}"
    pool = Pool.objects.create(name="eu")
    PoolMember.objects.create(pool=pool, name="eu-1", weight=7)
    assert last_sentence() == "pool eu: added member eu-1"
    Plan.objects.create(name="gold")
    assert last_sentence() == "Added plan gold"
    limits.set_plan_limits("gold", "9/min", resource="api")
    assert last_sentence() == "Each member of “gold” on api: added 9 requests per minute"
    limits.reset("api", reason="our mistake")
    assert last_sentence().startswith("reset: usage api")


def test_a_sentence_names_three_changes_and_counts_the_others(db: None) -> None:
    policy = limits.set_resource_limits("api", "10/min")
    policy.slice_seconds, policy.rollout_percent, policy.on_unavailable, policy.extends = 5, 5, "allow", True
    policy.save()
    assert re.search(r"^Each client on api: [^,]+, [^,]+, [^,]+, \d more$", last_sentence())


def test_sentences_take_the_same_queries_for_one_event_and_for_many(
    db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(5):
        user = User.objects.create_user(f"ada{number}")
        limits.set_entity_limits(f"user:{user.pk}", "7/min")
    events = [*AuditEvent.objects.all()]
    with django_assert_num_queries(2):
        sentences = in_sentences(events)
    assert [sentence for sentence in sentences if "(ada3)" in sentence]


def test_the_log_is_filtered_and_searched_by_client_and_object(admin_client: Client) -> None:
    ada, bob = (User.objects.create_user(name) for name in ("ada", "bob"))
    for user in (ada, bob):
        limits.set_entity_limits(f"user:{user.pk}", "7/min", resource="api")
    limits.set_resource_limits("api", "10/min")

    def labels(query: str) -> set[str]:
        return {event.object_label for event in changelist(admin_client, "auditevent", query).context["cl"].result_list}

    name = f"user:{ada.pk}"
    of_ada = {f"entity {name} on api"}
    assert labels(f"?client={name}") == labels("?q=ada") == of_ada, "one row for each save"
    assert labels("?object=policy+resource+api") == {"resource api"}
    assert labels("?client=nobody") == set()
    assert labels("?client=a%00b") == labels("")  # rejected as other filters are


def test_the_filter_by_object_names_objects_as_the_sentences_do(admin_client: Client) -> None:
    rule = Endpoint.objects.create(name="mail", path="/api/mail/", limits="2/min")
    rule.refresh_from_db()
    limits.set_entity_limits("tenant:a", "7/min", resource=rule.limits_resource)
    limits.set_resource_limits("api", "10/min")
    Plan.objects.create(name="gold")
    limits.set_plan_limits("gold", "9/min")
    for query in ("", f"?object=policy+entity+tenant%3Aa+on+{rule.limits_resource}"):
        [object_filter] = [
            spec
            for spec in changelist(admin_client, "auditevent", query).context["cl"].filter_specs
            if isinstance(spec, ObjectFilter)
        ]
        offered = {choice for _value, choice in object_filter.lookup_choices}
        expected = {"tenant:a on /api/mail/", "Each client on api", "Each member of “gold”, on each resource"}
        assert offered >= expected
        assert not [choice for choice in offered if choice.startswith("policy") or rule.limits_resource in choice]


def test_the_list_leads_to_the_revert_with_the_permission_for_that(visitor: Any) -> None:
    limits.set_resource_limits("api", "10/min")
    event = AuditEvent.objects.latest("number")
    link = address("auditevent_revert", event.pk)
    for more, is_there in (((), False), (("revert_auditevent",), True)):
        page = changelist(visitor("view_auditevent", *more), "auditevent").content.decode()
        assert (link in page) is is_there
        assert "added 10 requests per minute" in page


def test_the_page_of_an_event_has_all_fields_before_and_after_in_words(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "calls=10/min")
    limits.set_resource_limits("mail", ["calls=3/min", "tokens=400k/day@UTC"], reason="a fair")
    event = AuditEvent.objects.filter(object_type="policy").latest("number")
    page = words(admin_client.get(address("auditevent_change", event.pk)))
    assert "Each client on mail: 10 → 3 requests per minute, added 400,000 tokens per day" in page
    table = page.partition("In full")[2]
    for row in (
        "unit requests requests limit of requests: limit 10 requests per minute 3 requests per minute",
        "limit of tokens: limit - 400,000 tokens per day",
        "enforcement enforce enforce",
    ):
        assert row in table, f"{row!r} is not in {table!r}"
    assert "{" not in table
