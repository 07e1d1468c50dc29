"""Which policies hold: a table of every level against every other, and a plain reference on random policies."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from limits_app.conf import OnUnavailable
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import TOTALS, Enforcement, PolicyEffect, PolicyScope
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.policies import (
    CODE,
    ENTITY_FLAGS,
    PolicyChoice,
    PolicyStatus,
    PolicyValue,
)
from limits_app.policies.policy_values import EntityPolicies
from limits_app.policies.precedence import PRECEDENCE, changes_at, judge, rollout_position

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)  # a Wednesday
HOUR = timedelta(hours=1)
SCOPES = [scope.value for scope in PolicyScope if scope not in TOTALS]
LEVELS = [*SCOPES, CODE]
WHO = "user:1"


def policy(level: str, calls: int, **fields: Any) -> PolicyValue:
    """A policy that limits calls, and something that no other level limits."""
    limits = (CallLimit(calls, 60), RateLimit(f"only_{level}", 1, 60))
    number = None if level == CODE else PRECEDENCE.index(level) * 10 + fields.pop("number", 0)
    return PolicyValue(level, fields.pop("effect", PolicyEffect.LIMITS), limits, number, **fields)


def held(choice: PolicyChoice) -> dict[str, float]:
    """What holds, as capacities by key."""
    return {one.limit.key: one.limit.capacity for one in choice.limits}


def of(level: str, calls: int) -> dict[str, float]:
    """What a policy limits by itself."""
    return {"call_count": calls, f"only_{level}": 1}


ALWAYS = WeeklyHours.parse("mon-sun", "UTC")
HOLDS: dict[str, tuple[dict[str, Any], str]] = {
    "replaces": ({}, "upper"),
    "extends": ({"extends": True}, "both"),
    "is_blocked": ({"effect": PolicyEffect.BLOCKED}, "blocked"),
    "is_unlimited": ({"effect": PolicyEffect.UNLIMITED}, "nothing"),
    "is_off": ({"enforcement": Enforcement.OFF}, "lower"),
    "is_in_the_shadow": ({"enforcement": Enforcement.SHADOW}, "lower"),
    "is_rolled_out_to_nobody": ({"rollout_percent": 0}, "lower"),
    "begins_later": ({"valid_from": NOW + HOUR}, "lower"),
    "begins_now": ({"valid_from": NOW}, "upper"),
    "has_ended_now": ({"valid_from": NOW - HOUR, "valid_until": NOW}, "lower"),
    "is_at_work": ({"hours": WeeklyHours.parse("wed 08:00-17:00", "UTC")}, "upper"),
    "is_asleep": ({"hours": WeeklyHours.parse("wed 18:00-08:00; tue", "UTC")}, "lower"),
    "extends_later": ({"extends": True, "valid_from": NOW + HOUR}, "lower"),
    "extends_for_now": ({"extends": True, "valid_from": NOW - HOUR, "valid_until": NOW + HOUR}, "both"),
}


@pytest.mark.parametrize("case", HOLDS)
def test_a_more_specific_policy(case: str) -> None:
    fields, expected = HOLDS[case]
    for upper, lower in combinations(LEVELS, 2):
        choice = judge(EntityPolicies(WHO, (policy(lower, 2), policy(upper, 1, **fields))), NOW)
        wanted = {
            "upper": of(upper, 1),
            "lower": of(lower, 2),
            "both": of(lower, 2) | of(upper, 1),
            "blocked": {"blocked": 0},
            "nothing": {},
        }
        assert held(choice) == wanted[expected], (upper, lower)


@pytest.mark.parametrize("level", SCOPES)
@pytest.mark.parametrize(
    ("fields", "capacity"),
    [
        ({"valid_from": NOW - HOUR, "valid_until": NOW + HOUR}, 1),
        ({"valid_from": NOW - HOUR}, 1),
        ({"valid_from": NOW + HOUR}, 2),
        ({"hours": ALWAYS}, 1),
        ({"hours": WeeklyHours.NEVER}, 2),
    ],
    ids=["a_boost", "a_freeze_without_end", "a_boost_to_come", "open_hours", "hours_that_never_come"],
)
def test_dated_and_weekly_policies_precede_permanent_ones(level: str, fields: dict[str, Any], capacity: int) -> None:
    choice = judge(EntityPolicies(WHO, (policy(level, 2), policy(level, 1, number=1, **fields))), NOW)
    assert held(choice) == of(level, capacity)


@pytest.mark.parametrize("level", SCOPES)
def test_dates_precede_hours(level: str) -> None:
    hours = policy(level, 2, hours=ALWAYS)
    dated = policy(level, 1, number=1, valid_from=NOW)
    assert held(judge(EntityPolicies(WHO, (hours, dated, policy(level, 3, number=2))), NOW)) == of(level, 1)
    assert held(judge(EntityPolicies(WHO, (hours, policy(level, 3, number=2))), NOW)) == of(level, 2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("effect", [PolicyEffect.BLOCKED, PolicyEffect.UNLIMITED])
def test_flags_of_an_entity_precede_all_policies(level: str, effect: PolicyEffect) -> None:
    own = PolicyValue(ENTITY_FLAGS, effect, (), None)
    choice = judge(EntityPolicies(WHO, (policy(level, 1), own)), NOW)
    assert held(choice) == ({"blocked": 0} if effect is PolicyEffect.BLOCKED else {})
    assert [verdict.status for verdict in choice.verdicts] == [PolicyStatus.COUNTS, PolicyStatus.REPLACED]


@pytest.mark.parametrize(
    ("effect", "expected"),
    [
        (PolicyEffect.BLOCKED, {"blocked": 0}),
        (PolicyEffect.UNLIMITED, of(PolicyScope.ENTITY, 1)),
    ],
)
def test_extending_policy_adds_to_a_policy_without_limits(effect: PolicyEffect, expected: dict[str, float]) -> None:
    upper = policy(PolicyScope.ENTITY, 1, extends=True)
    middle = policy(PolicyScope.RESOURCE, 2, effect=effect)
    choice = judge(EntityPolicies(WHO, (upper, middle, policy(PolicyScope.SYSTEM, 3))), NOW)
    assert held(choice) == expected
    assert [verdict.status for verdict in choice.verdicts] == [
        PolicyStatus.COUNTS,
        PolicyStatus.EXTENDED,
        PolicyStatus.REPLACED,
    ]


def test_all_levels_can_extend_each_other() -> None:
    policies = [policy(level, number, extends=True) for number, level in enumerate(LEVELS, 1)]
    choice = judge(EntityPolicies(WHO, tuple(policies)), NOW)
    assert held(choice) == {"call_count": 1} | {f"only_{level}": 1 for level in LEVELS}
    assert {one.policy.level for one in choice.limits} == set(LEVELS)


def test_the_most_specific_policy_decides_while_the_store_is_unavailable() -> None:
    silent = policy(PolicyScope.ENTITY, 1, extends=True)
    allows = policy(PolicyScope.RESOURCE, 2, on_unavailable=OnUnavailable.ALLOW)
    blocks = policy(PolicyScope.SYSTEM, 3, on_unavailable=OnUnavailable.BLOCK)
    assert judge(EntityPolicies(WHO, (blocks, allows, silent)), NOW).on_unavailable is OnUnavailable.ALLOW
    assert judge(EntityPolicies(WHO, (blocks, silent)), NOW).on_unavailable is OnUnavailable.BLOCK
    assert judge(EntityPolicies(WHO, (blocks, replace(silent, extends=False))), NOW).on_unavailable is None


def test_a_rollout_takes_in_the_same_entities_and_more_as_it_grows() -> None:
    names = [f"user:{number}" for number in range(2000)]
    taken: set[str] = set()
    for percent in (0, 1, 10, 50, 100):
        partial = policy(PolicyScope.RESOURCE, 1, rollout_percent=percent)
        now = {name for name in names if judge(EntityPolicies(name, (partial,)), NOW).limits}
        assert taken <= now
        assert abs(len(now) / len(names) * 100 - percent) < 4
        taken = now
    assert [rollout_position(name) for name in (None, "user:1", "tenant:acme")] == [76, 38, 45]


def test_effective_limits_change_at_the_next_date_or_hour() -> None:
    tomorrow = NOW + 24 * HOUR
    link = EntityPolicies(
        WHO,
        (
            policy(PolicyScope.SYSTEM, 1),
            policy(PolicyScope.RESOURCE, 1, valid_from=NOW - HOUR, valid_until=tomorrow),
            policy(PolicyScope.ENTITY, 1, hours=WeeklyHours.parse("fri", "UTC")),
        ),
    )
    assert changes_at(link, NOW) == tomorrow
    assert changes_at(link, tomorrow) == datetime(2026, 3, 6, tzinfo=UTC)
    assert changes_at(EntityPolicies(WHO, link.policies[:1]), NOW) is None
    assert changes_at(EntityPolicies(WHO, (policy(PolicyScope.SYSTEM, 1, hours=ALWAYS),)), NOW) is None


moments = st.sampled_from([None, *(NOW + hours * HOUR for hours in (-2, -1, 0, 1, 2))])


@st.composite
def policies(draw: st.DrawFn) -> PolicyValue:
    effect = draw(st.sampled_from(PolicyEffect))
    keys = draw(st.sets(st.sampled_from("abcd"), min_size=1))
    begins = draw(moments)
    return PolicyValue(
        level=draw(st.sampled_from(LEVELS)),
        effect=effect,
        limits=tuple(RateLimit(key, draw(st.integers(1, 9)), 60) for key in sorted(keys)),
        policy_id=draw(st.integers(1, 10**6)),
        extends=effect is PolicyEffect.LIMITS and draw(st.booleans()),
        enforcement=draw(st.sampled_from(Enforcement)),
        rollout_percent=draw(st.sampled_from([0, 50, 100])),
        valid_from=begins,
        valid_until=None if begins is None else draw(st.sampled_from([None, begins + HOUR])),
        hours=draw(st.sampled_from([None, ALWAYS, WeeklyHours.NEVER])),
    )


def rank(policy: PolicyValue) -> tuple[int, int, int | None]:
    # Two with dates cannot be in force at once, unless they were forced past validation.
    within = (0 if policy.hours else 1) if policy.valid_from else 2 if policy.hours else 3
    return LEVELS.index(policy.level), within, policy.policy_id


def plainly(rest: list[PolicyValue]) -> dict[str, float] | None:
    """The same by recursion: the first one, on top of what the others come to where it extends; None is blocked."""
    if not rest:
        return {}
    first, *others = rest
    own = {limit.key: limit.capacity for limit in first.limits}
    match first.effect:
        case PolicyEffect.BLOCKED:
            return None
        case PolicyEffect.UNLIMITED:
            return {}
    below = plainly(others) if first.extends else {}
    return None if below is None else below | own


@given(st.lists(policies(), max_size=8, unique_by=rank), st.sampled_from([WHO, "user:2", None]), st.booleans())
def test_random_policies_agree_with_a_reference(found: list[PolicyValue], who: str | None, shadow: bool) -> None:
    obeyed = {Enforcement.ENFORCE, Enforcement.SHADOW} if shadow else {Enforcement.ENFORCE}
    in_force = [
        one
        for one in sorted(found, key=rank)
        if one.enforcement in obeyed
        and rollout_position(who) < one.rollout_percent
        and (one.valid_from is None or one.valid_from <= NOW)
        and (one.valid_until is None or one.valid_until > NOW)
        and one.hours in {None, ALWAYS}
    ]
    expected = plainly(in_force)
    choice = judge(EntityPolicies(who, tuple(found)), NOW, shadow=shadow)
    assert held(choice) == ({"blocked": 0} if expected is None else expected)
    assert len(choice.verdicts) == len(found)
    assert sum(verdict.status is PolicyStatus.COUNTS for verdict in choice.verdicts) == bool(in_force)
