"""Which policies apply: a table of configurations with plans, patterns and totals, through the service and explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, QuotaLimit, limits
from limits_app.admin.resources import PlanAdmin
from limits_app.models import Entity, Plan, PlanGroup, Policy, Resource
from limits_app.models.limit import Limit
from limits_app.policies import resolver
from limits_app.testing import FakeClock
from tests.services.wall import Wall

WHO = "user:eu-1"
LEVELS = [
    "entity_on_resource",
    "entity",
    "plan_on_resource",
    "plan",
    "pattern_on_resource",
    "pattern",
    "resource",
    "system",
    "code",
]
TOTALS = ["entity_total", "plan_total", "pattern_total", "system_total"]
CAPACITY = {level: 10 * number for number, level in enumerate([*LEVELS, *TOTALS], 1)}


def put(level: str, capacity: int = 0, **fields: Any) -> Policy:
    """Set a policy of a level for the entity, its plan or its pattern; 0 is the capacity of the level."""
    subject = level.partition("_")[0]
    fields["resource"] = Resource.objects.get(name="api") if level.endswith("resource") else None
    if subject == "entity":
        fields.setdefault("entity", Entity.objects.get_or_create(identifier=WHO)[0])
    elif subject == "pattern":
        fields.setdefault("entity", Entity.objects.get_or_create(identifier="user:eu-*")[0])
    elif subject == "plan":
        fields["plan"] = Plan.objects.get(name="pro")
    policy = Policy.objects.create(counted="total" if level.endswith("total") else "each", **fields)
    if policy.effect == "limits":
        Limit.from_definition(policy, CallLimit(capacity or CAPACITY[level], 60)).save()
    return policy


def found(entity: str | None = WHO, plan: str | None = "pro") -> set[str]:
    """The levels of the limits that apply, which `explain`, `check` and the acquisition agree about."""
    code = (CallLimit(CAPACITY["code"], 60),)
    outcome = limits.check("api", entity=entity, plan=plan, default_limits=code)
    explained = limits.explain("api", entity=entity, plan=plan, default_limits=code)
    levels = {status.level: status.capacity for status in (*outcome.passed, *outcome.violations)}
    in_effect = {one.effective.policy.level: one.status for link in explained.chain for one in link.limits}
    assert {level: None if status is None else status.capacity for level, status in in_effect.items()} == levels
    acquired = limits.try_acquire("api", entity=entity, plan=plan, default_limits=code).outcome
    assert {status.level for status in (*acquired.passed, *acquired.violations)} == set(levels)
    assert all(capacity in {0, CAPACITY[level]} for level, capacity in levels.items() if level in CAPACITY)
    return set(levels)


@pytest.fixture(autouse=True)
def rows(clock: object) -> None:
    Resource.objects.create(name="api")
    Plan.objects.create(name="pro")


@pytest.mark.parametrize("total", [None, *TOTALS])
def test_the_more_specific_policy_replaces_the_others_and_a_total_applies_in_addition(total: str | None) -> None:
    in_addition = set() if total is None else {total}
    for level in in_addition:
        put(level)
    for level in reversed(LEVELS[:-1]):
        put(level)
        assert found() == {level} | in_addition


@pytest.mark.parametrize(("upper", "lower"), list(combinations(TOTALS, 2)))
def test_the_most_specific_total_applies_and_always_that_of_the_system(upper: str, lower: str) -> None:
    put(lower)
    put(upper)
    assert found() == {upper, "code"} | ({lower} if lower == "system_total" else set())


@pytest.mark.parametrize("level", [*LEVELS[:-1], *TOTALS])
def test_a_policy_is_for_those_it_names(level: str) -> None:
    put(level)
    subject = level.partition("_")[0]
    for entity, plan in [("user:us-1", None), (None, None), (WHO, None), ("user:eu-2", "pro")]:
        applies = {
            "entity": entity == WHO,
            "plan": plan == "pro",
            "pattern": entity is not None and entity.startswith("user:eu-"),
        }.get(subject, True)
        assert (level in found(entity, plan)) is applies, (entity, plan)


BLOCKS: list[tuple[Callable[[], object], set[str]]] = [
    (lambda: put("system_total", effect="blocked"), {"entity", "entity_total", "system_total"}),
    (lambda: put("plan_total", effect="blocked"), {"entity", "entity_total"}),
    (lambda: Entity.objects.filter(identifier=WHO).update(unlimited=True), set()),
    (lambda: Entity.objects.filter(identifier=WHO).update(blocked=True), {"entity_row", "entity_total"}),
    (
        lambda: (put("system_total", effect="blocked"), Entity.objects.filter(identifier=WHO).update(unlimited=True)),
        {"system_total"},
    ),
]


@pytest.mark.parametrize(("change", "levels"), BLOCKS)
def test_blocks_and_exemptions_with_totals(change: Callable[[], object], levels: set[str]) -> None:
    put("entity")
    put("entity_total")
    change()
    assert found() == levels


def policy_for(identifier: str, capacity: int, **fields: Any) -> None:
    entity = Entity.objects.create(identifier=identifier)
    policy = Policy.objects.create(entity=entity, **fields)
    Limit.from_definition(policy, CallLimit(capacity, 60)).save()


def test_the_longest_pattern_applies_and_networks_precede_others() -> None:
    patterns = ["key:*", "key:eu-*", "ip:10.0.0.0/8", "ip:10.1.0.0/16", "ip:2001:db8::/32", "ip:*", "a%b.*"]
    patterns += ["ip:172.16.254.*", "ip:172.0.0.0/8", "ip:192.0.2.*"]
    for number, identifier in enumerate(patterns, 1):
        policy_for(identifier, number)
    applied = {
        "key:a": "key:*",
        "key:eu-a": "key:eu-*",
        "key:eu-": "key:eu-*",
        "key:": "key:*",
        "key:*": "key:*",
        "key": None,
        "KEY:a": None,
        "ip:10.1.2.3": "ip:10.1.0.0/16",
        "ip:10.2.2.3": "ip:10.0.0.0/8",
        "ip:11.2.2.3": "ip:*",
        "ip:172.16.254.9": "ip:172.0.0.0/8",
        "ip:192.0.2.9": "ip:192.0.2.*",
        "ip:2001:db8:1:2::/64": "ip:2001:db8::/32",
        "ip:2001:db9:1:2::/64": "ip:*",
        "ip:unknown": "ip:*",
        "a%b.c": "a%b.*",
        "axb.c": None,
        None: None,
    }
    for entity, pattern in applied.items():
        capacities = [limit.capacity for limit in limits.limit_set("api", entity)]
        assert capacities == ([] if pattern is None else [patterns.index(pattern) + 1]), entity


def test_each_entity_that_matches_a_pattern_has_its_own_bucket_and_so_have_parents() -> None:
    policy_for("tenant:*", 2)
    acme = Entity.objects.create(identifier="tenant:acme")
    for name in ("user:1", "user:2"):
        Entity.objects.create(identifier=name, parent=acme, cascade=True)
    assert [bool(limits.try_acquire("api", entity=name)) for name in ("user:1", "user:2", "user:1")] == [
        True,
        True,
        False,
    ]
    assert limits.try_acquire("api", entity="tenant:other")


@pytest.mark.parametrize("field", ["parent", "plan", "cascade", "unlimited", "blocked", "billing_from"])
def test_a_pattern_has_no_parent_plan_or_flags(field: str) -> None:
    tenant, plan = Entity.objects.create(identifier="tenant:1"), Plan.objects.get()
    value = {"parent": tenant, "plan": plan, "billing_from": datetime.now(UTC)}.get(field, True)
    with pytest.raises(ValidationError, match="A pattern has no"):
        Entity(identifier="key:*", **{field: value}).full_clean()
    with pytest.raises(IntegrityError, match="a pattern has no"):
        Entity.objects.create(identifier="key:*", **{field: value})
    pattern = Entity.objects.create(identifier="ip:10.0.0.0/8")
    with pytest.raises(ValidationError, match="cannot be a parent"):
        Entity(identifier="user:1", parent=pattern).full_clean()
    with pytest.raises(IntegrityError, match="cannot be a parent"):
        Entity.objects.create(identifier="user:1", parent=pattern)


def test_requests_that_alternate_between_plans_use_up_the_limits_of_each() -> None:
    for name, limit in (("api", QuotaLimit.per_day("day", 10)), ("batch", CallLimit.per_hour(5))):
        policy = Policy.objects.create(plan=Plan.objects.create(name=name))
        Limit.from_definition(policy, limit).save()
    admitted = {"api": 0, "batch": 0}
    for _ in range(20):
        admitted["api"] += bool(limits.try_acquire("search", requested={"day": 1}, entity="user:1", plan="api"))
        admitted["batch"] += bool(limits.try_acquire("search", entity="user:1", plan="batch"))
    assert admitted == {"api": 10, "batch": 5}


def test_a_plan_is_that_of_the_entity_its_ancestors_the_request_and_the_groups() -> None:
    for number, name in enumerate(["pro", "free", "staff", "gold"], 1):
        plan = Plan.objects.get_or_create(name=name)[0]
        policy = Policy.objects.create(plan=plan)
        Limit.from_definition(policy, CallLimit(number, 60)).save()
    plans = {plan.name: plan for plan in Plan.objects.all()}
    user = User.objects.create(username="ann")
    who = f"user:{user.pk}"

    def capacity(plan: str | None = None) -> object:
        found = [limit.capacity for limit in limits.limit_set("api", who, (), plan)]
        return found[0] if found else None

    assert capacity() is None
    assert capacity("unknown") is None
    for name in ("staff", "gold"):
        PlanGroup.objects.create(plan=plans[name], group=Group.objects.create(name=name))
    user.groups.add(*Group.objects.all())
    assert capacity() == 4, "of equal priority, the first by name"
    Plan.objects.filter(name="staff").update(priority=1)
    assert capacity() == 3
    assert capacity("free") == 2
    top = Entity.objects.create(identifier="tenant:top", plan=plans["pro"])
    middle = Entity.objects.create(identifier="tenant:middle", parent=top)
    entity = Entity.objects.create(identifier=who, parent=middle)
    assert capacity("free") == 1
    entity.plan = plans["gold"]
    entity.save()
    assert capacity("free") == 4
    entity.delete()
    assert capacity() == 3
    user.groups.remove(Group.objects.get(name="staff"))
    assert capacity() == 4
    Group.objects.get(name="gold").delete()
    assert capacity() is None


def test_change_of_plan_keeps_recorded_use() -> None:
    free, pro = Plan.objects.create(name="free"), Plan.objects.get(name="pro")
    for plan, capacity in ((free, 3), (pro, 5)):
        for counted in ("each", "total"):
            policy = Policy.objects.create(plan=plan, counted=counted)
            Limit.from_definition(policy, CallLimit(capacity, 86_400)).save()
    entity = Entity.objects.create(identifier="user:1", plan=free)
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(4)] == [True] * 3 + [False]
    entity.plan = pro
    entity.save()
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(3)] == [True] * 2 + [False]


@pytest.mark.parametrize("plan", ["a\0b", "\ud800", ""])
def test_a_name_that_no_plan_can_have_is_ignored(plan: str) -> None:
    put("resource")
    assert found(plan=plan) == {"resource"}


class Elsewhere:
    """A router of a site with an app in another database."""

    def __init__(self, app: str) -> None:
        self.app = app

    def db_for_write(self, model: type[Any], **hints: object) -> str | None:
        return "other" if model._meta.app_label == self.app else None


def test_users_may_be_in_another_database(settings: Settings) -> None:
    put("plan")
    settings.DATABASE_ROUTERS = [Elsewhere("auth")]
    with CaptureQueriesContext(connection) as captured:
        Plan.objects.get(name="pro").save()
        free = Plan.objects.create(name="free")
        assert found() == {"plan"}
        assert found(plan=None) == {"code"}
    assert not [query for query in captured if "auth_" in query["sql"]]
    PlanGroup.objects.create(plan=free, group_id=99)
    free.save()  # although its group was deleted there
    settings.DATABASE_ROUTERS = [Elsewhere("limits_app")]
    with CaptureQueriesContext(connection) as captured:
        Group.objects.create(name="staff").delete()
    assert not [query for query in captured if "limits_app" in query["sql"]]
    assert not PlanAdmin(Plan, site).get_inlines(RequestFactory().get("/"))


_TIMES: list[dict[str, Any]] = [
    *[{}] * 6,
    {"valid_from": datetime(2020, 1, 1, tzinfo=UTC)},
    {"valid_from": datetime(2020, 1, 1, tzinfo=UTC), "valid_until": datetime(2021, 1, 1, tzinfo=UTC)},
    {"valid_from": datetime(2999, 1, 1, tzinfo=UTC)},
    {"weekly_hours": "mon-sun", "time_zone": "UTC"},
    {"weekly_hours": "wed 08:00-17:00", "time_zone": "UTC"},
    {"weekly_hours": "sat-sun", "time_zone": "UTC"},
]
_POLICIES = st.fixed_dictionaries(
    {
        "level": st.sampled_from([*LEVELS[:-1], *TOTALS]),
        "capacity": st.integers(1, 3),
        "of_other": st.booleans(),
        "effect": st.sampled_from(["limits"] * 6 + ["blocked", "unlimited"]),
        "extends": st.booleans(),
        "enforcement": st.sampled_from(["enforce"] * 6 + ["shadow", "off"]),
        "rollout_percent": st.sampled_from([100, 100, 50]),
        "times": st.sampled_from(_TIMES),
        "candidate": st.sampled_from(["", "", "calls=1/min", "calls=2/min tokens=1/min"]),
        "promoted": st.booleans(),
    }
)
_REQUESTS = st.tuples(
    st.sampled_from([WHO, "user:eu-2", "tenant:acme", "ip:10.1.2.3", None]),
    st.sampled_from(["pro", None]),
    st.integers(0, 90),
)
_SWITCHES = st.tuples(st.sampled_from([True] * 9 + [False]), st.sampled_from(["enforce"] * 8 + ["shadow", "off"]))


def _place(one: dict[str, Any]) -> tuple[str, bool]:
    return one["level"], one["of_other"] and one["level"].startswith(("entity", "pattern"))


def _set(one: dict[str, Any], parent: Entity, network: Entity) -> None:
    """Set a random policy, for the parent or the network where it is `of_other`, perhaps with a candidate."""
    level, is_total = one["level"], one["level"].endswith("total")
    about = {"entity": network if level.startswith("pattern") else parent} if _place(one)[1] else {}
    fields = {name: one[name] for name in ("enforcement", "rollout_percent")} | about | one["times"]
    effect = "limits" if is_total and one["effect"] == "unlimited" else one["effect"]
    extends = one["extends"] and effect == "limits" and not is_total
    policy = put(level, one["capacity"], effect=effect, extends=extends, **fields)
    if one["candidate"]:
        limits.set_candidate(policy, one["candidate"], revert_percent=50)
        if one["promoted"]:
            limits.promote_candidate(policy)


@pytest.mark.slow
@pytest.mark.parametrize("examples", [8, pytest.param(120, marks=pytest.mark.release)])
def test_explain_check_and_acquire_agree_on_random_configurations(
    clock: FakeClock, settings: Settings, wall: Wall, examples: int
) -> None:
    seen: Counter[str] = Counter()

    @hypothesis_settings(max_examples=examples, phases=[Phase.generate], deadline=None)
    @given(
        st.lists(_POLICIES, min_size=5, max_size=9, unique_by=_place),
        st.booleans(),
        st.lists(_REQUESTS, min_size=2, max_size=5),
        _SWITCHES,
    )
    def agree(
        policies: list[dict[str, Any]],
        cascade: bool,
        requests: list[tuple[str | None, str | None, int]],
        switches: tuple[bool, str],
    ) -> None:
        Policy.objects.all().delete()
        Entity.objects.update(parent=None)
        Entity.objects.all().delete()
        parent = Entity.objects.create(identifier="tenant:acme")
        Entity.objects.create(identifier=WHO, parent=parent, cascade=cascade)
        for one in policies:
            _set(one, parent, Entity.objects.get_or_create(identifier="ip:10.0.0.0/8")[0])
        is_enabled, mode = switches
        limits.set_emergency(mode, reason="a test")
        settings.LIMITS = settings.LIMITS | {"ENABLED": is_enabled}
        resolver.clear()
        for entity, plan, seconds in requests:
            code = (CallLimit(2, 60),)
            request: dict[str, Any] = {"entity": entity, "plan": plan, "default_limits": code}
            request["requested"] = limits.limit_set("api", entity, code, plan).ones
            explained = limits.explain("api", **request)
            checked = limits.check("api", **request)
            acquired = limits.try_acquire("api", require_usage=False, **request)
            assert explained.outcome == checked
            assert checked.allowed is acquired.successful
            assert checked.violations == acquired.outcome.violations
            assert checked.shadowed == acquired.outcome.shadowed
            shown = [one.status for link in explained.chain for one in link.limits if one.status is not None]
            decided = (*checked.violations, *checked.passed)
            assert {(one.entity, one.level) for one in shown} == {(one.entity, one.level) for one in decided}
            assert not decided or (is_enabled and mode == "enforce")
            seen.update([one.level for one in decided], shadowed=len(checked.shadowed), rejected=not checked.allowed)
            clock.advance(seconds)

    agree()

    if examples > 8:
        assert {*LEVELS, *TOTALS, "shadowed", "rejected"} <= {name for name, count in seen.items() if count}


def test_a_miss_is_one_query_with_all_of_it(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    for level in (*LEVELS[:-1], *TOTALS):
        put(level)
    resolver.clear()
    with django_assert_num_queries(1):
        limits.limit_set("api", WHO, (), "pro")
