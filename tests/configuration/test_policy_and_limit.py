"""Policies and their limits: scopes, definitions, and what the database itself refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db import DataError, IntegrityError, models, transaction
from django.utils import timezone

from limits_app.core.errors import InvalidLimit
from limits_app.core.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.models import Entity, Limit, LimitKind, Policy, PolicyEffect, PolicyScope, Pool, Resource
from tests.configuration.rows import complaint, permits, quota, rate

pytestmark = pytest.mark.django_db

SCOPES = [
    (False, False, PolicyScope.SYSTEM, "system"),
    (True, False, PolicyScope.RESOURCE, "resource api"),
    (False, True, PolicyScope.ENTITY, "entity user:42"),
    (True, True, PolicyScope.ENTITY_ON_RESOURCE, "entity user:42 on api"),
]


@pytest.mark.parametrize(("on_resource", "on_entity", "scope", "said"), SCOPES)
def test_resource_and_entity_say_the_scope(
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


DEFINITIONS: list[tuple[Definition, str]] = [
    (RateLimit("tpm", 1000, 60), "tpm: 1000 / 60 s (token bucket)"),
    (RateLimit("tpm", 0.5, 0.25, burst=2.125), "tpm: 0.5 / 0.25 s (token bucket, burst 2.125)"),
    (RateLimit("tpm", 10, 1, RateLimitAlgorithm.GCRA), "tpm: 10 / 1 s (GCRA)"),
    (RateLimit("tpm", 10, 1, RateLimitAlgorithm.LEAKY_BUCKET, burst=1), "tpm: 10 / 1 s (leaky bucket, burst 1)"),
    (RateLimit("tpm", 10**12, 366 * 86_400), "tpm: 1000000000000 / 31622400 s (token bucket)"),
    (CallLimit(30, 10, RateLimitAlgorithm.SLIDING_WINDOW), "requests: 30 / 10 s (sliding window)"),
    (CallLimit(30, 3600, RateLimitAlgorithm.FIXED_WINDOW), "requests: 30 / 3600 s (fixed window)"),
    (RateLimit("tpm", 10, 1, soft=True), "tpm: 10 / 1 s (token bucket), soft"),
    (CallLimit(30, 10, RateLimitAlgorithm.GCRA, soft=True), "requests: 30 / 10 s (GCRA), soft"),
    (QuotaLimit.per_month("tokens", 10**12), "tokens: 1000000000000 per month (UTC)"),
    (QuotaLimit.per_day("tokens", 5, "Europe/Berlin", soft=True), "tokens: 5 per day (Europe/Berlin), soft"),
    (QuotaLimit.per_session("tokens", 5, 0.25), "tokens: 5 per session of 0.25 s"),
    (ResourceLimit("connections", 10), "connections: 10 at once"),
    (ResourceLimit("connections", 10, 2.5), "connections: 10 at once, timeout 2.5 s"),
]


@pytest.mark.parametrize(("definition", "said"), DEFINITIONS)
def test_a_definition_survives_the_database_exactly(definition: Definition, said: str, policy: Policy) -> None:
    row = Limit.from_definition(policy, definition)
    row.full_clean()
    row.save()
    stored = Limit.objects.get(pk=row.pk)
    assert stored.definition() == definition
    assert type(stored.definition().capacity) is type(definition.capacity)
    assert str(stored) == said


def test_a_policy_gives_its_definitions_in_the_order_of_their_keys(policy: Policy) -> None:
    for row in (rate(policy, "tpm"), permits(policy), rate(policy, "daily", window_seconds=86_400)):
        row.save()
    assert policy.definitions() == (
        ResourceLimit("connections", 10),
        RateLimit("daily", 1000, 86_400),
        RateLimit("tpm", 1000, 60),
    )


@pytest.mark.parametrize("kind", [LimitKind.RATE, LimitKind.CALL])
def test_what_is_left_empty_is_filled_in(kind: LimitKind, policy: Policy) -> None:
    row = Limit(policy=policy, kind=kind, key="tpm" if kind is LimitKind.RATE else "", capacity=5, window_seconds=1)
    row.full_clean()
    assert row.algorithm == "token_bucket"
    assert row.definition() == (RateLimit("tpm", 5, 1) if kind is LimitKind.RATE else CallLimit(5, 1))


Row = tuple[Callable[..., Limit], dict[str, Any], str, str]
"""How a limit is made, the fields that make it wrong, and what is said of which field."""

BAD: list[Row] = [
    (rate, {"key": ""}, "key", "Enter what is counted, such as “tokens”"),
    (rate, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (rate, {"kind": "call", "key": "tpm"}, "key", "is reserved for the kind “requests”"),
    (rate, {"kind": "tide"}, "kind", "'tide' is not a valid choice"),
    (rate, {"capacity": 0}, "capacity", "capacity must be more than 0, not 0"),
    (rate, {"capacity": 10**12 + 1}, "capacity", "capacity must not be more than 10^12"),
    (rate, {"capacity": "1.5", "algorithm": "leaky_bucket"}, "capacity", "capacity must be a whole number, not 1.5"),
    (rate, {"capacity": "1.5", "algorithm": "sliding_window"}, "capacity", "capacity must be a whole number"),
    (rate, {"capacity": "1.5", "algorithm": "fixed_window"}, "capacity", "capacity must be a whole number"),
    (rate, {"window_seconds": None}, "window_seconds", "Enter the length of the window in seconds: 60 is a minute"),
    (rate, {"window_seconds": 0}, "window_seconds", "between 0.001 seconds and 366 days (31622400 seconds), not 0"),
    (rate, {"window_seconds": 366 * 86_400 + 1}, "window_seconds", "must be between 0.001 seconds and 366 days"),
    (rate, {"algorithm": "magic"}, "algorithm", "'magic' is not a valid choice"),
    (rate, {"burst": 0}, "burst", "burst must be more than 0, not 0"),
    (rate, {"burst": 10**12 + 1}, "burst", "burst must not be more than 10^12"),
    (rate, {"burst": "0.5", "algorithm": "leaky_bucket"}, "burst", "burst must be a whole number"),
    (rate, {"burst": 5, "algorithm": "sliding_window"}, "burst", "Not allowed for this algorithm: leave it empty"),
    (rate, {"burst": 5, "algorithm": "fixed_window"}, "burst", "Not allowed for this algorithm: leave it empty"),
    (quota, {"capacity": 0}, "capacity", "capacity must be more than 0, not 0"),
    (quota, {"capacity": "2.5"}, "capacity", "capacity must be a whole number, not 2.5"),
    (quota, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (quota, {"period": ""}, "period", "Choose a calendar period, or enter the seconds from the first use."),
    (quota, {"period": "year"}, "period", "'year' is not a valid choice"),
    (quota, {"session_seconds": 5}, "period", "Not allowed with seconds from the first use: leave one of them empty."),
    (quota, {"period": "", "session_seconds": 5}, "time_zone", "Not allowed with seconds"),
    (
        quota,
        {"period": "", "time_zone": "", "session_seconds": 0},
        "session_seconds",
        "session_seconds must be between 0.001 seconds and 366 days",
    ),
    (permits, {"capacity": 0}, "capacity", "capacity must be at least 1, not 0"),
    (permits, {"capacity": "2.5"}, "capacity", "capacity must be a whole number, not 2.5"),
    (permits, {"key": "call_count"}, "key", "is reserved for the kind “requests”"),
    (permits, {"soft": True}, "soft", "Concurrent use cannot be reported only: untick it."),
    (permits, {"max_hold_seconds": 0}, "max_hold_seconds", "must be between 0.001 seconds and 366 days"),
    (permits, {"max_hold_seconds": 10**9}, "max_hold_seconds", "must be between 0.001 seconds and 366 days"),
]
"""What both validation and the database refuse."""

UNREADABLE: list[Row] = [
    (rate, {"key": "7up"}, "key", "limit key '7up' must be a letter"),
    (rate, {"key": "a\0b"}, "key", "must be a letter followed by"),
    (rate, {"key": "k" * 10_240}, "key", "at most 64 characters"),
    (rate, {"capacity": None}, "capacity", "cannot be null"),
    (rate, {"capacity": "many"}, "capacity", "must be a decimal number"),
    (rate, {"capacity": Decimal("sNaN")}, "capacity", "must be a finite number"),
    (rate, {"capacity": "Infinity"}, "capacity", "must be a decimal number"),
    (rate, {"capacity": Decimal("1e999999")}, "capacity", "no more than 16 digits"),
    (rate, {"capacity": "0.0001"}, "capacity", "no more than 3 decimal places"),
    (rate, {"algorithm": ["gcra"]}, "algorithm", "is not a valid choice"),
    (
        rate,
        {"kind": "call", "key": "", "max_hold_seconds": 5},
        "max_hold_seconds",
        "Not allowed for the kind “requests”",
    ),
    (rate, {"soft": "perhaps"}, "soft", "must be either True or False"),
    (quota, {"period": ["day"]}, "period", "is not a valid choice"),
    (quota, {"time_zone": "Europe/Berlino"}, "time_zone", "time_zone 'Europe/Berlino' is not known here: use an IANA"),
    (quota, {"time_zone": "z" * 65}, "time_zone", "at most 64 characters"),
]
"""What validation refuses, since the database could not store it or does not know better."""

BROKEN: list[tuple[Callable[..., Limit], dict[str, Any]]] = [
    (rate, {"kind": "call"}),
    (rate, {"capacity": -1}),
    (rate, {"capacity": Decimal("999999999999.999"), "algorithm": "fixed_window"}),
    (rate, {"burst": -1}),
    (rate, {"algorithm": ""}),
    (quota, {"time_zone": ""}),
    (quota, {"period": "", "time_zone": ""}),
]
"""What the database refuses too; validation fills some of it in."""


@pytest.mark.parametrize(
    ("make", "fields", "field", "said"),
    [*BAD, *UNREADABLE],
    ids=lambda value: getattr(value, "__name__", f"{value!a:.40}"),
)
def test_a_bad_limit_is_refused_at_the_field_that_is_wrong(
    make: Callable[..., Limit], fields: dict[str, Any], field: str, said: str, policy: Policy
) -> None:
    complained = complaint(make(policy, **fields).full_clean, field)
    assert said in complained
    assert len(complained) < 500


def test_a_period_without_a_zone_is_one_of_utc(policy: Policy) -> None:
    row = quota(policy, time_zone="")
    row.full_clean()
    assert row.time_zone == "UTC"
    assert row.definition() == QuotaLimit.per_day("tokens", 1000)


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
    row = Limit(kind="rate", key="tpm", capacity=1, window_seconds=1)
    assert "to either a policy or a pool member" in complaint(row.full_clean, "policy")


ELSEWHERE: dict[Callable[..., Limit], tuple[str, dict[str, Any]]] = {
    rate: ("units", {"max_hold_seconds": 5, "period": "day", "time_zone": "UTC", "session_seconds": 5}),
    quota: ("quota", {"window_seconds": 60, "algorithm": "gcra", "burst": 3, "max_hold_seconds": 3}),
    permits: (
        "concurrent use",
        {"window_seconds": 60, "algorithm": "gcra", "burst": 3, "period": "day", "session_seconds": 5},
    ),
}
"""Fields of other kinds of limits."""


@pytest.mark.parametrize(
    ("make", "kind", "field", "value"),
    [(make, kind, *field) for make, (kind, fields) in ELSEWHERE.items() for field in fields.items()],
)
def test_fields_of_another_kind_are_refused_by_validation_and_by_the_database(
    make: Callable[..., Limit], kind: str, field: str, value: object, policy: Policy
) -> None:
    limit = make(policy, **{field: value})
    said = complaint(limit.full_clean, field)
    assert said.startswith(f"Not allowed for the kind “{kind}”: leave it empty, or choose the kind")
    with pytest.raises(IntegrityError, match="limits_app_limit_fields"), transaction.atomic():
        Limit.objects.bulk_create([make(policy, **{field: value})])


@pytest.mark.parametrize(("make", "fields"), [*[row[:2] for row in BAD], *BROKEN])
def test_the_database_itself_refuses_a_bad_limit(
    make: Callable[..., Limit], fields: dict[str, Any], policy: Policy
) -> None:
    with pytest.raises(IntegrityError, match=r"limits_app_limit_(amounts|fields)"), transaction.atomic():
        Limit.objects.bulk_create([make(policy, **fields)])


def test_a_definition_of_an_unsound_row_is_refused_by_name(policy: Policy) -> None:
    with pytest.raises(InvalidLimit, match="limit 'tpm': window_seconds must be a number, not None"):
        rate(policy, window_seconds=None).definition()


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


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"key": "a b:c"}, "limit key 'a b:c' must be"), ({"time_zone": "Mars/X"}, "limit 'tokens': .*'Mars/X'")],
)
def test_an_invalid_definition_is_never_written(fields: dict[str, Any], said: str, policy: Policy) -> None:
    quota(policy).save()
    with pytest.raises(IntegrityError, match=said), transaction.atomic():
        policy.limits.all().update(**fields)
    policy.limits.all().delete()
    with pytest.raises(IntegrityError, match=said), transaction.atomic():
        Limit.objects.bulk_create([quota(policy, **{"key": "tokens", **fields})])


@pytest.mark.parametrize("sound", [rate, quota, permits])
def test_what_was_there_already_is_in_nobodys_way(sound: Any, policy: Policy) -> None:
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
def test_no_way_of_writing_makes_a_row_that_nobody_could_read(write: Callable[[], object], said: str) -> None:
    resource = Resource.objects.create(name="api")
    with pytest.raises((IntegrityError, DataError), match=said), transaction.atomic():
        write()
    models.QuerySet.update(Resource.objects.all(), name="no such name")  # as SQL of one's own may
    Resource.objects.update(description="sound")
    assert Resource.objects.get(pk=resource.pk).description == "sound"
