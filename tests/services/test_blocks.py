"""Which blocks need a confirmation: those that also hit their author, a proxy, a private network, or everyone."""

from __future__ import annotations

from typing import Any

import pytest
from pytest_django import Settings

from limits_app.models import Entity, Plan, Policy
from limits_app.policies import IdentityAndPlan
from limits_app.services import block_confirmation

pytestmark = pytest.mark.django_db

AUTHOR: list[IdentityAndPlan] = [("ip:198.51.100.7", None), ("user:7", "staff")]
PRIVATE, PROXY, EVERYONE = "a private network", "a trusted proxy", "everyone"


def warned(after: dict[str, Any], before: dict[str, Any] | None = None, model: type[Any] = Policy) -> str:
    return block_confirmation.warning([(model, before, after)], AUTHOR)


def policy(**fields: Any) -> dict[str, Any]:
    named = {"entity": None, "plan": None, "resource": None, "counted": "each"}
    return {**named, "effect": "blocked", "enforcement": "enforce", **fields}


@pytest.mark.parametrize(
    ("identifier", "hit"),
    [
        ("ip:198.51.100.7", "ip:198.51.100.7"), ("ip:198.51.0.0/16", "ip:198.51.100.7"), ("user:*", "user:7"),
        ("ip:198.51.*", "ip:198.51.100.7"), ("ip:8.8.8.0/24", None), ("key:*", None), ("user:71", None),
        ("ip:10.1.2.3", PRIVATE), ("ip:10.*", PRIVATE), ("ip:192.168.*", PRIVATE), ("ip:172.20.1.*", PRIVATE),
        ("ip:8.0.0.0/6", PRIVATE), ("ip:0.0.0.0/2", PRIVATE), ("ip:127.0.0.0/8", PRIVATE), ("ip:127.*", PRIVATE),
        ("ip:fd00::/8", PRIVATE), ("ip:fe80:*", PRIVATE), ("ip:fe80::/64", PRIVATE), ("ip:::/2", PRIVATE),
        ("ip:169.254.9.0/24", PRIVATE), ("ip:8.*", None), ("ip:2606:*", None), ("ip:2606:4700::/32", None),
        ("ip:64.0.0.0/2", f"{PROXY}, {PRIVATE}"), ("ip:70.1.1.*", PROXY), ("ip:70.2.*", None),
        ("ip:0.0.0.0/0", EVERYONE), ("ip:::/0", EVERYONE), ("ip:*", EVERYONE),
    ],
)  # fmt: skip
def test_an_address_a_network_or_a_pattern(identifier: str, hit: str | None, settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["70.1.1.9"]}
    expected = f"This also blocks {hit}." if hit else ""
    assert warned(policy(entity=identifier)) == expected
    assert warned({"identifier": identifier, "blocked": True}, model=Entity) == expected
    assert warned(policy(entity=Entity(identifier=identifier))) == expected


def test_those_above_the_author_and_the_plan_of_the_author() -> None:
    """A block of a parent that is charged too, or of a plan, also hits those below."""
    tenant = Entity.objects.create(identifier="tenant:a", plan=Plan.objects.create(name="gold"))
    Entity.objects.create(identifier="user:7", parent=tenant, cascade=True)
    assert warned({"identifier": "tenant:a", "blocked": True}, model=Entity) == "This also blocks user:7."
    assert warned(policy(plan="gold")) == "This also blocks user:7."
    Plan.objects.create(name="staff")
    assert [warned(policy(plan="staff")), warned(policy(plan="free"))] == ["", ""]  # the row decides
    Entity.objects.filter(identifier="user:7").update(cascade=False)
    assert warned({"identifier": "tenant:a", "blocked": True}, model=Entity) == ""
    Entity.objects.filter(identifier="user:7").update(parent=None)
    assert warned(policy(plan="staff")) == "This also blocks user:7."


@pytest.mark.parametrize(
    ("before", "after", "asks"),
    [
        (None, {}, False), (None, {"counted": "total"}, True), (None, {"resource": "api", "counted": "total"}, False),
        (None, {"entity": "user:7", "enforcement": "shadow"}, False), (None, {"entity": "user:7"}, True),
        (None, {"entity": "user:7", "effect": "unlimited"}, False), (None, {"entity": "user:7", "resource": "a"}, True),
        ({"entity": "user:7"}, {"entity": "user:7"}, False), ({"entity": "user:8"}, {"entity": "user:7"}, True),
        ({"entity": "user:7", "resource": "a"}, {"entity": "user:7"}, True),
        ({"entity": "user:7", "enforcement": "off"}, {"entity": "user:7"}, True),
        ({"entity": "user:7"}, {"entity": "user:7", "effect": "limits"}, False),
    ],
)  # fmt: skip
def test_only_a_change_that_makes_or_widens_a_block_in_force(
    before: dict[str, Any] | None, after: dict[str, Any], asks: bool
) -> None:
    assert bool(warned(policy(**after), None if before is None else policy(**before))) is asks


def test_many_are_named_once_and_no_more_than_ten() -> None:
    changes = [(Policy, None, policy(entity=f"ip:{10 + n}.0.0.0/8")) for n in range(3)]
    assert block_confirmation.warning(changes) == "This also blocks a private network."
    author: list[IdentityAndPlan] = [(f"user:{n}", None) for n in range(12)]
    named = ", ".join(f"user:{n}" for n in range(10))
    assert (
        block_confirmation.warning([(Policy, None, policy(entity="user:*"))], author) == f"This also blocks {named}, …."
    )
