"""`LIMITS["ENABLED"]` and the emergency switch: one table for every way to acquire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
from django.contrib.auth.models import Permission, User
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import CallLimit, LimitPool, LimitSet, RateLimit, limits
from limits_app.audit import revert
from limits_app.engine.errors import InvalidLimit, LimitExceeded, StoreUnavailable
from limits_app.metrics.collection import Collection
from limits_app.models import AuditEvent, EmergencySwitch, Entity
from limits_app.policies import resolver
from limits_app.services.doctor import diagnose
from limits_app.stores import registry
from limits_app.testing import freeze_limits
from limits_app.workers import Worker
from tests.commands.running import run
from tests.services.failing import fail_to_read
from tests.services.pool_rows import make_pool, serve

WAYS: list[Callable[[], Any]] = [
    lambda: limits.try_acquire("api", entity="user:1"),
    lambda: limits.try_acquire("api", entity="user:1", requested={"tpm": 10**9}),
    lambda: limits.try_acquire("api", entity="user:1", idempotency_key="once"),
    lambda: limits.try_acquire({"api": None, "chat": {"tpm": 10**9}}, entity="user:1"),
    lambda: limits.try_acquire("new", default_limits=(CallLimit(1, 60),)),
    lambda: limits.try_acquire("api", entity="user:blocked"),
    lambda: limits.acquire("api", entity="user:1", timeout=5),
    lambda: asyncio.run(limits.atry_acquire("api", entity="user:1")),
    lambda: limits.limit_set("api", "user:1").try_acquire(),
]


@pytest.fixture
def limited() -> None:
    """Limits that are used up."""
    limits.set_system_limits([CallLimit(1, 60)])
    limits.set_resource_limits("chat", [RateLimit("tpm", 1, 60)])
    Entity.objects.create(identifier="user:blocked", blocked=True)
    assert limits.try_acquire("api", entity="user:1")
    assert not limits.try_acquire("api", entity="user:1")


def disable(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "ENABLED": False, "UNKNOWN_KEYS": "raise"}


@pytest.mark.parametrize("mode", ["off", "shadow", "disabled"])
def test_everything_is_allowed(limited: None, settings: Settings, mode: str) -> None:
    if mode == "disabled":
        disable(settings)
    else:
        settings.LIMITS = {**settings.LIMITS, "UNKNOWN_KEYS": "raise"}
        limits.set_emergency(mode, reason="an outage")
    for way in WAYS * 3:
        acquisition = way()
        assert acquisition.successful
        assert [one for one in acquisition.outcome.passed if one.level != "idempotency"] == []
        acquisition.release()


def test_limits_count_where_they_did_once_the_switch_enforces_again(limited: None) -> None:
    limits.set_emergency("off", reason="an outage")
    assert limits.try_acquire("api", entity="user:1")
    limits.set_emergency("enforce")
    assert not limits.try_acquire("api", entity="user:1")
    assert limits.try_acquire("api", entity="user:2")


def test_shadow_mode_reports_requests_that_would_be_rejected(limited: None) -> None:
    limits.set_emergency("shadow", reason="an outage")
    outcomes = [limits.acquire("api", entity="user:1").outcome for _ in range(3)]
    assert [[one.key for one in outcome.shadowed] for outcome in outcomes] == [[], ["call_count"], ["call_count"]]
    told = limits.explain("api", entity="user:1").text()
    assert "The emergency switch has all limits in shadow mode: they never reject" in told
    assert "In shadow mode: the policy of the system (limits)." in told


def test_the_end_of_the_switch_counts_without_another_change() -> None:
    with freeze_limits() as clock:
        limits.set_system_limits([CallLimit(1, 60)])
        limits.set_emergency("off", reason="an outage", until=datetime.now(UTC) + timedelta(seconds=30))
        assert [limits.try_acquire("api").successful for _ in range(2)] == [True, True]
        explanation = limits.explain("api")
        assert explanation.changes_at is not None
        assert "The emergency switch is off: nothing is limited until" in explanation.text()
        clock.advance(seconds=31)
        assert [limits.try_acquire("api").successful for _ in range(2)] == [True, False]
        assert limits.explain("api").as_dict()["emergency"] == "enforce"


def test_members_of_pools_are_chosen_without_their_limits(settings: Settings) -> None:
    serve("api", make_pool({"a": [RateLimit("tpm", 1, 60)]}, name="models"))
    assert [limits.try_acquire("api", requested={"tpm": 1}).successful for _ in range(2)] == [True, False]

    def members() -> list[object]:
        found = [limits.acquire("api", requested={"tpm": 10**9}), limits.pool("models").acquire({"tpm": 10**9})]
        return [one.config["member"] for one in found]

    limits.set_emergency("off", reason="an outage")
    assert members() == members() == ["a", "a"]
    limits.set_emergency("enforce")
    with pytest.raises(LimitExceeded):
        members()
    disable(settings)
    assert members() == ["a", "a"]


def test_an_unavailable_store_rejects_nothing(settings: Settings) -> None:
    limits.set_system_limits([CallLimit(1, 60)])
    disable(settings)

    def fail(alias: str) -> NoReturn:
        raise StoreUnavailable("the store must not be asked")

    with registry.instead(fail):
        assert limits.try_acquire("api")
        limits.set_system_limits([CallLimit(2, 60)])
        assert limits.try_acquire("api")


def test_a_disabled_site_works_without_its_database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_read(monkeypatch)
    with pytest.raises(StoreUnavailable):
        limits.try_acquire("api")
    disable(settings)
    assert limits.try_acquire("api", requested={"tpm": 5})


class Clerk(Worker):
    """Acquires more than its limits admit."""

    def take(self, requested: dict[str, float] | None) -> tuple[int, object]:
        acquired = [self.limits.try_acquire(requested) for _ in range(3)]
        return sum(one.successful for one in acquired), acquired[0].config


CALLS = CallLimit(1, 60)


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (lambda: [CALLS], {}),
        (lambda: LimitSet([CALLS], config={"at": 1}), {"at": 1}),
        (lambda: LimitSet([CALLS], shared=True, config={"at": 1}), {"at": 1}),
        (lambda: [LimitSet([CALLS], config={"at": 1})], {"at": 1}),
        (lambda: LimitPool([LimitSet([CALLS], config={"at": 1})]), {"at": 1}),
        (lambda: limits.limit_set("api"), {}),
        (lambda: None, {}),
    ],
)
def test_workers_have_no_limits(settings: Settings, make: Callable[[], Any], config: dict[str, object]) -> None:
    limits.set_system_limits([CALLS])
    disable(settings)
    with Clerk.options(limits=make()).init() as clerk:
        assert clerk.take(None).result(60) == (3, config)
        assert clerk.take({"tpm": 5}).result(60) == (3, config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "off"}, "reason"),
        ({"mode": "shadow", "reason": " "}, "reason"),
        ({"mode": "of", "reason": "x"}, "mode"),
        ({"mode": "enforce", "until": "2100-01-01T00:00Z"}, "an end is only possible"),
        ({"mode": "off", "reason": "x", "until": "2000-01-01T00:00Z"}, "must be in the future"),
        ({"mode": "off", "reason": "x", "until": "soon"}, "until"),
    ],
)
def test_a_bad_switch_is_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidLimit, match=message):
        limits.set_emergency(**given)
    assert limits.emergency().mode == "enforce"
    assert not EmergencySwitch.objects.exists()


def test_database_allows_one_row() -> None:
    for fields in ({"pk": 2}, {"mode": "no"}, {"mode": "off"}):
        with pytest.raises(IntegrityError):
            EmergencySwitch.objects.create(**fields)


def test_the_switch_is_audited_and_can_be_reverted(limited: None) -> None:
    limits.set_emergency("off", reason="an outage", actor="ann")
    limits.set_emergency("shadow", reason="better", actor="bob")
    first, second = AuditEvent.objects.filter(object_type="emergencyswitch").order_by("number")
    assert [(one.actor, one.reason, one.verb) for one in (first, second)] == [
        ("ann", "an outage", "create"),
        ("bob", "better", "update"),
    ]
    revert(second)
    assert limits.emergency().mode == "off"
    assert limits.try_acquire("api", entity="user:1")
    revert(first, force=True)
    assert limits.emergency().mode == "enforce"
    resolver.clear()
    assert not limits.try_acquire("api", entity="user:1")


def test_the_admin_sets_the_switch_after_a_confirmation(client: Client) -> None:
    client.force_login(User.objects.create_superuser("ann"))
    page = reverse("admin:limits_app_emergencyswitch_changelist")
    assert b"Now:" in client.get(page).content
    assert client.post(page, {"mode": "off", "confirmed": "1"}).context["form"].errors.keys() == {"reason"}
    form = {"mode": "off", "reason": "an outage"}
    asked = client.post(page, form).content.decode()
    assert "Nothing will be limited on this site" in asked
    assert 'name="confirmed"' in asked
    assert limits.emergency().mode == "enforce"
    assert client.post(page, {**form, "confirmed": "1"}).status_code == 302
    assert limits.emergency().reason == "an outage"
    [event] = AuditEvent.objects.filter(object_type="emergencyswitch")
    assert (event.actor, event.source, event.reason) == ("ann", "admin", "an outage")
    assert b"an outage" in client.get(page).content
    viewer = User.objects.create_user("vic", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_emergencyswitch"))
    client.force_login(viewer)
    assert b'name="mode"' not in client.get(page).content
    assert client.post(page, {"mode": "enforce", "confirmed": "1"}).status_code == 403
    client.force_login(User.objects.create_user("bob", is_staff=True))
    assert client.get(page).status_code == 403


def test_the_api_reads_and_sets_the_switch() -> None:
    client = APIClient()
    client.force_authenticate(User.objects.create_superuser("ann"))
    address = "/limits/api/v1/emergency/"
    assert client.get(address).json() == {"mode": "enforce", "reason": "", "until": None}
    for wrong in ({"mode": "off"}, {"mode": "of", "reason": "x"}, {"mode": "off", "reason": "x", "since": 1}):
        assert client.put(address, wrong, format="json").status_code == 400
    given = {"mode": "off", "reason": "an outage", "until": "2100-01-01T00:00:00Z"}
    assert client.put(address, given, format="json").json() == given
    assert client.post(address, given, format="json").status_code == 405
    [event] = AuditEvent.objects.filter(object_type="emergencyswitch")
    assert (event.actor, event.source) == ("ann", "api")


def test_the_command_sets_the_switch_and_other_commands_show_it(limited: None) -> None:
    assert run("emergency off").code == 2
    assert run("emergency off --reason 'an outage' --dry-run").code == 0
    assert limits.emergency().mode == "enforce"
    assert "switch is off" not in run("status api").err
    assert "D028" not in {one.id for one in diagnose()}
    assert run("emergency shadow --reason 'an outage' --for 1h --yes").code == 0
    assert "never reject until" in run("status api").err
    assert '"mode": "shadow"' in run("emergency --format json").out
    assert "limits_app.D028" in {one.id for one in diagnose()}
    assert run("emergency enforce").code == 0
    assert run("emergency").out == "The emergency switch enforces limits.\n"


def test_a_metric_has_the_mode() -> None:
    class Recorded(dict[str, float]):
        def record(self, name: str, value: float, labels: object = ()) -> None:
            self[name] = value

    for value, mode in enumerate(["enforce", "shadow", "off"]):
        limits.set_emergency(mode, reason="an outage")
        collection, recorded = Collection(), Recorded()
        collection.recorders.append(recorded)
        collection.collect()
        assert recorded["emergency_mode"] == value
