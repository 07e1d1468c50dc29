"""The audit log: one event for each change, and none is ever changed or deleted."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, NotSupportedError, transaction
from django.utils.translation import gettext_lazy

from limits_app.audit import acting, snapshot, verify
from limits_app.models import AuditEvent, Endpoint, Entity, Policy, Pool, PoolMember, Resource, Verb
from tests.configuration.rows import permits, rate

pytestmark = pytest.mark.django_db


def test_a_policy_is_remembered_with_its_limits(api: Resource, user: Entity) -> None:
    policy = Policy.objects.create(resource=api, entity=user, reason="pilot")
    rate(policy, text="0.5/min").save()
    permits(policy, text="10:hold=30s").save()
    assert snapshot(policy) == {
        "scope": "entity_on_resource",
        "resource": "api",
        "entity": "user:42",
        "plan": None,
        "counted": "each",
        "effect": "limits",
        "extends": False,
        "enforcement": "enforce",
        "rollout_percent": 100,
        "valid_from": None,
        "valid_until": None,
        "weekly_hours": "",
        "time_zone": "",
        "on_unavailable": "",
        "slice_seconds": 0,
        "reason": "pilot",
        "candidates": [],
        "limits": [
            {"key": "connections", "text": "10:hold=30s"},
            {"key": "tpm", "text": "0.5/min"},
        ],
    }


def test_a_pool_is_remembered_with_its_members_and_their_limits(db: None) -> None:
    pool = Pool.objects.create(name="bedrock")
    member = PoolMember.objects.create(pool=pool, name="east", enabled=False, config={"region": "us-east-1"})
    rate(None, member=member).save()
    told = snapshot(pool)
    assert told["members"] == [
        {
            "name": "east",
            "weight": 1,
            "order": 100,
            "config": {"region": "us-east-1"},
            "enabled": False,
            "limits": [{"key": "tpm", "text": "1000/min"}],
        }
    ]


def test_other_objects_are_remembered_field_by_field(api: Resource, user: Entity) -> None:
    child = Entity.objects.create(identifier="key:1", parent=user, metadata={"plan": ["pro"]})
    rule = Endpoint.objects.create(name="all", path="/", resource=api)
    new = {"name": "api", "description": "", "pool": None, "store": "", "request_priority": "", "made_for_rule": False}
    assert snapshot(api) == new
    assert snapshot(child) == {
        "identifier": "key:1",
        "name": "",
        "parent": "user:42",
        "plan": None,
        "cascade": False,
        "unlimited": False,
        "blocked": False,
        "billing_from": None,
        "metadata": {"plan": ["pro"]},
    }
    assert snapshot(rule)["resource"] == "api"


def test_a_snapshot_does_not_change_with_its_object(user: Entity) -> None:
    user.metadata = {"plan": ["pro"]}
    before = snapshot(user)
    user.metadata["plan"].append("beta")
    assert before["metadata"] == {"plan": ["pro"]}


def test_an_event_has_actor_verb_and_object() -> None:
    with acting(actor="ada", source="shell", reason="launch"):
        api = Resource.objects.create(name="api")
    stored = AuditEvent.objects.get()
    assert str(stored) == "create resource api"
    assert (stored.actor, stored.source, stored.reason) == ("ada", "shell", "launch")
    assert (stored.object_type, stored.object_id, stored.object_label) == ("resource", str(api.pk), "api")
    after = {
        "name": "api",
        "description": "",
        "pool": None,
        "store": "",
        "request_priority": "",
        "made_for_rule": False,
    }
    assert (stored.before, stored.after) == (None, after)


def test_nothing_is_written_where_nothing_changed(api: Resource) -> None:
    api.save()
    Resource.objects.update(name="api")
    with acting(actor="ada"):
        Resource.objects.update(name="other")
        Resource.objects.update(name="api")
    assert AuditEvent.objects.count() == 1


def change_and_save(event: AuditEvent) -> None:
    event.actor = "somebody else"
    event.save()


REFUSED: dict[str, Callable[[AuditEvent], object]] = {
    "save": change_and_save,
    "save_of_some_fields": lambda event: event.save(update_fields=["actor"]),
    "delete": lambda event: event.delete(),
    "update": lambda _: AuditEvent.objects.update(actor="x"),
    "delete_of_a_queryset": lambda _: AuditEvent.objects.all().delete(),
    "bulk_update": lambda event: AuditEvent.objects.bulk_update([event], ["actor"]),
    "update_or_create": lambda event: AuditEvent.objects.update_or_create({"actor": "x"}, pk=event.pk),
    "upsert": lambda event: AuditEvent.objects.bulk_create(
        [event], update_conflicts=True, update_fields=["actor"], unique_fields=["id"]
    ),
    "skipping": lambda event: AuditEvent.objects.bulk_create([event], ignore_conflicts=True),
    "upsert_by_position": lambda event: AuditEvent.objects.bulk_create([event], None, False, True, ["actor"], ["id"]),
    "base_manager": lambda _: AuditEvent._base_manager.update(actor="x"),
}


@pytest.mark.parametrize("attempt", REFUSED.values(), ids=REFUSED)
def test_the_log_is_append_only(attempt: Callable[[AuditEvent], object]) -> None:
    event = AuditEvent.objects.create(verb=Verb.CREATE, source="shell", actor="ada")
    with pytest.raises(NotSupportedError, match="append-only: write another event instead"):
        attempt(event)
    assert AuditEvent.objects.get().actor == "ada"


def test_a_new_event_cannot_take_the_place_of_another() -> None:
    event = AuditEvent.objects.create(verb=Verb.CREATE, source="shell", actor="ada")
    AuditEvent(pk=event.pk, verb=Verb.CREATE, source="shell", actor="x").save()  # its key is its own number
    AuditEvent.objects.bulk_create([AuditEvent(verb=Verb.CREATE, source="shell", actor=actor) for actor in "yz"])
    stored = [(one.pk, one.number, one.actor) for one in AuditEvent.objects.order_by("pk")]
    assert stored == [(1, 1, "ada"), (2, 2, "x"), (3, 3, "y"), (4, 4, "z")]
    assert verify().ok


def test_the_database_rejects_unknown_verbs() -> None:
    with pytest.raises(IntegrityError, match="limits_app_audit_verb"), transaction.atomic():
        AuditEvent.objects.bulk_create([AuditEvent(verb="guess", source="shell")])


@pytest.mark.parametrize("actor", [4915112345, uuid.UUID(int=5), True], ids=str)
def test_the_name_of_an_actor_need_not_be_text(actor: Any) -> None:
    with acting(actor=actor, reason=gettext_lazy("reason")):  # type: ignore[arg-type]  # as models of users have it
        Resource.objects.create(name="api")
    event = AuditEvent.objects.get()
    assert (event.actor, event.reason) == (str(actor), "reason")
    assert verify().ok


@pytest.mark.parametrize("name", ["id", "pk"])
def test_primary_keys_stay_as_they_are(name: str) -> None:
    Resource.objects.create(name="api", pk=1)
    with pytest.raises(NotSupportedError, match="create another row"):
        Resource.objects.update(**{name: 500})
    assert Resource.objects.get().pk == 1
