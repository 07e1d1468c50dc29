"""Live state: status, explanations, one's own limits; resets, credit and boosts; throttling; the store being down."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, OperationalError
from django.http import HttpRequest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings
from rest_framework.exceptions import NotAuthenticated
from rest_framework.test import APIClient

from limits_app import services
from limits_app.acquiring.limit_set import LimitSet
from limits_app.api import problems
from limits_app.engine.errors import StaleConfiguration, StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.integrations.drf.throttle import ThrottleRejection
from limits_app.integrations.refusals import refusal
from limits_app.models import (
    AuditEvent,
    BucketKind,
    Denial,
    Endpoint,
    Limit,
    Policy,
    Pool,
    PoolMember,
    Price,
    Resource,
    UsagePeriod,
)
from limits_app.testing import FakeClock
from tests.api.site import ROOT, as_user, fill, person, used
from tests.opened import fail_at
from tests.replacing import at_next_call

pytestmark = pytest.mark.django_db(transaction=True)

LIMIT = {"kind": "call", "capacity": 3, "window_seconds": 60}


def boost(client: APIClient, *, reason_header: str = "", **fields: Any) -> Any:
    """Ask for a boost of `user:1` on `api` for an hour, unless the fields say something else."""
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    asked = {"entity": "user:1", "resource": "api", "limits": [LIMIT], "until": until, "reason": "launch"}
    return client.post(f"{ROOT}boosts/", asked | fields, format="json", headers={"X-Reason": reason_header})


def test_the_plan_of_a_request_is_a_parameter(root: APIClient) -> None:
    services.set_plan_limits("pro", [CallLimit(7, 60)])
    asked = "?resource=llm&entity=user:9&plan=pro"
    assert root.get(f"{ROOT}explain/{asked}").data["chain"][0]["limits"][0]["level"] == "plan"
    assert root.get(f"{ROOT}status/{asked}").data["limits"]["call_count"]["capacity"] == 7
    assert root.get(f"{ROOT}status/?resource=llm&plan={'x' * 65}").status_code == 400


def test_status_has_used_and_remaining_amounts(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(5, 60)])
    services.acquire("api", entity="user:1")
    told = root.get(f"{ROOT}status/?resource=api&entity=user:1")
    assert (told.data["limits"]["call_count"]["used"], told["Cache-Control"]) == (1, "no-store")
    assert root.get(f"{ROOT}status/?resource=api").data["used_by_all"] == {"call_count": 0}


def test_an_explanation_is_about_the_amounts_that_are_asked_for(root: APIClient) -> None:
    services.set_resource_limits("llm", [RateLimit("tpm", 100, 60), CallLimit(5, 60)])
    told = root.get(f"{ROOT}explain/?resource=llm&entity=user:1&requested=tpm:100.5&requested=call_count:1").data
    assert told["outcome"]["never"] is True
    assert "allowed" in root.get(f"{ROOT}explain/?resource=llm").data["text"]


def test_an_explanation_of_unlimited_amounts_is_rejected(root: APIClient) -> None:
    services.set_resource_limits("llm", [RateLimit("tpm", 100, 60), CallLimit(5, 60)])
    services.set_entity_limits("user:1", [CallLimit(5, 60)], resource="llm")
    wrong = root.get(f"{ROOT}explain/?resource=llm&requested=frob:1&requested=tpm:1")
    assert wrong.status_code == 400
    [told] = wrong.data["errors"]
    assert told == {"parameter": "requested", "detail": "No limit has the key frob; must be one of: call_count, tpm"}
    dropped = root.get(f"{ROOT}explain/?resource=llm&entity=user:1&requested=tpm:1")
    assert dropped.data["errors"][0]["detail"] == "No limit has the key tpm; must be one of: call_count"
    services.set_resource_limits("closed", [], effect="blocked")  # which takes any amounts, as what has no limits does
    told = [root.get(f"{ROOT}explain/?resource={name}&requested=frob:1") for name in ("closed", "open")]
    assert [one.data["outcome"]["allowed"] for one in told] == [False, True]


def test_an_explanation_goes_as_far_as_the_calendar(root: APIClient) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    services.set_resource_limits("api", [CallLimit(5, 60)], valid_until=last)
    told = root.get(f"{ROOT}explain/?resource=api")
    assert (told.status_code, told.data["changes_at"]) == (200, last.isoformat())


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Los_Angeles"])
def test_moments_at_the_ends_of_the_calendar_are_read_and_written(
    zone: str, root: APIClient, settings: Settings
) -> None:
    settings.TIME_ZONE = zone
    ends = {"valid_from": "0001-01-01T00:00:00Z", "valid_until": "9999-12-31T23:59:59.999999Z"}
    Resource.objects.create(name="api")
    made = root.post(f"{ROOT}policies/", {"resource": "api", "effect": "blocked", **ends}, format="json")
    assert made.status_code == 201
    [listed] = root.get(f"{ROOT}policies/").data["results"]
    told = [datetime.fromisoformat(listed[name]) for name in ends]
    assert told == [datetime.fromisoformat(end) for end in ends.values()]
    assert made.data == listed


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59"])
def test_moments_beyond_the_calendar_are_refused(until: str, root: APIClient, settings: Settings) -> None:
    settings.TIME_ZONE = "America/Los_Angeles"
    Resource.objects.create(name="api")
    answers = [boost(root, until=until), root.get(f"{ROOT}usage/?until={until}")]
    assert [one.data["errors"][0]["detail"] for one in answers] == ["Datetime value out of range."] * 2


def test_an_explanation_has_the_limits_of_the_members_of_a_pool(root: APIClient) -> None:
    pool = Pool.objects.create(name="llms")
    Limit.objects.create(
        member=PoolMember.objects.create(pool=pool, name="a"),
        key="tpm",
        text="10/min:gcra",
    )
    Resource.objects.create(name="llm", pool=pool)
    assert root.get(f"{ROOT}explain/?resource=llm&requested=tpm:1").status_code == 200
    assert root.get(f"{ROOT}explain/?resource=llm&requested=frob:1").status_code == 400


def test_a_caller_sees_the_state_of_their_own_limits(user: User, root: APIClient) -> None:
    fill()
    services.set_entity_limits(f"user:{user.pk}", [CallLimit(7, 60)], resource="resource1")
    services.acquire("resource1", entity=f"user:{user.pk}", requested={"tpm": 1}).release()
    told = as_user(person("ann")).get(f"{ROOT}me/?page_size=2").data
    assert (told["count"], [one["resource"] for one in told["results"]]) == (3, ["resource1", "resource2"])
    [mine] = root.get(f"{ROOT}me/?resource=resource1").data["results"]
    assert (mine["entity"], mine["limits"]["call_count"]["available"]) == (f"user:{user.pk}", 6)


def test_a_caller_sees_their_own_limits_where_an_endpoint_was_charged_before_they_were_known(user: User) -> None:
    services.set_resource_limits("api", [CallLimit(100, 60)])
    services.set_entity_limits(f"user:{user.pk}", [CallLimit(7, 60)], resource="api")
    Endpoint.objects.create(name="me", path=f"{ROOT}me/", resource=Resource.objects.get(name="api"))
    basic = "Basic " + b64encode(b"root:root").decode()
    [mine] = Client().get(f"{ROOT}me/", headers={"Authorization": basic}).json()["results"]
    assert (mine["entity"], mine["limits"]["call_count"]["capacity"]) == (f"user:{user.pk}", 7)


def test_a_caller_sees_only_their_own_usage(user: User, root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(7, 60)])
    me, yesterday = f"user:{user.pk}", timezone.now() - timedelta(days=1)
    used(me, 3, refused=1)
    used(me, 2, start=yesterday)
    used(me, 4.5, key="tpm")
    used("user:0", 100, key="other")
    used(me, 100, bucket=BucketKind.MEMBER, key="other")
    [mine] = root.get(f"{ROOT}me/").data["results"]
    assert mine["usage"] == {
        "call_count": {"admitted": 5, "rejected": 1, "rejected_share": 1 / 6},
        "tpm": {"admitted": 4.5, "rejected": 0, "rejected_share": None},
    }
    [mine] = root.get(f"{ROOT}me/?until={timezone.now():%Y-%m-%dT00:00:00Z}").data["results"]
    assert mine["usage"]["call_count"]["admitted"] == 2
    assert root.get(f"{ROOT}me/?period=hour").data["results"][0]["usage"] == {}


def test_usage_is_distinguished_as_is_wanted_the_largest_first(root: APIClient) -> None:
    used("user:1", 30, refused=10)
    used("user:2", 50)
    used("user:1", 500, key="tpm", resource="llm")
    used("user:1", 1, period=UsagePeriod.HOUR)

    def told(query: str) -> list[tuple[object, ...]]:
        answered = root.get(f"{ROOT}usage/?{query}")
        assert (answered.status_code, answered["Cache-Control"]) == (200, "no-store")
        return [(one["resource"], one["entity"], one["key"], one["admitted"]) for one in answered.data["results"]]

    assert told("") == [(None, None, "tpm", 500), (None, None, "call_count", 80)]
    assert told("by=entity&key=call_count") == [(None, "user:2", "call_count", 50), (None, "user:1", "call_count", 30)]
    assert told("by=resource&entity=user:1") == [("llm", None, "tpm", 500), ("api", None, "call_count", 30)]
    assert told("resource=llm&by=period") == [(None, None, "tpm", 500)]
    assert told("period=hour") == [(None, None, "call_count", 1)]
    assert told("until=2001-01-01T00:00:00Z") == told("since=2999-01-01T00:00:00Z") == []
    [whole] = root.get(f"{ROOT}usage/?key=call_count&entity=user:1&by=period").data["results"]
    assert (whole["bucket"], whole["rejected"], whole["rejected_share"]) == ("entity", 10, 0.25)
    assert whole["start"].endswith("T00:00:00+00:00")


def test_usage_has_its_plan_and_its_cost(root: APIClient) -> None:
    today = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    Price.objects.create(resource="llm", unit="tpm", amount=Decimal("0.1"), per=1, currency="eur", valid_from=today)
    used("user:1", 3, resource="llm", key="tpm", plan="pro")
    used("user:2", 5, resource="llm", key="tpm")
    [row] = root.get(f"{ROOT}usage/?by=plan&plan=pro&cost=true").data["results"]
    assert (row["plan"], row["admitted"], row["cost"]) == ("pro", 3, {"eur": "0.3"})
    assert root.get(f"{ROOT}usage/?plan=pro").data["results"][0]["cost"] is None
    spends = root.get(f"{ROOT}spend/?by=entity&page_size=1").data
    assert (spends["count"], spends["results"][0]["entity"], spends["results"][0]["amount"]) == (2, "user:2", "0.5")
    assert root.get(f"{ROOT}spend/?plan=pro").data["results"][0]["amount"] == "0.3"
    assert root.get(f"{ROOT}spend/?key=tpm").status_code == 400


def test_usage_is_paginated(root: APIClient) -> None:
    for number in range(5):
        used(f"user:{number}", number)
    pages = [root.get(f"{ROOT}usage/?by=entity&page_size=2&page={number}").data for number in (1, 2, 3)]
    assert [[one["admitted"] for one in page["results"]] for page in pages] == [[4, 3], [2, 1], [0]]
    assert {page["count"] for page in pages} == {5}
    assert pages[2]["next"] is None
    assert root.get(f"{ROOT}usage/?by=entity&page_size=2&page=4").status_code == 404


def test_refusals_are_reported_minute_by_minute(root: APIClient) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    times = {"first": now, "last": now}
    for number in (1, 2, 3):
        whose = {"resource": "api", "entity": f"user:{number}", "key": "call_count"}
        Denial.objects.create(minute=now - timedelta(hours=number % 2), count=number, **whose, **times)
    told = root.get(f"{ROOT}denials/?page_size=2")
    assert (told.status_code, told["Cache-Control"], told.data["count"]) == (200, "no-store", 3)
    assert [(one["entity"], one["count"]) for one in told.data["results"]] == [("user:2", 2), ("user:3", 3)]
    [one] = root.get(f"{ROOT}denials/?entity=user:1&resource=api&key=call_count").data["results"]
    assert (one["bucket"], one["count"]) == ("entity", 1)
    assert one["why"] == "user:1 reached the limit of requests on api."
    Denial.objects.filter(entity="user:3").update(request_ids="r-2 r-1", minute=now - timedelta(days=5))
    [of_request] = root.get(f"{ROOT}denials/?request_id=r-1").data["results"]
    assert of_request["entity"] == "user:3"
    assert root.get(f"{ROOT}denials/?request_id=r-9").data["results"] == []
    assert root.get(f"{ROOT}denials/?until=2001-01-01T00:00:00Z").data["results"] == []
    assert root.get(f"{ROOT}denials/?until=0001-01-02T00:00:00Z").status_code == 400
    assert root.get(f"{ROOT}denials/?by=entity").status_code == 400


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("period=week", "period"),
        ("by=user", "by"),
        ("&".join(["by=entity"] * 7), "by"),
        ("since=yesterday", "since"),
        ("refused=1", "refused"),
    ],
)
def test_a_question_about_usage_that_cannot_be_is_refused(query: str, parameter: str, root: APIClient) -> None:
    refused = root.get(f"{ROOT}usage/?{query}")
    assert refused.status_code == 400
    assert [one["parameter"] for one in refused.data["errors"]] == [parameter]


def test_ones_own_limits_are_read_again_when_they_change_in_between(
    root: APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.set_resource_limits("api", [CallLimit(5, 60)])

    def stale(_get_stats: object, limits: LimitSet) -> object:
        raise StaleConfiguration("changed")

    at_next_call(monkeypatch, LimitSet, "get_stats", stale)
    assert root.get(f"{ROOT}me/").data["results"][0]["limits"].keys() == {"call_count"}


def test_reset_forgets_recorded_use_once_for_each_key(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(1, 60)])
    services.acquire("api", entity="user:1")
    asked = {"resource": "api", "entity": "user:1", "keys": ["call_count"], "reason": "so", "idempotency_key": "1"}
    done = [root.post(f"{ROOT}resets/", asked, format="json").data for _ in range(2)]
    assert done == [{"done": True}, {"done": False}]
    assert services.try_acquire("api", entity="user:1")
    event = AuditEvent.objects.get(verb="reset")
    assert (event.actor, event.source, event.reason) == ("root", "api", "so")
    wrong = root.post(f"{ROOT}resets/", asked | {"keys": ["tpm"], "idempotency_key": None}, format="json")
    assert wrong.status_code == 400
    assert wrong.data["errors"][0]["pointer"] == "#"


def test_credit_is_given(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(2, 60)])
    assert all(services.try_acquire("api", entity="user:1") for _ in range(2))
    asked = {"resource": "api", "entity": "user:1", "key": "call_count", "amount": 1}
    assert root.post(f"{ROOT}top-ups/", asked, format="json").data == {"done": True}
    assert services.try_acquire("api", entity="user:1")
    assert root.post(f"{ROOT}top-ups/", asked | {"amount": 0}, format="json").status_code == 400


def test_totals_are_reset_and_topped_up(root: APIClient) -> None:
    services.set_system_limits([CallLimit(5, 86_400)], counted="total")
    services.set_plan_limits("pro", [CallLimit(9, 86_400)], counted="total")
    for _ in range(3):
        services.acquire("api", entity="user:1", plan="pro")
    asked = {"resource": None, "entity": "user:1", "plan": "pro"}

    def left() -> list[int]:
        return [round(one.remaining) for one in services.check("api", entity="user:1", plan="pro").passed]

    before = left()
    assert root.post(f"{ROOT}top-ups/", asked | {"key": "call_count", "amount": 2}, format="json").data["done"]
    assert left() == [one + 2 for one in before]
    assert root.post(f"{ROOT}resets/", asked, format="json").data == {"done": True}
    assert left() == [one + 3 for one in before]


def test_a_boost_is_granted_until_it_ends(root: APIClient) -> None:
    unknown = boost(root)
    assert [one["pointer"] for one in unknown.data["errors"]] == ["#/resource"]
    assert not Resource.objects.exists()
    services.set_resource_limits("api", [CallLimit(1, 60)])
    made = boost(root, reason_header="another")
    assert (made.status_code, made.data["extends"], made.data["reason"]) == (201, True, "launch")
    read = root.get(f"{ROOT}policies/{made.data['id']}/")
    assert (made["ETag"], made["Cache-Control"]) == (read["ETag"], read["Cache-Control"])
    assert sum(bool(services.try_acquire("api", entity="user:1")) for _ in range(9)) == 3
    event = AuditEvent.objects.get(object_type="policy", object_id=made.data["id"])
    assert (event.actor, event.source, event.reason) == ("root", "api", "launch")
    assert boost(root).status_code == 400
    wrong = boost(root, limits=[LIMIT, {"key": "x", "capacity": 1}])
    assert [one["pointer"] for one in wrong.data["errors"]] == ["#/limits/1/window_seconds"]
    assert boost(root, until="2000-01-01T00:00:00Z").status_code == 400
    assert Policy.objects.count() == 2
    services.set_entity_limits("user:1", [CallLimit(3, 60)])
    assert boost(root, resource=None).data["scope"] == "entity"


def test_rejections_in_shadow_mode_are_counted(root: APIClient) -> None:
    services.set_resource_limits("in-the-shadow", [CallLimit(1, 60)], enforcement="shadow")
    for _ in range(3):
        services.acquire("in-the-shadow", entity="user:1")
    told = [one for one in root.get(f"{ROOT}shadow-refusals/").data if one["resource"] == "in-the-shadow"]
    assert told == [{"resource": "in-the-shadow", "key": "call_count", "count": 2}]


def test_the_api_is_throttled_by_the_limits_of_a_resource_of_its_own(root: APIClient, clock: FakeClock) -> None:
    services.set_resource_limits("limits_app.api", [CallLimit(2, 60)])
    answers = [root.get(f"{ROOT}resources/") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    refused = answers[2]
    assert (refused["Retry-After"], refused["Content-Type"]) == ("30", "application/problem+json")
    assert refused.data["type"].endswith("#quota-exceeded")
    assert refused.data["violated-policies"] == ["call_count"]
    clock.advance(30)
    assert root.get(f"{ROOT}resources/").status_code == 200


def test_without_limits_of_its_own_a_caller_has_600_requests_a_minute(user: User, root: APIClient) -> None:
    assert "600" in root.get(f"{ROOT}resources/")["RateLimit-Policy"]
    assert services.try_acquire("limits_app.api", entity=f"user:{user.pk}")


def test_state_of_a_store_that_is_down_is_503(root: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    services.set_resource_limits("api", [CallLimit(2, 60)])
    fail_at(monkeypatch, "peek")
    told = root.get(f"{ROOT}status/?resource=api&entity=user:1")
    assert (told.status_code, told["Retry-After"]) == (503, "1")
    assert told["Content-Type"] == "application/problem+json"


def test_a_rejection_has_an_authenticate_header_and_a_problem_body() -> None:
    unknown = NotAuthenticated()
    unknown.auth_header = "Basic"  # type: ignore[attr-defined]  # the framework's views set it
    answered = [problems.answer(error, {}) for error in (unknown, PermissionDenied())]
    assert [one and (one.status_code, one.get("WWW-Authenticate")) for one in answered] == [(401, "Basic"), (403, None)]


@pytest.mark.parametrize(("told", "seconds"), [(2.5, "3"), (0, "1"), (None, "5")])
def test_all_entry_points_send_the_retry_after_of_a_store(told: float | None, seconds: str) -> None:
    error = StoreUnavailable("down", retry_after=told)
    answered = problems.answer(error, {})
    assert answered is not None
    assert (answered["Retry-After"], str(ThrottleRejection(error).wait)) == (seconds, seconds)
    assert refusal(HttpRequest(), error)["Retry-After"] == seconds


@pytest.mark.parametrize(
    ("error", "status"),
    [(IntegrityError("twice"), 409), (OperationalError("locked"), 503), (KeyError("a mistake"), None)],
)
def test_trouble_with_the_database_is_an_answer_and_mistakes_are_not(error: Exception, status: int | None) -> None:
    answered = problems.answer(error, {})
    assert (answered and answered.status_code) == status


def test_a_reason_that_is_no_text_does_no_harm(root: APIClient, settings: Settings) -> None:
    made = root.post(f"{ROOT}resources/", {"name": "x"}, format="json", headers={"X-Reason": "\xff" * 2000})
    assert made.status_code == 201
    assert AuditEvent.objects.get().reason == "\ufffd" * 1000
    assert Resource.objects.get().name == "x"


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ("status/?resource=bad:name", "resource"),
        ("explain/?resource=a%20b", "resource"),
        (f"status/?resource=api&entity={'x' * 300}", "entity"),
        ("usage/?until=0001-01-01T00:00:00Z", ""),
    ],
)
def test_errors_in_a_url_name_the_parameter(asked: str, parameter: str, root: APIClient) -> None:
    refused = root.get(ROOT + asked)
    assert refused.status_code == 400
    assert [one.get("parameter") for one in refused.data["errors"]] == [parameter]
