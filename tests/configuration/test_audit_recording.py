"""Whatever way configuration is changed, one event for each object says so."""

from __future__ import annotations

import contextvars
import io
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import IntegrityError, connections, transaction
from django.db.models import F, ProtectedError, Value
from django.db.models.functions import Concat

from limits_app import CallLimit, limits
from limits_app.audit import acting, unrecorded, verify
from limits_app.models import AuditEvent, AuditHead, Entity, Limit, Policy, Pool, PoolMember, Resource
from tests.configuration.rows import rate

pytestmark = pytest.mark.django_db


def told(after: int = 0) -> list[tuple[str, str, str]]:
    """What the events after the first few say: verb, type and label, in order."""
    events = AuditEvent.objects.order_by("number").values_list("verb", "object_type", "object_label")
    return list(events[after:])


@pytest.fixture
def pool(db: None) -> Pool:
    pool = Pool.objects.create(name="pool")
    member = PoolMember.objects.create(pool=pool, name="east")
    rate(None, member=member).save()
    return pool


def bulk_update(rows: list[Any], field: str, value: object) -> None:
    for row in rows:
        setattr(row, field, value)
    type(rows[0]).objects.bulk_update(rows, [field])


def second(**fields: object) -> Policy:
    return Policy.objects.create(entity=Entity.objects.get(), **fields)


POLICY = ("update", "policy", "resource api")
WAYS: dict[str, tuple[Callable[[Policy, Limit], object], list[tuple[str, str, str]]]] = {
    "save": (lambda policy, _: setattr(policy, "reason", "x") or policy.save(), [POLICY]),
    "save_of_one_field": (
        lambda _, limit: setattr(limit, "text", "5/min") or limit.save(update_fields=["text"]),
        [POLICY],
    ),
    "new_limit": (lambda policy, _: rate(policy, "rpm").save(), [POLICY]),
    "update": (lambda *_: Policy.objects.order_by("resource__name").update(reason="x"), [POLICY]),
    "update_of_an_expression": (
        lambda *_: Limit.objects.filter(member=None).update(text=Concat(F("text"), Value(":soft"))),
        [POLICY],
    ),
    "update_of_nothing": (lambda *_: Policy.objects.filter(pk=0).update(reason="x"), []),
    "bulk_update": (lambda _, limit: bulk_update([limit], "text", "7/min"), [POLICY]),
    "bulk_create_of_limits": (
        lambda policy, _: Limit.objects.bulk_create([rate(policy, "a"), rate(policy, "b")]),
        [POLICY],
    ),
    "bulk_create": (
        lambda *_: Resource.objects.bulk_create([Resource(name="one"), Resource(name="two")], 1),
        [("create", "resource", "one"), ("create", "resource", "two")],
    ),
    "bulk_create_where_some_are_there": (
        lambda *_: Resource.objects.bulk_create([Resource(name="api"), Resource(name="new")], ignore_conflicts=True),
        [("create", "resource", "new")],
    ),
    "upsert": (
        lambda *_: Resource.objects.bulk_create(
            [Resource(name="api", description="x"), Resource(name="new")],
            update_conflicts=True,
            update_fields=["description"],
            unique_fields=["name"],
        ),
        [("update", "resource", "api"), ("create", "resource", "new")],
    ),
    "upsert_of_limits": (
        lambda policy, limit: Limit.objects.bulk_create(
            [rate(policy, text="3/min", pk=limit.pk)],
            update_conflicts=True,
            update_fields=["text"],
            unique_fields=["id"],
        ),
        [POLICY],
    ),
    "get_or_create": (lambda *_: Resource.objects.get_or_create(name="new"), [("create", "resource", "new")]),
    "update_or_create": (
        lambda *_: Resource.objects.update_or_create({"description": "x"}, name="api"),
        [("update", "resource", "api")],
    ),
    "related_manager": (lambda policy, _: policy.limits.create(key="k", text="1"), [POLICY]),
    "related_clear": (lambda policy, _: policy.resource.policies.clear(), [("update", "policy", "system")]),
    "limit_moved_by_save": (
        lambda _, limit: setattr(limit, "policy", second()) or limit.save(),
        [("create", "policy", "entity user:42"), POLICY, ("update", "policy", "entity user:42")],
    ),
    "limits_moved_by_update": (
        lambda *_: Limit.objects.filter(member=None).update(policy=second()),
        [("create", "policy", "entity user:42"), POLICY, ("update", "policy", "entity user:42")],
    ),
    "limits_moved_by_an_expression": (
        lambda *_: Limit.objects.filter(member=None).update(policy_id=Value(second().pk)),
        [("create", "policy", "entity user:42"), POLICY, ("update", "policy", "entity user:42")],
    ),
    "delete_of_a_limit": (lambda _, limit: limit.delete(), [POLICY]),
    "delete_of_limits": (lambda policy, _: policy.limits.all().delete(), [POLICY]),
    "delete": (lambda policy, _: policy.delete(), [("delete", "policy", "resource api")]),
    "delete_of_a_queryset": (lambda *_: Policy.objects.all().delete(), [("delete", "policy", "resource api")]),
    "members_limit": (lambda *_: Limit.objects.filter(policy=None).update(text="9/min"), [("update", "pool", "pool")]),
    "delete_of_a_member": (lambda *_: PoolMember.objects.get().delete(), [("update", "pool", "pool")]),
    "delete_of_a_pool": (lambda *_: Pool.objects.all().delete(), [("delete", "pool", "pool")]),
    "new_member": (lambda *_: Pool.objects.get().members.create(name="west"), [("update", "pool", "pool")]),
}


