"""Taking changes back, by the function and in the admin, and reading what changed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from limits_app.audit import (
    CannotRevert,
    Difference,
    FieldChange,
    acting,
    differences,
    revert,
    snapshot,
    unrecorded,
    verify,
)
from limits_app.models import AuditEvent, Entity, Limit, Policy, Pool, PoolMember, Resource
from limits_app.services import rights
from tests.configuration.rows import permits, quota, rate, staff

pytestmark = pytest.mark.django_db


def last() -> AuditEvent:
    event = AuditEvent.objects.first()
    assert event is not None
    return event


@pytest.fixture
def full(policy: Policy, user: Entity) -> Policy:
    """A policy with three limits."""
    with acting(actor="ada"):
        policy.entity, policy.reason, policy.rollout_percent = user, "launch", 50
        policy.save()
        for limit in (
            rate(policy, text="0.001/min"),
            permits(policy, text="10:hold=30s"),
            quota(policy, text="5/week@UTC:soft"),
        ):
            limit.save()
    return policy


def test_a_change_is_taken_back_with_its_limits(full: Policy) -> None:
    before = snapshot(full)
    with acting(actor="bob", reason="oops"):
        Policy.objects.update(reason="worse", rollout_percent=1, entity=None)
        full.limits.filter(key="tpm").delete()
        full.limits.update(text="77/h")
    revert(last(), actor="ada", source="shell")
    event = last()
    assert (event.verb, event.actor, event.source) == ("update", "ada", "shell")
    assert event.reason == f"revert of event {event.number - 1}"
    assert event.after == before == snapshot(Policy.objects.get())
    assert verify().ok
    assert list(unrecorded()) == []
    revert(event, reason="better after all")
    assert snapshot(Policy.objects.get())["reason"] == "worse"


def test_reverting_deletes_created_rows_and_recreates_deleted_ones(full: Policy) -> None:
    key, before = full.pk, snapshot(full)
    full.delete()
    gone = last()
    revert(gone)
    assert Policy.objects.get().pk == key
    assert snapshot(Policy.objects.get()) == before
    revert(last())
    assert not Policy.objects.exists()
    assert (last().verb, last().object_id) == ("delete", str(key))


def test_reverted_pool_has_its_disabled_members() -> None:
    with acting():
        pool = Pool.objects.create(name="bedrock")
        member = PoolMember.objects.create(pool=pool, name="east", enabled=False, config={"region": "us-east-1"})
        rate(None, member=member).save()
    before = snapshot(pool)
    pool.delete()
    revert(last())
    assert snapshot(Pool.objects.get()) == before
    assert not PoolMember.objects.get().enabled
    assert Limit.objects.get().member == PoolMember.objects.get()


def test_object_that_changed_since_is_reverted_only_by_force(api: Resource) -> None:
    first = last()
    Resource.objects.update(description="one")
    change = last()
    Resource.objects.update(description="two")
    with pytest.raises(CannotRevert, match="api has been changed since: revert the later events first, or use force"):
        revert(change)
    revert(change, force=True)
    assert Resource.objects.get().description == ""
    with pytest.raises(CannotRevert, match="api already is as it was before this event"):
        revert(change, force=True)
    revert(first, force=True)
    with pytest.raises(CannotRevert, match="already"):
        revert(first)


def test_revert_that_no_longer_fits_changes_nothing(full: Policy, user: Entity) -> None:
    made = AuditEvent.objects.get(verb="create", object_type="entity")
    with pytest.raises(CannotRevert, match="user:42 is in use: remove it from entity user:42 on api first"):
        revert(made)
    full.delete()
    deleted = last()
    user.delete()
    with pytest.raises(CannotRevert, match="client user:42 does not exist: restore it first"):
        revert(deleted)
    revert(last())
    again = Policy.objects.create(resource=full.resource, entity=Entity.objects.get())
    with pytest.raises(CannotRevert, match="entity user:42 on api can no longer be restored: A policy for this"):
        revert(deleted)
    assert Policy.objects.get() == again
    assert verify().ok


def test_events_without_configuration_cannot_be_reverted(db: None) -> None:
    event = AuditEvent.objects.create(verb="reset", source="service", object_type="state")
    with pytest.raises(CannotRevert, match="a reset of state did not change configuration"):
        revert(event)


def test_fields_of_another_version_do_not_matter_unless_they_are_gone(api: Resource) -> None:
    key = {"object_type": "resource", "object_id": str(api.pk), "object_label": "api", "verb": "update", "source": "x"}
    old = AuditEvent.objects.create(before={"description": "then"}, after={"description": ""}, **key)
    revert(old)
    assert Resource.objects.get().description == "then"
    unknown = AuditEvent.objects.create(before={"colour": "red"}, after={"description": "then"}, **key)
    with pytest.raises(CannotRevert, match="the field colour no longer exists"):
        revert(unknown)


def test_differences_name_fields_and_parts() -> None:
    before = {
        "reason": "a",
        "extends": False,
        "entity": None,
        "limits": [{"key": "tpm", "text": "1/min"}, {"key": "rpm"}],
    }
    after = {"reason": "b", "extends": False, "entity": "u", "limits": [{"key": "tpm", "text": "2/min"}], "tags": [1]}
    assert differences(before, after) == [
        Difference("reason", FieldChange.CHANGED, "a", "b"),
        Difference("entity", FieldChange.ADDED, None, "u"),
        Difference("limits tpm: text", FieldChange.CHANGED, "1/min", "2/min"),
        Difference("limits rpm: key", FieldChange.REMOVED, "rpm", None),
        Difference("tags", FieldChange.ADDED, None, [1]),
    ]
    assert differences(None, {"name": "x", "description": ""}) == [Difference("name", FieldChange.ADDED, None, "x")]
    assert differences({"name": "x"}, None) == [Difference("name", FieldChange.REMOVED, "x", None)]


def page(event: AuditEvent, name: str = "revert") -> str:
    return reverse(f"admin:limits_app_auditevent_{name}", args=[event.pk])


def test_the_admin_shows_differences_and_reverts_after_asking(admin_client: Client, api: Resource) -> None:
    Resource.objects.update(description="<b>")
    event = last()
    shown = admin_client.get(page(event, "change")).content.decode()
    assert '<th scope="row">description</th><td>changed</td><td></td><td>&lt;b&gt;</td>' in shown
    assert f'href="{page(event)}"' in shown
    asked = admin_client.get(page(event)).content.decode()
    assert "<td>&lt;b&gt;</td><td></td>" in asked
    assert Resource.objects.get().description == "<b>"
    response = admin_client.post(page(event), {"reason": "typo"})
    assert response.status_code == 302
    assert Resource.objects.get().description == ""
    assert (last().actor, last().source, last().reason) == ("admin", "admin", "typo")


def test_the_admin_shows_why_a_revert_fails_and_allows_force(admin_client: Client, api: Resource) -> None:
    made = last()
    Resource.objects.update(description="one")
    event = last()
    Resource.objects.update(description="two")
    assert "is deleted" in admin_client.get(page(made)).content.decode()
    assert "<td>two</td><td></td>" in admin_client.get(page(event)).content.decode()
    response = admin_client.post(page(event))
    assert response.status_code == 200
    [message] = get_messages(response.wsgi_request)
    assert "has been changed since" in str(message)
    admin_client.post(page(event), {"force": "on"})
    assert Resource.objects.get().description == ""


@pytest.mark.parametrize(
    ("reason", "problem"), [("x\0y", "Null characters are not allowed."), ("x" * 1001, "at most 1000 characters")]
)
def test_an_invalid_reason_is_rejected(reason: str, problem: str, admin_client: Client, api: Resource) -> None:
    Resource.objects.update(description="one")
    event = last()
    assert problem in admin_client.post(page(event), {"reason": reason, "force": "on"}).content.decode()
    assert Resource.objects.get().description == "one"


READ = "view_auditevent"
REVERT = "revert_auditevent"


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        ([READ], False),
        ([READ, "change_resource"], False),
        ([READ, REVERT], False),
        ([REVERT, "change_resource"], False),
        ([READ, REVERT, "add_resource", "delete_resource"], False),
        ([READ, REVERT, "change_resource"], True),
    ],
)
def test_permissions_to_revert(permissions: list[str], allowed: bool, client: Client, api: Resource) -> None:
    Resource.objects.update(description="x")
    event = last()
    visitor = staff(client, *permissions)
    if READ in permissions:
        assert (page(event).encode() in visitor.get(page(event, "change")).content) is allowed
    assert visitor.get(page(event)).status_code == (200 if allowed else 403)
    assert visitor.post(page(event)).status_code == (302 if allowed else 403)
    assert (Resource.objects.get().description == "") is allowed


def test_permissions_are_checked_again(client: Client, api: Resource, monkeypatch: pytest.MonkeyPatch) -> None:
    Resource.objects.update(description="x")
    event = last()
    visitor = staff(client, READ, REVERT, "change_resource")
    needed = iter([("change", Resource), ("add", Resource)])  # as after somebody has deleted it
    monkeypatch.setattr(rights, "changed_by_revert", lambda _event: next(needed))
    assert visitor.post(page(event)).status_code == 403
    assert Resource.objects.get().description == "x"


def test_resets_have_no_button_and_no_page(admin_client: Client) -> None:
    event = AuditEvent.objects.create(verb="reset", source="service", object_type="state", after={"resource": "api"})
    assert b"revert/" not in admin_client.get(page(event, "change")).content
    assert admin_client.post(page(event)).status_code == 403


@pytest.mark.parametrize("key", ["0", "abc", "9" * 30])
def test_unknown_event_is_not_found(key: str, admin_client: Client) -> None:
    url = reverse("admin:limits_app_auditevent_changelist")
    assert admin_client.get(f"{url}{key}/revert/").status_code == 404
    assert admin_client.get(f"{url}{key}/change/").status_code == 302


def test_filters_and_search(admin_client: Client, api: Resource, django_assert_max_num_queries: Any) -> None:
    for number in range(30):
        Resource.objects.create(name=f"r{number}")
    url = reverse("admin:limits_app_auditevent_changelist")
    with django_assert_max_num_queries(13):
        shown = admin_client.get(url, {"verb": "create", "object_type": "resource", "q": "r29"}).content.decode()
    assert shown.count('class="field-who"') == 1
    assert admin_client.get(url, {"when__year": last().when.year}).status_code == 200
