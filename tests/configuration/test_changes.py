"""Changes are announced once per transaction, after the commit, whatever way they were made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
from django.db import transaction

from limits_app import signals
from limits_app.models import AuditEvent, Entity, Limit, Policy, Pool, Resource
from limits_app.models.changes import Touched, announce, in_transaction, pending
from tests.configuration.rows import rate


def bulk_update(resource: Resource) -> None:
    resource.description = "changed"
    Resource.objects.bulk_update([resource], ["description"])


# What is recorded is announced too, and test_audit_recording has every way to write.
WRITES: dict[str, Callable[[Resource, Entity], object]] = {
    "save": lambda resource, _: resource.save(),
    "delete": lambda resource, _: resource.delete(),
    "update": lambda *_: Entity.objects.update(name="changed"),
    "bulk_create": lambda *_: Resource.objects.bulk_create([Resource(name="one"), Resource(name="two")]),
    "bulk_update": lambda resource, _: bulk_update(resource),
    "delete_of_a_queryset": lambda *_: Resource.objects.all().delete(),
    "limit": lambda *_: Limit.objects.bulk_create([rate(Policy.objects.create())]),
    "member": lambda *_: Pool.objects.create(name="pool").members.create(name="one"),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_announced_once_after_the_commit(write: Callable[[Resource, Entity], object], announced: list[str]) -> None:
    resource, entity = Resource.objects.create(name="api"), Entity.objects.create(identifier="user:42")
    announced.clear()
    with transaction.atomic():
        write(resource, entity)
        assert pending("default")
        Entity.objects.create(identifier="another change")
        assert announced == []
    assert announced == ["default"]
    assert not pending("default")


@pytest.mark.django_db(transaction=True)
def test_announced_without_a_transaction(announced: list[str]) -> None:
    Resource.objects.create(name="api")
    Resource.objects.update(description="changed")
    assert announced == ["default"] * 2


@pytest.mark.django_db(transaction=True)
def test_related_verbs_that_skip_signals_are_announced(announced: list[str]) -> None:
    resource, policy = Resource.objects.create(name="api"), Policy.objects.create()
    announced.clear()
    resource.policies.add(policy)
    assert announced == ["default"]
    resource.policies.remove(policy)
    assert announced == ["default"] * 2
    resource.policies.set([policy])
    assert announced == ["default"] * 3
    resource.policies.clear()
    assert announced == ["default"] * 4


@pytest.mark.django_db(transaction=True)
def test_nothing_is_announced_where_nothing_changed(announced: list[str]) -> None:
    assert Resource.objects.update(description="") == 0
    assert Resource.objects.bulk_create([]) == []
    assert Resource.objects.all().delete() == (0, {})
    list(Resource.objects.all())
    AuditEvent.objects.create(verb="create", source="test")  # the log is no configuration
    assert announced == []


@pytest.mark.django_db(transaction=True)
def test_a_rollback_takes_the_announcement_back(announced: list[str]) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: None)
        assert not pending("default"), "another callback is no announcement"
        Resource.objects.create(name="api")
        assert pending("default")
        transaction.set_rollback(True)
    assert not pending("default")
    assert announced == []


@pytest.mark.django_db(transaction=True)
def test_a_rolled_back_savepoint_takes_only_its_own_announcement_back(announced: list[str]) -> None:
    with transaction.atomic():
        with transaction.atomic():
            Resource.objects.create(name="lost")
            transaction.set_rollback(True)
        assert not pending("default")
        Resource.objects.create(name="kept")
        with transaction.atomic():
            Resource.objects.create(name="lost-too")
            transaction.set_rollback(True)
        assert pending("default")
    assert announced == ["default"]


@pytest.mark.django_db
def test_the_transaction_of_a_test_is_none_of_the_caller() -> None:
    assert not in_transaction("default")
    with transaction.atomic():
        assert in_transaction("default")
        with transaction.atomic():
            assert in_transaction("default")
    assert not in_transaction("default")


@pytest.mark.django_db(transaction=True)
def test_without_a_test_case_every_transaction_is_one() -> None:
    assert not in_transaction("default")
    with transaction.atomic():
        assert in_transaction("default")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("nested", [False, True])
def test_changes_are_announced_also_when_another_commit_hook_fails(announced: list[str], nested: bool) -> None:
    def fail() -> None:
        raise RuntimeError("went wrong")

    def change() -> None:
        with transaction.atomic():
            transaction.on_commit(fail)
            with transaction.atomic() if nested else nullcontext():
                Resource.objects.create(name="api")

    with pytest.raises(RuntimeError, match="went wrong"):
        change()
    assert announced == ["default"]


@pytest.mark.django_db(transaction=True)
def test_a_failing_receiver_affects_no_other(announced: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def fail(**details: object) -> None:
        raise RuntimeError("receiver broke")

    signals.limits_changed.connect(fail)
    try:
        announce("default", Touched.anything())
    finally:
        signals.limits_changed.disconnect(fail)
    assert announced == ["default"]
    assert "receiver broke" in caplog.text
