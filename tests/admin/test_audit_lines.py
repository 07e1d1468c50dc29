"""The audit log save by save: one line for all that a save did, which is undone together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from limits_app import audit, limits
from limits_app.admin.audit_lines import lines
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Endpoint, Entity, Plan, Policy, Pool, Resource
from tests.admin.browsing import address, changelist, said

pytestmark = pytest.mark.django_db(transaction=True)

END = datetime(2036, 3, 4, 12, tzinfo=UTC)
UNTIL = "2036-03-04 12:00 (UTC)"


def last_line() -> str:
    return lines(AuditEvent.objects.order_by("-number"))[0].sentence


def test_boost_is_one_line_for_all_its_rows(settings: Settings) -> None:
    limits.set_resource_limits("mail", "8/min")
    limits.set_resource_limits("maps", "5/h tokens=7/h")
    limits.set_system_limits("9/min")
    settings.LIMITS = {**settings.LIMITS, "MAX_BOOST_DAYS": None}
    limits.boost_each("user:7", 2, END, "a launch")
    assert last_line() == (
        f"Boosted user:7 until {UNTIL}: 16 requests per minute on mail; "
        "10 requests per hour, 14 tokens per hour on maps; 18 requests per minute"
    )
    with audit.acting(actor="ann"):
        for policy in Policy.objects.filter(extends=True):
            policy.delete()
    assert last_line() == "Ended the boost of user:7"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"blocked": True}, "Blocked user:9"),
        ({"blocked": True, "name": "Ann"}, "Blocked user:9 (Ann)"),
    ],
)
def test_a_block_is_called_so(fields: dict[str, object], sentence: str) -> None:
    limits.set_entity("user:9", **fields)  # type: ignore[arg-type]  # fields of the table above
    assert last_line() == sentence
    limits.set_entity("user:9", blocked=False)
    assert last_line() == sentence.replace("Blocked", "Unblocked")


@pytest.mark.parametrize(
    ("resource", "effect", "begun", "ended"),
    [
        (None, "blocked", f"Blocked user:9 until {UNTIL}", "Unblocked user:9"),
        ("api", "blocked", f"Blocked user:9 on api until {UNTIL}", "Unblocked user:9 on api"),
        (None, "unlimited", f"Exempted user:9 until {UNTIL}", "Ended the exemption of user:9"),
    ],
)
def test_a_timed_block_shows_its_end(resource: str | None, effect: str, begun: str, ended: str) -> None:
    policy = limits.set_entity_limits("user:9", [], resource=resource, effect=effect, valid_until=END)
    assert last_line() == begun
    policy.delete()
    assert last_line() == ended


def test_line_names_the_intended_change_and_not_the_rows_it_needed() -> None:
    limits.set_entity_limits("user:7", "3/min", resource="api", reason="a test")
    assert [line.sentence for line in lines(AuditEvent.objects.all())] == ["user:7 on api: added 3 requests per minute"]
    Endpoint.objects.create(name="reports", path="/reports/", limits="5/min", counted_by="user")
    assert last_line() == "Each user on /reports/: added 5 requests per minute"
    rule = Endpoint.objects.get()
    rule.limits = "9/min"
    rule.save()
    assert last_line() == "Each user on /reports/: 5 → 9 requests per minute"
    limits.set_entity("user:8")
    assert last_line() == "Added user:8", "where nothing else was made, the row was meant"


def test_several_changes_are_counted() -> None:
    with audit.acting(actor="ann", reason="spring"):
        for name in ("a", "b", "c", "d", "e"):
            Plan.objects.create(name=name)
    [line] = lines(AuditEvent.objects.all())
    assert line.sentence == "Added plan a; Added plan b; Added plan c; 2 more"
    assert line.reason == "spring"


def test_saves_of_different_authors_and_times_are_different_lines() -> None:
    for actor in ("ann", "ben"):
        limits.set_entity(f"user:{actor}", name=actor, actor=actor)
    assert [line.event.actor for line in lines(AuditEvent.objects.all())] == ["ben", "ann"]


def test_many_objects_of_one_save_are_a_line_each() -> None:
    with audit.acting(actor="ann"):
        Plan.objects.bulk_create([Plan(name=f"{number}") for number in range(201)])
    assert len(lines(AuditEvent.objects.all())) == 201


def test_an_old_reason_is_not_that_of_the_present_change() -> None:
    policy = limits.set_resource_limits("api", "3/min", reason="as agreed")
    policy.rollout_percent = 50
    policy.save()
    assert [event.reason for event in AuditEvent.objects.filter(object_type="policy")] == ["", "as agreed"]
    policy.reason = "as agreed in May"
    policy.save()
    assert AuditEvent.objects.latest("number").reason == "as agreed in May"


def test_a_boost_is_undone_with_all_its_parts(admin_client: Client) -> None:
    limits.set_resource_limits("mail", "8/min")
    limits.set_resource_limits("maps", "5/h")
    before = Policy.objects.count()
    limits.boost_each("user:7", 2, timezone.now() + timedelta(days=1), "a launch")
    page = changelist(admin_client, "auditevent")
    [row] = [row for row in page.context["cl"].result_list if "Boosted" in row.line.sentence]
    undo = address("auditevent_revert", row.pk)
    assert undo in page.content.decode()
    asked = admin_client.get(undo).content.decode()
    assert "One save changed 2 objects: all of it is undone together." in asked
    assert "Undo “Boosted user:7 until" in asked
    done = admin_client.post(undo, {"reason": "enough"})
    assert said(done)[0].startswith("Undone: Boosted user:7 until")
    assert Policy.objects.count() == before
    assert AuditEvent.objects.latest("number").reason == "enough"


def test_one_part_of_a_save_is_undone_alone(admin_client: Client) -> None:
    with audit.acting(actor="ann"):
        Plan.objects.create(name="gold")
        Pool.objects.create(name="eu")
    event = AuditEvent.objects.get(object_label="eu")
    admin_client.post(f"{address('auditevent_revert', event.pk)}?alone=1")
    assert Plan.objects.exists()
    assert not Pool.objects.exists()


def test_a_save_is_undone_as_a_whole_or_not_at_all(admin_client: Client) -> None:
    with audit.acting(actor="ann"):
        gold = Plan.objects.create(name="gold")
        Pool.objects.create(name="eu")
    Entity.objects.create(identifier="user:1", plan=gold)
    event = AuditEvent.objects.get(object_label="eu")
    response = admin_client.post(address("auditevent_revert", event.pk))
    assert "gold is in use" in said(response)[0]
    assert Pool.objects.exists()
    assert Resource.objects.count() == 0


def test_a_trial_is_reported_in_words() -> None:
    policy = limits.set_resource_limits("api", "60/min")
    said = []
    for limits_text, act in (
        ("calls=30/min", limits.promote_candidate),
        ("calls=20/min", limits.discard_candidate),
    ):
        limits.set_candidate(policy, limits_text)
        said.append(last_line())
        act(policy)
        said.append(last_line())
    assert said == [
        "Each client on api: tried 30 requests per minute",
        "Each client on api: 60 → 30 requests per minute, enforced the trial of 30 requests per minute",
        "Each client on api: tried 20 requests per minute",
        "Each client on api: discarded the trial of 20 requests per minute",
    ]


def test_undo_names_the_change_and_asks_for_force_only_where_it_was_changed_since(admin_client: Client) -> None:
    for number in (4, 5, 6):
        with audit.acting(actor="carol"):
            limits.set_resource_limits("api", [CallLimit.per_minute(number)])
    last, middle = AuditEvent.objects.filter(object_type="policy", verb="update").order_by("-number")[:2]
    page = admin_client.get(address("auditevent_revert", last.pk)).content.decode()
    assert "carol&#x27;s change of" in page
    assert "<th>now</th><th>after the undo</th>" in page
    assert 'name="force"' not in page
    assert 'name="force"' in admin_client.get(address("auditevent_revert", middle.pk)).content.decode()
    admin_client.post(address("auditevent_revert", last.pk), {"reason": ""})
    assert AuditEvent.objects.latest("number").reason.startswith("undo of carol's change of 20")


def test_change_that_was_undone_has_no_undo(admin_client: Client) -> None:
    for number in (4, 5):
        limits.set_resource_limits("api", [CallLimit.per_minute(number)])
    changed = AuditEvent.objects.filter(object_type="policy", verb="update").latest("number")
    undo, pages = address("auditevent_revert", changed.pk), ("auditevent_changelist", "overview_changelist")
    assert all(f'href="{undo}"' in admin_client.get(address(page)).content.decode() for page in pages)
    admin_client.post(undo, {"reason": ""})
    assert not any(f'href="{undo}"' in admin_client.get(address(page)).content.decode() for page in pages)
    undone = AuditEvent.objects.latest("number")
    again = address("auditevent_revert", undone.pk)
    assert all(f'href="{again}"' in admin_client.get(address(page)).content.decode() for page in pages)
