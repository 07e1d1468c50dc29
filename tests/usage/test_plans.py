"""Usage is counted for the plan by which a client was served, also where that changes within an hour."""

from __future__ import annotations

import pytest

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import Entity, Plan, UsageSnapshot

HOUR = 3600
pytestmark = pytest.mark.usefixtures("site")


def by_plan(**where: str) -> dict[tuple[str | None, str | None], float]:
    limits.roll_up()
    return {(use.entity, use.plan): use.admitted for use in limits.usage(by=("entity", "plan"), **where)}


def test_a_client_that_changes_its_plan_is_counted_for_both() -> None:
    free, pro = [Plan.objects.create(name=name) for name in ("free", "pro")]
    limits.set_plan_limits("free", [CallLimit(20, HOUR)], resource="api")
    limits.set_plan_limits("pro", [CallLimit(50, HOUR)], resource="api")
    ada = Entity.objects.create(identifier="user:ada", plan=free)
    for plan, times in ((free, 2), (pro, 3), (free, 1), (None, 1)):
        ada.plan = plan
        ada.save()
        for _ in range(times):
            assert limits.try_acquire("api", entity="user:ada", default_limits=[CallLimit(30, HOUR)])
    counted = by_plan()
    assert counted == {("user:ada", "free"): 3, ("user:ada", "pro"): 3, ("user:ada", ""): 1}
    assert limits.usage(entity="user:ada")[0].admitted == 7
    assert [use.admitted for use in limits.usage(plan="pro")] == [3]
    assert [use.admitted for use in limits.usage(plan="")] == [1]


def test_plans_of_requests_and_plans_without_limits_are_counted_too() -> None:
    for name in ("free", "pro"):
        Plan.objects.create(name=name)
    limits.set_resource_limits("api", [CallLimit(30, HOUR)])
    for plan, times in (("free", 1), ("pro", 2), (None, 3), ("unknown", 1)):
        for _ in range(times):
            assert limits.try_acquire("api", entity="key:1", plan=plan)
    assert by_plan() == {("key:1", "free"): 1, ("key:1", "pro"): 2, ("key:1", ""): 4}


def test_shared_limits_have_no_plan() -> None:
    Plan.objects.create(name="pro")
    limits.set_resource_limits("api", [CallLimit(9, HOUR), RateLimit("tokens", 9, HOUR)], shared=["tokens"])
    for plan in ("pro", None):
        with limits.acquire("api", requested={"tokens": 2}, entity="key:1", plan=plan) as acquisition:
            acquisition.update({"tokens": 2})
    assert by_plan(key="tokens") == {("", ""): 4}


def test_counts_of_entities_above_are_distinguished() -> None:
    pro = Plan.objects.create(name="pro")
    team = Entity.objects.create(identifier="team:x", plan=pro)
    Entity.objects.create(identifier="key:1", parent=team, cascade=True)
    limits.set_resource_limits("api", [CallLimit(30, HOUR)])
    for entity in ("key:1", "team:x", "key:1"):
        assert limits.try_acquire("api", entity=entity)
    assert by_plan() == {("key:1", "pro"): 2, ("team:x", "pro"): 3}
    rows = UsageSnapshot.objects.filter(period="day").order_by("entity", "below")
    assert [(row.entity, row.below, row.admitted) for row in rows] == [
        ("key:1", False, 2),
        ("team:x", False, 1),
        ("team:x", True, 2),
    ]
