"""Policies and their limits: scopes, definitions, and what the database itself refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DataError, IntegrityError, models, transaction
from django.utils import timezone

from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import (
    CallLimit,
    LimitDefinition,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.models import Entity, Limit, Policy, PolicyEffect, PolicyScope, Pool, Resource
from tests.configuration.rows import complaint, permits, quota, rate

pytestmark = pytest.mark.django_db

SCOPES = [
    (False, False, PolicyScope.SYSTEM, "system"),
    (True, False, PolicyScope.RESOURCE, "resource api"),
    (False, True, PolicyScope.ENTITY, "entity user:42"),
    (True, True, PolicyScope.ENTITY_ON_RESOURCE, "entity user:42 on api"),
]


@pytest.mark.parametrize(("on_resource", "on_entity", "scope", "said"), SCOPES)
def test_resource_and_entity_define_the_scope(
    on_resource: bool, on_entity: bool, scope: PolicyScope, said: str, api: Resource, user: Entity
) -> None:
    policy = Policy(resource=api if on_resource else None, entity=user if on_entity else None)
    assert policy.scope is scope
    assert str(policy) == said


@pytest.mark.parametrize(("on_resource", "on_entity"), [scope[:2] for scope in SCOPES])
def test_a_scope_has_one_policy(on_resource: bool, on_entity: bool, api: Resource, user: Entity) -> None:
    scope = {"resource": api if on_resource else None, "entity": user if on_entity else None}
    first = Policy.objects.create(**scope)
    first.full_clean()
    said = complaint(Policy(**scope).full_clean)
    assert said == "A policy for this resource and entity or plan already exists."
    with pytest.raises(IntegrityError, match="limits_app_policy_one_per_scope"), transaction.atomic():
        Policy.objects.bulk_create([Policy(**scope)])


def test_policies_are_listed_from_the_broadest_to_the_most_specific(api: Resource, user: Entity) -> None:
    for resource, entity in ((api, user), (None, user), (api, None), (None, None)):
        Policy.objects.create(resource=resource, entity=entity)
    assert [str(policy) for policy in Policy.objects.all()] == [
        "system",
        "entity user:42",
        "resource api",
        "entity user:42 on api",
    ]


def test_an_effect_that_does_not_exist_is_refused_everywhere(db: None) -> None:
    assert "'free' is not a valid choice" in complaint(Policy(effect="free").full_clean, "effect")
    with pytest.raises(IntegrityError, match="limits_app_policy_values"), transaction.atomic():
        Policy.objects.bulk_create([Policy(effect="free")])


def test_a_reason_that_no_database_could_store_is_refused() -> None:
    assert "NUL" in complaint(Policy(reason="because\0").full_clean, "reason")


DEFINITIONS: list[tuple[LimitDefinition, str]] = [
    (RateLimit("tpm", 1000, 60), "tpm=1000/min"),
    (RateLimit("tpm", 0.5, 0.25, burst=2.125), "tpm=0.5/250ms:burst=2.125"),
    (RateLimit("tpm", 10, 1, RateLimitAlgorithm.GCRA), "tpm=10/s:gcra"),
    (RateLimit("tpm", 10, 1, RateLimitAlgorithm.LEAKY_BUCKET, burst=1), "tpm=10/s:leaky_bucket:burst=1"),
    (RateLimit("tpm", 10**12, 366 * 86_400), "tpm=1000G/366d"),
    (RateLimit("calls", 10, 1), "calls=10/s:rate"),
    (CallLimit(30, 10, RateLimitAlgorithm.SLIDING_WINDOW), "calls=30/10s:sliding_window"),
    (CallLimit(30, 3600, RateLimitAlgorithm.FIXED_WINDOW), "calls=30/h:fixed_window"),
    (RateLimit("tpm", 10, 1, soft=True), "tpm=10/s:soft"),
    (CallLimit(30, 10, RateLimitAlgorithm.GCRA, soft=True), "calls=30/10s:gcra:soft"),
    (QuotaLimit.per_month("tokens", 10**12), "tokens=1000G/month@UTC"),
    (QuotaLimit.per_day("tokens", 5, "Europe/Berlin", soft=True), "tokens=5/day@Europe/Berlin:soft"),
    (QuotaLimit.per_session("tokens", 5, 0.25), "tokens=5/250ms:session"),
    (ResourceLimit("connections", 10), "connections=10"),
    (ResourceLimit("connections", 10, 2.5), "connections=10:hold=2500ms"),
    (ResourceLimit("calls", 10), "calls=10:permits"),
]


@pytest.mark.parametrize(("definition", "said"), DEFINITIONS)
def test_a_definition_survives_the_database_exactly(definition: LimitDefinition, said: str, policy: Policy) -> None:
    row = Limit.from_definition(policy, definition)
    row.full_clean()
    row.save()
    stored = Limit.objects.get(pk=row.pk)
    assert stored.definition() == definition
    assert type(stored.definition().capacity) is type(definition.capacity)
    assert str(stored) == said
    assert (stored.key, stored.text) == (definition.key, said.partition("=")[2])


@pytest.mark.parametrize(
    ("key", "typed", "kept"),
    [
        ("tpm", "1,000 / 1 min : token_bucket", "1000/min"),
        ("tpm", "400000/60s", "400k/min"),
        ("tokens", "5M/Month", "5M/month@UTC"),
        ("call_count", "60/60s", "60/min"),
        ("connections", "10 : permits : hold=60s", "10:hold=1min"),
    ],
)
def test_validation_writes_the_one_text_of_a_limit(key: str, typed: str, kept: str, policy: Policy) -> None:
    row = Limit(policy=policy, key=key, text=typed)
    row.save()
    stored = Limit.objects.get()
    assert stored.definition() == Limit(key=key, text=kept).definition()
    stored.full_clean()
    assert stored.text == kept


def test_a_policy_gives_its_definitions_in_the_order_of_their_keys(policy: Policy) -> None:
    for row in (rate(policy, "tpm"), permits(policy), rate(policy, "daily", "1000/d")):
        row.save()
    assert policy.definitions() == (
        ResourceLimit("connections", 10),
        RateLimit("daily", 1000, 86_400),
        RateLimit("tpm", 1000, 60),
    )


INVALID = [
    ("", "5/min", "must look like"),
    ("7up", "5/min", "limit key '7up' must be a letter"),
    ("a b:c", "5/min", "limit key 'a b:c' must be"),
    ("tpm", "many", "amount 'many' must be a number"),
    ("tpm", "0/min", "capacity must be more than 0"),
    ("tpm", "1.5/min:leaky_bucket", "capacity must be a whole number"),
    ("tpm", "5/min:shared", "leave `shared` out"),
    ("tpm", "5/min rpm=5/min", "time 'min rpm=5/min' must look like"),
    ("tpm=5/min", "5/min", "must look like"),
    (" tpm", "5/min", "limit ' tpm' cannot be"),
    ("calls", "5/min", "limit 'calls' cannot be '5/min': the key call_count is reserved for requests"),
    ("call_count", "5:permits", "limit 'call_count' cannot be"),
    ("call_count", "5/month", "limit 'call_count' cannot be"),
    ("tokens", "5/day@Mars/X", "time_zone 'Mars/X' is not known here"),
    ("tokens", "5/min:soft:soft", "option 'soft' is given more than once"),
]
"""Keys and texts of which no limit can be made."""


@pytest.mark.parametrize(("key", "text", "said"), INVALID)
def test_an_invalid_limit_is_never_written(key: str, text: str, said: str, policy: Policy) -> None:
    row = Limit(policy=policy, key=key, text=text)
    with pytest.raises(InvalidLimit, match=re.escape(said)):
        row.definition()
    assert said in complaint(row.full_clean, "text")
    rate(policy, "sound").save()
    for write in (
        row.save,
        lambda: Limit.objects.bulk_create([row]),
        lambda: policy.limits.all().update(key=key, text=text),
    ):
        with pytest.raises(IntegrityError, match=re.escape(said)), transaction.atomic():
            write()
    assert policy.definitions() == (RateLimit("sound", 1000, 60),)


def test_a_policy_has_one_limit_of_a_key(policy: Policy) -> None:
    rate(policy).save()
    assert complaint(permits(policy, "tpm").full_clean) == "The policy already has a limit with this key."
    with pytest.raises(IntegrityError, match="UNIQUE"), transaction.atomic():
        Limit.objects.bulk_create([rate(policy)])


@pytest.mark.parametrize("effect", [PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED])
def test_a_policy_that_blocks_or_frees_has_no_limits(effect: PolicyEffect, db: None) -> None:
    policy = Policy.objects.create(effect=effect)
    said = complaint(rate(policy).full_clean)
    assert said == f"A policy with the effect “{effect}” cannot have limits: remove this one, or use “limits”."


def test_a_limit_without_a_policy_is_an_error_of_its_field(db: None) -> None:
    row = Limit(key="tpm", text="1/s")
    assert "to either a policy or a pool member" in complaint(row.full_clean, "policy")


def test_no_way_of_writing_makes_dates_overlap() -> None:
    now, hour = timezone.now(), timedelta(hours=1)
    entity = Entity.objects.create(identifier="user:1")
    for scope in ({}, {"entity": entity}):
        Policy.objects.create(valid_from=now, valid_until=now + hour, **scope)
        later = Policy.objects.create(valid_from=now + hour, **scope)
        with pytest.raises(IntegrityError, match="no_overlap"), transaction.atomic():
            Policy.objects.filter(pk=later.pk).update(valid_from=now + hour / 2)
        with pytest.raises(IntegrityError, match="no_overlap"), transaction.atomic():
            Policy.objects.bulk_create([Policy(valid_from=now + 2 * hour, **scope)])
        later.enforcement = "shadow"
        later.save()
    assert Policy.objects.count() == 4


def test_no_way_of_writing_makes_a_limit_of_an_entity_shared(api: Resource, user: Entity) -> None:
    everybody, own = Policy.objects.create(resource=api), Policy.objects.create(resource=api, entity=user)
    rate(everybody, shared=True).save()
    rate(own).save()
    for write in (
        lambda: own.limits.all().update(shared=True),
        lambda: Limit.objects.bulk_create([rate(own, "rpm", shared=True)]),
        lambda: rate(own, "rpm", shared=True).save(),
        lambda: everybody.limits.all().update(policy=own, key="rpm"),
        lambda: Policy.objects.filter(pk=everybody.pk).update(entity=Entity.objects.create(identifier="user:43")),
    ):
        with pytest.raises(IntegrityError, match="cannot be shared by all entities"), transaction.atomic():
            write()
    assert [limit.shared for limit in Limit.objects.order_by("pk")] == [True, False]


@pytest.mark.parametrize("effect", ["blocked", "unlimited"])
def test_no_way_of_writing_leaves_limits_with_a_policy_that_has_none(effect: str, policy: Policy) -> None:
    rate(policy).save()
    with pytest.raises(IntegrityError, match=f"{effect} has no limits: delete them first"), transaction.atomic():
        Policy.objects.filter(pk=policy.pk).update(effect=effect)
    policy.limits.all().delete()
    Policy.objects.filter(pk=policy.pk).update(effect=effect)
    with pytest.raises(IntegrityError, match="has no limits"), transaction.atomic():
        Limit.objects.bulk_create([rate(policy)])


@pytest.mark.parametrize("sound", [rate, quota, permits])
def test_invalid_values_from_before_do_not_stop_a_write(sound: Any, policy: Policy) -> None:
    limit = sound(policy)
    limit.save()
    models.QuerySet.update(Limit.objects.filter(pk=limit.pk), key="a b:c")
    Policy.objects.filter(pk=policy.pk).update(enforcement="off")
    policy.limits.all().update(key="sound")
    assert policy.limits.get().definition().key == "sound"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: Resource.objects.create(name="no such name"), "name: "),
        (lambda: Resource.objects.create(name="x" * 65), "name: "),
        (lambda: Resource.objects.update(name="no such name"), "name: "),
        (lambda: Pool.objects.bulk_create([Pool(name="a\0b")]), "name: "),
        (lambda: Entity.objects.create(identifier="user:1", metadata=[1]), "metadata: Must be a JSON object"),
        (lambda: Entity.objects.create(identifier="x" * 256), "identifier: "),
        (lambda: Policy.objects.create(weekly_hours="whenever", time_zone="UTC"), "'whenever' is not a day"),
        (lambda: Policy.objects.create(weekly_hours="mon", time_zone="Mars/Olympus"), "is not a time zone"),
        (lambda: Policy.objects.create(time_zone="Mars/Olympus"), "is not a time zone"),
    ],
)
def test_every_way_of_writing_validates_rows(write: Callable[[], object], said: str) -> None:
    resource = Resource.objects.create(name="api")
    with pytest.raises((IntegrityError, DataError), match=said), transaction.atomic():
        write()
    models.QuerySet.update(Resource.objects.all(), name="no such name")  # as SQL of one's own may
    Resource.objects.update(description="sound")
    assert Resource.objects.get(pk=resource.pk).description == "sound"
