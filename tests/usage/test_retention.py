"""Audit events are pruned with usage where a retention is set, and the rest of the chain stays verifiable."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path

import pytest
import time_machine
from django.utils import timezone
from pytest_django import Settings

from limits_app import CallLimit, audit, limits
from limits_app.models import AuditEvent, AuditHead
from limits_app.services.retention import prunable, prune_all

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def _old_events() -> None:
    """Events of which the first are ten days old."""
    with time_machine.travel(timezone.now() - timedelta(days=10)):
        for number in (1, 2):
            limits.set_resource_limits(f"api/{number}", [CallLimit.per_minute(number)])
    limits.set_resource_limits("api/3", [CallLimit.per_minute(3)])


@pytest.mark.usefixtures("_old_events")
def test_audit_events_are_kept_by_default() -> None:
    before = AuditEvent.objects.count()
    assert "audit" not in limits.prune_usage()
    assert AuditEvent.objects.count() == before


@pytest.mark.usefixtures("_old_events")
def test_old_audit_events_are_archived_and_the_rest_is_verified(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"AUDIT_DAYS_KEPT": 7}
    before = AuditEvent.objects.count()
    old = AuditEvent.objects.filter(when__lt=timezone.now() - timedelta(days=7)).count()
    assert 0 < old < before
    assert prunable()["audit"] == old
    assert limits.prune_usage(archive=tmp_path)["audit"] == old
    assert audit.verify().ok
    assert AuditEvent.objects.count() == before - old + 1, "the pruning is an event"
    [file] = tmp_path.glob("audit-*.jsonl.gz")
    archived = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert len(archived) == old
    head = AuditHead.objects.get()
    assert (archived[-1]["number"], archived[-1]["digest"]) == (head.pruned_number, head.pruned_digest)
    assert limits.prune_usage(archive=tmp_path)["audit"] == 0


def test_a_run_without_time_is_not_complete() -> None:
    assert not prune_all(seconds=0).is_complete
    assert prune_all(seconds=60).is_complete
