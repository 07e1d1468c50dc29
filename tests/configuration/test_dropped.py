"""Limits that a policy drops, because the most specific policy wins as a whole."""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from limits_app.models import Entity, Policy, PolicyEffect, Resource
from limits_app.resolver import resolve
from limits_app.services.dropped import dropped_by_each, dropped_keys
from limits_app.services.limits_file.content import stored_content
from limits_app.services.limits_file.planning import dropped_limits
from tests.configuration.rows import rate

pytestmark = pytest.mark.django_db


DROPS = re.compile(r"drops '(?P<key>\w+)' of .*?(?: and (?P<more>\d+) more)?:")
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def make(resource: Resource | None, entity: Entity | None, *keys: str, **fields: Any) -> Policy:
    """A policy with a rate for each key."""
    policy = Policy.objects.create(resource=resource, entity=entity, **fields)
    for key in keys:
        rate(policy, key).save()
    return policy


def test_the_broadest_policy_replaces_nothing(api: Resource) -> None:
    make(api, None, "tpm")
    assert dropped_keys(make(None, None, "daily")) == ()


def test_a_resource_policy_drops_what_the_system_limits(api: Resource) -> None:
    make(None, None, "tpm", "daily")
    assert dropped_keys(make(api, None, "tpm")) == (("daily", "system"),)


def test_keys_that_the_policy_has_itself_are_not_dropped(api: Resource) -> None:
    make(None, None, "tpm", "daily")
    assert dropped_keys(make(api, None, "tpm", "daily", "more")) == ()


def test_of_several_policies_each_is_told_what_it_drops(api: Resource, user: Entity) -> None:
    make(None, None, "tpm", "daily")
    made = [make(api, None, "tpm"), make(None, user, "daily"), make(api, user, "tpm")]
    for some in (made, made[:1], [made[0], made[2]], []):
        assert list(dropped_by_each(some)) == [(policy, dropped_keys(policy)) for policy in some]


def test_only_the_policy_that_would_hold_instead_counts(api: Resource, user: Entity) -> None:
    make(None, None, "everywhere")
    make(api, None, "here")
    own = make(api, user, "mine")
    assert dropped_keys(own) == (("here", "resource api"),)
    make(None, user, "users")
    assert dropped_keys(own) == (("users", "entity user:42"),)


def test_a_policy_on_all_resources_drops_the_limits_of_each(api: Resource, user: Entity) -> None:
    mail = Resource.objects.create(name="mail")
    make(None, None, "everywhere")
    make(api, None, "here", "mine")
    make(mail, None, "there")
    assert dropped_keys(make(None, user, "mine")) == (
        ("everywhere", "system"),
        ("here", "resource api"),
        ("there", "resource mail"),
    )


def test_a_policy_on_all_resources_drops_nothing_where_the_entity_has_its_own(api: Resource, user: Entity) -> None:
    make(api, None, "here")
    make(api, user, "here.too")
    assert dropped_keys(make(None, user, "mine")) == ()


def test_what_holds_for_others_is_not_dropped(api: Resource, user: Entity) -> None:
    other = Entity.objects.create(identifier="user:43")
    make(api, other, "theirs")
    make(None, other, "theirs.too")
    make(Resource.objects.create(name="mail"), None, "elsewhere")
    assert dropped_keys(make(api, user, "mine")) == ()


@pytest.mark.parametrize("effect", [PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED])
def test_a_policy_that_blocks_or_frees_says_so_itself(effect: PolicyEffect, api: Resource) -> None:
    make(None, None, "tpm")
    assert dropped_keys(make(api, None, effect=effect)) == ()


def test_a_policy_without_limits_has_none_to_drop(api: Resource, user: Entity) -> None:
    make(None, None, "tpm")
    make(api, None, effect=PolicyEffect.BLOCKED)
    assert dropped_keys(make(api, user, "mine")) == ()


def test_a_policy_that_extends_drops_nothing(api: Resource) -> None:
    make(None, None, "tpm", "daily")
    policy = make(api, None, "tpm")
    policy.extends = True
    assert dropped_keys(policy) == ()


