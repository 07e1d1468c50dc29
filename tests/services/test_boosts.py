"""A boost is for one entity, ends within the longest duration, and never lowers a limit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from limits_app import InvalidLimit, InvalidRequest, limits
from limits_app.models import Entity, Policy
from tests.commands.running import run

pytestmark = pytest.mark.django_db(transaction=True)


def grant(
    entity: str = "user:3", resource: str | None = "mail", text: str = "calls=9/min", *, days: float = 1
) -> Policy:
    return limits.grant_boost(entity, resource, text, timezone.now() + timedelta(days=days), "launch")


@pytest.mark.parametrize(
    ("before", "boost"),
    [
        ("calls=5/min", "calls=5/min"),
        ("calls=5/min", "calls=1/s:burst=5"),
        ("calls=100/day", "calls=100/h"),
        ("tokens=1000/day@UTC", "tokens=1000/day@Europe/Berlin"),
        ("tokens=1000/day@UTC", "tokens=40k/month"),
        ("tokens=30/month", "tokens=30/day"),
        ("tokens=5/min", "tokens=5/min:soft"),
        ("slots=3", "slots=4"),
    ],
)
def test_limits_that_allow_at_least_as_much_are_a_boost(before: str, boost: str) -> None:
    limits.set_resource_limits("mail", before)
    assert grant(text=boost).extends


@pytest.mark.parametrize(
    ("before", "boost"),
    [
        ("calls=5/min", "calls=4/min"),
        ("calls=5/min:burst=50", "calls=49/min"),
        ("calls=5/s", "calls=200/min"),
        ("calls=5/min", "calls=5/min slots=1"),
        ("calls=5/min", "other=1M/s"),
        ("tokens=1000/day@UTC", "tokens=30k/month"),
        ("tokens=5/min:soft", "tokens=1M/min"),
        ("slots=3", "slots=2"),
        ("slots=3", "slots=1000/s"),
        ("slots=3", "slots=9:hold=1min"),
    ],
)
def test_limits_that_allow_less_are_rejected_and_change_nothing(before: str, boost: str) -> None:
    limits.set_resource_limits("mail", before)
    with pytest.raises(InvalidLimit, match="a boost only raises limits"):
        grant(text=boost)
    assert (Policy.objects.count(), Entity.objects.count()) == (1, 0)


def test_a_boost_of_all_resources_lowers_none_of_them() -> None:
    limits.set_system_limits("calls=5/min")
    assert grant(resource=None).extends
    limits.set_resource_limits("bulk", "calls=1000/min")
    until = timezone.now() + timedelta(days=1)
    for raised in (lambda: grant("user:4", None), lambda: limits.boost("user:4", None, 2, until, "x")):
        with pytest.raises(InvalidLimit, match=r"user:4 has calls=1000/min, which .* would lower on bulk"):
            raised()
    limits.set_resource_limits("free", [], effect="unlimited")
    limits.delete_resource_limits("bulk")
    with pytest.raises(InvalidLimit, match="user:4 has no limit call_count on free"):
        grant("user:4", None)


def test_a_block_stays_in_force() -> None:
    limits.set_resource_limits("mail", [], effect="blocked")
    grant()
    assert not limits.check("mail", entity="user:3").allowed


@pytest.mark.parametrize("entity", ["user:*", "ip:10.0.0.0/8"])
def test_a_boost_is_for_one_entity(entity: str) -> None:
    limits.set_system_limits("calls=5/min")
    with pytest.raises(InvalidLimit, match="is a pattern: name one entity"):
        grant(entity)
    assert run(f"boost {entity} calls=9/min --for 2h --reason x").code == 2


def test_a_boost_has_a_longest_duration(settings: Settings) -> None:
    policy = limits.set_resource_limits("mail", "calls=5/min")
    until = timezone.now() + timedelta(days=31, minutes=1)
    for granted in (lambda: grant(days=31.001), lambda: limits.boost_policies([policy], 2, until, "x")):
        with pytest.raises(InvalidLimit, match="allows 31 days"):
            granted()
    assert grant(days=30.999).valid_until
    settings.LIMITS = settings.LIMITS | {"MAX_BOOST_DAYS": 2}
    assert "allows 2 days" in run("boost user:4 calls=9/min --on mail --for 3d --reason x").err
    settings.LIMITS = settings.LIMITS | {"MAX_BOOST_DAYS": None}
    assert grant("user:5", days=40_000).valid_until


def test_the_limits_of_the_plan_of_requests_are_not_lowered(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": lambda request: "gold"}
    limits.set_system_limits("calls=5/min")
    limits.set_plan_limits("gold", "calls=100/min")
    with pytest.raises(InvalidRequest, match="pass plan="):
        grant(resource=None)
    until = timezone.now() + timedelta(days=1)
    with pytest.raises(InvalidLimit, match="calls=100/min"):
        limits.grant_boost("user:3", None, "calls=9/min", until, "x", plan="gold")
    assert run("boost user:3 calls=101/min --for 2h --reason x --plan gold").code == 0
