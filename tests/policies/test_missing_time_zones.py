"""Limits and hours in a time zone that this machine lacks: a setting decides, and no request or page fails."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app import CallLimit, QuotaLimit, checks, limits
from limits_app.engine.errors import StoreUnavailable, Unresolved
from limits_app.models import Limit, Policy, Pool, PoolMember, Resource
from limits_app.models.limit_rules import definition_of, stored_definition
from limits_app.models.own_queries import TIME_ZONE, failures
from limits_app.models.weekly_hours import WeeklyHours
from limits_app.policies import resolver

ZONE = "America/Lima"
QUOTA = QuotaLimit.per_week("letters", 9, time_zone=ZONE)


def lose_time_zones(patch: pytest.MonkeyPatch) -> None:
    """Make the time zone unknown, as on another machine."""

    def known(name: str) -> ZoneInfo:
        if name == ZONE:
            raise ZoneInfoNotFoundError(name)
        return ZoneInfo(name)

    patch.setattr("zoneinfo.ZoneInfo", known)
    definition_of.cache_clear()
    stored_definition.cache_clear()
    WeeklyHours.parse.cache_clear()
    resolver.clear()


def quota() -> None:
    limits.set_resource_limits("mail", [QUOTA, CallLimit(9, 60)])


def hours() -> None:
    limits.set_resource_limits("mail", [CallLimit(9, 60)])
    Policy.objects.update(weekly_hours="mon-sun", time_zone=ZONE)


def pool() -> None:
    pool = Pool.objects.create(name="offices")
    row = Limit.from_definition(None, QUOTA)
    row.member = PoolMember.objects.create(pool=pool, name="lima")
    row.save()
    Resource.objects.create(name="mail", pool=pool)


@pytest.mark.parametrize("write", [quota, hours, pool])
@pytest.mark.parametrize("word", ["block", "allow"])
def test_setting_decides_about_limits_in_an_unknown_time_zone(
    write: Any, word: str, settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": word}
    write()
    lose_time_zones(monkeypatch)
    for _ in range(12):
        if word == "allow":
            assert limits.try_acquire("mail", requested={"letters": 1} if write is quota else None)
        else:
            with pytest.raises(StoreUnavailable, match=ZONE):
                limits.try_acquire("mail")
    assert limits.try_acquire("other", default_limits="5/min")
    assert len([one for one in caplog.messages if ZONE in one]) == 1
    assert failures.counts == {TIME_ZONE: 12}


def test_limits_of_code_of_another_machine_are_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.try_acquire("mail", requested={"letters": 1}, default_limits=[QUOTA])
    lose_time_zones(monkeypatch)
    with pytest.raises(Unresolved, match=ZONE):
        limits.status("mail")


@pytest.mark.parametrize(("write", "reported"), [(quota, True), (hours, True), (lambda: None, False)])
def test_unknown_time_zone_is_reported(write: Any, reported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    assert checks.check_stores(["default"]) == []
    lose_time_zones(monkeypatch)
    assert [one.id for one in checks.check_stores(["default"])] == ["limits_app.W074"] * reported


@pytest.mark.slow
@pytest.mark.parametrize("write", [quota, hours, pool])
def test_pages_of_the_admin_are_shown(write: Any, admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    write()
    lose_time_zones(monkeypatch)
    models = ("resource", "policy", "entity", "pool", "plan", "endpoint", "denial", "usagesnapshot")
    names = [*[f"{model}_changelist" for model in models], "limit", "live", "live_state"]
    addresses = [reverse("admin:index"), *[reverse(f"admin:limits_app_{name}") for name in names]]
    addresses.append(f"{reverse('admin:limits_app_explain')}?resource=mail&entity=user:1")
    addresses += [reverse("admin:limits_app_policy_change", args=[one.pk]) for one in Policy.objects.all()]
    addresses += [reverse("admin:limits_app_pool_change", args=[one.pk]) for one in Pool.objects.all()]
    addresses += [reverse("admin:limits_app_resource_change", args=[one.pk]) for one in Resource.objects.all()]
    admin_client.raise_request_exception = False
    assert {address: admin_client.get(address).status_code for address in addresses} == dict.fromkeys(addresses, 200)
