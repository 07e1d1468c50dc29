"""What an announcement says: which clients a change concerns, or that it concerns more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.utils import timezone

from limits_app import CallLimit, limits, signals
from limits_app.engine.change_log import ACCESS, ALL, COOLING, EVERYTHING, GENERAL, ROWS, Change, Changes
from limits_app.models import Candidate, Entity, Plan, Policy, PolicyEffect, Resource
from limits_app.models.changes import Touched, announce, identifier_digest

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def changes() -> Iterator[list[Changes]]:
    """The changes of each announcement, in order."""
    heard: list[Changes] = []

    def hear(changes: Changes, **details: Any) -> None:
        heard.append(changes)

    signals.limits_changed.connect(hear)
    yield heard
    signals.limits_changed.disconnect(hear)


def of(*identifiers: str) -> Changes:
    """The changes of some clients."""
    return tuple(Change.of_client(identifier_digest(identifier)) for identifier in sorted(identifiers))


@pytest.fixture
def rows() -> None:
    """A tenant with a user, a plan, a resource, and a policy of the user."""
    plan = Plan.objects.create(name="pro")
    tenant = Entity.objects.create(identifier="tenant:acme")
    user = Entity.objects.create(identifier="user:1", parent=tenant)
    api = Resource.objects.create(name="api")
    limits.set_entity_limits(user.identifier, [CallLimit(5, 60)], resource="api")
    Policy.objects.create(resource=api, plan=plan)
    Policy.objects.create(resource=api)
    Entity.objects.create(identifier="key:*")


def _policy(**fields: Any) -> Policy:
    return Policy.objects.get(**fields)


def _free_key() -> int:
    """A primary key above those of all entities."""
    return 1 + int(max(Entity.objects.values_list("pk", flat=True)))


def _rename(identifier: str, new: str) -> None:
    Entity.objects.filter(identifier=identifier).update(identifier=new)


ONE_CLIENT: dict[str, Callable[[], object]] = {
    "plan": lambda: Entity.objects.filter(identifier="user:1").update(plan=Plan.objects.get()),
    "parent": lambda: Entity.objects.filter(identifier="user:1").update(parent=None),
    "policy": lambda: _policy(entity__identifier="user:1").save(),
    "limit": lambda: limits.set_entity_limits("user:1", [CallLimit(7, 60)], resource="api"),
    "removed limits": lambda: _policy(entity__identifier="user:1").limits.all().delete(),
    "candidate": lambda: Candidate.objects.create(policy=_policy(entity__identifier="user:1"), limits="9/min"),
    "boost": lambda: Policy.objects.create(
        resource=Resource.objects.get(),
        entity=Entity.objects.get(identifier="user:1"),
        valid_from=timezone.now(),
        valid_until=timezone.now() + timedelta(hours=1),
    ),
    "deleted policy": lambda: _policy(entity__identifier="user:1").delete(),
}


@pytest.mark.parametrize("change", ONE_CLIENT)
def test_change_of_client_names_it(change: str, rows: None, changes: list[Changes]) -> None:
    ONE_CLIENT[change]()
    assert changes == [of("user:1")]


ACCESS_OF_ONE_CLIENT: dict[str, Callable[[], object]] = {
    "blocked": lambda: Entity.objects.filter(identifier="user:1").update(blocked=True),
    "exempt": lambda: Entity.objects.filter(identifier="user:1").update(unlimited=True),
    "exempt by a policy": lambda: Policy.objects.create(
        entity=Entity.objects.get(identifier="user:1"), effect=PolicyEffect.UNLIMITED
    ),
}


@pytest.mark.parametrize("change", ACCESS_OF_ONE_CLIENT)
def test_client_that_is_blocked_or_exempt_is_named_with_that(change: str, rows: None, changes: list[Changes]) -> None:
    ACCESS_OF_ONE_CLIENT[change]()
    assert changes == [(*of("user:1"), ACCESS)]


def test_new_and_deleted_clients_are_named(rows: None, changes: list[Changes]) -> None:
    Entity.objects.create(identifier="user:2")
    Entity.objects.get(identifier="user:2").delete()
    limits.set_entity_limits("user:3", [CallLimit(1, 60)], resource="api")
    assert changes == [of("user:2"), of("user:2"), of("user:3")]


def test_renamed_client_has_both_identifiers(rows: None, changes: list[Changes]) -> None:
    _rename("user:1", "user:other")
    assert changes == [of("user:1", "user:other")]


MOVES: list[dict[str, Any]] = [{"plan": 1}, {"parent": 1}, {"cascade": True}, {"identifier": "tenant:other"}]


@pytest.mark.parametrize("change", MOVES, ids=lambda change: str(next(iter(change))))
def test_a_change_of_a_parent_touches_blocks_below_it(
    change: dict[str, Any], rows: None, changes: list[Changes]
) -> None:
    others = {"plan": Plan.objects.get(), "parent": Entity.objects.create(identifier="tenant:above")}
    names = {"tenant:acme", str(change.get("identifier", "tenant:acme"))}
    change = {name: others.get(name, value) for name, value in change.items()}
    changes.clear()
    Entity.objects.filter(identifier="tenant:acme").update(name="Acme")
    Entity.objects.filter(identifier="tenant:acme").update(**change)
    assert changes == [of("tenant:acme"), (*of(*names), ACCESS)]


NO_SINGLE_CLIENT: dict[str, tuple[Change, Callable[[], object]]] = {
    "resource": (GENERAL, lambda: Resource.objects.update(description="an API")),
    "policy of a resource": (GENERAL, lambda: _policy(entity=None, plan=None).save()),
    "policy of a plan": (GENERAL, lambda: _policy(plan__name="pro").delete()),
    "plan": (GENERAL, lambda: Plan.objects.update(priority=3)),
    "pattern": (ALL, lambda: Entity.objects.create(identifier="user:eu-*")),
    "network": (ALL, lambda: Entity.objects.create(identifier="ip:10.0.0.0/8")),
    "policy of a pattern": (
        GENERAL,
        lambda: Policy.objects.create(entity=Entity.objects.get(identifier="key:*")),
    ),
    "policy that leaves a client": (
        GENERAL,
        lambda: Policy.objects.filter(entity__identifier="user:1").update(
            entity=Entity.objects.get(identifier="key:*")
        ),
    ),
    "switch": (GENERAL, lambda: limits.set_emergency("off", reason="a test")),
}


@pytest.mark.parametrize("change", NO_SINGLE_CLIENT)
def test_change_of_no_single_client_is_announced_as_all_where_it_has_new_rows(
    change: str, rows: None, changes: list[Changes]
) -> None:
    expected, make = NO_SINGLE_CLIENT[change]
    make()
    assert changes == [(expected,)]


def test_row_that_becomes_a_pattern_is_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    Entity.objects.create(identifier="user:2")
    _rename("user:2", "user:*")
    assert changes == [of("user:2"), (EVERYTHING,)]


@pytest.mark.parametrize(("number", "expected"), [(64, None), (65, (ROWS,))])
def test_many_clients_are_announced_as_rows(
    number: int, expected: Changes | None, rows: None, changes: list[Changes]
) -> None:
    names = [f"user:{number}" for number in range(100, 100 + number)]
    Entity.objects.bulk_create([Entity(identifier=name) for name in names])
    Entity.objects.filter(identifier__in=names).update(blocked=True)
    expected = expected or of(*names)
    assert changes == [expected, (*expected, ACCESS)]


def test_many_rows_below_others_are_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    above = _free_key()
    Entity.objects.bulk_create([Entity(pk=above + 1000, identifier="user:latest")])
    Entity.objects.bulk_create([Entity(pk=above + number, identifier=f"user:{number}") for number in range(5, 105)])
    assert changes == [of("user:latest"), (EVERYTHING,)]


@pytest.mark.parametrize("is_single", [False, True])
def test_many_rows_with_chosen_keys_are_announced_as_everything(
    is_single: bool, rows: None, changes: list[Changes]
) -> None:
    first = _free_key()
    names = [f"user:{number}" for number in range(100, 200)]
    Entity.objects.bulk_create([Entity(identifier=name) for name in names])
    Entity.objects.filter(identifier__in=names).delete()
    created = [Entity(pk=first + number, identifier=f"key:{number}") for number in range(100)]
    with transaction.atomic():
        if is_single:
            for entity in created:  # as fixtures are loaded
                entity.save_base(raw=True)
        else:
            Entity.objects.bulk_create(created)
    assert changes == [(ROWS,), (ROWS,), (EVERYTHING,)]


def test_rows_that_are_saved_twice_have_no_chosen_keys(rows: None, changes: list[Changes]) -> None:
    with transaction.atomic():
        created = Entity.objects.create(identifier="user:eu-*")
        created.name = "Europe"
        created.save()
    assert changes == [(ALL,)]


def test_pattern_with_a_chosen_key_is_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    key = _free_key()
    Entity.objects.create(pk=key, identifier="user:eu-*")
    Entity.objects.filter(identifier="user:eu-*").update(name="Europe")
    Entity.objects.create(pk=key + 1, identifier="user:5")
    assert changes == [(EVERYTHING,), (GENERAL,), of("user:5")]


def test_many_renamed_clients_are_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    Entity.objects.bulk_create([Entity(identifier=f"user:{number}") for number in range(100, 140)])
    changed = list(Entity.objects.filter(identifier__startswith="user:1", parent=None))
    for entity in changed:
        entity.identifier += "-old"
    Entity.objects.bulk_update(changed, ["identifier"])
    assert changes[1:] == [(EVERYTHING,)]


def test_renamed_client_in_a_larger_change_is_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    with transaction.atomic():
        _rename("user:1", "user:9")
        Resource.objects.update(description="an API")
    assert changes == [(EVERYTHING,)]


def test_transaction_announces_all_its_clients_once(rows: None, changes: list[Changes]) -> None:
    with transaction.atomic():
        limits.set_entity_limits("user:7", [CallLimit(1, 60)], resource="api")
        Entity.objects.filter(identifier="user:1").update(blocked=True)
    assert changes == [(*of("user:1", "user:7"), ACCESS)]


def test_rolled_back_savepoint_announces_nothing(rows: None, changes: list[Changes]) -> None:
    with transaction.atomic():
        with transaction.atomic():
            Resource.objects.update(description="an API")
            transaction.set_rollback(True)
        Entity.objects.filter(identifier="user:1").update(blocked=True)
    assert changes == [(*of("user:1"), ACCESS)]


def test_members_of_groups_are_named(rows: None, changes: list[Changes]) -> None:
    group, others = Group.objects.create(name="staff"), Group.objects.create(name="others")
    plan = Plan.objects.get()
    plan.groups.create(group=group)
    users = [User.objects.create(username=f"user {number}") for number in range(70)]
    first, second = f"user:{users[0].pk}", f"user:{users[1].pk}"
    changes.clear()
    users[0].groups.add(group, others)
    group.user_set.add(users[1])
    group.user_set.remove(users[1])
    users[0].groups.clear()
    assert changes == [of(first), of(second), of(second), of(first)]
    changes.clear()
    group.user_set.add(*users)
    group.user_set.remove(*users)
    group.user_set.clear()
    assert changes == [(EVERYTHING,), (ROWS,), (ROWS,)]


def test_deleted_users_are_named_where_groups_matter(rows: None, changes: list[Changes]) -> None:
    users = [User.objects.create(username=f"user {number}") for number in range(4)]
    first, *others = [f"user:{user.pk}" for user in users]
    changes.clear()
    users[3].delete()
    group = Group.objects.create(name="staff")
    Plan.objects.get().groups.create(group=group)
    group.user_set.add(users[0])
    changes.clear()
    users[0].delete()
    User.objects.filter(pk__in=[user.pk for user in users[1:3]]).delete()
    assert changes == [of(first), of(*others[:2])]


def test_memberships_of_a_model_of_the_site_are_named(rows: None, changes: list[Changes]) -> None:
    user, group = User.objects.create(username="ann"), Group.objects.create(name="staff")
    Plan.objects.get().groups.create(group=group)
    changes.clear()
    membership = User.groups.through(user=user, group=group)
    for signal in (post_save, post_delete):  # Django sends them unless it has made the model itself
        signal.send(type(membership), instance=membership, using="default")
    assert changes == [of(f"user:{user.pk}")] * 2


def test_groups_of_plans_are_announced_as_everything(rows: None, changes: list[Changes]) -> None:
    group = Group.objects.create(name="staff")
    Plan.objects.get().groups.create(group=group)
    Plan.objects.update(priority=4)
    group.delete()
    assert changes == [(EVERYTHING,), (GENERAL,), (EVERYTHING,)]


@pytest.mark.usefixtures("rows")
def test_cool_downs_are_announced_alone_or_beside_other_changes(changes: list[Changes]) -> None:
    changes.clear()
    with transaction.atomic():
        announce("default", Touched.cool_downs())
        Entity.objects.filter(identifier="user:1").update(parent=None)
    announce("default", Touched.cool_downs())
    assert changes == [(*of("user:1"), COOLING), (COOLING,)]