@pytest.mark.usefixtures("user", "pool")
@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS)
def test_every_way_to_write_is_recorded_once_for_each_object(
    way: Callable[[Policy, Limit], object], expected: list[tuple[str, str, str]], policy: Policy, limit: Limit
) -> None:
    before = AuditEvent.objects.count()
    way(policy, limit)
    assert sorted(told(before)) == sorted(expected)
    assert verify().ok
    assert list(unrecorded()) == []


@pytest.mark.usefixtures("user", "pool")
@pytest.mark.parametrize(("way", "expected"), WAYS.values(), ids=WAYS)
def test_in_a_block_too(
    way: Callable[[Policy, Limit], object], expected: list[tuple[str, str, str]], policy: Policy, limit: Limit
) -> None:
    before = AuditEvent.objects.count()
    with acting(actor="ada", source="test", reason="why"):
        way(policy, limit)
        Pool.objects.filter(name="pool").update(failover=False)
        assert AuditEvent.objects.count() == before
    # What is created and changed in the block was created, and the pool is changed unless it was deleted.
    created = {(kind, label) for verb, kind, label in expected if verb == "create"}
    events = {one for one in expected if not (one[0] == "update" and one[1:] in created)}
    events |= set() if ("delete", "pool", "pool") in expected else {("update", "pool", "pool")}
    assert sorted(told(before)) == sorted(events)
    authors = set(AuditEvent.objects.filter(number__gt=before).values_list("actor", "source", "reason"))
    assert authors == {("ada", "test", "why")}


def test_a_database_without_returned_keys_is_compared_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, api: Resource
) -> None:
    monkeypatch.setattr(type(connections["default"].features), "can_return_rows_from_bulk_insert", False)
    Resource.objects.bulk_create([Resource(name="one"), Resource(name="two")])
    assert told() == [("create", "resource", name) for name in ("api", "one", "two")]


def test_a_policy_whose_limits_are_saved_one_by_one_is_one_event_in_a_block(api: Resource) -> None:
    with acting(actor="ada"):
        policy = Policy.objects.create(resource=api, reason="launch")
        for key in "abc":
            rate(policy, key).save()
    event = AuditEvent.objects.get(object_type="policy")
    assert [limit["key"] for limit in event.after["limits"]] == ["a", "b", "c"]
    assert (event.actor, event.source, event.reason) == ("ada", "code", "launch")


