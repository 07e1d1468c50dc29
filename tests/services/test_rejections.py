"""Rejections with their reasons: which limit it was, and the policy as it was then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import QuerySet

from limits_app import CallLimit, QuotaLimit, RateLimit, ResourceLimit, limits
from limits_app.models import AuditEvent, Denial, Entity, Limit, Plan, Policy, Resource
from limits_app.services.limit_words import limit_in_words
from limits_app.services.policy_history import PolicyHistory
from limits_app.services.rejections import rejections, rejections_of
from limits_app.usage.reading import DenialCount

pytestmark = pytest.mark.django_db


def denied(entity: str = "user:7", key: str = "call_count", *, resource: str = "api", **fields: Any) -> Denial:
    """A rejection that was counted now, or at another time."""
    at = fields.pop("at", None) or datetime.now(UTC)
    minute = at.replace(second=0, microsecond=0)
    return Denial.objects.create(
        resource=resource, entity=entity, key=key, minute=minute, count=3, first=at, last=at, **fields
    )


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (CallLimit.per_minute(1000), "1,000 requests per minute"),
        (CallLimit.per_minute(1), "1 request per minute"),
        (RateLimit("tokens", 5, 10), "5 tokens per 10 seconds"),
        (QuotaLimit("credits", 5, "month"), "5 credits per month"),
        (QuotaLimit("credits", 5, "month", starts="15"), "5 credits per month from day 15"),
        (QuotaLimit("credits", 5, "month", starts="6h"), "5 credits per month from day 1, 06:00"),
        (QuotaLimit("credits", 5, "week", starts="sun+390min"), "5 credits per week from Sunday, 06:30"),
        (QuotaLimit("credits", 5, "day", starts="6h"), "5 credits per day from 06:00"),
        (QuotaLimit("credits", 5, "month", starts="client"), "5 credits per billing month of the client"),
        (QuotaLimit("credits", 5, session_seconds=7200), "5 credits per 2 hours"),
        (CallLimit.per_week(7), "7 requests per week"),
        (RateLimit("input_tokens", 2.625, 1), "2.625 input tokens per second"),
        (RateLimit.per_day("tokens", 10**6, soft=True), "1,000,000 tokens per day, only reported"),
        (ResourceLimit("slots", 2), "2 slots at the same time"),
    ],
)
def test_a_limit_in_words(limit: Any, words: str) -> None:
    assert limit_in_words(limit) == words


def test_the_most_specific_policy_with_the_limit_is_the_reason() -> None:
    limits.set_system_limits([CallLimit.per_minute(9), RateLimit("tokens", 50, 60)])
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    limits.set_entity_limits("user:7", [ResourceLimit("slots", 2)], resource="api", enforcement="shadow")
    Entity.objects.filter(identifier="user:7").update(name="Gina")
    for key in ("call_count", "tokens", "slots"):
        denied(key=key)
    found = {one.count.key: one for one in rejections("api", entity="user:7")}
    policies = {str(one): one.pk for one in Policy.objects.all()}
    assert found["call_count"].why == "user:7 (Gina) reached the limit of 5 requests per minute on api."
    assert found["call_count"].policy_id == policies["resource api"]
    assert found["call_count"].event_number == AuditEvent.objects.get(object_label="resource api").number
    assert found["tokens"].policy_id == policies["system"]
    assert found["slots"].why == "user:7 (Gina) reached the limit of slots on api."
    assert (found["slots"].policy_id, found["slots"].limit) == (None, None)


def test_the_policy_is_that_of_the_time_of_the_rejection() -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    denied()
    limits.set_resource_limits("api", [CallLimit.per_minute(50)])
    denied("user:8")
    limits.delete_resource_limits("api")
    denied("user:9")
    found = {one.count.entity: one.limit for one in rejections()}
    assert found == {"user:7": CallLimit.per_minute(5), "user:8": CallLimit.per_minute(50), "user:9": None}


def test_a_policy_without_events_counts_as_it_is_now() -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    QuerySet(AuditEvent).delete()
    denied()
    limits.set_resource_limits("more", [CallLimit.per_minute(6)])
    denied(resource="more", at=datetime.now(UTC) - timedelta(hours=1))  # before it was created
    found = {one.count.resource: one for one in rejections()}
    assert (found["api"].limit, found["api"].event_id) == (CallLimit.per_minute(5), None)
    assert found["more"].limit is None


def test_dates_and_hours_decide_which_policy_it_was() -> None:
    now = datetime.now(UTC)
    day = f"{now:%a}".lower()
    other = f"{now + timedelta(days=2):%a}".lower()
    limits.set_resource_limits("api", [CallLimit.per_minute(1)])
    limits.set_resource_limits("api", [CallLimit.per_minute(2)], weekly_hours=day, time_zone="UTC")
    limits.set_resource_limits("api", [CallLimit.per_minute(3)], weekly_hours=other, time_zone="UTC")
    denied()
    assert [one.limit for one in rejections()] == [CallLimit.per_minute(2)]
    later, end = now + timedelta(hours=1), now + timedelta(hours=2)
    limits.set_resource_limits("api", [CallLimit.per_minute(4)], valid_from=later, valid_until=end)
    assert [one.limit for one in rejections()] == [CallLimit.per_minute(2)]
    denied("user:8", at=later)
    assert rejections(entity="user:8")[0].limit == CallLimit.per_minute(4)
    denied("user:9", at=end)
    assert rejections(entity="user:9")[0].limit in (CallLimit.per_minute(1), CallLimit.per_minute(2))


@pytest.mark.parametrize(
    ("entity", "key", "fields", "why"),
    [
        ("", "call_count", {}, "No user (whole site) reached the limit of 5 requests per minute on api."),
        (
            "",
            "tokens",
            {"bucket": "shared"},
            "shared by all clients reached the limit of 9 tokens per day on api.",
        ),
        ("eu", "tokens", {"bucket": "member"}, "eu (member of the pool) reached the limit of tokens on api."),
        ("user:7", "blocked", {}, "user:7 was blocked on api."),
    ],
)
def test_the_reason_names_the_rejected_client(entity: str, key: str, fields: dict[str, Any], why: str) -> None:
    limits.set_resource_limits("api", ["call_count=5/min", "tokens=9/day:shared"])
    limits.set_entity_limits("user:7", [], effect="blocked", resource="api")
    denied(entity, key, **fields)
    (found,) = rejections()
    assert found.why == why
    blocked = key == "blocked"
    assert (found.limit is None, found.policy_id is None) == (blocked or entity == "eu", entity == "eu")


@pytest.mark.parametrize("client", ["user:8", "ip:203.0.113.0/24", "key:eu-*"])
def test_the_block_of_a_client_on_all_pages_names_its_policy(client: str) -> None:
    limits.set_resource_limits("api", [], effect="blocked")
    limits.set_entity_limits(client, [], effect="blocked", reason="attack")
    denied(client, "blocked", resource="")
    [rejection] = rejections()
    assert rejection.policy_id == Policy.objects.get(entity__identifier=client).pk
    assert rejection.event_number == AuditEvent.objects.get(object_id=str(rejection.policy_id)).number


def test_patterns_plans_and_totals_are_reasons_too() -> None:
    api, web = Resource.objects.create(name="api"), Resource.objects.create(name="web")
    plan = Plan.objects.create(name="free")
    Entity.objects.create(identifier="user:7", plan=plan)
    for capacity, about in (
        (1, {"entity": Entity.objects.create(identifier="key:*"), "resource": api}),
        (2, {"entity": Entity.objects.create(identifier="key:eu-*"), "resource": api}),
        (3, {"plan": plan, "resource": web}),
        (4, {"counted": "total"}),
        (5, {"resource": api}),
    ):
        Limit.from_definition(Policy.objects.create(**about), CallLimit.per_minute(capacity)).save()
    for entity, resource in (("key:us-1", "api"), ("key:eu-1", "api"), ("user:7", "web"), ("user:8", "web"), ("b", "")):
        denied(entity, resource=resource)
    found = {one.count.entity: one.limit for one in rejections()}
    assert {name: limit and limit.capacity for name, limit in found.items()} == {
        "key:us-1": 1,
        "key:eu-1": 2,
        "user:7": 3,
        "user:8": None,  # its plan, if it has one, is not known
        "b": 4,
    }


def test_rows_are_read_in_pages_with_as_many_queries_as_one(django_assert_max_num_queries: Any) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(5)])
    for number in range(30):
        denied(f"user:{number}")
    assert rejections(resource="none") == []
    with django_assert_max_num_queries(7):
        first = rejections(most=20)
    second = rejections(offset=20, most=20)
    assert {one.count.entity for one in (*first, *second)} == {f"user:{number}" for number in range(30)}
    assert {one.limit for one in first} == {CallLimit.per_minute(5)}


def test_policies_of_other_clients_and_resources_are_not_looked_at() -> None:
    others = {
        key: {"resource": resource, "entity": entity}
        for key, (resource, entity) in enumerate([("mail", None), ("api", "user:8"), (None, "ip:10.0.0.0/8")])
    }  # of which no other field can be read
    history = PolicyHistory([], others)
    count = DenialCount.of(denied("user:7"))
    assert [*history.rejecting(count, ["user:7", "user:*"])] == []


def test_policies_that_were_deleted_since_are_found_with_their_earlier_versions() -> None:
    denied("ip:10.1.2.3", at=datetime.now(UTC) - timedelta(minutes=5))
    for number in (5, 6):
        limits.set_entity_limits("ip:10.0.0.0/8", [CallLimit.per_minute(number)])
    first, second = AuditEvent.objects.filter(object_type="policy")
    limits.delete_entity_limits("ip:10.0.0.0/8")
    times = {second.pk: timedelta(minutes=9), first.pk: timedelta(minutes=4)}
    for pk, back in times.items():
        QuerySet(AuditEvent).filter(pk=pk).update(when=datetime.now(UTC) - back)
    [rejection] = rejections()
    assert (rejection.limit, rejection.event_number) == (CallLimit.per_minute(5), second.number)


def test_rejections_of_a_client_with_a_plan_name_it(django_assert_num_queries: Any) -> None:
    Plan.objects.create(name="gold")
    limits.set_plan_limits("gold", [CallLimit.per_minute(7)])
    limits.set_entity("user:7", plan="gold")
    denied()
    row = Entity.objects.select_related("plan").get(identifier="user:7")
    with django_assert_num_queries(3):
        [rejection] = rejections_of(row, most=5)
    assert rejection.limit == CallLimit.per_minute(7)
    assert rejections_of(Entity(identifier="user:8"), most=5) == []
