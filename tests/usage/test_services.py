"""Rolling up and pruning, as verbs of the service and as tasks."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from pytest_django import Settings

from limits_app import limits, tasks
from limits_app.engine.limits import CallLimit
from limits_app.models import CollectedBatch, Denial, Entity, Policy, UsagePeriod, UsageSnapshot
from limits_app.policies import resolver
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.testing import fresh_limits
from limits_app.usage.pruning import prune

NOW = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HOUR = 3600


def admitted(period: UsagePeriod = UsagePeriod.HOUR) -> dict[tuple[str, str, str], int]:
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in UsageSnapshot.objects.filter(period=period):
        sums[row.resource, row.bucket, row.entity] += row.admitted_milli
    return dict(sums)


@pytest.mark.usefixtures("site")
def test_admissions_of_the_service_are_counted_for_all_charged_entities() -> None:
    parent = Entity.objects.create(identifier="tenant:1")
    Entity.objects.create(identifier="user:1", parent=parent, cascade=True)
    limits.set_resource_limits("api", [CallLimit(2, HOUR)])
    for _ in range(3):
        limits.try_acquire("api", entity="user:1")
    limits.try_acquire("api")
    assert limits.roll_up().as_dict() == {"added": {"default": 3}, "failed": {}}
    assert admitted() == {
        ("api", "entity", "user:1"): 2_000,
        ("api", "entity", "tenant:1"): 2_000,
        ("api", "entity", ""): 1_000,
    }
    assert admitted(UsagePeriod.DAY) == admitted()


@pytest.mark.usefixtures("site")
def test_requests_in_shadow_mode_alone_are_not_counted() -> None:
    limits.set_resource_limits("api", [CallLimit(2, HOUR)])
    Policy.objects.update(enforcement="shadow")
    limits.try_acquire("api", entity="user:1")
    limits.roll_up()
    assert admitted() == {}


@pytest.mark.django_db(transaction=True)
def test_without_usage_nothing_is_counted(settings: Settings) -> None:
    settings.LIMITS = {"USAGE": False}
    with fresh_limits():
        limits.set_resource_limits("api", [CallLimit(2, HOUR)])
        limits.try_acquire("api")
        assert limits.roll_up().added == {"default": 0}


@pytest.mark.django_db(transaction=True)
def test_a_store_that_is_down_does_not_keep_the_others(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings.LIMITS = {
        "STORES": {
            "default": {"KIND": "process", "STATE_DIR": str(tmp_path / "file")},
            "second": {"KIND": "memory"},
            "third": {"KIND": "memory"},
        }
    }
    rolled = limits.roll_up()
    assert rolled.added == {"second": 0, "third": 0}
    assert list(rolled.failed) == ["default"]


@pytest.mark.django_db(transaction=True)
def test_a_store_that_cannot_count_is_left_out(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}

    class Plain(MemoryStore):
        counting = False

    plain = Plain()
    with registry.instead(lambda alias: plain):
        resolver.clear()
        limits.set_resource_limits("api", [CallLimit(2, HOUR)])
        assert limits.try_acquire("api")
        assert limits.roll_up().added == {}
    resolver.clear()


@pytest.mark.usefixtures("site")
def test_tasks_roll_up_and_prune(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"USAGE_ARCHIVE_DIR": tmp_path}
    limits.set_resource_limits("api", [CallLimit(2, HOUR)])
    limits.try_acquire("api")
    assert tasks.roll_up()["added"] == {"default": 1}
    put_hours(1)
    assert tasks.prune() == {"usage-hours": 1, "usage-days": 0, "denials": 0}
    assert len(list(tmp_path.iterdir())) == 1


def put_hours(number: int, *, before: datetime = NOW - timedelta(days=31)) -> None:
    """Snapshots of the hours before a moment."""
    UsageSnapshot.objects.bulk_create(
        UsageSnapshot(
            period=UsagePeriod.HOUR, start=before - timedelta(hours=hour + 1), resource="api", key="call_count"
        )
        for hour in range(number)
    )


@pytest.mark.django_db
def test_usage_older_than_the_settings_is_deleted() -> None:
    put_hours(3)
    put_hours(2, before=NOW)
    for days in (731, 733):
        UsageSnapshot.objects.create(
            period=UsagePeriod.DAY, start=NOW - timedelta(days=days), resource="api", key="call_count"
        )
    for hours in (167, 169):
        minute = NOW - timedelta(hours=hours)
        Denial.objects.create(minute=minute, first=minute, last=minute, resource="api", key="call_count", count=1)
    for days in (30, 32):
        CollectedBatch.objects.create(name=str(days))
        CollectedBatch.objects.filter(name=str(days)).update(collected_at=NOW - timedelta(days=days))
    assert prune(now=NOW) == {"usage-hours": 3, "usage-days": 1, "denials": 1}
    assert (UsageSnapshot.objects.count(), Denial.objects.count()) == (3, 1)
    assert [batch.name for batch in CollectedBatch.objects.all()] == ["30"]
    assert prune(now=NOW) == {"usage-hours": 0, "usage-days": 0, "denials": 0}


@pytest.mark.django_db
def test_usage_without_retention_is_kept(settings: Settings) -> None:
    settings.LIMITS = {"USAGE_HOURS_KEPT": None, "USAGE_DAYS_KEPT": None, "DENIALS_HOURS_KEPT": None}
    put_hours(3)
    assert prune(now=NOW) == {}
    assert UsageSnapshot.objects.count() == 3


@pytest.mark.django_db
def test_the_archive_has_every_row_that_was_deleted(tmp_path: Path) -> None:
    put_hours(1_200)
    expected = {str(pk) for pk in UsageSnapshot.objects.values_list("pk", flat=True)}
    prune(archive=tmp_path / "new", now=NOW)
    [file] = (tmp_path / "new").iterdir()
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    assert file.name == "usage-hours-20260301.jsonl.gz"
    assert {str(line["id"]) for line in lines} == expected
    assert lines[0].keys() >= {"start", "resource", "entity", "key", "admitted_milli", "refused"}
    put_hours(1)
    prune(archive=tmp_path / "new", now=NOW)
    second = tmp_path / "new" / "usage-hours-20260301-2.jsonl.gz"
    assert len(gzip.decompress(second.read_bytes()).splitlines()) == 1
    prune(archive=tmp_path / "new", now=NOW)
    assert len([*(tmp_path / "new").iterdir()]) == 2


@pytest.mark.django_db
def test_rows_that_cannot_be_archived_are_not_deleted(tmp_path: Path) -> None:
    put_hours(2)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        limits.prune_usage(archive=str(tmp_path / "file"))
    assert UsageSnapshot.objects.count() == 2


@pytest.mark.django_db
def test_pruning_never_holds_more_than_a_batch() -> None:
    def execute_with_few(execute: Any, sql: str, params: Any, many: bool, context: object) -> object:
        assert len(params or ()) <= 1_010
        return execute(sql, params, many, context)

    put_hours(2_500)
    with connections["default"].execute_wrapper(execute_with_few):
        assert prune(now=NOW)["usage-hours"] == 2_500