def test_the_outer_block_records_its_context_and_writes() -> None:
    with acting(actor="", source="api"):
        with acting(actor="ada", source="service", reason="inner"):
            Resource.objects.create(name="one")
        assert not AuditEvent.objects.exists()
        limits.set_resource_limits("one", [CallLimit(1, 60)], actor="bob")
    Resource.objects.create(name="outside")
    events = AuditEvent.objects.order_by("number").values_list("object_type", "actor", "source", "reason")
    assert list(events) == [
        ("resource", "ada", "api", "inner"),
        ("policy", "bob", "api", ""),
        ("resource", "", "code", ""),
    ]


@pytest.mark.parametrize("source", ["", "x" * 33])
def test_a_source_that_no_column_takes_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="must have 1 to 32 characters"), acting(source=source):
        pass


def test_a_block_that_fails_or_is_rolled_back_leaves_nothing(api: Resource) -> None:
    with pytest.raises(ZeroDivisionError), acting():
        api.description = str(api.delete() and 1 / 0)
    with acting():
        Resource.objects.create(name="lost")
        transaction.set_rollback(True)
    with acting():
        with transaction.atomic():
            Resource.objects.create(name="lost too")
            transaction.set_rollback(True)
        Resource.objects.create(name="kept")
    assert told() == [("create", "resource", "api"), ("create", "resource", "kept")]
    assert verify().number == AuditHead.objects.get().number == 2


def test_rejected_write_leaves_the_transaction_unchanged(policy: Policy) -> None:
    with transaction.atomic():
        with pytest.raises(ProtectedError):
            policy.resource.delete()
        with pytest.raises(IntegrityError), transaction.atomic():
            Resource.objects.bulk_create([Resource(name="api")])
        Resource.objects.create(name="after")
    assert told(2) == [("create", "resource", "after")]


def test_fixtures_are_recorded(tmp_path: Path, policy: Policy) -> None:
    rate(policy).save()
    out = io.StringIO()
    call_command("dumpdata", "limits_app", exclude=["limits_app.auditevent", "limits_app.audithead"], stdout=out)
    policy.delete()
    before = AuditEvent.objects.count()
    fixture = tmp_path / "limits.json"
    fixture.write_text(json.dumps(json.loads(out.getvalue())))
    with acting(actor="ada", source="fixture"):
        call_command("loaddata", fixture, verbosity=0)
    assert told(before) == [("create", "policy", "resource api")]


@pytest.mark.django_db(transaction=True)
def test_a_copy_of_the_context_that_outlives_its_block_or_is_another_threads_writes_its_own_events() -> None:
    def create(name: str) -> None:
        Resource.objects.create(name=name)
        connections.close_all()

    with acting(actor="ada"):
        ended = contextvars.copy_context()
    with acting(actor="ada"):
        Resource.objects.create(name="one")
        opened = contextvars.copy_context()
    opened.run(lambda: Resource.objects.create(name="two"))
    for name, copied in (("three", ended), ("four", opened)):
        thread = threading.Thread(target=copied.run, args=(create, name))
        thread.start()
        thread.join()
    Resource.objects.create(name="five")
    events = AuditEvent.objects.order_by("number").values_list("object_label", "actor")
    assert list(events) == [("one", "ada"), ("two", "ada"), ("three", "ada"), ("four", "ada"), ("five", "")]


def test_changes_of_coroutines_are_recorded() -> None:
    async def change() -> None:
        resource = await Resource.objects.acreate(name="api")
        resource.description = "x"
        await resource.asave()
        await Resource.objects.aupdate_or_create({"description": "y"}, name="api")
        await resource.adelete()

    async_to_sync(change)()
    assert [verb for verb, *_ in told()] == ["create", "update", "update", "delete"]


def test_a_thousand_policies_cost_few_queries(api: Resource, django_assert_max_num_queries: Any) -> None:
    Entity.objects.bulk_create([Entity(identifier=f"user:{number}") for number in range(1000)])
    users = list(Entity.objects.all())
    with django_assert_max_num_queries(60):
        Policy.objects.bulk_create([Policy(resource=api, entity=user) for user in users])
    assert AuditEvent.objects.filter(object_type="policy").count() == 1000
