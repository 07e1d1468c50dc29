"""Limits that a policy drops, because the most specific policy wins as a whole."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group

from limits_app import CallLimit, RateLimit, limits
from limits_app.engine import Noted
from limits_app.models import Entity, Plan, PlanGroup, Policy, Resource
from limits_app.policies import dropped_by_each, dropped_keys, lost_by_new, resolve
from limits_app.services.limits_file import plan as plan_file
from limits_app.services.limits_file import read_content
from limits_app.services.limits_file.proposed import dropped_limits
from limits_app.services.policy_warnings import left_without
from tests.configuration.rows import rate
from tests.policies.entries import stored_content

pytestmark = pytest.mark.django_db


DROPS = re.compile(r"drops '(?P<key>\w+)' of .*?(?: and (?P<more>\d+) more)?:")
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def make(resource: Resource | None, entity: Entity | None, *keys: str, **fields: Any) -> Policy:
    """A policy with a rate for each key."""
    policy = Policy.objects.create(resource=resource, entity=entity, **fields)
    for key in keys:
        rate(policy, key).save()
    return policy


SYSTEM, API, USER, OWN, MAIL = "system", "resource api", "entity user:42", "entity user:42 on api", "resource mail"
ENDS = NOW + timedelta(9999)
MONDAYS = {"weekly_hours": "mon", "time_zone": "UTC"}
EXTENDS, BLOCKED, UNLIMITED = {"extends": True}, {"effect": "blocked"}, {"effect": "unlimited"}

Row = tuple[str, str, dict[str, Any]]
"""A policy: its scope, the keys of its limits, and other fields."""

DROPPED: dict[str, tuple[list[Row], Row, list[tuple[str, str]]]] = {
    "the_broadest_replaces_nothing": ([(API, "tpm", {})], (SYSTEM, "daily", {}), []),
    "of_a_resource": ([(SYSTEM, "tpm daily", {})], (API, "tpm", {}), [("daily", SYSTEM)]),
    "not_what_it_has_itself": ([(SYSTEM, "tpm daily", {})], (API, "tpm daily more", {}), []),
    "only_of_the_next_broader_one": ([(SYSTEM, "all", {}), (API, "here", {})], (OWN, "mine", {}), [("here", API)]),
    "an_entity_is_more_specific_than_a_resource": (
        [(SYSTEM, "all", {}), (API, "here", {}), (USER, "users", {})],
        (OWN, "mine", {}),
        [("users", USER)],
    ),
    "on_all_resources": (
        [(SYSTEM, "all", {}), (API, "here mine", {}), (MAIL, "there", {})],
        (USER, "mine", {}),
        [("all", SYSTEM), ("here", API), ("there", MAIL)],
    ),
    "on_all_resources_but_where_it_has_its_own": ([(API, "here", {}), (OWN, "too", {})], (USER, "mine", {}), []),
    "not_what_holds_for_others": (
        [("entity user:43 on api", "theirs", {}), ("entity user:43", "too", {}), (MAIL, "there", {})],
        (OWN, "mine", {}),
        [],
    ),
    "not_a_block_of_another_resource": (
        [(SYSTEM, "all", {}), (MAIL, "", BLOCKED)],
        (USER, "mine", {}),
        [("all", SYSTEM)],
    ),
    "one_that_blocks": ([(SYSTEM, "tpm", {})], (API, "", BLOCKED), []),
    "one_that_frees": ([(SYSTEM, "tpm", {})], (API, "", UNLIMITED), []),
    "below_one_that_blocks": ([(SYSTEM, "tpm", {}), (API, "", BLOCKED)], (OWN, "mine", {}), []),
    "one_that_extends": ([(SYSTEM, "tpm daily", {})], (API, "tpm", EXTENDS), []),
    "one_with_dates": ([(SYSTEM, "all", {})], (OWN, "mine", {"valid_from": NOW}), [("all", SYSTEM)]),
    "one_with_hours": ([(SYSTEM, "all", {})], (OWN, "mine", MONDAYS), [("all", SYSTEM)]),
    "one_with_dates_beside_one_of_its_scope": (
        [(SYSTEM, "all", {}), (OWN, "always", {})],
        (OWN, "mine", {"valid_from": NOW}),
        [("always", OWN)],
    ),
    "one_beside_another_with_hours": ([(SYSTEM, "all", {}), (OWN, "x", MONDAYS)], (OWN, "y", {}), [("all", SYSTEM)]),
    "not_of_one_that_is_off": ([(SYSTEM, "tpm", {"enforcement": "off"})], (API, "daily", {}), []),
    "below_one_that_extends_also_of_the_next": (
        [(SYSTEM, "rpm tpm", {}), (API, "tpm", EXTENDS)],
        (OWN, "mine", {}),
        [("tpm", API), ("rpm", SYSTEM)],
    ),
    **{
        f"one_that_holds_{name}_hides_nothing": (
            [(API, "tpm", {}), (USER, "theirs", fields)],
            (OWN, "mine", {}),
            [("tpm", API)],
        )
        for name, fields in {
            "in_shadow_mode": {"enforcement": "shadow"},
            "never": {"enforcement": "off"},
            "for_some": {"rollout_percent": 50},
            "at_hours": MONDAYS,
            "later": {"valid_from": ENDS},
            "for_a_time": {"valid_from": NOW, "valid_until": ENDS},
        }.items()
    },
    "one_with_dates_beside_one_that_extends": (
        [(API, "tpm rpm", {}), (OWN, "mine", EXTENDS)],
        (OWN, "rpm", {"valid_from": NOW, "valid_until": ENDS}),
        [("mine", OWN), ("tpm", API)],
    ),
    "one_that_has_ended": (
        [(SYSTEM, "tpm", {})],
        (API, "x", {"valid_from": NOW - timedelta(9), "valid_until": NOW}),
        [],
    ),
    "on_all_resources_where_its_own_one_extends": (
        [(API, "tpm rpm", {}), (OWN, "rpm", EXTENDS)],
        (USER, "mine", {}),
        [("tpm", API)],
    ),
    "on_all_resources_where_its_own_one_has_hours": (
        [(API, "tpm", {}), (OWN, "tpm", MONDAYS)],
        (USER, "mine", {}),
        [("tpm", API)],
    ),
    "with_dates_on_all_resources": (
        [(API, "tpm", {}), (OWN, "tpm", MONDAYS), (USER, "mine", {})],
        (USER, "tpm", {"valid_from": NOW, "valid_until": ENDS}),
        [("mine", USER)],
    ),
    "with_dates_beside_one_on_all_resources_that_extends": (
        [(API, "tpm", {}), (USER, "mine tpm", EXTENDS)],
        (USER, "rpm", {"valid_from": NOW, "valid_until": ENDS}),
        [("mine", USER), ("tpm", USER)],
    ),
}


def put(row: Row) -> Policy:
    """The policy of a row, with its resource and entity."""
    words = row[0].replace("resource ", "").split(" on ")
    whose, where = (words[0], words[1:]) if row[0].startswith("entity") else ("", [row[0].partition(" ")[2]])
    resource = Resource.objects.get_or_create(name=where[0])[0] if where and where[0] else None
    entity = Entity.objects.get_or_create(identifier=whose.removeprefix("entity "))[0] if whose else None
    return make(resource, entity, *row[1].split(), **row[2])


@pytest.mark.parametrize(("others", "own", "dropped"), DROPPED.values(), ids=DROPPED)
def test_dropped_limits(others: list[Row], own: Row, dropped: list[tuple[str, str]], api: Resource) -> None:
    for other in others:
        put(other)
    assert sorted(dropped_keys(put(own))) == sorted(dropped)


ADDRESS, NETWORK, PLAN = "entity ip:2001:db8::7", "entity ip:2001:db8::/64", "plan free"
SPELLINGS: dict[str, tuple[list[Row], Row, list[tuple[str, str]]]] = {
    "the policy of its network": ([(NETWORK, "tpm", {})], (f"{ADDRESS} on api", "mine", {}), [("tpm", NETWORK)]),
    "one of its network on this resource": (
        [(f"{NETWORK} on api", "tpm", {}), (API, "here", {}), (MAIL, "there", {})],
        (ADDRESS, "mine", {}),
        [("there", MAIL)],
    ),
    "an older one of its network, which applies": (
        [(NETWORK, "tpm", {}), (API, "here", {})],
        (ADDRESS, "mine", {}),
        [],
    ),
    "limits of its plan": ([(PLAN, "tpm", {})], ("entity user:01", "mine", {}), [("tpm", PLAN)]),
}


@pytest.mark.parametrize(("others", "own", "dropped"), SPELLINGS.values(), ids=SPELLINGS)
def test_policy_of_a_client_in_another_spelling_drops(
    others: list[Row], own: Row, dropped: list[tuple[str, str]], api: Resource
) -> None:
    Plan.objects.create(name="free")
    on_plan_of_group()
    for other in others:
        if other[0] == PLAN:
            make(None, None, *other[1].split(), plan=Plan.objects.get())
        else:
            put(other)
    entity, _, resource = own[0].removeprefix("entity ").partition(" on ")
    text = f"policies: [{{entity: '{entity}', resource: '{resource}', limits: [{own[1]}=9/min]}}]"
    warnings = [DROPS.search(one) for one in plan_file(read_content(f"version: 1\n{text}\n")).warnings]
    assert [found["key"] for found in warnings if found] == [key for key, _ in dropped]
    policy = put(own)
    assert dropped_keys(policy) == tuple(dropped)
    assert list(dropped_by_each([policy])) == [(policy, tuple(dropped))]
    assert all(key in limits.explain("api", entity=entity).dropped for key, level in dropped if level != MAIL)


def test_each_of_several_policies_has_its_own_dropped_limits(api: Resource, user: Entity) -> None:
    make(None, None, "tpm", "daily")
    made = [make(api, None, "tpm"), make(None, user, "daily"), make(api, user, "tpm")]
    for some in (made, made[:1], [made[0], made[2]], []):
        assert list(dropped_by_each(some)) == [(policy, dropped_keys(policy)) for policy in some]


def test_a_site_without_time_zones_has_dates_too(settings: Any, api: Resource) -> None:
    settings.USE_TZ = False
    now = NOW.replace(tzinfo=None)
    make(None, None, "tpm")
    for end, dropped in ((now, ()), (now + timedelta(2_900_000), (("tpm", "system"),))):
        assert dropped_keys(make(api, None, "daily", valid_from=end - timedelta(1), valid_until=end)) == dropped


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_dropped_limits_would_apply_without_the_policy(seed: int, api: Resource, user: Entity) -> None:
    drawn = random.Random(seed)
    for resource, entity in ((None, None), (api, None), (None, user), (api, user)):
        if drawn.random() < 0.8:
            fields = {"extends": drawn.random() < 0.5, "enforcement": drawn.choice(["enforce", "enforce", "shadow"])}
            make(resource, entity, *drawn.sample("abcdef", 2), **fields)
    for policy in Policy.objects.filter(resource=api, enforcement="enforce"):
        whom = None if policy.entity is None else user.identifier
        with_it = resolve("api", whom).choices[0]
        if any((one.policy.policy_id, one.status) == (policy.pk, "counts") for one in with_it.verdicts):
            Policy.objects.filter(pk=policy.pk).update(enforcement="off")
            without_it = resolve("api", whom).choices[0]
            Policy.objects.filter(pk=policy.pk).update(enforcement="enforce")
            freed = {held.limit.key for held in without_it.limits} - {held.limit.key for held in with_it.limits}
            assert {one.key for one in dropped_keys(policy)} == freed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_all_policies_together_are_judged_as_each_by_itself(seed: int, api: Resource, user: Entity) -> None:
    drawn = random.Random(seed)
    for resource in (None, api, Resource.objects.create(name="mail")):
        for entity in (None, user):
            for when in ({}, {"valid_from": ENDS}, MONDAYS):
                fields = {
                    "extends": drawn.random() < 0.3,
                    "enforcement": drawn.choice(["enforce", "enforce", "shadow", "off"]),
                    "rollout_percent": drawn.choice([0, 50, 100, 100]),
                    "effect": drawn.choice(["limits", "limits", "limits", "unlimited"]),
                }
                limited = fields["effect"] == "limits"
                fields["extends"] = fields["extends"] and limited
                make(resource, entity, *(drawn.sample("abcdef", 2) if limited else ()), **fields, **when)
    entries = [one for (name, _), one in stored_content("default").items() if name == "policies"]
    for entry, policy in zip(
        sorted(entries, key=lambda one: one.key), sorted(Policy.objects.all(), key=_key), strict=True
    ):
        one_by_one = Counter(key for key, _ in dropped_keys(policy))
        told = [DROPS.search(one) for one in dropped_limits(entries, [entry], "default")]
        assert {one["key"]: 1 + int(one["more"] or 0) for one in told if one} == one_by_one


def _key(policy: Policy) -> tuple[str, ...]:
    valid_from = policy.valid_from.isoformat() if policy.valid_from else ""
    return str(policy.resource or ""), str(policy.entity or ""), valid_from, policy.weekly_hours


@pytest.mark.parametrize(
    ("which", "left"),
    [
        (OWN, "these apply: entity user:42, system in total."),
        (USER, "these apply: plan pro, system in total."),
        ("plan pro", "these apply: system, system in total."),
        ("pattern user:*", "these apply: system, system in total."),
        (MAIL, "these apply: system, system in total."),
        (SYSTEM, "these apply: system in total."),
        ("system in total", "these apply: system."),
        ("entity vip", "these apply: entity vip."),
    ],
)
def test_limits_that_apply_without_a_policy_are_named(which: str, left: str) -> None:
    limits.set_system_limits("5/h")
    limits.set_system_limits("9/h", counted="total")
    limits.set_plan_limits("pro", "5/h")
    limits.set_entity("user:42", plan="pro")
    limits.set_entity("vip", unlimited=True)
    for entity in ("user:42", "user:*", "vip"):
        limits.set_entity_limits(entity, "5/h")
    limits.set_entity_limits("user:42", "2/h", resource="api", extends=True)
    limits.set_resource_limits("mail", "5/h")
    [policy] = [one for one in Policy.objects.all() if str(one) == which]
    assert left_without(policy) == f"Without it {left}"


def test_limits_of_code_are_left_without_a_policy() -> None:
    limits.set_resource_limits("mail", "5/h")
    limits.try_acquire("api", default_limits=[CallLimit(9, 3600)])
    limits.set_resource_limits("api", "5/h")
    [mail, api] = Policy.objects.order_by("pk")
    assert left_without(api) == "Without it these apply: the limits in code."
    assert "the limits in code" not in left_without(mail)


def test_totals_are_left_beside_the_limits_of_code() -> None:
    limits.set_system_limits("9/h", counted="total")
    limits.try_acquire("api", default_limits=[CallLimit(9, 3600)])
    limits.set_resource_limits("api", "5/h")
    policy = Policy.objects.get(resource__name="api")
    assert left_without(policy) == "Without it these apply: the limits in code, system in total."


def test_policy_of_a_client_drops_the_limits_of_code_on_its_resource_alone(api: Resource, user: Entity) -> None:
    limits.try_acquire("api", default_limits=[CallLimit(9, 3600)])
    limits.try_acquire("mail", requested={"letters": 1}, default_limits=[RateLimit("letters", 9, 3600)])
    assert dropped_keys(make(api, user, "tokens")) == (("call_count", "the limits in code"),)


def test_policy_of_a_client_below_another_policy_drops_no_limits_of_code(api: Resource, user: Entity) -> None:
    limits.try_acquire("api", default_limits=[CallLimit(9, 3600)])
    make(api, None, "tpm")
    assert dropped_keys(make(api, user, "tokens")) == (("tpm", API),)


def on_plan_of_group(**fields: Any) -> None:
    """User 1 is in a group on the plan; with fields of an entity, its row has these."""
    user = get_user_model().objects.create(pk=1, username="ada")
    user.groups.add(group := Group.objects.create(name="customers"))
    PlanGroup.objects.create(group=group, plan=Plan.objects.get(name="free"))
    if fields:
        Entity.objects.create(identifier="user:1", **fields)


def below(plan: str, levels: int) -> None:
    """User 1 is so many levels below an entity on a plan."""
    parent = Entity.objects.create(identifier="org:1", plan=Plan.objects.get(name=plan))
    for level in range(1, levels):
        parent = Entity.objects.create(identifier=f"team:{level}", parent=parent)
    Entity.objects.create(identifier="user:1", parent=parent)


MEMBERS: dict[str, tuple[Callable[[], None], bool]] = {
    "of a group": (on_plan_of_group, True),
    "of a group, with a row": (lambda: on_plan_of_group(name="Ada"), True),
    "of a group, on another plan": (lambda: on_plan_of_group(plan=Plan.objects.get(name="pro")), False),
    "of a group, below another plan": (
        lambda: on_plan_of_group(parent=Entity.objects.create(identifier="org:1", plan=Plan.objects.get(name="pro"))),
        False,
    ),
    "below a member": (lambda: below("free", 1), True),
    "far below a member": (lambda: below("free", 7), True),
    "below another plan": (lambda: below("pro", 2), False),
}


@pytest.mark.parametrize("member", MEMBERS)
def test_a_plan_drops_limits_of_patterns_that_match_its_members(member: str) -> None:
    for name in ("free", "pro"):
        Plan.objects.create(name=name)
    make(None, Entity.objects.create(identifier="user:*"), "tpm", counted="total")
    put, is_dropped = MEMBERS[member]
    put()
    text = "version: 1\npolicies:\n- plan: free\n  counted: total\n  limits: [daily=9/min]\n"
    warnings = plan_file(read_content(text)).warnings
    assert [one.split("'")[1] for one in warnings] == ["tpm"] * is_dropped
    policy = make(None, None, "daily", plan=Plan.objects.get(name="free"), counted="total")
    assert dropped_keys(policy) == (("tpm", "pattern user:* in total"),) * is_dropped
    entries = stored_content("default")
    own = [one for (section, _), one in entries.items() if section == "policies" and one.pk == policy.pk]
    assert len([*dropped_limits(entries.values(), own, "default")]) == is_dropped


def lost(policy: Policy, limit: RateLimit) -> list[tuple[str, float, str]]:
    """The key, the capacity and the level of each limit that is lost by a new policy with a limit."""
    limits_lost = lost_by_new(policy, [Noted(limit)], using="default")
    return [(some.noted.limit.key, some.noted.limit.capacity, str(some.policy or "code")) for some in limits_lost]


DAILY = RateLimit.per_day("daily", 9)


def test_limits_that_a_new_policy_replaces(api: Resource, user: Entity) -> None:
    limits.try_acquire("api", default_limits=[CallLimit(7, 3600)])
    assert lost(Policy(resource=api), DAILY) == [("call_count", 7, "code")]
    rate(make(None, None), "tpm", "5/min").save()
    rate(make(api, None), "daily", "4/d").save()
    assert lost(Policy(resource=api, entity=user), DAILY) == []
    assert lost(Policy(resource=api, entity=user), RateLimit.per_day("other", 9)) == [("daily", 4, API)]
    assert lost(Policy(resource=api, entity=user, extends=True), DAILY) == []


@pytest.mark.parametrize(("of_users", "of_teams"), [(5, 8), (8, 5)])
def test_of_several_limits_of_a_key_that_a_new_policy_replaces_the_lowest_is_lost(of_users: int, of_teams: int) -> None:
    plan = Plan.objects.create(name="free")
    for kind, most in (("user", of_users), ("team", of_teams)):
        Entity.objects.create(identifier=f"{kind}:1", plan=plan)
        policy = make(None, Entity.objects.create(identifier=f"{kind}:*"), counted="total")
        rate(policy, "tpm", f"{most}/min").save()
    lowest = "user" if of_users < of_teams else "team"
    assert lost(Policy(plan=plan, counted="total"), DAILY) == [("tpm", 5, f"pattern {lowest}:* in total")]
