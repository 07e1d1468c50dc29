"""Overviews: the state of many rows in one query and one look at the store."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.db.models import QuerySet
from django.utils import timezone

from limits_app import limits
from limits_app.engine.claims import Claim
from limits_app.engine.errors import InvalidRequest, StaleConfiguration
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import Entity, Policy, PolicyEffect, Resource
from limits_app.policies import ENTITY_FLAGS
from limits_app.services import LimitState, RowState, overview
from limits_app.services.status import PolicyStatus
from limits_app.stores import registry
from tests.opened import put_store
from tests.replacing import at_next_call
from tests.services.failing import FailingStore

pytestmark = pytest.mark.django_db(transaction=True)

TPM = RateLimit("tpm", 100, 60)


def rows(*names: str) -> list[Any]:
    """Resources and entities by their names; the latter have a colon."""
    return [
        Entity.objects.get_or_create(identifier=name)[0]
        if ":" in name
        else Resource.objects.get_or_create(name=name)[0]
        for name in names
    ]


def state(resource: Any, entity: Any = None) -> RowState:
    return overview([(resource, entity)])[0]


def test_many_rows_are_read_in_one_query(django_assert_num_queries: Callable[[int], Any]) -> None:
    limits.set_resource_limits("api", [TPM, CallLimit(10, 60)], shared=["call_count"])
    limits.set_entity_limits("user:1", [RateLimit("tpm", 50, 60)], resource="api")
    api, ada, bob = rows("api", "user:1", "user:2")
    limits.acquire("api", entity="user:1", requested={"tpm": 40})
    limits.acquire("api", entity="user:2", requested={"tpm": 5})
    with django_assert_num_queries(0):
        assert overview([]) == []
    with django_assert_num_queries(1):
        first, second, site = overview([(api, ada), (api, bob), (api, None)])
    assert first.limits == (LimitState("tpm", "entity_on_resource", False, 50, 40, 10),)
    assert {one.key: (one.used, one.available) for one in second.limits} == {"tpm": (5, 95), "call_count": (1, 9)}
    assert {one.key: one.used for one in site.limits} == {"tpm": 0, "call_count": 1}
    assert [one.share for one in second.limits] == [0.1, 0.05]
    assert (second.resource, second.entity, site.entity) == ("api", "user:2", None)


def test_each_policy_has_its_state() -> None:
    broad = limits.set_system_limits([TPM])
    own = limits.set_resource_limits("api", [TPM], extends=True)
    tried = limits.set_entity_limits("user:1", [TPM], resource="api", enforcement="shadow")
    api, ada = rows("api", "user:1")
    found = state(api, ada)
    assert found.standing == {
        tried.pk: PolicyStatus.SHADOW,
        own.pk: PolicyStatus.COUNTS,
        broad.pk: PolicyStatus.EXTENDED,
    }
    assert (found.levels, found.shadow_levels) == (("resource", "system"), ("entity_on_resource",))


def test_where_nothing_is_set_everything_is_admitted() -> None:
    [api] = rows("api")
    assert state(api).effect == PolicyEffect.UNLIMITED
    assert state(api).limits == state(api).levels == ()


@pytest.mark.parametrize(("flag", "effect"), [("blocked", "blocked"), ("unlimited", "unlimited")])
def test_a_blocked_or_unlimited_entity_is_marked(flag: str, effect: str) -> None:
    limits.set_resource_limits("api", [TPM])
    api, ada = rows("api", "user:1")
    setattr(ada, flag, True)
    ada.save()
    assert (state(api, ada).effect, state(api, ada).levels) == (effect, (ENTITY_FLAGS,))


def test_policies_on_all_resources_have_no_state_of_use() -> None:
    limits.set_entity_limits("user:1", [TPM], on_unavailable="allow")
    [ada] = rows("user:1")
    [found] = state(None, ada).limits
    assert (found.capacity, found.used, found.share) == (100, None, 0.0)


def test_policies_that_have_ended_are_not_read() -> None:
    api, _ada = rows("api", "user:1")
    begins = datetime(2026, 1, 1, tzinfo=UTC)
    Policy.objects.create(resource=api, effect="blocked", valid_from=begins, valid_until=begins + timedelta(days=1))
    assert state(api).standing == {}


def test_hours_count_and_those_that_cannot_be_read_never_do() -> None:
    api, other = rows("api", "other")
    Policy.objects.create(resource=api, effect="blocked", weekly_hours="mon-sun", time_zone="UTC")
    wrong = Policy.objects.create(resource=other, effect="blocked", weekly_hours="mon-sun", time_zone="UTC")
    QuerySet.update(Policy.objects.filter(pk=wrong.pk), weekly_hours="whenever")
    assert state(api).effect == PolicyEffect.BLOCKED
    assert state(other).standing == {wrong.pk: PolicyStatus.NOT_NOW}


def test_an_unavailable_store_hides_the_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [TPM])
    [api] = rows("api")
    failing = FailingStore(registry.store("default"))
    failing.down = True
    put_store(monkeypatch, failing)
    found = state(api)
    assert not found.known
    assert found.limits == (LimitState("tpm", "resource", False, 100, None, None),)


def test_a_change_in_between_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limits.set_resource_limits("api", [TPM])
    [api] = rows("api")
    store = registry.store("default")
    looks: list[Claim] = []

    def stale(_peek: object, claim: Claim) -> None:
        looks.append(claim)
        raise StaleConfiguration("changed meanwhile")

    at_next_call(monkeypatch, store, "peek", stale)
    assert state(api).known
    assert len(looks) == 1


TOMORROW = timezone.now() + timedelta(days=1)


def test_boost_multiplies_the_present_limits() -> None:
    limits.set_resource_limits(
        "api",
        [RateLimit("tpm", 100, 60, burst=30), RateLimit("half", 2.5, 60), CallLimit(5, 60)],
        shared=["call_count"],
    )
    policy = limits.boost("user:9", "api", Decimal("1.5"), TOMORROW, "launch")
    assert [(one.key, one.capacity, getattr(one, "burst", None)) for one in policy.definitions()] == [
        ("half", 3.75, None),
        ("tpm", 150, 45),
    ]
    assert (policy.extends, policy.valid_until, policy.reason) == (True, TOMORROW, "launch")
    limits.set_system_limits([TPM])
    assert limits.boost("user:9", None, Decimal(2), TOMORROW, "").definitions()[0].capacity == 200


@pytest.mark.parametrize(
    ("resource", "factor", "said"),
    [
        ("api", 1, "must be a finite number greater than 1"),
        ("once", 1.5, "changes no limit of user:9 on once"),
        ("free", 2, "nothing limits user:9 on free"),
        ("closed", 2, "nothing limits user:9 on closed"),
        (None, 2, "on all resources"),
    ],
)
def test_a_boost_of_nothing_is_refused(resource: str | None, factor: float, said: str) -> None:
    limits.set_resource_limits("api", [TPM])
    limits.set_resource_limits("once", ["1/min"])
    limits.set_resource_limits("closed", [], effect="blocked")
    with pytest.raises(InvalidRequest, match=said):
        limits.boost("user:9", resource, Decimal(factor), TOMORROW, "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"enforcement": "shadow"}, "resource api: it is not enforced"),
        ({"weekly_hours": "mon", "time_zone": "UTC"}, "resource api: it is not permanent"),
    ],
)
def test_only_policies_that_are_enforced_all_the_time_are_boosted(options: dict[str, str], problem: str) -> None:
    site, policy = limits.set_system_limits([TPM]), limits.set_resource_limits("api", [TPM], **options)
    assert [one.problem for one in limits.planned_boosts([site], 2, TOMORROW)] == [""]
    with pytest.raises(InvalidRequest, match=f"^{problem}$"):
        limits.boost_policies([site, policy], 2, TOMORROW, "launch")
    assert Policy.objects.count() == 2
