"""A boost of one client on everything that limits it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from limits_app import InvalidRequest, limits
from limits_app.models import AuditEvent, Limit, Policy, Resource

pytestmark = pytest.mark.django_db(transaction=True)


def boosted(who: str = "tenant:blue", factor: float = 3) -> dict[str | None, list[str]]:
    """The limits of each boost, by the resource."""
    policies = limits.boost_each(who, factor, timezone.now() + timedelta(hours=5), "a fair")
    return {
        None if one.resource is None else one.resource.name: [limit.notation() for limit in one.limits.all()]
        for one in policies
    }


def test_each_resource_with_limits_of_its_own_is_boosted() -> None:
    limits.set_resource_limits("mail", "calls=20/min")
    limits.set_resource_limits("maps", "calls=7/h tokens=100/day")
    limits.set_resource_limits("free", [], effect="unlimited")
    assert boosted() == {"mail": ["calls=60/min"], "maps": ["calls=21/h", "tokens=300/d"]}
    assert not limits.status("mail", entity="tenant:blue").limits["call_count"]["used"]
    assert limits.status("mail", entity="tenant:blue").limits["call_count"]["capacity"] == 60
    assert limits.status("mail", entity="tenant:red").limits["call_count"]["capacity"] == 20


def test_limits_of_all_resources_are_boosted_without_lowering_those_of_one() -> None:
    limits.set_system_limits("calls=5/min")
    limits.set_resource_limits("bulk", "calls=1000/min")
    assert boosted() == {"bulk": ["calls=3000/min"], None: ["calls=15/min"]}


def test_unlimited_entities_stay_unlimited() -> None:
    limits.set_system_limits("calls=5/min")
    limits.set_resource_limits("free", [], effect="unlimited")
    assert boosted() == {"free": [], None: ["calls=15/min"]}
    assert limits.status("free", entity="tenant:blue").limits == {}
    assert limits.status("mail", entity="tenant:blue").limits["call_count"]["capacity"] == 15


def test_limits_that_only_code_sets_are_boosted() -> None:
    limits.check("reports", entity="tenant:blue", default_limits="calls=4/min")
    limits.set_resource_limits("mail", "calls=20/min")
    assert boosted() == {"mail": ["calls=60/min"], "reports": ["calls=12/min"]}
    status = limits.status("reports", entity="tenant:blue")
    assert status.limits["call_count"]["capacity"] == 12


def test_nothing_to_boost_is_an_error_that_changes_nothing() -> None:
    limits.set_resource_limits("mail", "calls=20/min:shared")
    with pytest.raises(InvalidRequest, match="nothing limits tenant:blue"):
        boosted()
    assert Policy.objects.count() == 1


def test_an_error_on_one_resource_leaves_the_others_as_they_were() -> None:
    limits.set_resource_limits("mail", "calls=20/min")
    limits.set_resource_limits("maps", "slots=1")
    events = AuditEvent.objects.count()
    with pytest.raises(InvalidRequest, match=r"a boost by 1\.5 changes no limit of tenant:blue on maps"):
        boosted(factor=1.5)
    assert (Policy.objects.count(), AuditEvent.objects.count()) == (2, events)


def test_so_many_resources_are_named_instead() -> None:
    resources = Resource.objects.bulk_create([Resource(name=f"model/{number}") for number in range(101)])
    policies = Policy.objects.bulk_create([Policy(resource=resource) for resource in resources])
    Limit.objects.bulk_create([Limit(policy=policy, key="call_count", text="5/min") for policy in policies])
    with pytest.raises(InvalidRequest, match="101 resources have their own limits for tenant:blue"):
        boosted()
