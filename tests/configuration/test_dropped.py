"""Limits that a policy drops, because the most specific policy wins as a whole."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from limits_app.models import Entity, Policy, PolicyEffect, Resource
from limits_app.services.dropped import dropped_keys
from tests.configuration.rows import rate

pytestmark = pytest.mark.django_db


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


def test_only_the_policy_that_would_hold_instead_counts(api: Resource, user: Entity) -> None:
    make(None, None, "everywhere")
    make(api, None, "here")
    own = make(api, user, "mine")
    assert dropped_keys(own) == (("here", "resource api"),)
    make(None, user, "user's")
    assert dropped_keys(own) == (("user's", "entity user:42"),)


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
    make(api, user, "mine here")
    assert dropped_keys(make(None, user, "mine")) == ()


def test_what_holds_for_others_is_not_dropped(api: Resource, user: Entity) -> None:
    other = Entity.objects.create(identifier="user:43")
    make(api, other, "theirs")
    make(None, other, "theirs too")
    make(Resource.objects.create(name="mail"), None, "elsewhere")
    assert dropped_keys(make(api, user, "mine")) == ()


@pytest.mark.parametrize("effect", [PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED])
def test_a_policy_that_blocks_or_frees_says_so_itself(effect: PolicyEffect, api: Resource) -> None:
    make(None, None, "tpm")
    assert dropped_keys(make(api, None, effect=effect)) == ()


def test_a_policy_without_limits_has_none_to_drop(api: Resource, user: Entity) -> None:
    make(None, None, "tpm")
    make(api, None, "leftover", effect=PolicyEffect.BLOCKED)
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
