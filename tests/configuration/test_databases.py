"""The tables of the configuration on each database: constraints, and the one query of the resolver."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Model, QuerySet
from pytest_django import DjangoDbBlocker, Settings

from limits_app.acquiring.balancing import Cooling
from limits_app.engine.limits import CallLimit, RateLimit
from limits_app.models import Candidate, Entity, Limit, Policy, PolicyScope, Pool, PoolMember, Resource
from limits_app.models.pool import keep_cool_down
from limits_app.models.snapshots import snapshots, taken, whole
from limits_app.policies import Subject, maybe_blocked, policy_source, resolve, resolver
from limits_app.testing import fresh_limits
from tests.stores.database.databases import ALIAS, VENDORS, migrated, served


class Elsewhere:
    """Sends all models to the tested database."""

    def db_for_write(self, model: type[Model], **hints: object) -> str:
        return ALIAS


_MISSING = {"models.W027", "models.W036", "models.W038", "models.W039", "models.W044", "models.W047"}
"""Django's warnings of constraints that a database does not have."""

NOW = datetime(2026, 3, 4, 12, 0, 0, 250_000, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module", params=VENDORS)
def vendor(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, django_db_blocker: DjangoDbBlocker
) -> Iterator[str]:
    """Each database in turn, with all tables."""
    with (
        django_db_blocker.unblock(),
        served(request.param, tmp_path_factory.mktemp("database")) as settings,
        migrated(settings, "limits_app") as vendor,
    ):
        yield vendor


@pytest.fixture(autouse=True)
def nothing_yet(vendor: str) -> None:
    for model in (Limit, Policy, Resource, Pool):
        model.objects.using(ALIAS).all().delete()
    Entity.objects.using(ALIAS).update(parent=None)
    Entity.objects.using(ALIAS).all().delete()


def put(calls: int, **fields: object) -> Policy:
    policy = Policy.objects.using(ALIAS).create(**fields)
    limit = Limit.from_definition(policy, CallLimit(calls, 60), shared=calls == 3)
    limit.save(using=ALIAS)
    return policy


def test_the_chain_is_found_with_all_that_may_hold() -> None:
    api, other = (Resource.objects.using(ALIAS).create(name=name) for name in ("api", "other"))
    tenant = Entity.objects.using(ALIAS).create(identifier="tenant:acme", unlimited=True)
    user = Entity.objects.using(ALIAS).create(identifier="user:1", parent=tenant, cascade=True)
    put(1, resource=api, entity=user)
    put(2, entity=tenant, on_unavailable="allow")
    put(3, resource=api, weekly_hours="mon-fri 09:00-17:00", time_zone="Europe/Berlin")
    put(4, valid_from=NOW, valid_until=NOW + HOUR, extends=True, enforcement="shadow", rollout_percent=7)
    put(5, resource=other)
    put(6, valid_from=NOW - HOUR, valid_until=NOW)
    first, second = policy_source.read(Subject("api", "user:1"), ALIAS, NOW).links
    assert (first.entity, second.entity) == ("user:1", "tenant:acme")
    assert {one.level: one.limits[0].capacity for one in first.policies} == {
        PolicyScope.ENTITY_ON_RESOURCE: 1,
        PolicyScope.RESOURCE: 3,
        PolicyScope.SYSTEM: 4,
    }
    [scheduled] = [one for one in first.policies if one.level == PolicyScope.RESOURCE]
    assert scheduled.shared == {"call_count"}
    assert scheduled.hours.holds(NOW)
    [dated] = [one for one in first.policies if one.level == PolicyScope.SYSTEM]
    assert (dated.valid_from, dated.valid_until) == (NOW, NOW + HOUR)
    assert (dated.extends, dated.enforcement, dated.rollout_percent) == (True, "shadow", 7)
    assert {str(one.level): one.effect for one in second.policies}["entity_row"] == "unlimited"
    assert [link.entity for link in policy_source.read(Subject("api", None), ALIAS, NOW).links] == [None]
    assert [link.entity for link in policy_source.read(Subject("api", "user:2"), ALIAS, NOW).links] == ["user:2"]


def test_snapshots_are_those_of_the_models() -> None:
    pool = Pool.objects.using(ALIAS).create(name="pool")
    for order, name in ((2, "west"), (1, "east")):
        member = PoolMember.objects.using(ALIAS).create(pool=pool, name=name, order=order)
        Limit.from_definition(member, CallLimit(order, 60)).save(using=ALIAS)
    api = Resource.objects.using(ALIAS).create(name="api", pool=pool, description='100 % of "it"')
    Resource.objects.using(ALIAS).create(name="other")
    tenant = Entity.objects.using(ALIAS).create(identifier="tenant:acme", metadata={"a": [1, None, "%s"]})
    user = Entity.objects.using(ALIAS).create(identifier="user:1", parent=tenant)
    policy = put(1, resource=api, entity=user, weekly_hours="mon 09:00-17:00", time_zone="Europe/Berlin")
    for key in ("z", "a", "m"):
        Limit.from_definition(policy, RateLimit(key, 5, 60)).save(using=ALIAS)
    Candidate.objects.using(ALIAS).create(policy=policy, limits="calls=5/min", percent=7)
    put(4, valid_from=NOW, valid_until=NOW + HOUR, extends=True)
    for model in (Pool, Resource, Entity, Policy):
        rows = whole(model._base_manager.using(ALIAS).all())
        states = {row.pk: taken(row) for row in rows}
        assert snapshots(model, states, ALIAS) == states
        assert all(
            list(state.state) == list(states[key].state) for key, state in snapshots(model, states, ALIAS).items()
        )
    assert [limit["key"] for limit in snapshots(Policy, [policy.pk], ALIAS)[policy.pk].state["limits"]][:2] == [
        "a",
        "call_count",
    ]


def test_the_cool_down_of_a_resource_is_found_with_its_policies(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    assert keep_cool_down("api", "", Cooling(7, 7))
    assert not keep_cool_down("api", "", Cooling(6, 6))
    assert keep_cool_down("other", "a", Cooling(9, 9))
    found = [policy_source.read(Subject(name, None), ALIAS, NOW).cooling for name in ("api", "other", None)]
    assert found == [Cooling(7, 7), None, None]
    assert keep_cool_down("api", "", Cooling(0, 0))
    assert not keep_cool_down("api", "", Cooling(0, 0))
    assert not policy_source.read(Subject("api", "user:1"), ALIAS, NOW).cooling


def test_clients_with_equal_rows_share_compiled_limits(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    begins = datetime.now(UTC) - HOUR
    api = Resource.objects.using(ALIAS).create(name="api")
    for name in ("user:1", "user:2"):
        user = Entity.objects.using(ALIAS).create(identifier=name)
        put(1, resource=api, entity=user, valid_from=begins, valid_until=begins + 2 * HOUR, extends=True)
        put(2, resource=api, entity=user, weekly_hours="mon-sun 00:00-24:00", time_zone="UTC")
    keys = [("api", name, (), None) for name in ("user:1", "user:2")]
    with fresh_limits():
        first, second = map(resolver.get, keys)
        assert second.template is first
        assert second.limit_set.changes_at == (begins + 2 * HOUR).timestamp()
        for resolved, (resource, entity, *_) in zip((first, second), keys, strict=True):
            assert resolved.limit_set.scoped == resolve(resource, entity).resolved.limit_set.scoped


def test_prepared_summary_of_access_is_that_of_the_models(settings: Settings) -> None:
    entities, policies = Entity.objects.using(ALIAS), Policy.objects.using(ALIAS)
    api = Resource.objects.using(ALIAS).create(name="api")
    entities.create(identifier="user:1", unlimited=True)
    put(1, resource=api, entity=entities.create(identifier="user:2"))
    dates = {"valid_from": NOW, "valid_until": NOW + HOUR}
    policies.create(entity=entities.create(identifier="key:*"), effect="blocked", **dates)
    policies.create(resource=api, entity=entities.create(identifier="ip:2001:db8::/48"), effect="blocked")
    found = []
    for now, prefix in ((NOW, 64), (NOW, 48), (NOW + HOUR, 64), (NOW, 64)):
        settings.LIMITS = {**settings.LIMITS, "IPV6_PREFIX": prefix}
        found.append(sorted(maybe_blocked._summary_rows(ALIAS, now)))
        assert found[-1] == sorted(maybe_blocked._summary(ALIAS, now, has_groups=False))
    flag, key = ("flag", "", "", ""), ("policy", "key:*", "", "")
    of_pattern, of_client = ("policy", "ip:2001:db8::/48", "", "api"), ("client", "", "", "api")
    at_first = [flag, of_pattern, key]
    assert found == [at_first, [of_client, flag, key], [flag, of_pattern], at_first]


def test_a_scope_has_one_policy_that_always_holds() -> None:
    for fields in ({}, {"weekly_hours": "mon", "time_zone": "UTC"}, {"valid_from": NOW}):
        put(1, **fields)
        assert Policy(**fields).when() == Policy.objects.using(ALIAS).latest("pk").when()
        with pytest.raises(IntegrityError, match=r"limits_app_policy_(one_per_scope|no_overlap)"):
            put(1, **fields)


def test_processes_that_create_a_policy_at_the_same_time_create_one() -> None:
    def create(barrier: Barrier) -> str:
        try:
            barrier.wait()
            Policy.objects.using(ALIAS).create(entity=entity, weekly_hours="sat", time_zone="UTC")
        except IntegrityError as error:
            return "limits_app_policy_one_per_scope" if "one_per_scope" in str(error) else str(error)
        except OperationalError:  # a deadlock, or a database that is locked
            return "limits_app_policy_one_per_scope"
        finally:
            connections[ALIAS].close()
        return "created"

    entity = Entity.objects.using(ALIAS).create(identifier="user:7")
    for _ in range(5):
        barrier = Barrier(3)
        with ThreadPoolExecutor(3) as threads:
            results = sorted(threads.map(create, [barrier] * 3))
        assert results == ["created", *["limits_app_policy_one_per_scope"] * 2]
        assert Policy.objects.using(ALIAS).count() == 1
        Policy.objects.using(ALIAS).all().delete()


def test_a_policy_that_is_moved_into_a_scope_with_a_policy_is_rejected_by_the_database() -> None:
    put(1)
    moved = put(2, resource=Resource.objects.using(ALIAS).create(name="api"))
    with pytest.raises(IntegrityError, match="limits_app_policy_one_per_scope"), transaction.atomic(using=ALIAS):
        QuerySet(Policy, using=ALIAS).filter(pk=moved.pk).update(resource=None)


def test_each_database_has_all_constraints() -> None:
    problems = [one for one in run_checks(databases=[ALIAS]) if one.id in _MISSING]
    assert problems == []
    for model in apps.get_app_config("limits_app").get_models():
        with connections[ALIAS].cursor() as cursor:
            found = connections[ALIAS].introspection.get_constraints(cursor, model._meta.db_table)
        assert {constraint.name for constraint in model._meta.constraints} <= found.keys()


def test_dates_that_overlap_are_refused_and_by_postgresql_itself_too(vendor: str) -> None:
    put(1, valid_from=NOW, valid_until=NOW + 2 * HOUR)
    put(1, valid_from=NOW + 2 * HOUR, valid_until=NOW + 3 * HOUR)
    put(1, valid_from=NOW + HOUR, resource=Resource.objects.using(ALIAS).create(name="api"))
    overlapping = {"valid_from": NOW + HOUR, "valid_until": NOW + 2 * HOUR}
    with pytest.raises(IntegrityError, match="limits_app_policy_no_overlap"):
        put(1, **overlapping)
    # With plain SQL the app is not asked: PostgreSQL alone knows what overlaps.
    past_the_app = QuerySet(Policy, using=ALIAS).filter(valid_from=NOW + 2 * HOUR)
    if vendor == "postgresql":
        with pytest.raises(IntegrityError, match="limits_app_policy_no_overlap"):
            past_the_app.update(**overlapping)
    else:
        assert past_the_app.update(**overlapping) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"valid_until": NOW},
        {"valid_from": NOW, "valid_until": NOW},
        {"weekly_hours": "mon"},
        {"rollout_percent": 101},
        {"enforcement": "maybe"},
        {"extends": True, "effect": "blocked"},
    ],
)
def test_database_constraints_reject_impossible_rows(fields: dict[str, object], vendor: str) -> None:
    with pytest.raises(Exception, match="limits_app_policy_"):  # of the kind that each driver has
        Policy.objects.using(ALIAS).bulk_create([Policy(**fields)])


def test_limits_go_with_the_policy_or_the_member_that_they_are_of() -> None:
    policies = [put(1, resource=Resource.objects.using(ALIAS).create(name=name)) for name in "abc"]
    pool = Pool.objects.using(ALIAS).create(name="models")
    member = PoolMember.objects.using(ALIAS).create(pool=pool, name="one")
    for owner in ({"policy": policies[1]}, {"policy": policies[2]}, {"member": member}):
        Limit.objects.using(ALIAS).create(key="tpm", text="1/min", **owner)
    policies[0].delete()
    Policy.objects.using(ALIAS).filter(pk=policies[1].pk).delete()
    pool.delete()
    assert [limit.policy_id for limit in Limit.objects.using(ALIAS).filter(key="tpm")] == [policies[2].pk]
