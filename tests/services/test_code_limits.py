"""Limits that code sets are noted when they are first used, and shown as a level of their own."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from limits_app import CallLimit, RateLimit, limits
from limits_app.engine.amounts import NOTHING
from limits_app.engine.change_log import ALL
from limits_app.engine.limits import Blocked, LimitDefinition
from limits_app.models import CodeLimits, Denial, code_limits
from limits_app.policies import configuration, resolver
from limits_app.testing import disable_limits
from tests.commands.running import run

pytestmark = pytest.mark.django_db(transaction=True)

PER_MINUTE = (CallLimit(2, 60),)


def test_explain_and_status_show_limits_of_code() -> None:
    assert limits.explain("login", entity="user:1").outcome.allowed
    for _ in range(2):
        limits.acquire("login", entity="user:1", default_limits=PER_MINUTE).release()
    explanation = limits.explain("login", entity="user:1")
    assert not explanation.outcome.allowed
    assert "In effect: the limits that code sets (limits)." in explanation.text()
    assert [link.limits[0].effective.policy.level for link in explanation.chain] == ["code"]
    assert limits.status("login", entity="user:1").limits["call_count"]["used"] == 2


def test_another_process_sees_them_in_commands_and_in_the_admin(admin_client: Client) -> None:
    limits.acquire("login", entity="user:1", default_limits=PER_MINUTE).release()
    resolver.clear()
    assert run("check login calls=1 --entity user:1").code == 0
    assert "requests: 1 of 2 left" in run("explain login --entity user:1").out
    assert run("check login calls=2 --entity user:1").code == 3
    page = admin_client.get(
        reverse("admin:limits_app_explain"), {"resource": "login", "entity": "user:1"}
    ).content.decode()
    assert "everyone in code" in page
    assert "2 requests per minute" in page


def test_a_rejection_names_them_unless_code_sets_several() -> None:
    limits.try_acquire("login", entity="user:1", default_limits=PER_MINUTE)
    at = timezone.now()
    row = {"resource": "login", "key": "call_count", "entity": "user:1", "count": 3, "first": at, "last": at}
    Denial.objects.create(**row, minute=at.replace(second=0, microsecond=0))
    assert "user:1 reached the limit of 2 requests per minute on login." in run("why user:1").out
    limits.try_acquire("login", entity="user:2", default_limits=(CallLimit(9, 60),))
    assert "user:1 reached the limit of requests on login." in run("why user:1").out


def test_policies_replace_limits_of_code_and_are_named() -> None:
    limits.acquire("login", default_limits=PER_MINUTE).release()
    limits.set_resource_limits("login", [CallLimit(9, 60)])
    assert "Replaced: the limits that code sets (limits)." in limits.explain("login").text()
    assert limits.status("login").limits["call_count"]["capacity"] == 9


def test_calls_that_differ_are_all_named_and_those_used_last_apply() -> None:
    for own in ((Blocked(),), PER_MINUTE, (RateLimit("tpm", 5, 60), CallLimit(3, 60))):
        limits.try_acquire("login", default_limits=own, requested=NOTHING)  # type: ignore[arg-type]
    explanation = limits.explain("login")
    assert {one.effective.limit.key for one in explanation.chain[0].limits} == {"call_count", "tpm"}
    assert explanation.other_code_limits == ("calls=2/min", "blocked")
    assert "Code also sets other limits here: calls=2/min." in explanation.text()
    assert code_limits("login")[-1].definitions == (Blocked(),)


def test_a_process_writes_them_once_and_only_when_they_are_in_force() -> None:
    limits.set_resource_limits("set", [CallLimit(9, 60)])
    for resource in ("set", "login", "login"):
        configuration.current().sync.apply((ALL,))
        limits.acquire(resource, default_limits=PER_MINUTE).release()
    assert [str(row) for row in CodeLimits.objects.all()] == ["login: calls=2/min"]
    CodeLimits.objects.all().delete()
    configuration.current().sync.apply((ALL,))
    limits.try_acquire("login", default_limits=PER_MINUTE).release()
    assert not CodeLimits.objects.exists()


def test_a_transaction_that_is_rolled_back_writes_nothing_and_the_next_one_does() -> None:
    with transaction.atomic():
        limits.acquire("login", default_limits=PER_MINUTE).release()
        transaction.set_rollback(True)
    assert not CodeLimits.objects.exists()
    configuration.current().sync.apply((ALL,))
    with transaction.atomic():
        limits.acquire("login", default_limits=PER_MINUTE).release()
    assert CodeLimits.objects.count() == 1


def test_the_rows_are_bounded() -> None:
    for number in range(2):
        limits.acquire(f"job-{number}", default_limits=PER_MINUTE).release()
    row = CodeLimits.objects.get(resource="job-0")
    others = [CodeLimits(resource=f"other-{number}", limits=row.limits, used_at=row.used_at) for number in range(998)]
    CodeLimits.objects.bulk_create(others)
    CodeLimits.objects.filter(resource="job-0").update(used_at=row.used_at - timedelta(days=1))
    limits.acquire("job-2", default_limits=PER_MINUTE).release()
    assert CodeLimits.objects.count() == 1000
    assert {*CodeLimits.objects.filter(resource__startswith="job").values_list("resource", flat=True)} == {
        "job-1",
        "job-2",
    }
    many: tuple[LimitDefinition, ...] = tuple(RateLimit(f"key-{number:060}", 5, 60) for number in range(10))
    limits.acquire("many", requested={many[0].key: 1}, default_limits=many).cancel()
    assert not code_limits("many"), "longer than a row"


def test_an_unwritable_database_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise DatabaseError("read-only")

    monkeypatch.setattr(QuerySet, "bulk_create", fails)
    limits.acquire("login", default_limits=PER_MINUTE).release()
    assert "limits that code sets on login are not shown to administrators: read-only" in caplog.text


def test_nothing_is_written_without_autocommit_or_under_an_override() -> None:
    connection.set_autocommit(False)
    try:
        limits.acquire("login", default_limits=PER_MINUTE).release()
    finally:
        connection.rollback()
        connection.set_autocommit(True)
    with disable_limits():
        limits.acquire("other", default_limits=PER_MINUTE).release()
    assert not CodeLimits.objects.exists()
