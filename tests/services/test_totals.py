"""Totals: limits over all resources together, in addition to those of each resource."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from limits_app import CallLimit, InvalidLimit, RateLimit, ResourceLimit, limits
from limits_app.engine.errors import InvalidRequest, LimitExceeded, UsageNotReported
from limits_app.engine.limits import QuotaLimit
from limits_app.models import AuditEvent, Entity, UsageSnapshot
from limits_app.policies import resolver
from limits_app.services.limit_words import own_limits
from limits_app.services.several import Share, try_acquire_all
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import postgres_server
from tests.servers.redis import redis_server

ROOT = Path(__file__).parents[2]
WHO = "tenant:acme"
TOKENS = QuotaLimit("tokens", 100, period="day")


def used(resource: str = "api", entity: str | None = WHO) -> dict[str, Any]:
    """The amounts that are left of each total."""
    outcome = limits.check(resource, entity=entity, requested={"tokens": 0})
    return {f"{one.level}:{one.key}": one.capacity - one.remaining for one in outcome.passed if one.total}


def test_a_total_is_charged_by_every_resource_and_a_refusal_charges_nothing() -> None:
    limits.set_entity_limits(WHO, [CallLimit(3, 86_400)], counted="total")
    limits.set_resource_limits("small", [CallLimit(1, 86_400)])
    assert [bool(limits.try_acquire(name, entity=WHO)) for name in ("small", "small", "b")] == [True, False, True]
    assert used("c") == {"entity_total:call_count": 2}
    assert limits.try_acquire("c", entity=WHO)
    with pytest.raises(LimitExceeded, match="'call_count' over all resources for tenant:acme has 0 of 3 left"):
        limits.acquire("d", entity=WHO)
    limits.set_resource_limits("e", [CallLimit(5, 86_400)])
    assert not limits.try_acquire("e", entity=WHO)
    assert limits.status("e", entity=WHO).limits["call_count"]["used"] == 0
    assert limits.status("e", entity=WHO).limits["total:call_count"]["used"] == 3
    said = limits.explain("e", entity=WHO).text()
    assert "requests, over all resources: 0 of 3 left, 1 requested; it rejects" in said
    assert "requests, over all resources: a token bucket, up to 6 can pass within 86400 s." in said
    assert limits.try_acquire("d", entity="tenant:other")


def test_keys_of_totals_are_never_demanded() -> None:
    limits.set_entity_limits(WHO, [TOKENS, CallLimit(9, 60), ResourceLimit("slots", 2)], counted="total")
    with limits.acquire("search", entity=WHO) as acquisition:
        assert set(acquisition.acquisitions) == {"call_count", "slots"}
    limits.set_resource_limits("chat", [RateLimit("tokens", 50, 60)])
    with limits.acquire("chat", entity=WHO, requested={"tokens": 40}) as acquisition:
        acquisition.update({"tokens": 30})
    assert used("chat")["entity_total:tokens"] == 30
    assert limits.limit_set("chat", WHO).rates == ["tokens"]
    assert limits.limit_set("search", WHO).rates == []


def test_several_resources_charge_the_sum_of_their_amounts_and_one_call() -> None:
    limits.set_entity_limits(WHO, [TOKENS, CallLimit(9, 86_400)], counted="total")
    limits.set_resource_limits("chat", [QuotaLimit("tokens", 80, period="day"), CallLimit(9, 86_400)])
    with limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 20}}, entity=WHO) as acquisition:
        uses = {key: (use.requested, use.used) for key, use in acquisition.acquisitions.items()}
        assert uses == {
            "chat:tokens": (30, None),
            "chat:call_count": (1, None),
            "draw:tokens": (20, None),
        }
        assert used() == {"entity_total:tokens": 50, "entity_total:call_count": 1}
        acquisition.update({"chat:tokens": 10})
        acquisition.update({"draw:tokens": 5})
        assert acquisition.acquisitions["draw:tokens"].used == 5
    assert used() == {"entity_total:tokens": 15, "entity_total:call_count": 1}
    refused = limits.try_acquire({"chat": {"tokens": 50}, "draw": {"tokens": 50}}, entity=WHO)
    assert [status.requested for status in refused.outcome.violations] == [100]
    assert used()["entity_total:tokens"] == 15


def test_a_key_that_is_not_reported_stays_charged_and_is_named() -> None:
    limits.set_entity_limits(WHO, [TOKENS], counted="total")
    with (
        pytest.raises(UsageNotReported, match="draw:tokens"),
        limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 20}}, entity=WHO) as acquisition,
    ):
        acquisition.update({"chat:tokens": 10})
    assert used() == {"entity_total:tokens": 30}
    with (
        pytest.raises(KeyError),
        limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 20}}, entity=WHO),
    ):
        raise KeyError
    assert used() == {"entity_total:tokens": 30}


def test_an_extension_of_several_resources_is_part_of_the_sum() -> None:
    limits.set_entity_limits(WHO, [TOKENS], counted="total")
    with limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 20}}, entity=WHO) as acquisition:
        acquisition.extend({"draw:tokens": 40})
        assert used() == {"entity_total:tokens": 90}
        assert acquisition.acquisitions["draw:tokens"].requested == 60
        acquisition.update({"draw:tokens": 50, "chat:tokens": 1})
    assert used() == {"entity_total:tokens": 51}


SUMS_OF_REPORTS: dict[str, tuple[str, dict[str, float], int]] = {
    "more of the first": ("draw", {"chat:tokens": 50}, 50 + 5 + 7),
    "less of the first": ("draw", {"chat:tokens": 20}, 20 + 5 + 7),
    "both": ("draw", {"chat:tokens": 20, "draw:tokens": 3}, 20 + 3),
    "more of the other": ("chat", {"draw:tokens": 30}, 30 + 7 + 30),
    "less of the other": ("chat", {"draw:tokens": 1}, 30 + 7 + 1),
    "none of the other": ("chat", {"draw:tokens": 0}, 30 + 7),
}


@pytest.mark.parametrize("is_early", [False, True], ids=["reported after the extension", "reported before it"])
@pytest.mark.parametrize(("extended", "usage", "used_up"), SUMS_OF_REPORTS.values(), ids=SUMS_OF_REPORTS)
def test_requested_amounts_of_an_extension_count_until_reported(
    extended: str, usage: dict[str, float], used_up: int, is_early: bool
) -> None:
    limits.set_entity_limits(WHO, [TOKENS], counted="total")
    acquisition = limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 5}}, entity=WHO)
    if is_early:
        acquisition.update(usage)
    acquisition.extend({f"{extended}:tokens": 7})
    if not is_early:
        acquisition.update(usage)
    acquisition.release()
    assert used() == {"entity_total:tokens": used_up}


def test_an_invalid_report_changes_no_sum() -> None:
    limits.set_entity_limits(WHO, [TOKENS], counted="total")
    with limits.acquire({"chat": {"tokens": 30}, "draw": {"tokens": 20}}, entity=WHO) as acquisition:
        with pytest.raises(InvalidRequest):
            acquisition.update({"chat:tokens": -1})
        acquisition.update({"draw:tokens": 10})
        acquisition.update({"chat:tokens": 25})
    assert used() == {"entity_total:tokens": 35}


def test_a_key_that_was_not_requested_is_in_no_sum() -> None:
    limits.set_entity_limits(WHO, [TOKENS], counted="total")
    with limits.acquire({"chat": {"tokens": 30}, "draw": {}}, entity=WHO) as acquisition:
        acquisition.update({"chat:tokens": 25, "draw:tokens": 40})
    assert used() == {"entity_total:tokens": 25}


def test_shares_of_different_entities_have_their_own_totals_and_a_common_parent_one() -> None:
    parent = Entity.objects.create(identifier=WHO)
    for name in ("user:1", "user:2"):
        Entity.objects.create(identifier=name, parent=parent, cascade=True)
    limits.set_system_limits([CallLimit(5, 86_400), TOKENS], counted="total")
    shares = [Share("api", name, {"tokens": 30}) for name in ("user:1", "user:2")]
    with try_acquire_all(shares) as acquisition:
        acquisition.update({"api:tokens": 30, "api:2:tokens": 20})
    assert used(entity="user:1")["system_total:tokens"] == 50, "that of the parent, which is checked too"
    assert [limits.check("api", entity=name, requested={"tokens": 50}).allowed for name in ("user:1", WHO)] == [
        True,
        True,
    ]
    assert not limits.check("api", entity="user:2", requested={"tokens": 51}).allowed


def test_a_shared_total_of_the_system_is_one_bucket() -> None:
    limits.set_system_limits([CallLimit(3, 86_400)], counted="total", shared=["call_count"])
    assert [bool(limits.try_acquire(name, entity=name)) for name in "abcd"] == [True, True, True, False]
    assert limits.explain("e", entity="f").text().count("over all resources, shared by all: 0 of 3 left") == 1


def test_a_total_is_not_counted_as_usage(settings: Settings) -> None:
    limits.set_resource_limits("api", [CallLimit(9, 60)])
    limits.set_entity_limits(WHO, [CallLimit(9, 60), TOKENS], counted="total")
    assert limits.try_acquire("api", entity=WHO)
    limits.roll_up()
    assert {row.admitted_milli for row in UsageSnapshot.objects.all()} == {1000}
    assert {row.key for row in UsageSnapshot.objects.all()} == {"call_count"}


def test_a_total_in_shadow_mode_rejects_nothing() -> None:
    limits.set_entity_limits(WHO, [CallLimit(1, 86_400)], counted="total", enforcement="shadow")
    found = [limits.try_acquire("api", entity=WHO).outcome for _ in range(2)]
    assert [one.allowed for one in found] == [True, True]
    assert [status.level for status in found[1].shadowed] == ["entity_total"]


@pytest.mark.parametrize(
    "options",
    [{"extends": True}, {"effect": "unlimited"}, {"resource": "api"}],
)
def test_invalid_totals_are_errors(options: dict[str, Any]) -> None:
    given = [] if "effect" in options else [CallLimit(1, 60)]
    with pytest.raises(InvalidLimit, match="A total is over"):
        limits.set_entity_limits(WHO, given, counted="total", **options)


@pytest.mark.parametrize("shared", [False, True])
def test_the_totals_of_an_entity_or_of_all_are_reset_and_topped_up_without_a_resource(*, shared: bool) -> None:
    keys = ["tokens"] if shared else []
    limits.set_system_limits([TOKENS, CallLimit(9, 86_400)], counted="total", shared=keys)
    limits.set_entity_limits("tenant:other", [TOKENS], counted="total")
    limits.set_resource_limits("api", [TOKENS])
    with limits.acquire("api", entity=WHO, requested={"tokens": 60}) as acquisition:
        acquisition.update({"tokens": 60})
    whose = None if shared else WHO

    def state() -> dict[str, object]:
        return {key: stats["used"] for key, stats in limits.status("api", entity=WHO).limits.items()}

    assert limits.top_up(None, key="tokens", amount=10, entity=whose, idempotency_key="once")
    assert not limits.top_up(None, key="tokens", amount=10, entity=whose, idempotency_key="once")
    assert state() == {"tokens": 60, "total:tokens": 50, "total:call_count": 1}
    assert limits.reset("api", entity=None)
    assert state()["total:tokens"] == 50
    assert limits.reset(None, entity=whose, keys="tokens")
    assert state() == {"tokens": 60, "total:tokens": 0, "total:call_count": 1}
    assert limits.reset(None, entity=WHO)
    assert state()["total:call_count"] == 0
    labels = AuditEvent.objects.filter(object_type="state").order_by("pk").values_list("object_label", flat=True)
    assert [*labels][-1] == "tenant:acme on all resources"
    with pytest.raises(InvalidRequest, match="tpm"):
        limits.reset(None, entity=WHO, keys="tpm")
    with pytest.raises(InvalidRequest, match="tpm"):
        limits.top_up(None, entity=WHO, key="tpm", amount=1)


@pytest.mark.parametrize("has_row", [False, True])
def test_limits_of_the_plan_of_requests_are_topped_up_reset_and_boosted(settings: Settings, *, has_row: bool) -> None:
    settings.LIMITS = {**settings.LIMITS, "PLAN_OF_REQUEST": lambda request: "pro"}
    limits.set_plan_limits("pro", [TOKENS], counted="total")
    limits.set_plan_limits("pro", [CallLimit(5, 86_400)], resource="api")
    if has_row:
        limits.set_entity(WHO, plan="pro")
    plan = None if has_row else "pro"
    limits.acquire("api", entity=WHO, requested={"tokens": 60, "call_count": 4}, plan="pro", require_usage=False)

    def state() -> dict[str, object]:
        return {key: stats["used"] for key, stats in limits.status("api", entity=WHO, plan="pro").limits.items()}

    limits.top_up("api", key="call_count", amount=1, entity=WHO, plan=plan)
    limits.top_up(None, key="tokens", amount=10, entity=WHO, plan=plan)
    assert state() == {"call_count": 3, "total:tokens": 50}
    limits.reset("api", entity=WHO, keys="call_count", plan=plan)
    limits.reset(None, entity=WHO, keys="tokens", plan=plan)
    assert state() == {"call_count": 0, "total:tokens": 0}
    until = timezone.now() + timedelta(days=1)
    if not has_row:
        with pytest.raises(InvalidRequest, match="PLAN_OF_REQUEST gives the plan of tenant:acme"):
            limits.top_up("api", key="call_count", amount=1, entity=WHO)
        with pytest.raises(InvalidRequest, match="pass plan= with its name"):
            limits.boost(WHO, "api", 2, until, "a fair")
        with pytest.raises(InvalidRequest, match="nothing limits"):
            limits.boost(WHO, "api", 2, until, "a fair", plan="")
    boosted = limits.boost(WHO, "api", 2, until, "a fair", plan=plan)
    assert [one.capacity for one in boosted.definitions()] == [10]


def test_the_page_of_an_entity_lists_a_total_once() -> None:
    limits.set_entity_limits(WHO, [CallLimit(9, 86_400)], counted="total")
    for name in ("a", "b"):
        limits.set_resource_limits(name, [CallLimit(5, 60)])
    assert limits.try_acquire("a", entity=WHO)
    assert [(one.resource, one.text) for one in own_limits(WHO)] == [
        ("a", "1 of 5 requests per minute used"),
        ("all resources", "1 of 9 requests per day used"),
        ("b", "0 of 5 requests per minute used"),
    ]


TOTAL, RESOURCES, RUNS, REQUESTS = 250, 50, 20, 100
"""In each run every process makes so many requests, spread over the resources."""


@pytest.mark.release
@pytest.mark.parametrize("kind", ["process", "redis", "sqlite", "postgres", "mariadb"])
def test_four_processes_admit_exactly_the_total_over_fifty_resources(kind: str, tmp_path: Path) -> None:
    servers: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "redis": redis_server,
        "postgres": postgres_server,
        "mariadb": mariadb_server,
    }
    with servers.get(kind, nullcontext)() as server:
        environment = os.environ | {
            "LIMITS_DEMO_DATABASE": str(tmp_path / "site.sqlite3"),
            "LIMITS_DEMO_STATE_DIR": str(tmp_path / "state"),
            "TOTALS_SITE": json.dumps(
                {"kind": kind, "where": getattr(server, "url", None) or getattr(server, "settings", None)}
            ),
            "PYTHONPATH": str(ROOT),
        }
        command = [sys.executable, str(Path(__file__).with_name("totals_process.py"))]
        numbers = [str(number) for number in (RUNS, TOTAL, REQUESTS, RESOURCES)]
        subprocess.run([*command, "prepare", *numbers], env=environment, cwd=ROOT, check=True, timeout=120)
        running = [
            subprocess.Popen([*command, "run", *numbers], env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            for _ in range(4)
        ]
        try:
            admitted = [json.loads(process.communicate(timeout=200)[0]) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait(20)
    assert [sum(counts) for counts in zip(*admitted, strict=True)] == [TOTAL] * RUNS


@pytest.mark.parametrize("kind", ["memory", "process", "redis"])
def test_threads_admit_exactly_the_total_over_fifty_resources(kind: str, settings: Settings, tmp_path: Path) -> None:
    with redis_server() if kind == "redis" else nullcontext() as server:
        patient = {"CONNECT_TIMEOUT_SECONDS": 20, "REPLY_TIMEOUT_SECONDS": 20}
        stores: dict[str, dict[str, object]] = {
            "memory": {"KIND": "memory"},
            "process": {"KIND": "process", "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 4},
            "redis": {"KIND": "redis", "URL": getattr(server, "url", ""), **patient},
        }
        settings.LIMITS = {"STORES": {"default": stores[kind]}}
        resolver.clear()
        limits.set_entity_limits(WHO, [CallLimit(60, 86_400)], counted="total")

        def admitted(numbers: range) -> int:
            try:
                return sum(bool(limits.try_acquire(f"r{number % RESOURCES}", entity=WHO)) for number in numbers)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(admitted, [range(first, 100, 4) for first in range(4)])) == 60
