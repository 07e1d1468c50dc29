"""From the first release to this one and back: what was set stays, and what an older version cannot hold goes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.apps.registry import Apps
from django.core.management import call_command
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from pytest_django import DjangoDbBlocker

from limits_app.audit import verify
from limits_app.core.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.models import Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource
from tests.stores.database.databases import ALIAS, forget, sqlite_in, use

FIRST = "0001"


@pytest.fixture(autouse=True)
def database(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A database of which the app has nothing."""
    with django_db_blocker.unblock():
        use(sqlite_in(tmp_path))
        yield
        forget()


def migrate(to: str | None = None) -> None:
    call_command("migrate", "limits_app", *[to] if to else [], database=ALIAS, verbosity=0)


def first_release() -> Apps:
    return MigrationExecutor(connections[ALIAS]).loader.project_state(("limits_app", "0001_initial")).apps


def put_what_the_first_release_knew() -> None:
    """A row of each kind, as that release wrote them."""
    apps = first_release()

    def put(model: str, /, **fields: object) -> object:
        return apps.get_model("limits_app", model).objects.using(ALIAS).create(**fields)

    resource = put("Resource", name="openai/gpt-4")
    entity = put("Entity", identifier="user:42", parent=put("Entity", identifier="tenant:acme"))
    policy = put("Policy", resource=resource, reason="what our contract says")
    window = {"window_seconds": 60, "algorithm": "token_bucket"}
    put("Limit", policy=policy, kind="call", key="call_count", capacity=500, **window)
    put("Limit", policy=policy, kind="rate", key="tokens", capacity=400_000, burst=1000, **window)
    put("Limit", policy=policy, kind="resource", key="connections", capacity=10, max_hold_seconds=30)
    put("Policy", resource=resource, entity=entity, effect="blocked")
    put("Endpoint", name="chat", path="/chat/", resource=resource, amounts={"tokens": 5})
    put("AuditEvent", source="admin", verb="create", object_type="policy", object_id="1", object_label="p", after={})


def kept() -> dict[str, int]:
    names = ("Resource", "Entity", "Policy", "Limit", "Endpoint")
    return {name: first_release().get_model("limits_app", name).objects.using(ALIAS).count() for name in names}


def put_what_only_this_release_knows() -> None:
    resource = Resource.objects.using(ALIAS).get()
    policy = Policy.objects.using(ALIAS).get(resource=resource, entity=None)
    moment = datetime(2026, 12, 24, tzinfo=UTC)
    for fields in (
        {"valid_from": moment, "valid_until": moment.replace(day=27)},
        {"weekly_hours": "mon-fri 09:00-17:00", "time_zone": "UTC"},
    ):
        Policy.objects.using(ALIAS).create(resource=resource, **fields)
    Policy.objects.using(ALIAS).create(enforcement="shadow")
    limits = Limit.objects.using(ALIAS)
    limits.create(policy=policy, kind="quota", key="budget", capacity=5, period="month", time_zone="UTC")
    window = {"window_seconds": 60, "algorithm": "token_bucket"}
    limits.create(policy=policy, kind="rate", key="soft", capacity=5, soft=True, **window)
    member = PoolMember.objects.using(ALIAS).create(pool=Pool.objects.using(ALIAS).create(name="regions"), name="eu")
    limits.create(member=member, kind="call", key="call_count", capacity=5, **window)


def test_an_upgrade_keeps_everything_that_was_set() -> None:
    migrate(FIRST)
    put_what_the_first_release_knew()
    before = kept()
    migrate()
    assert kept() == before
    policies = Policy.objects.using(ALIAS)
    everybody, blocked = policies.get(entity=None), policies.get(entity__identifier="user:42")
    assert {one.definition() for one in everybody.limits.all()} == {
        CallLimit(500, 60),
        RateLimit("tokens", 400_000, 60, burst=1000),
        ResourceLimit("connections", 10, max_hold_seconds=30),
    }
    assert (blocked.effect, blocked.enforcement, blocked.rollout_percent) == ("blocked", "enforce", 100)
    assert Entity.objects.using(ALIAS).filter(identifier="user:42", parent__identifier="tenant:acme").exists()
    assert Endpoint.objects.using(ALIAS).get().amounts == {"tokens": 5}
    assert verify(using=ALIAS).ok


def test_going_back_keeps_what_the_first_release_knew_and_forward_again_works() -> None:
    migrate(FIRST)
    put_what_the_first_release_knew()
    before = kept()
    migrate()
    put_what_only_this_release_knows()
    migrate(FIRST)
    assert kept() == before
    migrate()
    assert kept() == before
    assert verify(using=ALIAS).ok


def test_nothing_is_left_where_the_app_was_removed() -> None:
    migrate()
    Resource.objects.using(ALIAS).create(name="reports")
    migrate("zero")
    assert [name for name in connections[ALIAS].introspection.table_names() if name.startswith("limits_app")] == []
    migrate()
    assert not Resource.objects.using(ALIAS).exists()
