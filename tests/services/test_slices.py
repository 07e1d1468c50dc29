"""Slices by policy: which requests they apply to, and what administrators see of them."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError
from django.test import Client

from limits_app import limits
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limits import CallLimit, QuotaLimit, RateLimit
from limits_app.models import Policy, Resource
from limits_app.policies import resolver
from limits_app.stores.registry import forget_stores, instead, resilient_store
from limits_app.testing import FakeClock
from tests.acquiring.test_remote_stores import FarStore

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def far() -> Iterator[FarStore]:
    """The store of the site is on another machine."""
    store = FarStore(clock=FakeClock())
    forget_stores()
    with instead(lambda _: store):
        resolver.clear()
        yield store
    forget_stores()
    resolver.clear()


def in_slices() -> int:
    return sum(resilient_store().slices.unspent().values())


def test_a_policy_with_slices_decides_most_requests_without_the_store() -> None:
    quota = QuotaLimit("units", 1_000_000, "day")
    limits.set_system_limits([quota], slice_seconds=5)
    for _ in range(300):
        assert limits.try_acquire("api", entity="user:1", requested={"units": 1})
    found = limits.status("api", entity="user:1").limits["units"]
    assert 300 < found["used"] <= 700
    assert found["in_slices"] == found["used"] - 300
    limits.set_system_limits([quota])
    resilient_store().return_slices(everything=True)
    found = limits.status("api", entity="user:1").limits["units"]
    assert (found["used"], "in_slices" in found) == (300, False)


def test_a_total_includes_amounts_in_slices() -> None:
    limits.set_system_limits([CallLimit.per_hour(1_000_000)], slice_seconds=5)
    limits.set_system_limits([CallLimit.per_hour(1_000_000)], counted="total", slice_seconds=5)
    for _ in range(300):
        limits.try_acquire("api", entity="user:1")
    found = limits.status("api", entity="user:1").limits
    assert found["total:call_count"]["in_slices"] == found["call_count"]["in_slices"] > 0


def test_explanations_commands_and_the_admin_show_amounts_in_slices(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_hour(1_000_000)], slice_seconds=5)
    for _ in range(300):
        limits.try_acquire("api")
    held = limits.status("api").limits["call_count"]["in_slices"]
    assert held
    said = f"{held} in slices of this process"
    found = limits.explain("api")
    assert found.chain[0].limits[0].in_slices == found.as_dict()["chain"][0]["limits"][0]["in_slices"] == held  # type: ignore[index]
    assert said in found.text()
    printed = StringIO()
    call_command("limits", "status", "api", stdout=printed, stderr=printed)
    assert f"In slices of this process: call_count {held}." in printed.getvalue()
    row = Resource.objects.get()
    limits.set_resource_limits("other", [CallLimit.per_hour(10)])
    assert "in_slices" not in limits.status("other").limits["call_count"]
    assert limits.overview([(row, None)])[0].limits[0].in_slices == held
    assert said in admin_client.get("/admin/limits_app/resource/").content.decode()
    assert said in admin_client.get("/admin/limits_app/clientsentry/effective/?resource=api").content.decode()


@pytest.mark.parametrize(
    "other",
    [RateLimit("tokens", 10**6, 60, soft=True), CallLimit(1_000_000, 60, "sliding_window"), CallLimit(10, 60)],
    ids=repr,
)
def test_a_limit_without_slices_keeps_the_whole_request_in_the_store(other: CallLimit | RateLimit) -> None:
    limits.set_system_limits([CallLimit.per_hour(1_000_000)], counted="total", slice_seconds=5)
    limits.set_resource_limits("api", [other], slice_seconds=5)
    requested = {"tokens": 1} if isinstance(other, RateLimit) else None
    for _ in range(300):
        if held := limits.try_acquire("api", requested=requested):
            held.cancel()
    assert in_slices() == 0


def test_every_policy_of_a_request_must_have_slices() -> None:
    limits.set_system_limits([CallLimit.per_hour(1_000_000)], counted="total")
    limits.set_resource_limits("api", [CallLimit.per_hour(1_000_000)], slice_seconds=5)
    for _ in range(300):
        limits.try_acquire("api")
    assert in_slices() == 0


@pytest.mark.parametrize("seconds", [61, -1, 1.5, "x"])
def test_seconds_are_whole_and_at_most_sixty(seconds: object) -> None:
    with pytest.raises((InvalidLimit, ValidationError)):
        limits.set_system_limits([CallLimit.per_hour(1_000_000)], slice_seconds=seconds)
    assert not Policy.objects.exists()


def test_the_database_rejects_longer_slices() -> None:
    with pytest.raises(IntegrityError):
        Policy.objects.create(slice_seconds=61)
