"""Changes that are taken back through the API."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from limits_app import services
from limits_app.audit import acting
from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Entity, Policy, Resource
from tests.api.site import ROOT, as_user, person

pytestmark = pytest.mark.django_db(transaction=True)


def last() -> AuditEvent:
    event = AuditEvent.objects.first()
    assert event is not None
    return event


def where(event: AuditEvent) -> str:
    return f"{ROOT}audit-events/{event.pk}/revert/"


def test_a_change_is_taken_back_and_leaves_an_event(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(1, 60)])
    services.set_resource_limits("api", [CallLimit(2, 60)])
    changed = last()
    done = root.post(where(changed), {"reason": "too much"}, format="json")
    assert (done.status_code, done.data["after"], done.data["number"]) == (200, changed.before, changed.number + 1)
    assert (done.data["actor"], done.data["source"], done.data["reason"]) == ("root", "api", "too much")
    assert Policy.objects.get().definitions() == (CallLimit(1, 60),)
    assert done["ETag"] == root.get(f"{ROOT}audit-events/{done.data['id']}/")["ETag"]


def test_the_reason_may_be_in_the_header_too(root: APIClient) -> None:
    Resource.objects.create(name="x")
    event = last()
    assert root.post(where(event), {}, format="json", headers={"X-Reason": "why"}).data["reason"] == "why"
    told = root.post(where(last()), {}, format="json").data
    assert (told["verb"], told["reason"]) == ("create", f"revert of event {event.number + 1}")


def test_reverting_needs_permissions_to_view_to_revert_and_for_the_change() -> None:
    with acting(actor="ann"):
        Resource.objects.create(name="x")
    event = last()
    needed = ["revert_auditevent", "view_auditevent", "delete_resource"]
    for left_out in needed:
        somebody = person(f"without {left_out}", *[one for one in needed if one != left_out])
        assert as_user(somebody).post(where(event), {}, format="json").status_code == 403
    assert Resource.objects.exists()
    assert as_user(person("bob", *needed)).post(where(event), {}, format="json").status_code == 200
    assert not Resource.objects.exists()


def test_revert_needs_an_event_and_known_fields(root: APIClient) -> None:
    assert root.post(f"{ROOT}audit-events/0/revert/", {}, format="json").status_code == 404
    Resource.objects.create(name="x")
    assert root.post(where(last()), {"forec": True}, format="json").status_code == 400
    assert root.get(where(last())).status_code == 405


@pytest.mark.parametrize(
    ("allowed", "gone", "status"),
    [("change", True, 403), ("add", True, 200), ("add", False, 403), ("change", False, 200)],
)
def test_forced_revert_needs_the_permission_for_its_change(allowed: str, gone: bool, status: int) -> None:
    made = Resource.objects.create(name="api", description="one")
    made.description = "two"
    made.save()
    changed = last()
    if gone:
        made.delete()
    client = as_user(person("some", "view_auditevent", "revert_auditevent", f"{allowed}_resource"))
    assert client.post(where(changed), {"force": True}, format="json").status_code == status
    kept = [] if gone else ["two"]
    assert [one.description for one in Resource.objects.all()] == (["one"] if status == 200 else kept)


def test_a_revert_that_blocks_a_private_network_again_needs_confirmation(root: APIClient) -> None:
    services.set_entity("ip:192.168.1.1", blocked=True)
    services.set_entity("ip:192.168.1.1", blocked=False)
    event = last()
    refused = root.post(where(event), {}, format="json")
    assert (refused.status_code, refused.data["detail"].split(".")[0]) == (409, "This also blocks a private network")
    assert not Entity.objects.get().blocked
    assert root.post(f"{where(event)}?confirm=true", {}, format="json").status_code == 200
    assert Entity.objects.get().blocked
