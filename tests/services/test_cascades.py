"""Cascades and shared limits: what a request is charged besides its own buckets, in one atomic step."""

from __future__ import annotations

import pytest
from django.db.models import QuerySet
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, RateLimit, ResourceLimit, limits
from limits_app.engine.keys import shared_scope
from limits_app.models import MAX_LEVELS, Entity
from limits_app.policies import resolve, resolver


def family(*identifiers: str, cascade: bool = True) -> list[Entity]:
    """Entities of which each is the child of the one before."""
    made: list[Entity] = []
    for identifier in identifiers:
        made.append(Entity.objects.create(identifier=identifier, parent=made[-1] if made else None, cascade=cascade))
    return made


def charged(entity: str) -> dict[tuple[str | None, str], float]:
    """What is left to an entity and those above it, by entity and key."""
    outcome = limits.check("api", entity=entity)
    return {(one.entity, one.key): one.remaining for one in (*outcome.violations, *outcome.passed)}


def test_a_child_charges_its_parent_too() -> None:
    family("tenant:acme", "user:1")
    limits.set_entity_limits("tenant:acme", [CallLimit(5, 60)])
    limits.set_entity_limits("user:1", [CallLimit(3, 60)])
    limits.acquire("api", entity="user:1")
    assert charged("user:1") == {("user:1", "call_count"): 2, ("tenant:acme", "call_count"): 4}
    assert charged("tenant:acme") == {("tenant:acme", "call_count"): 4}


def test_a_cascade_goes_up_while_each_parent_cascades() -> None:
    family("a", "b", "c", "d")
    limits.set_resource_limits("api", [CallLimit(9, 60)])
    Entity.objects.filter(identifier="b").update(cascade=False)
    limits.acquire("api", entity="d")
    assert charged("d") == {(name, "call_count"): 8 for name in "dcb"}
    assert charged("a") == {("a", "call_count"): 9}


def test_eight_levels_are_charged_with_one_query(django_assert_num_queries: DjangoAssertNumQueries) -> None:
    names = [f"level:{number}" for number in range(MAX_LEVELS)]
    family(*names)
    for number, name in enumerate(names):
        limits.set_entity_limits(name, [CallLimit(10 + number, 60)])
    resolver.clear()
    with django_assert_num_queries(1):
        acquisition = limits.acquire("api", entity=names[-1])
    assert [one.entity for one in acquisition.outcome.passed] == names[::-1]
    assert [one.remaining for one in acquisition.outcome.passed] == [16, 15, 14, 13, 12, 11, 10, 9]


def test_rates_are_charged_reported_and_given_back_at_every_level() -> None:
    family("tenant:acme", "user:1")
    limits.set_entity_limits("tenant:acme", [RateLimit("tpm", 1000, 60)])
    limits.set_entity_limits("user:1", [RateLimit("tpm", 100, 60)])
    with limits.acquire("api", entity="user:1", requested={"tpm": 80}) as acquisition:
        acquisition.update({"tpm": 30})
    outcome = limits.check("api", entity="user:1", requested={"tpm": 1})
    assert [one.remaining for one in outcome.passed] == [70, 970]


def test_parent_limits_keys_that_the_child_does_not() -> None:
    family("tenant:acme", "user:1")
    limits.set_entity_limits("tenant:acme", [RateLimit("tpm", 100, 60), ResourceLimit("slot", 1)])
    limits.set_entity_limits("user:1", [CallLimit(5, 60)])
    with limits.acquire("api", entity="user:1", requested={"tpm": 60}) as acquisition:
        assert set(acquisition.acquisitions) == {"call_count", "tpm", "slot"}
        assert not limits.try_acquire("api", entity="user:1", requested={"tpm": 60})
        acquisition.update({"tpm": 60})


@pytest.mark.parametrize("chained", [True, False])
@pytest.mark.parametrize(("flag", "admits"), [("blocked", False), ("unlimited", True)])
def test_a_parent_that_is_blocked_or_unlimited(chained: bool, flag: str, admits: bool) -> None:
    family("tenant:acme", "user:1", cascade=chained)
    limits.set_resource_limits("api", [CallLimit(3, 60)])
    Entity.objects.filter(identifier="tenant:acme").update(**{flag: True})
    acquisition = limits.try_acquire("api", entity="user:1")
    assert acquisition.successful is (admits or not chained)
    assert charged("user:1")["user:1", "call_count"] == (2 if acquisition else 3)


