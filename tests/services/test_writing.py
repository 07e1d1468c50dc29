"""Writing limits from code, quotas and soft limits among them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import timezone as offset

import pytest
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from limits_app import (
    CallLimit,
    InvalidLimit,
    InvalidRequest,
    QuotaLimit,
    RateLimit,
    ResourceLimit,
    audit,
    limits,
)
from limits_app.engine.errors import Unresolved
from limits_app.engine.limits import Blocked
from limits_app.models import AuditEvent, Entity, Limit, Policy, Resource
from limits_app.services import definitions

BEYOND = datetime.max.replace(tzinfo=offset(timedelta(hours=-14)))
LIMITS = [CallLimit(10, 60), RateLimit("tpm", 1000, 60), ResourceLimit("db", 2)]


def test_a_policy_is_written_with_few_queries(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    limits.set_entity_limits("user:0", "10/min", resource="api")
    unit, audited, warnings = 3, 3, 2  # a transaction and the lock; the event and the head; the chain and code
    with django_assert_num_queries(unit + 3 + 3 + 4 + audited + warnings):  # names; rows; states afterwards
        limits.set_entity_limits("user:1", "10/min", resource="api")
    with django_assert_num_queries(unit + 3 + 4 + 3 + audited + warnings):  # the policy with its parts, three times
        limits.set_entity_limits("user:1", "20/min", resource="api")
    with django_assert_num_queries(unit + 3 + 2 + 3 + warnings):
        limits.set_entity_limits("user:1", "20/min", resource="api")
    with django_assert_num_queries(unit + 1 + 1 + 1 + 1 + audited):
        limits.set_entity("user:2", name="Two")
    with django_assert_num_queries(unit + 1 + 1 + 1 + audited):
        limits.set_entity("user:2", name="Zwei")


def test_limits_that_stay_are_not_written_again() -> None:
    limits.set_entity_limits("user:1", ["rpm=10/min", "tpm=100/min", "old=5/min"])
    rows = {limit.key: limit.pk for limit in Limit.objects.all()}
    policy = limits.set_entity_limits("user:1", ["rpm=10/min", "tpm=200/min", "new=9/min"])
    stored = {limit.key: limit for limit in Limit.objects.all()}
    assert {key: limit.text for key, limit in stored.items()} == {
        "rpm": "10/min",
        "tpm": "200/min",
        "new": "9/min",
    }
    assert [stored[key].pk for key in ("rpm", "tpm")] == [rows["rpm"], rows["tpm"]]
    assert {limit.key for limit in policy.limits.all()} == stored.keys()
    event = AuditEvent.objects.latest("number")
    assert [limit["text"] for limit in event.before["limits"]] == ["5/min", "10/min", "100/min"]
    assert [limit["text"] for limit in event.after["limits"]] == ["9/min", "10/min", "200/min"]
    assert not [*audit.unrecorded()]
    assert not audit.verify().broken


def test_a_name_that_is_taken_is_named_where_it_changes() -> None:
    for name in ("api", "chat"):
        limits.set_resource_limits(name, "10/min")
    chat = Resource.objects.get(name="chat")
    with pytest.raises(InvalidLimit, match="already exists"):
        definitions.read(chat, {"name": "api"}, partial=True)
    policy = Policy.objects.get(resource=chat)
    with pytest.raises(InvalidLimit, match="already exists"):
        definitions.read(policy, {"resource": "api"}, partial=True)
    definitions.read(policy, {"resource": "chat"}, partial=True)


def test_set_limits_are_listed() -> None:
    limits.set_resource_limits("api", LIMITS)
    limits.set_resource_limits("reports", LIMITS[:1])
    limits.set_entity_limits("user:1", LIMITS[1:2])
    limits.set_entity_limits("user:2", LIMITS[2:], resource="api")
    limits.set_plan_limits("pro", LIMITS[:1])
    limits.set_plan_limits("free", LIMITS[1:2], resource="api")
    assert limits.list_resources() == {"api": (LIMITS[0], LIMITS[2], LIMITS[1]), "reports": (LIMITS[0],)}
    assert limits.list_resources_with_entities() == ["api"]
    assert limits.list_entities() == {"user:1": (LIMITS[1],)}
    assert limits.list_entities("api") == {"user:2": (LIMITS[2],)}
    assert limits.list_entities("reports") == {}
    assert limits.list_plans() == {"pro": (LIMITS[0],)}
    assert limits.list_plans("api") == {"free": (LIMITS[1],)}
    assert limits.get_plan_limits("free", resource="api") == (LIMITS[1],)
    assert limits.get_plan_limits("free") is None


def test_a_policy_that_drops_broader_limits_warns(caplog: pytest.LogCaptureFixture) -> None:
    limits.set_system_limits([CallLimit(10, 60)])
    limits.set_resource_limits("api", LIMITS)
    limits.set_entity_limits("user:1", [CallLimit(5, 60)], resource="api", extends=True)
    assert not caplog.messages
    limits.set_entity_limits("user:2", [RateLimit("tpm", 5, 60)])
    assert caplog.messages == [
        "entity user:2 drops 'call_count' of system and 1 more: limit it too, or let it extend",
        "entity user:2 drops 'db' of resource api: limit it too, or let it extend",
    ]


@pytest.mark.parametrize(
    ("put", "take", "again"),
    [
        (lambda: limits.set_system_limits(LIMITS), limits.delete_system_limits, ()),
        (lambda: limits.set_resource_limits("api", LIMITS), limits.delete_resource_limits, ("api",)),
        (lambda: limits.set_entity_limits("user:1", LIMITS), limits.delete_entity_limits, ("user:1",)),
        (lambda: limits.set_plan_limits("pro", LIMITS), limits.delete_plan_limits, ("pro",)),
    ],
    ids=["system", "resource", "entity", "plan"],
)
def test_set_limits_are_deleted_once(put: object, take: object, again: tuple[str, ...]) -> None:
    put()
    assert take(*again) is True
    assert take(*again) is False
    assert not Policy.objects.exists()


def test_each_change_leaves_an_event_for_each_object() -> None:
    limits.set_entity_limits("user:1", LIMITS[:1], resource="api", reason="trial", actor="ann")
    limits.set_entity_limits("user:1", LIMITS[:1], resource="api", reason="trial", actor="ann")
    limits.set_entity_limits("user:1", [CallLimit(20, 60)], resource="api", reason="paid", actor="bob")
    limits.delete_entity_limits("user:1", resource="api", reason="left", actor="cy")
    events = AuditEvent.objects.order_by("pk").values_list("verb", "object_type", "actor", "source", "reason")
    assert list(events) == [
        ("create", "resource", "ann", "service", ""),
        ("create", "entity", "ann", "service", ""),
        ("create", "policy", "ann", "service", "trial"),
        ("update", "policy", "bob", "service", "paid"),
        ("delete", "policy", "cy", "service", "left"),
    ]
    update = AuditEvent.objects.get(verb="update")
    assert [taken["limits"][0]["text"] for taken in (update.before, update.after)] == ["10/min", "20/min"]
    assert Resource.objects.count() == Entity.objects.count() == 1


def test_an_end_alone_begins_now_beside_the_policy_that_always_holds() -> None:
    limits.set_entity_limits("user:1", LIMITS[:1], resource="api")
    until = timezone.now() + timedelta(hours=1)
    freeze = limits.set_entity_limits("user:1", [], resource="api", effect="blocked", valid_until=until)
    assert (freeze.valid_from is not None, freeze.valid_until, Policy.objects.count()) == (True, until, 2)
    assert limits.list_entities("api") == {"user:1": (LIMITS[0],)}


def test_a_policy_that_always_holds_is_not_given_an_end_alone() -> None:
    policy = limits.set_resource_limits("api", LIMITS)
    policy.valid_until = timezone.now() + timedelta(hours=1)
    with pytest.raises(ValidationError, match="also enter a start"):
        policy.full_clean()
    policy.valid_from = timezone.now()
    policy.full_clean()


def test_policies_beside_the_lasting_one_are_taken_back_by_when_they_hold() -> None:
    now, hour = timezone.now(), timedelta(hours=1)
    limits.set_resource_limits("api", LIMITS)
    limits.set_resource_limits("api", LIMITS, weekly_hours="sat", time_zone="UTC")
    limits.set_resource_limits("api", LIMITS, valid_from=now + hour, valid_until=now + 2 * hour, weekly_hours="sun")
    limits.set_resource_limits("api", LIMITS, valid_from=now + 2 * hour)
    assert limits.delete_resource_limits("api", valid_at=now) is False
    assert limits.delete_resource_limits("api", valid_at=now + hour, weekly_hours="mon") is False
    assert limits.delete_resource_limits("api", valid_at=now + hour, weekly_hours="sun") is True
    assert limits.delete_resource_limits("api", valid_at=now + 3 * hour) is True
    assert limits.delete_resource_limits("api", weekly_hours="sat") is True
    assert [policy.when() for policy in Policy.objects.all()] == ["always"]


def test_a_boost_is_ended_before_its_end_and_nothing_else_is() -> None:
    until = timezone.now() + timedelta(hours=1)
    limits.set_entity_limits("user:1", LIMITS[:1], resource="api")
    assert limits.end_boost("user:1", "api") is False
    limits.grant_boost("user:1", "api", [CallLimit(99, 60)], until, "demo")
    limits.set_entity_limits("user:1", [], effect="blocked", valid_until=until)
    assert limits.end_boost("user:1", None) is False
    assert limits.end_boost("user:1", "api", reason="over", actor="ann") is True
    assert list(limits.limit_set("api", "user:1")) == [LIMITS[0]]
    event = AuditEvent.objects.latest("number")
    assert (event.verb, event.actor, event.reason) == ("delete", "ann", "over")


BAD = {
    "a resource": (lambda: limits.set_resource_limits("a b", LIMITS), InvalidLimit, "resource 'a b' must be"),
    "no entity": (lambda: limits.set_entity_limits("", LIMITS), InvalidLimit, "entity '' must be"),
    "no resource": (
        lambda: limits.set_entity_limits("user:1", LIMITS, resource=""),
        InvalidLimit,
        "resource '' must be",
    ),
    "a block": (lambda: limits.set_system_limits([Blocked()]), InvalidLimit, "use the effect “blocked”"),
    "a rate of calls": (lambda: limits.set_system_limits([RateLimit("call_count", 1, 1)]), InvalidLimit, "call_count"),
    "a text for a limit": (
        lambda: limits.set_system_limits(["x"]),
        InvalidLimit,
        "limits.0.: limit 'x' must look",
    ),
    "a limit for several": (lambda: limits.set_system_limits(LIMITS[0]), InvalidLimit, "limits must be several"),
    "letters": (lambda: limits.set_system_limits("ab"), InvalidLimit, "must look like"),
    **{
        f"{name} {value!r}": (
            lambda name=name, value=value: limits.set_system_limits(LIMITS, **{name: value}),
            InvalidLimit,
            f"^{name}: {message}",
        )
        for name, value, message in [
            ("reason", None, "Write a text, not None"),
            ("reason", "a\0b", ".*NUL"),
            ("on_unavailable", "xx", "'xx' is not a valid choice: choose one of block, allow, local"),
            ("rollout_percent", 101, "Ensure this value is less than or equal to 100"),
            ("rollout_percent", -1, "Ensure this value is greater than or equal to 0"),
            ("rollout_percent", True, "Write a whole number, not True"),
        ]
    },
    "another key": (lambda: limits.set_system_limits(LIMITS, shared=["xyz"]), InvalidLimit, "xyz cannot be shared"),
    "a key alone": (lambda: limits.set_system_limits(LIMITS, shared="tpm"), InvalidLimit, "several keys"),
    "until": (lambda: limits.grant_boost("u", None, LIMITS, "tomorrow", "x"), InvalidLimit, "until: Write a date"),
    "until now": (lambda: limits.grant_boost("u", None, LIMITS, timezone.now(), "x"), InvalidLimit, "has ended"),
    "beyond the calendar": (lambda: limits.grant_boost("u", None, LIMITS, BEYOND, "x"), InvalidLimit, "until: Write"),
    "a moment": (lambda: limits.delete_system_limits(valid_at="x"), InvalidLimit, "valid_at: Write a date and time"),
    "an unknown option": (
        lambda: limits.set_system_limits(LIMITS, colour="red"),
        TypeError,
        "colour is not an option of a policy",
    ),
    "an option misspelled": (lambda: limits.delete_system_limits(valid="x"), TypeError, "valid is not an option"),
    "since": (lambda: limits.usage(since="x"), InvalidRequest, "since must be a datetime or None, not 'x'"),
    "infinite": (
        lambda: limits.boost("u", None, float("inf"), timezone.now(), "x"),
        InvalidRequest,
        "boost factor must be",
    ),
    "a boost by truth": (
        lambda: limits.boost("u", None, True, timezone.now(), "x"),
        InvalidRequest,
        "boost factor must be",
    ),
}


@pytest.mark.parametrize(("bad", "error", "message"), BAD.values(), ids=BAD)
def test_invalid_arguments_change_nothing(bad: Callable[[], object], error: type[Exception], message: str) -> None:
    limits.set_system_limits([CallLimit(7, 60)])
    events = AuditEvent.objects.count()
    with pytest.raises(error, match=message):
        bad()
    assert list(limits.limit_set("api")) == [CallLimit(7, 60)]
    assert AuditEvent.objects.count() == events


@pytest.mark.parametrize(
    ("entity", "error"),
    [
        ("*", "A pattern needs one of"),
        ("user:eu*", "A pattern needs one of"),
        ("ip:10.0.0.0/33", "is not a network"),
        ("ip:10.1.0.0/8", "Write the network as “ip:10.0.0.0/8”"),
        ("ip:::ffff:10.1.0.0/112", "Write the network as “ip:10.1.0.0/16”"),
        ("ip:::FFFF:10.1.2.3", "Write the network as “ip:10.1.2.3/32”"),
    ],
)
def test_an_invalid_pattern_is_rejected_with_an_example(entity: str, error: str) -> None:
    with pytest.raises(InvalidLimit, match=error):
        limits.set_entity_limits(entity, LIMITS)
    assert not Entity.objects.exists()


QUOTAS = [
    QuotaLimit.per_day("daily", 10, "Europe/Berlin"),
    QuotaLimit.per_session("session", 5, 18_000, soft=True),
    RateLimit("tpm", 3, 60, soft=True),
]


def test_quotas_and_soft_limits_are_listed_as_they_were_set() -> None:
    limits.set_resource_limits("api", QUOTAS)
    assert limits.list_resources() == {"api": tuple(QUOTAS)}
    assert AuditEvent.objects.get(object_type="policy").after["limits"][1] == {
        "key": "session",
        "text": "5/5h:session:soft",
    }


def test_status_and_explanation_show_them() -> None:
    limits.set_resource_limits("api", [*QUOTAS, CallLimit(5, 60, soft=True)])
    limits.try_acquire("api", requested={"daily": 4, "tpm": 5})
    told = limits.status("api").limits
    assert told["daily"]["period"] == "day"
    assert told["tpm"]["utilization"] > 1.6  # type: ignore[operator]  # a number
    explained = limits.explain("api")
    assert explained.outcome.allowed
    assert "daily: 6 of 10 left" in explained.text()
    assert "tpm: 0 of 3 left, 1 requested; it is soft, and overdrawn by 3." in explained.text()


def test_a_zone_that_is_not_known_is_refused_where_it_is_set_and_where_it_is_read() -> None:
    limits.set_resource_limits("api", QUOTAS)
    QuerySet.update(Limit.objects.filter(key="daily"), text="10/day@Atlantis/Capital")  # as where zones are missing
    with pytest.raises(Unresolved, match="limit 'daily': time_zone 'Atlantis/Capital' is not known here"):
        limits.try_acquire("api", requested={"daily": 1})
