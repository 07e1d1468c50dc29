"""Priorities of requests: where they come from, and what limits of policies keep free for higher ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ValidationError
from pytest_django import Settings

from limits_app import CallLimit, LimitPool, LimitSet, RateLimit, ResourceLimit, limits, services
from limits_app.engine.errors import InvalidRequest, LimitExceeded, NeverAdmissible
from limits_app.models import Entity, Limit, Plan, Policy, Resource
from limits_app.policies import resolver
from limits_app.services import Share, try_acquire_all
from limits_app.services.limit_fields import FIELDS, join
from limits_app.services.limit_words import limit_in_words
from tests.services.pool_rows import make_pool, serve

KEEP = {"low": 60, "normal": 20}
CALLS = CallLimit(10, 3600, keep=KEEP)
VERBS: dict[str, Callable[..., bool]] = {
    "try_acquire": lambda *args, **options: bool(limits.try_acquire(*args, **options)),
    "atry_acquire": lambda *args, **options: bool(asyncio.run(limits.atry_acquire(*args, **options))),
    "acquire": lambda *args, **options: _raises(lambda: limits.acquire(*args, **options)),
    "aacquire": lambda *args, **options: _raises(lambda: asyncio.run(limits.aacquire(*args, **options))),
}


def _raises(acquire: Callable[[], object]) -> bool:
    try:
        acquire()
    except LimitExceeded:
        return False
    return True


def how_many(resource: str, **options: Any) -> int:
    """How many requests are allowed until one is rejected."""
    count = 0
    while limits.try_acquire(resource, **options):
        count += 1
    return count


def prioritize(model: type[Resource] | type[Plan], name: str, priority: str) -> None:
    """Set the priority of the requests of a resource or a plan."""
    row, _ = model.objects.get_or_create(name=name)
    row.request_priority = priority
    row.full_clean()
    row.save()


@pytest.mark.parametrize("verb", VERBS)
def test_priority_of_a_call_decides_the_share_it_leaves_free(verb: str) -> None:
    services.set_resource_limits("api", [CALLS])
    allowed = {
        priority: [VERBS[verb]("api", entity=f"user:{priority}", priority=priority) for _ in range(11)].count(True)
        for priority in ("low", "normal", None, "high")
    }
    assert allowed == {"low": 4, "normal": 8, None: 8, "high": 10}


def test_check_and_extend_have_the_priority_of_the_call_or_the_acquisition() -> None:
    services.set_resource_limits("api", [RateLimit("tokens", 100, 3600, keep=KEEP)])
    assert limits.check("api", requested={"tokens": 40}, priority="low").allowed
    with pytest.raises(NeverAdmissible, match="for requests of priority low: its most is 40"):
        limits.check("api", requested={"tokens": 41}, priority="low")
    with limits.acquire("api", requested={"tokens": 30}, priority="low", require_usage=False) as acquisition:
        acquisition.extend({"tokens": 10})
        with pytest.raises(LimitExceeded):
            acquisition.extend({"tokens": 1})
        acquisition.extend({"tokens": 1}, priority="high")
        with pytest.raises(InvalidRequest, match="priority must be one of high, normal, low, not 'urgent'"):
            acquisition.extend({"tokens": 1}, priority="urgent")


def test_unknown_priority_is_an_invalid_request() -> None:
    services.set_resource_limits("api", [CALLS])
    for verb in (limits.try_acquire, limits.acquire, limits.check):
        with pytest.raises(InvalidRequest, match="priority must be one of high, normal, low"):
            verb("api", priority="urgent")
    with pytest.raises(InvalidRequest, match="priority must be one of"):
        limits.try_acquire({"api": None}, priority="urgent")


@pytest.mark.parametrize(
    ("of_resource", "of_plan", "of_call", "most"),
    [
        ("", "", None, 8),
        ("low", "", None, 4),
        ("low", "high", None, 10),
        ("high", "low", None, 4),
        ("low", "low", "high", 10),
        ("high", "high", "low", 4),
    ],
)
def test_priority_of_a_call_precedes_plan_and_resource(
    of_resource: str, of_plan: str, of_call: str | None, most: int
) -> None:
    services.set_resource_limits("api", [CALLS])
    prioritize(Resource, "api", of_resource)
    prioritize(Plan, "pro", of_plan)
    Entity.objects.create(identifier="user:1", plan=Plan.objects.get(name="pro"))
    assert how_many("api", entity="user:1", priority=of_call) == most
    assert how_many("api", entity="user:2", plan="pro", priority=of_call) == most
    explained = limits.explain("api", entity="user:1")
    assert explained.priority == limits.status("api", entity="user:1").priority == (of_plan or of_resource or "normal")
    assert explained.as_dict()["priority"] == explained.priority


def test_changed_priority_applies_to_the_next_request() -> None:
    services.set_resource_limits("api", [CALLS])
    assert how_many("api", entity="user:1") == 8
    prioritize(Resource, "api", "high")
    assert how_many("api", entity="user:1") == 2
    prioritize(Plan, "batch", "low")
    assert how_many("api", entity="user:2", plan="batch") == 4
    prioritize(Plan, "batch", "")
    assert how_many("api", entity="user:2", plan="batch") == 6


def test_shared_limit_serves_each_priority_up_to_its_share() -> None:
    services.set_resource_limits("api", [CALLS], shared=["call_count"])
    assert how_many("api", entity="user:1", priority="low") == 4
    assert how_many("api", entity="user:2", priority="low") == 0
    assert how_many("api", entity="user:2") == 4
    assert how_many("api", entity="user:3", priority="high") == 2
    assert limits.status("api").limits["call_count"]["used"] == 10
    assert limits.status("api").limits["call_count"]["keep"] == KEEP


def test_limits_of_a_parent_and_totals_keep_shares_free() -> None:
    Entity.objects.create(identifier="team:1")
    Entity.objects.create(identifier="user:1", parent=Entity.objects.get(identifier="team:1"), cascade=True)
    services.set_entity_limits("team:1", [CALLS], resource="api")
    services.set_entity_limits("user:1", [CallLimit(5, 3600, keep={"low": 60})], counted="total")
    assert how_many("api", entity="user:1", priority="low") == 2
    assert how_many("api", entity="team:1", priority="low") == 2
    assert how_many("api", entity="user:1") == 3
    assert how_many("api", entity="team:1") == 1


def test_each_of_several_resources_has_its_own_priority_unless_the_call_names_one() -> None:
    for name, priority in (("a", "low"), ("b", "high")):
        services.set_resource_limits(name, [CALLS])
        prioritize(Resource, name, priority)
    assert limits.try_acquire({"a": {"call_count": 4}, "b": {"call_count": 9}}, entity="user:1")
    rejected = limits.try_acquire({"a": None, "b": None}, entity="user:1")
    assert [(status.resource, status.priority) for status in rejected.outcome.violations] == [("a", "low")]
    assert limits.try_acquire({"a": None, "b": None}, entity="user:1", priority="high")
    shares = [Share("a", "user:2", {"call_count": 9}, priority="high"), Share("b", "user:2", {"call_count": 10})]
    assert try_acquire_all(shares)


def test_total_of_several_resources_has_the_lowest_of_their_priorities() -> None:
    services.set_entity_limits("user:1", [RateLimit("tokens", 100, 3600, keep=KEEP)], counted="total")
    for name, priority in (("a", "low"), ("b", "high")):
        services.set_resource_limits(name, [RateLimit("tokens", 1000, 3600)])
        prioritize(Resource, name, priority)
    assert limits.try_acquire({"b": {"tokens": 50}}, entity="user:1")
    assert not limits.try_acquire({"a": {"tokens": 1}, "b": {"tokens": 1}}, entity="user:1")
    assert limits.try_acquire({"a": {"tokens": 1}, "b": {"tokens": 1}}, entity="user:1", priority="high")


def test_members_of_a_pool_keep_shares_free() -> None:
    pool = make_pool({"eu": [CallLimit(5, 3600, keep={"low": 40})], "us": [CALLS]}, load_balancing="failover")
    serve("llm", pool)
    assert how_many("llm", entity="user:1", priority="low") == 3 + 4
    assert how_many("llm", entity="user:1", priority="high") == 2 + 6
    named = limits.pool(pool.name)
    assert not named.try_acquire(priority="low")
    assert not named.peek(priority="high").allowed


def test_pool_without_rows_passes_the_priority_on() -> None:
    pool = LimitPool([LimitSet([CALLS]), LimitSet([CallLimit(5, 3600)])])
    allowed = [bool(pool.try_acquire(priority="low")) for _ in range(12)]
    assert allowed.count(True) == 9
    with pytest.raises(InvalidRequest, match="priority must be"):
        pool.acquire(priority="urgent", timeout=0)


def test_repeated_request_takes_its_permits_in_its_priority() -> None:
    services.set_resource_limits("api", [ResourceLimit("slots", 10, keep={"low": 60})])
    first = limits.acquire("api", entity="user:1", priority="low", idempotency_key="k", requested={"slots": 2})
    first.release()
    others = limits.acquire("api", entity="user:1", requested={"slots": 3})
    options: dict[str, Any] = {"entity": "user:1", "idempotency_key": "k", "requested": {"slots": 2}}
    assert not limits.try_acquire("api", **options, priority="low")
    others.release()
    again = limits.acquire("api", **options, priority="low")
    assert again.is_repeated


def test_shadow_mode_tries_requests_in_their_priority() -> None:
    services.set_resource_limits("api", [CALLS], enforcement="shadow")
    acquisitions = [limits.acquire("api", entity="user:1", priority="low") for _ in range(5)]
    assert [bool(acquisition.outcome.shadowed) for acquisition in acquisitions] == [False] * 4 + [True]
    assert limits.acquire("api", entity="user:1", priority="high").outcome.shadowed == ()


def test_explanation_shows_the_share_that_is_kept_free() -> None:
    services.set_resource_limits("api", [CALLS])
    limits.acquire("api", entity="user:1", requested={"call_count": 5})
    text = limits.explain("api", entity="user:1", priority="low").text()
    assert "Its requests have the priority low." in text
    assert "requests: 0 of 4 left for priority low, 1 requested; it rejects: retry in 720 s." in text
    assert "requests: requests of priority low leave 60 % free." in text
    [limit] = limits.explain("api", entity="user:1", priority="low").chain[0].limits
    assert limit.used == 5


@pytest.mark.parametrize(
    ("keep", "problem"),
    [
        ("batch:10%", "'batch' is not one of LIMITS\\['PRIORITIES'\\]; must be one of: high, normal, low"),
        ("high:10%", "'high' is the highest priority"),
        ("normal:50%,low:20%", "'low' must leave at least as much free as 'normal': 50%, not 20%"),
    ],
)
def test_limits_that_are_written_name_known_priorities_in_their_order(keep: str, problem: str) -> None:
    services.set_resource_limits("api", [CallLimit(10, 60)])
    row = Limit(policy=Policy.objects.get(), key="tokens", text=f"100/min:keep={keep}")
    with pytest.raises(ValidationError, match=problem):
        row.full_clean()


def test_removed_priority_has_no_effect_and_is_reported(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "PRIORITIES": ["high", "normal", "low", "batch"]}
    services.set_resource_limits("api", [CallLimit(10, 3600, keep={"batch": 70, "low": 60})])
    prioritize(Resource, "api", "batch")
    assert how_many("api", entity="user:1") == 3
    assert _problems() == []
    settings.LIMITS = {key: value for key, value in settings.LIMITS.items() if key != "PRIORITIES"}
    resolver.clear()
    assert how_many("api", entity="user:2") == 10
    assert how_many("api", entity="user:3", priority="low") == 4
    assert [problem for problem in _problems() if "'batch'" in problem] == _problems() != []


def _problems() -> list[str]:
    return [str(message.msg) for message in run_checks(databases=["default"]) if message.id == "limits_app.W078"]


@pytest.mark.parametrize(
    ("priorities", "problem"),
    [
        ("high", "a list of names"),
        (["high", "low"], "one of which is 'normal'"),
        (["normal", "low", "low"], "different names"),
        (["normal", "Low"], "such as 'high'"),
        (["normal", *[f"p{number}" for number in range(10)]], "at most 10"),
    ],
)
def test_invalid_priorities_of_the_settings_are_errors(priorities: object, problem: str, settings: Settings) -> None:
    run_checks()  # imports what it needs, which some modules read settings for
    settings.LIMITS = {**settings.LIMITS, "PRIORITIES": priorities}
    [message] = [message for message in run_checks() if message.id == "limits_app.E094"]
    assert problem in message.msg


def test_fields_of_a_limit_have_its_shares_and_an_error_for_unknown_priorities() -> None:
    values = {**{name: field.get_default() for name, field in FIELDS.items()}, "key": "tokens", "capacity": 10}
    values |= {"window_seconds": 60, "keep": "low:60%, normal:20%"}
    noted = join(values)
    assert noted is not None
    assert noted.limit.keep == (("low", 60), ("normal", 20))
    assert limit_in_words(noted.limit) == (
        "10 tokens per minute, low-priority requests leave 60 % free, normal-priority requests leave 20 % free"
    )
    with pytest.raises(ValidationError) as caught:
        join({**values, "keep": "batch:60%"})
    assert list(caught.value.error_dict) == ["keep"]
