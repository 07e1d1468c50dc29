"""A site with a read replica that lags behind: what is configured counts at once all the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import CallLimit, InvalidLimit, limits
from limits_app.models import AuditEvent, Endpoint, Entity, Plan, PlanGroup, Policy, Resource
from limits_app.policies import AccessTable
from limits_app.policies.reading import members_of_groups
from limits_app.services.url_matching import endpoints
from tests.api.site import ROOT
from tests.stores.database.databases import ALIAS


class Router:
    """Reads from a replica, and writes where it can be written."""

    def db_for_read(self, model: type, **hints: Any) -> str:
        return ALIAS

    def db_for_write(self, model: type, **hints: Any) -> str:
        return "default"

    def allow_relation(self, *objects: object, **hints: Any) -> bool:
        return True


@pytest.fixture(autouse=True)
def replica(second_database: None, settings: Settings) -> None:
    """A replica to which nothing ever comes."""
    settings.DATABASE_ROUTERS = [Router()]


def test_a_change_counts_on_the_next_acquire() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    limits.set_resource_limits("api", [CallLimit(2, 60)], reason="more")
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    Policy.objects.using("default").update(enforcement="off")
    assert limits.try_acquire("api")
    assert not Policy.objects.exists()


def test_groups_of_a_user_in_another_database_which_announces_no_change_are_read_each_time() -> None:
    user = get_user_model().objects.using(ALIAS).create(username="ada")
    group = Group.objects.using(ALIAS).create(name="customers")
    user.groups.through.objects.using(ALIAS).create(user_id=user.pk, group_id=group.pk)
    table = AccessTable()
    assert table.groups_of(user) == {str(group.pk): "customers"}
    Group.objects.using(ALIAS).update(name="partners")
    assert table.groups_of(user) == {str(group.pk): "partners"}


def test_users_in_another_database_than_the_plans_have_none_of_their_groups(settings: Settings) -> None:
    class UsersElsewhere(Router):
        """The users, and their groups, are in another database than all else."""

        def db_for_write(self, model: type, **hints: Any) -> str:
            return ALIAS if model is get_user_model() else "default"

    group = Group.objects.using("default").create(name="customers")
    plan = Plan.objects.using("default").create(name="pro")
    PlanGroup.objects.using("default").create(group_id=group.pk, plan=plan)
    user = get_user_model().objects.using("default").create(username="ada")
    user.groups.through.objects.using("default").create(user_id=user.pk, group_id=group.pk)
    assert [name for _, name in members_of_groups(None, 10)] == [f"user:{user.pk}"]
    settings.DATABASE_ROUTERS = [UsersElsewhere()]
    assert members_of_groups(None, 10) == ()


def test_a_chain_is_read_where_it_was_written() -> None:
    limits.set_entity_limits("tenant:acme", [CallLimit(1, 60)])
    limits.set_entity_limits("user:1", [CallLimit(9, 60)], resource="api")
    primary = Entity.objects.using("default")
    primary.filter(identifier="user:1").update(parent=primary.get(identifier="tenant:acme"), cascade=True)
    assert [bool(limits.try_acquire("api", entity="user:1")) for _ in range(2)] == [True, False]
    assert limits.explain("api", entity="user:1").chain[1].entity == "tenant:acme"


def test_an_endpoint_counts_on_the_next_request() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    endpoints.clear()
    assert endpoints.current().known("/new/", None, "GET") == ()
    api = Resource.objects.using("default").get()
    Endpoint.objects.using("default").create(name="new", path="/new/", resource=api)
    assert endpoints.current().known("/new/", None, "GET")
    endpoints.clear()


def test_what_is_wrong_is_found_where_it_would_be_written() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)], weekly_hours="mon")
    with pytest.raises(InvalidLimit, match="overlaps"):
        limits.set_resource_limits("api", [CallLimit(1, 60)], weekly_hours="mon-fri")


def test_rolled_back_changes_never_apply() -> None:
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(9, 60)])
        assert limits.try_acquire("api")
        transaction.set_rollback(True)
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]


def test_the_api_reads_and_writes_where_it_is_written(django_user_model: Any) -> None:
    client = APIClient()
    client.force_authenticate(django_user_model(username="root", is_superuser=True, is_active=True))
    made = client.post(f"{ROOT}resources/", {"name": "api"}, format="json")
    assert (made.status_code, client.get(f"{ROOT}resources/").json()["count"]) == (201, 1)
    where = f"{ROOT}resources/{made.json()['id']}/"
    tag = {"If-Match": made["ETag"]}
    Resource.objects.using("default").update(description="somebody else's")
    assert client.patch(where, {"store": ""}, format="json", headers=tag).status_code == 412
    limit = {"kind": "call", "capacity": 3, "window_seconds": 60}
    assert client.post(f"{ROOT}policies/", {"resource": "api", "limits": [limit]}, format="json").status_code == 201
    boost = {
        "entity": "user:1",
        "resource": "api",
        "limits": [limit],
        "until": str(timezone.now() + timedelta(days=1)),
        "reason": "x",
    }
    assert client.post(f"{ROOT}boosts/", boost, format="json").json()["limits"][0]["capacity"] == 3
    pool = client.post(f"{ROOT}pools/", {"name": "p", "members": [{"name": "m"}]}, format="json")
    changed = {"members": [{"name": "m", "weight": 2, "limits": [limit]}]}
    where, tag = f"{ROOT}pools/{pool.json()['id']}/", {"If-Match": pool["ETag"]}
    again = client.patch(where, changed, format="json", headers=tag)
    assert [(one["name"], one["weight"], len(one["limits"])) for one in again.json()["members"]] == [("m", 2, 1)]


def test_the_audit_log_has_the_parts_that_were_written() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    event = AuditEvent.objects.using("default").filter(object_type="policy")[0]
    assert [told["limits"][0]["text"] for told in (event.before, event.after)] == ["1/min", "2/min"]