def test_a_blocked_child_charges_its_parent_nothing() -> None:
    family("tenant:acme", "user:1")
    limits.set_resource_limits("api", [CallLimit(3, 60)])
    Entity.objects.filter(identifier="user:1").update(blocked=True)
    assert not limits.try_acquire("api", entity="user:1")
    assert charged("tenant:acme") == {("tenant:acme", "call_count"): 3}


def test_an_unlimited_child_still_charges_its_parent() -> None:
    family("tenant:acme", "user:1")
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    Entity.objects.filter(identifier="user:1").update(unlimited=True)
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(2)] == [True, False]


def test_the_limits_of_a_call_are_not_for_those_above() -> None:
    family("tenant:acme", "user:1")
    for _ in range(3):
        limits.acquire("api", entity="user:1", default_limits=(CallLimit(3, 60),))
    assert charged("user:1") == {}
    assert not limits.try_acquire("api", entity="user:1", default_limits=(CallLimit(3, 60),))


def test_cycles_do_no_harm_where_they_are_forced() -> None:
    first, second = family("a", "b")
    QuerySet(Entity).filter(pk=first.pk).update(parent=second)
    limits.set_resource_limits("api", [CallLimit(9, 60)])
    limits.acquire("api", entity="a")
    assert charged("a") == {("a", "call_count"): 8, ("b", "call_count"): 8}


def test_a_change_above_counts_on_the_next_acquire() -> None:
    family("tenant:acme", "user:1")
    limits.set_entity_limits("tenant:acme", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(2)] == [True, False]
    Entity.objects.filter(identifier="user:1").update(cascade=False)
    assert limits.try_acquire("api", entity="user:1")
    Entity.objects.filter(identifier="user:1").update(cascade=True)
    assert not limits.try_acquire("api", entity="user:1")
    limits.delete_entity_limits("tenant:acme")
    assert limits.try_acquire("api", entity="user:1")


def test_a_shared_limit_is_counted_for_all_clients_together() -> None:
    limits.set_resource_limits("api", [CallLimit(3, 60), RateLimit("tpm", 9, 60)], shared=["call_count"])
    for who in ("user:1", "user:2", None):
        with limits.acquire("api", entity=who, requested={"tpm": 9}) as acquisition:
            acquisition.update({"tpm": 9})
    refused = limits.try_acquire("api", entity="user:3", requested={"tpm": 9})
    assert [(one.key, one.entity) for one in refused.outcome.violations] == [("call_count", None)]
    assert limits.explain("api", entity="user:3", requested={"tpm": 9}).chain[0].limits[1].status.remaining == 9


def test_each_resource_has_a_shared_bucket_of_its_own_apart_from_that_of_the_site() -> None:
    limits.set_system_limits([CallLimit(1, 60)], shared=["call_count"])
    assert limits.acquire("api", entity="user:1")
    assert limits.acquire("reports", entity="user:1")
    assert not limits.try_acquire("api")
    limits.set_system_limits([CallLimit(1, 60)])
    assert limits.acquire("api")
    keys = {shared_scope("api", "rpm").key, shared_scope("api", "tpm").key, shared_scope("apis", "rpm").key}
    keys |= {one.scope.key for who in (None, "*rpm") for one in resolve("api", who).resolved.limit_set.scoped}
    assert len(keys) == 5


def test_child_and_parent_are_charged_once_for_a_shared_limit() -> None:
    family("tenant:acme", "user:1")
    limits.set_resource_limits("api", [CallLimit(10, 60), ResourceLimit("slot", 5)], shared=["call_count"])
    limits.acquire("api", entity="user:1").release()
    assert limits.status("api", entity="user:1").limits["call_count"]["used"] == 1


def test_shared_limits_are_summed_once() -> None:
    limits.set_resource_limits("api", [CallLimit(10, 60), ResourceLimit("slot", 5)], shared=["call_count"])
    family("user:1", cascade=False)
    held = [limits.acquire("api", entity=who) for who in ("user:1", None)]
    status = limits.status("api")
    assert status.used_by_all == {"call_count": 2, "slot": 2}
    assert status.limits["slot"]["used"] == 1
    for one in held:
        one.release()


def test_use_of_parents_and_members_is_summed_once() -> None:
    family("tenant:acme", "user:1", "key:a")
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.acquire("api", entity="key:a")
    limits.acquire("api", entity="user:1")
    assert limits.status("api").used_by_all == {"call_count": 1 + 2 + 2}
