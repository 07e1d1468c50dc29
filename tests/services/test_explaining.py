"""Explanations and the status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import QuerySet
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, RateLimit, ResourceLimit, limits
from limits_app.acquiring.limit_set import LimitSet
from limits_app.models import Entity
from limits_app.policies import resolver
from limits_app.testing import FakeClock
from tests.replacing import at_next_call
from tests.services.wall import NOW, Wall


def test_an_explanation_without_policies_is_explicit() -> None:
    explanation = limits.explain("api", entity="user:1")
    assert explanation.text().splitlines() == [
        "user:1 on api: allowed now.",
        "The resource has no row: only limits in code and policies for all resources apply.",
        "No policy applies, so everything is allowed.",
    ]
    assert explanation.as_dict()["considered"] == []
    assert not explanation.as_dict()["known"]


def test_explanation_has_the_effective_and_replaced_policies_and_the_decision() -> None:
    limits.set_system_limits([CallLimit(100, 60), RateLimit("tpm", 50, 60), ResourceLimit("db", 1)])
    limits.set_entity_limits("user:1", [CallLimit(1, 60)], resource="api")
    limits.acquire("api", entity="user:1")
    explanation = limits.explain("api", entity="user:1")
    assert str(explanation) == (
        "user:1 on api: rejected now.\n"
        "In effect: the policy of the entity on this resource (limits).\n"
        "Replaced: the policy of the system (limits).\n"
        "Unlimited here, but limited by a replaced policy: db, tpm.\n"
        "requests: 0 of 1 left, 1 requested; it rejects: retry in 60 s."
        "\nrequests: a token bucket, up to 2 can pass within 60 s."
    )
    told = json.loads(json.dumps(explanation.as_dict()))
    assert [(one["level"], one["counts"]) for one in told["considered"]] == [
        ("entity_on_resource", True),
        ("system", False),
    ]
    assert told["dropped"] == ["db", "tpm"]
    assert told["outcome"]["violations"][0]["retry_after"] == 60


@pytest.mark.parametrize(
    ("requested", "lines"),
    [
        (None, ["requests: 10 of 10 left, 1 requested.", "db: 1 of 2 left, 1 requested.", "tpm: 5 of 5 left, 1"]),
        ({"tpm": 9}, ["rejected now.", "tpm: 5 of 5 left, 9 requested; the request exceeds its maximum."]),
        ({"db": 2}, ["db: 1 of 2 left, 2 requested; it rejects: retry when a permit is released."]),
    ],
)
def test_a_request_is_explained_limit_by_limit(requested: dict[str, int] | None, lines: list[str]) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60), RateLimit("tpm", 5, 60), ResourceLimit("db", 2)])
    with ThreadPoolExecutor(1) as another:
        held = another.submit(limits.acquire, "api", requested={"call_count": 0}).result()
    text = limits.explain("api", requested=requested).text()
    assert "the site itself on api" in text
    assert all(line in text for line in lines), text
    held.release()


@pytest.mark.parametrize(
    ("algorithm", "line"),
    [("fixed_window", ["requests: a fixed window, up to 20 can pass within 60 s."]), ("sliding_window", [])],
)
def test_an_explanation_warns_of_limits_that_admit_more_than_their_capacity(algorithm: str, line: list[str]) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60, algorithm)])
    assert limits.explain("api").text().splitlines()[2:] == ["requests: 10 of 10 left, 1 requested.", *line]


def test_an_explanation_shows_what_is_used_of_limits_of_which_nothing_is_requested() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_entity_limits("tenant:fox", ["usd=10/month"], counted="total")
    limits.acquire("api", requested={"usd": "7.8"}, entity="tenant:fox")
    explanation = limits.explain("api", entity="tenant:fox")
    assert "usd, over all resources: 7.8 of 10 used, nothing requested." in explanation.text().splitlines()
    [usd] = [limit for limit in explanation.chain[0].limits if limit.effective.limit.key == "usd"]
    assert (usd.status, str(usd.used)) == (None, "7.8")
    limits.acquire("api", requested={"usd": "2.2"}, entity="tenant:fox")
    used_up = limits.explain("api", entity="tenant:fox", requested={"call_count": 1})
    assert used_up.outcome.allowed
    assert "usd, over all resources: 10 of 10 used, nothing requested." in used_up.text()


def test_an_explanation_while_permits_are_held_is_that_of_a_nested_acquire() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60), ResourceLimit("db", 1)])
    with limits.acquire("api"):
        resolver.clear()
        explanation = limits.explain("api")
        assert explanation.outcome.allowed
        assert "db: nothing requested." in explanation.text()
        assert limits.check("api").allowed
        assert limits.try_acquire("api")


def test_an_entity_that_is_blocked_itself() -> None:
    limits.set_entity_limits("user:1", [CallLimit(1, 60)])
    Entity.objects.update(blocked=True)
    assert limits.explain("api", entity="user:1").text().splitlines()[2:5] == [
        "user:1 is blocked on all URLs, by the entity itself.",
        "In effect: the entity itself (blocked).",
        "Replaced: the policy of the entity on all resources (limits).",
    ]


def test_an_explanation_of_a_block_without_end_refers_to_an_administrator() -> None:
    limits.set_resource_limits("api", [], effect="blocked")
    assert limits.explain("api").text() == (
        "the site itself on api: rejected now.\n"
        "In effect: the policy of the resource (blocked).\n"
        "blocked: all requests are rejected until its policy is changed."
    )


def test_a_block_with_an_end_is_explained() -> None:
    tomorrow = timezone.now() + timedelta(days=1)
    limits.set_resource_limits("api", [], effect="blocked", valid_until=tomorrow)
    [*_, blocked, changes] = limits.explain("api").text().splitlines()
    assert blocked == "blocked: all requests are rejected until its policy ends."
    assert changes == f"The limits may change at {tomorrow:%Y-%m-%d %H:%M:%S} UTC."


def test_a_block_that_is_tried_in_the_shadow_is_reported_as_one() -> None:
    limits.set_system_limits([CallLimit(5, 60)])
    limits.set_resource_limits("api", [], effect="blocked", enforcement="shadow")
    assert (
        "In shadow mode, blocked: all requests are rejected; it would reject the request."
        in limits.explain("api").text()
    )


@pytest.mark.parametrize("edge", ["valid_from", "valid_until"])
def test_last_dates_of_the_calendar_are_explained(edge: str) -> None:
    last = datetime.max.replace(tzinfo=UTC)
    options: Any = {"valid_until": last} if edge == "valid_until" else {"valid_from": last}
    limits.set_resource_limits("api", [CallLimit(5, 60)], **options)
    explanation = limits.explain("api")
    assert explanation.changes_at == last
    assert explanation.text().endswith("The limits may change at 9999-12-31 23:59:59 UTC.")
    assert explanation.as_dict()["changes_at"] == "9999-12-31T23:59:59.999999+00:00"


def test_a_chain_is_reported_link_by_link(wall: Wall) -> None:
    tenant = Entity.objects.create(identifier="tenant:acme")
    Entity.objects.create(identifier="user:1", parent=tenant, cascade=True)
    limits.set_system_limits([CallLimit(100, 60), RateLimit("tpm", 50, 60)])
    limits.set_resource_limits("api", [RateLimit("total", 9, 60)], shared=["total"], extends=True)
    limits.set_entity_limits("tenant:acme", [CallLimit(1, 60)], extends=True)
    day = timedelta(days=1)
    limits.set_entity_limits("user:1", [CallLimit(7, 60)], resource="api", valid_from=NOW - day, valid_until=NOW + day)
    limits.set_entity_limits("user:1", [CallLimit(8, 60)], resource="api", weekly_hours="wed", time_zone="UTC")
    limits.set_entity_limits("user:1", [CallLimit(9, 60)], resource="api", enforcement="off")
    limits.set_entity_limits("user:1", [CallLimit(6, 60)], rollout_percent=0)
    limits.set_entity_limits("user:1", [CallLimit(5, 60)], valid_from=NOW + day)
    limits.acquire("api", entity="user:1", requested={"total": 0})
    explanation = limits.explain("api", entity="user:1", requested={"total": 5})
    assert str(explanation).splitlines() == [
        "user:1 on api: rejected now.",
        "In effect: the policy of the entity on this resource "
        "(limits, from 2026-03-03 12:00 UTC, until 2026-03-05 12:00 UTC).",
        "Replaced: the policy of the entity on this resource (limits, at weekly hours).",
        "Replaced: the policy of the resource (limits).",
        "Replaced: the policy of the system (limits).",
        "Not in force now: the policy of the entity on all resources (limits, from 2026-03-05 12:00 UTC).",
        "Not rolled out to this entity: the policy of the entity on all resources (limits, for 0 % of the entities).",
        "Disabled: the policy of the entity on this resource (limits).",
        "Unlimited here, but limited by a replaced policy: total, tpm.",
        "requests: 6 of 7 left, 1 requested.",
        "It cascades to tenant:acme, which is charged too.",
        "In effect: the policy of the entity on all resources (limits).",
        "It extends the policy of the resource (limits).",
        "It extends the policy of the system (limits).",
        "tenant:acme, requests: 0 of 1 left, 1 requested; it rejects: retry in 60 s.",
        "tenant:acme, total, shared by all: 9 of 9 left, 5 requested.",
        "tenant:acme, tpm: 0 of 50 used, nothing requested.",
        "requests: a token bucket, up to 14 can pass within 60 s.",
        "The limits may change at 2026-03-05 00:00:00 UTC.",
    ]
    told = json.loads(json.dumps(explanation.as_dict()))
    assert [link["entity"] for link in told["chain"]] == ["user:1", "tenant:acme"]
    [calls, total, tpm] = told["chain"][1]["limits"]
    assert (calls["level"], calls["used"], calls["binds"]) == ("entity", 1, True)
    assert [one["level"] for one in calls["replaced"]] == ["system"]
    assert (total["shared"], total["level"], total["used"]) == (True, "resource", 0)
    assert (tpm["status"], tpm["used"]) == (None, 0)
    assert told["changes_at"] == "2026-03-05T00:00:00+00:00"
    assert [one["standing"] for one in told["considered"]] == [
        "counts",
        "replaced",
        "off",
        "not now",
        "not rolled out",
        "replaced",
        "replaced",
    ]


def test_a_change_in_the_middle_of_explaining_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [CallLimit(2, 60)])

    def changed_before(peek: Callable[..., object], *args: object) -> object:
        limits.set_resource_limits("api", [CallLimit(7, 60)])
        return peek(*args)

    at_next_call(monkeypatch, LimitSet, "peek", changed_before)
    assert "7 of 7 left" in limits.explain("api").text()


def test_the_status_of_one_entity() -> None:
    limits.set_resource_limits("api", [CallLimit(4, 60), ResourceLimit("db", 2)])
    held = limits.acquire("api", entity="user:1")
    status = limits.status("api", entity="user:1")
    assert (status.resource, status.entity, status.entities) == ("api", "user:1", None)
    assert status.limits["call_count"] == {
        "type": "call",
        "algorithm": "token_bucket",
        "capacity": 4,
        "window_seconds": 60,
        "available": 3,
        "used": 1,
        "utilization": 0.25,
        "reset_after": 15.0,
    }
    assert status.limits["db"]["holders"] == 1
    assert json.loads(json.dumps(status.as_dict()))["limits"]["db"]["type"] == "resource"
    held.release()


def test_the_status_of_a_resource_sums_its_known_entities() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_entity_limits("user:1", [CallLimit(5, 60), RateLimit("tpm", 7, 60)])
    limits.set_entity_limits("user:2", [], effect="blocked")
    for who in ("user:1", "user:1", None):
        with limits.acquire("api", entity=who, requested={"tpm": 3} if who else None) as acquisition:
            acquisition.update({"tpm": 3} if who else {})
    status = limits.status("api")
    assert status.limits["call_count"]["used"] == 1
    assert status.entities == 2
    assert status.used_by_all == {"call_count": 3, "tpm": 6}


@pytest.mark.slow
def test_the_status_of_a_resource_adds_up_no_more_than_10000_entities(
    capsys: pytest.CaptureFixture[str], django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.acquire("api").release()
    QuerySet(Entity).bulk_create([Entity(identifier=f"user:{number}") for number in range(10_001)], batch_size=5_000)
    with django_assert_max_num_queries(10):
        status = limits.status("api")
    assert status.limits["call_count"]["used"] == 1
    assert (status.entities, status.used_by_all) == (None, {})
    call_command("limits", "status", "api")
    assert "The usage of more than 10,000 known entities is not added up" in capsys.readouterr().err


@pytest.mark.slow
def test_the_status_of_a_resource_looks_at_many_entities_at_a_time(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60), ResourceLimit("slot", 500)], shared=["slot"])
    Entity.objects.bulk_create([Entity(identifier=f"user:{number}") for number in range(450)])
    held = [limits.acquire("api", entity=f"user:{number}") for number in range(0, 450, 9)]
    resolver.clear()
    with django_assert_max_num_queries(15):
        status = limits.status("api")
    assert status.entities == 450
    assert status.used_by_all == {"call_count": 50, "slot": 50}
    assert resolver.info().size == 1, "nobody else's limits had to make way"
    for one in held:
        one.release()


def test_a_change_in_the_middle_of_summing_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.acquire("api")

    def changed_before(survey_scopes: Callable[..., object], *args: object) -> object:
        limits.set_resource_limits("api", [CallLimit(20, 60)])
        return survey_scopes(*args)

    at_next_call(monkeypatch, sys.modules["limits_app.services.status"], "survey_scopes", changed_before)
    assert limits.status("api").used_by_all == {"call_count": 1}


def test_sums_of_fractions_are_exact(clock: FakeClock) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 1000, 1000)])
    for name, seconds in (("user:1", 0.1), ("user:2", 0.8)):
        Entity.objects.create(identifier=name)
        limits.acquire("api", entity=name, requested={"tpm": 1})
        clock.advance(seconds)
    assert limits.status("api").used_by_all == {"tpm": 0.3}