@pytest.mark.parametrize("when", [{"valid_from": NOW}, {"weekly_hours": "mon", "time_zone": "UTC"}])
def test_a_policy_that_does_not_always_hold_drops_what_the_one_of_its_scope_limits(
    when: dict[str, Any], api: Resource, user: Entity
) -> None:
    make(None, None, "everywhere")
    policy = make(api, user, "mine", **when)
    assert dropped_keys(policy) == (("everywhere", "system"),)
    always = make(api, user, "always")
    assert dropped_keys(policy) == (("always", "entity user:42 on api"),)
    assert dropped_keys(always) == (("everywhere", "system"),)


def test_a_policy_that_is_off_limits_nothing_that_could_be_dropped(api: Resource) -> None:
    make(None, None, "tpm", enforcement="off")
    assert dropped_keys(make(api, None, "daily")) == ()


def test_below_a_policy_that_extends_the_next_one_is_dropped_too(api: Resource, user: Entity) -> None:
    make(None, None, "rpm", "tpm")
    make(api, None, "tpm", extends=True)
    assert dropped_keys(make(api, user, "mine")) == (("tpm", "resource api"), ("rpm", "system"))


def test_below_one_that_does_not_extend_nothing_is_dropped(api: Resource, user: Entity) -> None:
    make(None, None, "rpm")
    make(api, None, "tpm")
    assert dropped_keys(make(api, user, "mine")) == (("tpm", "resource api"),)


@pytest.mark.parametrize(
    "nothing",
    [
        {"enforcement": "shadow"},
        {"enforcement": "off"},
        {"rollout_percent": 0},
        {"valid_from": NOW - timedelta(9), "valid_until": NOW},
    ],
)
def test_what_holds_for_nobody_hides_nothing_and_limits_nothing(
    nothing: dict[str, Any], api: Resource, user: Entity
) -> None:
    make(api, None, "tpm")
    make(None, user, "theirs", **nothing)
    assert dropped_keys(make(api, user, "mine")) == (("tpm", "resource api"),)


@pytest.mark.parametrize(
    "at_times",
    [
        {"rollout_percent": 50},
        {"weekly_hours": "mon", "time_zone": "UTC"},
        {"valid_from": NOW + timedelta(9999)},
        {"valid_from": NOW, "valid_until": NOW + timedelta(9999)},
    ],
)
def test_what_holds_at_times_or_for_some_is_dropped_and_so_is_what_holds_otherwise(
    at_times: dict[str, Any], api: Resource, user: Entity
) -> None:
    make(api, None, "tpm")
    make(None, user, "theirs", **at_times)
    assert dropped_keys(make(api, user, "mine")) == (("theirs", "entity user:42"), ("tpm", "resource api"))


def test_a_policy_with_dates_drops_what_the_one_without_extends(api: Resource, user: Entity) -> None:
    make(api, None, "tpm", "rpm")
    make(api, user, "mine", extends=True)
    dated = make(api, user, "rpm", valid_from=NOW, valid_until=NOW + timedelta(9999))
    assert dropped_keys(dated) == (("mine", "entity user:42 on api"), ("tpm", "resource api"))


def test_a_policy_that_has_ended_drops_nothing(api: Resource) -> None:
    make(None, None, "tpm")
    assert dropped_keys(make(api, None, "daily", valid_from=NOW - timedelta(9), valid_until=NOW)) == ()


def test_policies_between_other_dates_are_not_replaced(api: Resource, user: Entity) -> None:
    soon = timezone.now() + timedelta(9)
    make(api, None, "earlier", valid_from=NOW, valid_until=soon)
    make(api, None, "later", valid_from=soon + timedelta(2))
    dated = make(api, user, "mine", valid_from=soon, valid_until=soon + timedelta(1))
    assert dropped_keys(dated) == ()
    make(None, user, "everywhere", valid_from=soon + timedelta(1))
    assert dropped_keys(dated) == ()


def test_a_policy_on_all_resources_drops_those_to_which_the_own_one_there_adds(api: Resource, user: Entity) -> None:
    make(api, None, "tpm", "rpm")
    make(api, user, "rpm", extends=True)
    assert dropped_keys(make(None, user, "mine")) == (("tpm", "resource api"),)


