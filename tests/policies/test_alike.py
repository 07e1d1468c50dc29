"""Clients with rows that say the same: their limits are compiled once, and each has them by its own name."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from limits_app import CallLimit, RateLimit, limits
from limits_app.models import Candidate, Entity, Limit, Plan, Policy, PolicyEffect
from limits_app.policies import ResolvedSet, configuration, resolve, resolver
from limits_app.policies.precedence import rollout_position
from tests.policies.test_agreement import NAMES, make_site

ANN, BOB, EVE = "user:ann", "user:bob", "user:eve"
CLIENTS = (ANN, BOB)
TENANT = "tenant:acme"

CALLS = CallLimit(7, 60)
BEGIN = datetime.now(UTC) - timedelta(hours=1)


def got(entity: str | None, resource: str = "api", plan: str | None = None) -> ResolvedSet:
    return resolver.latest((resource, entity, (), plan))


def decides(resolved: ResolvedSet) -> tuple[Any, ...]:
    """All that decides about requests."""
    shadow = None if resolved.shadow is None else resolved.shadow.scoped
    limit_set = resolved.limit_set
    dates = limit_set.changes_at, limit_set.identity, limit_set.accepts_all
    return limit_set.scoped, shadow, resolved.on_unavailable, resolved.evaluated, resolved.alias, *dates


def is_shared() -> bool:
    """Whether what was compiled for one of two clients is used for the other one."""
    first, second = map(got, CLIENTS)
    return (second.template or second) is (first.template or first)


def set_limits(*entities: str, resource: str | None = "api", **options: Any) -> None:
    for entity in entities:
        limits.set_entity_limits(entity, [CALLS], resource=resource, **options)


def test_first_request_of_a_client_with_equal_rows_makes_one_query() -> None:
    set_limits(ANN, BOB, EVE)
    got(ANN)
    with CaptureQueriesContext(connection) as queries:
        assert is_shared()
    assert len(queries) == 1


def test_each_is_charged_by_itself() -> None:
    set_limits(ANN, BOB)
    assert [bool(limits.try_acquire("api", entity=ANN)) for _ in range(8)] == [True] * 7 + [False]
    assert [bool(limits.try_acquire("api", entity=BOB)) for _ in range(8)] == [True] * 7 + [False]


def test_change_of_one_leaves_the_others() -> None:
    set_limits(ANN, BOB)
    assert is_shared()
    limits.set_entity_limits(ANN, [CallLimit(2, 60)], resource="api")
    assert [limit.capacity for limit in got(ANN).limit_set] == [2]
    assert [limit.capacity for limit in got(BOB).limit_set] == [7]
    limits.set_entity_limits(ANN, [CALLS], resource="api")
    assert is_shared()


def test_change_of_the_resource_applies_to_all() -> None:
    set_limits(ANN, BOB, extends=True)
    limits.set_resource_limits("api", [RateLimit("tpm", 5, 60)])
    assert is_shared()
    limits.set_resource_limits("api", [RateLimit("tpm", 9, 60)])
    for name in CLIENTS:
        assert [limit.capacity for limit in got(name).limit_set] == [7, 9]
    assert is_shared()


def test_number_of_compiled_sets_is_bounded() -> None:
    for number in range(5):
        limits.set_entity_limits(f"user:{number}", [CallLimit(number + 1, 60)], resource="api")
    alike = configuration.current().alike
    got("user:0")
    before = len(alike)
    for number in range(5):
        got(f"user:{number}")
    assert len(alike) == before + 4
    resolver.clear()
    assert len(alike) == 0


# ------------------------------------------------------------------------------------------ equal rows


def with_dates(name: str) -> None:
    set_limits(name, valid_from=BEGIN, valid_until=datetime(2090, 1, 1, tzinfo=UTC))


def below_a_tenant(name: str) -> None:
    tenant, _ = Entity.objects.get_or_create(identifier=TENANT)
    Entity.objects.create(identifier=name, parent=tenant, cascade=True)
    set_limits(TENANT)


def counted_for_a_tenant_too(name: str) -> None:
    below_a_tenant(name)
    set_limits(name, resource=None, counted="total")


def on_a_plan(name: str) -> None:
    plan, _ = Plan.objects.get_or_create(name="pro")
    limits.set_plan_limits("pro", [CallLimit(3, 60)], resource="api")
    Entity.objects.create(identifier=name, plan=plan)


def on_the_plan_of_another_tenant(name: str) -> None:
    plan, _ = Plan.objects.get_or_create(name="pro")
    limits.set_plan_limits("pro", [CallLimit(3, 60)], resource="api")
    tenant = Entity.objects.create(identifier=f"tenant of {name}", plan=plan)
    Entity.objects.create(identifier=name, parent=tenant)


def with_a_limit_that_all_share(name: str) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 5, 60)], shared=["tpm"])
    set_limits(name, extends=True)


EQUAL: list[Callable[[str], object]] = [
    set_limits,
    with_dates,
    below_a_tenant,
    counted_for_a_tenant_too,
    on_a_plan,
    on_the_plan_of_another_tenant,
    with_a_limit_that_all_share,
    lambda name: Entity.objects.create(identifier=name, blocked=True),
    lambda name: set_limits(name, weekly_hours="mon-sun 00:00-24:00", time_zone="UTC"),
    lambda name: set_limits(name, on_unavailable="allow", slice_seconds=5),
]
EQUAL_NAMES = [one.__name__ for one in EQUAL[:7]] + ["blocked", "weekly hours", "for an unavailable store"]


@pytest.mark.parametrize("give", EQUAL, ids=EQUAL_NAMES)
def test_clients_with_equal_rows_share_compiled_limits(give: Callable[[str], object]) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 5, 60)])
    for name in CLIENTS:
        give(name)
    assert is_shared()
    for name in CLIENTS:
        assert decides(got(name)) == decides(resolve("api", name).resolved)


# ------------------------------------------------------------------------------------------ other rows


def candidate(name: str) -> None:
    set_limits(name)
    policy = Policy.objects.get(entity__identifier=name)
    Candidate.objects.create(policy=policy, limits="call_count=3/min", percent=100)


def below_one_that_is_its_own_parent(name: str) -> None:
    """Written past validation: what is the client itself for the one is a client above for the other one."""
    set_limits(name)
    above = Entity.objects.get(identifier=ANN)
    QuerySet(Entity).update(parent=above, cascade=True)


OTHER: dict[str, tuple[Callable[[str], object], Callable[[str], object]]] = {
    "limits": (set_limits, lambda name: limits.set_entity_limits(name, [CallLimit(8, 60)], resource="api")),
    "more limits": (set_limits, lambda name: limits.set_entity_limits(name, [CALLS, RateLimit("t", 1, 1)])),
    "effect": (set_limits, lambda name: limits.set_entity_limits(name, [], effect=PolicyEffect.UNLIMITED)),
    "flag": (set_limits, lambda name: Entity.objects.create(identifier=name, unlimited=True)),
    "resource": (set_limits, lambda name: set_limits(name, resource=None)),
    "extends": (set_limits, lambda name: set_limits(name, extends=True)),
    "unavailable": (set_limits, lambda name: set_limits(name, on_unavailable="block")),
    "slices": (set_limits, lambda name: set_limits(name, slice_seconds=5)),
    "dates": (set_limits, lambda name: set_limits(name, valid_until=datetime(2090, 1, 1, tzinfo=UTC))),
    "parent": (set_limits, below_a_tenant),
    "plan": (set_limits, on_a_plan),
    "shadow": (lambda name: set_limits(name, enforcement="shadow"),) * 2,
    "candidate": (candidate,) * 2,
    "a loop": (below_one_that_is_its_own_parent,) * 2,
}


@pytest.mark.parametrize("which", OTHER)
def test_clients_with_other_rows_have_limits_of_their_own(which: str) -> None:
    limits.set_resource_limits("api", [RateLimit("tpm", 5, 60)])
    for name, give in zip(CLIENTS, OTHER[which], strict=True):
        give(name)
    assert not is_shared()
    for name in CLIENTS:
        assert decides(got(name)) == decides(resolve("api", name).resolved)


def test_rollout_decides_for_each_client() -> None:
    inside = next(f"user:{number}" for number in range(100) if rollout_position(f"user:{number}") < 50)
    outside = next(f"user:{number}" for number in range(100) if rollout_position(f"user:{number}") >= 50)
    set_limits(inside, outside, rollout_percent=50)
    with CaptureQueriesContext(connection) as queries:
        assert [len(got(name).limit_set) for name in (inside, outside)] == [1, 0]
    assert len(queries) == 2


@pytest.mark.parametrize("is_same", [True, False])
def test_order_of_two_policies_of_one_level_decides(is_same: bool) -> None:
    """Written past validation: the policy with the lower primary key precedes the other one, with other hours."""
    hours = ("mon-sun 00:00-24:00", "sun-sat 00:00-24:00")
    for name, capacities in ((ANN, (1, 2)), (BOB, (1, 2) if is_same else (2, 1))):
        entity = Entity.objects.create(identifier=name)
        for capacity in capacities:
            policy = Policy(entity=entity, weekly_hours=hours[capacity - 1], time_zone="UTC")
            Policy.objects.bulk_create([policy])
            Limit.from_definition(policy, CallLimit(capacity, 60)).save()
    assert [limit.capacity for name in CLIENTS for limit in got(name).limit_set] == [1, 1 if is_same else 2]
    assert is_shared() == is_same


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_limits_are_those_of_the_client_alone_on_random_sites(seed: int, settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "STORES": {"default": {"KIND": "memory"}}}
    make_site(random.Random(seed))
    clients = (*NAMES, "user:3", "user:99", "ip:10.1.9.9", "ip:2001:db8::1", "ip:2001:db8::2", "ip:10.1.9.8")
    for _ in range(2):
        for name in clients:
            for resource in ("api", "mail", "unknown"):
                for plan in (None, "pro"):
                    alone = resolve(resource, name, plan=plan).resolved
                    assert decides(got(name, resource, plan)) == decides(alone), (name, resource, plan)