def test_a_policy_on_all_resources_drops_those_where_the_own_one_holds_at_times(api: Resource, user: Entity) -> None:
    make(api, None, "tpm")
    make(api, user, "tpm", weekly_hours="mon", time_zone="UTC")
    always = make(None, user, "mine")
    assert dropped_keys(always) == (("tpm", "resource api"),)
    assert dropped_keys(make(None, user, "tpm", valid_from=NOW, valid_until=NOW + timedelta(9999))) == (
        ("mine", "entity user:42"),
    )


def test_beside_an_always_extending_one_of_its_own_a_policy_with_dates_drops_that_of_all(
    api: Resource, user: Entity
) -> None:
    make(api, None, "tpm")
    make(None, user, "mine", "tpm", extends=True)
    dated = make(None, user, "rpm", valid_from=NOW, valid_until=NOW + timedelta(9999))
    assert dropped_keys(dated) == (("mine", "entity user:42"), ("tpm", "entity user:42"))


def test_a_site_without_time_zones_has_dates_too(settings: Any, api: Resource) -> None:
    settings.USE_TZ = False
    now = NOW.replace(tzinfo=None)
    make(None, None, "rpm", valid_from=now - timedelta(1), valid_until=now)
    make(None, None, "tpm", valid_from=now, valid_until=now + timedelta(2_900_000))
    assert dropped_keys(make(api, None, "daily")) == (("tpm", "system"),)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_dropped_is_what_would_hold_without_the_policy(seed: int, api: Resource, user: Entity) -> None:
    drawn = random.Random(seed)
    for resource, entity in ((None, None), (api, None), (None, user), (api, user)):
        for dates in ({}, {"valid_from": NOW, "valid_until": drawn.choice([None, NOW + timedelta(1)])}):
            if drawn.random() < 0.7:
                fields = {
                    "extends": drawn.random() < 0.5,
                    "enforcement": drawn.choice(["enforce", "enforce", "shadow"]),
                }
                make(resource, entity, *drawn.sample("abcdef", 2), **fields, **dates)
    for policy in Policy.objects.filter(resource=api, enforcement="enforce"):
        whom = None if policy.entity is None else user.identifier
        with_it = resolve("api", whom).choices[0]
        if any((one.candidate.policy_id, one.standing) == (policy.pk, "counts") for one in with_it.verdicts):
            Policy.objects.filter(pk=policy.pk).update(enforcement="off")
            without_it = resolve("api", whom).choices[0]
            Policy.objects.filter(pk=policy.pk).update(enforcement="enforce")
            freed = {held.limit.key for held in without_it.limits} - {held.limit.key for held in with_it.limits}
            assert {one.key for one in dropped_keys(policy)} == freed


@pytest.mark.parametrize("seed", range(6))
def test_all_policies_at_once_are_judged_as_each_by_itself(seed: int, api: Resource, user: Entity) -> None:
    drawn = random.Random(seed)
    for resource in (None, api, Resource.objects.create(name="mail")):
        for entity in (None, user):
            for when in ({}, {"valid_from": NOW + timedelta(9999)}, {"weekly_hours": "mon", "time_zone": "UTC"}):
                fields = {
                    "extends": drawn.random() < 0.3,
                    "enforcement": drawn.choice(["enforce", "enforce", "shadow", "off"]),
                    "rollout_percent": drawn.choice([0, 50, 100, 100]),
                    "effect": drawn.choice(["limits", "limits", "limits", "unlimited"]),
                }
                limited = fields["effect"] == "limits"
                fields["extends"] = fields["extends"] and limited
                make(resource, entity, *(drawn.sample("abcdef", 2) if limited else ()), **fields, **when)
    entries = [one.entry for (name, _), one in stored_content("default").items() if name == "policies"]
    for entry, policy in zip(
        sorted(entries, key=lambda one: one.key), sorted(Policy.objects.all(), key=_key), strict=True
    ):
        one_by_one = Counter(key for key, _ in dropped_keys(policy))
        told = [DROPS.search(one) for one in dropped_limits(entries, [entry])]
        assert {one["key"]: 1 + int(one["more"] or 0) for one in told if one} == one_by_one


def _key(policy: Policy) -> tuple[str, ...]:
    valid_from = policy.valid_from.isoformat() if policy.valid_from else ""
    return str(policy.resource or ""), str(policy.entity or ""), valid_from, policy.weekly_hours
