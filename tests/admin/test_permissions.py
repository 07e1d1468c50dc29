"""Which actions each kind of staff may do; test_permission_matrix has the pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.engine.limits import RateLimit
from limits_app.models import AuditEvent, Entity, Policy
from tests.admin.browsing import act, address

TPM = RateLimit("tpm", 1000, 60)

KINDS: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "viewer": ("view_policy", "view_resource", "view_entity", "view_auditevent"),
    "editor": ("view_policy", "add_policy", "change_policy", "delete_policy"),
    "booster": ("view_policy", "boost_policy"),
    "booster of many": ("view_policy", "boost_policy", "add_policy"),
    "resetter": ("view_policy", "reset_resource"),
    "giver": ("view_policy", "top_up_resource"),
}

ACTIONS: dict[str, tuple[set[str], dict[str, str]]] = {
    "enable_policies": ({"editor"}, {}),
    "shadow_policies": ({"editor"}, {}),
    "disable_policies": ({"editor"}, {}),
    "delete_selected": ({"editor"}, {"post": "yes"}),
    "boost_entities": ({"booster of many"}, {"factor": "2"}),
    "reset_state": ({"resetter"}, {}),
    "top_up_state": ({"giver"}, {"key": "tpm", "amount": "1"}),
}


@pytest.fixture
def policy() -> Policy:
    return limits.set_entity_limits("user:1", [TPM], resource="api", enforcement="enforce")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ACTIONS)
def test_each_kind_of_staff_does_its_actions_and_no_others(
    kind: str, action: str, visitor: Any, policy: Policy
) -> None:
    kinds, says = ACTIONS[action]
    client: Client = visitor(*KINDS[kind])
    if action == "enable_policies":
        Policy.objects.update(enforcement="off")
    until = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    act(client, action, policy, confirmed="yes", reason="a test", until=until, **says)
    assert AuditEvent.objects.filter(source="admin").exists() is (kind in kinds)


@pytest.mark.parametrize("kind", KINDS)
def test_staff_is_offered_the_actions_that_it_may_do(kind: str, visitor: Any, policy: Policy) -> None:
    page = visitor(*KINDS[kind]).get(address("policy_changelist")).content.decode()
    offered = {action for action in ACTIONS if f'value="{action}"' in page}
    assert offered == {action for action, (kinds, _says) in ACTIONS.items() if kind in kinds}
    assert (address("policy_boost") in page) is ("boost_policy" in KINDS[kind])
    assert (address("policy_import") in page) is (kind == "editor")


def test_permission_to_boost_allows_viewing_and_boosting_a_client(visitor: Any, policy: Policy) -> None:
    limits.set_system_limits([TPM])
    client: Client = visitor("boost_policy")
    assert "permission to view or edit anything" not in client.get("/admin/").content.decode()
    effective = client.get(address("explain"), {"resource": "api", "entity": "user:1"})
    assert "tpm" in effective.content.decode()
    page = client.get(address("client"), {"entity": "user:1"}).content.decode()
    assert 'name="_boost"' in page
    assert f'href="{address("policy_changelist")}"' not in page
    boost = {"_boost": "1", "factor": "2", "reason": "a test", "ends": "hour"}
    client.post(f"{address('client')}?entity=user:1", boost)
    assert Policy.objects.filter(entity__identifier="user:1", extends=True).exists()


def test_a_boost_of_an_entity_without_a_row_needs_the_permission_to_add_it(visitor: Any, policy: Policy) -> None:
    limits.set_system_limits([TPM])
    client: Client = visitor("boost_policy")
    until = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    says = {"whom": "entity", "entity": "user:9", "factor": "2", "until": until, "reason": "a test"}
    assert client.post(address("policy_boost"), says).context["form"].errors.keys() == {"entity"}
    everybody = client.post(address("policy_boost"), says | {"whom": "everybody", "listed": "1"})
    assert everybody.context["form"].errors.keys() == {"whom"}
    Entity.objects.create(identifier="user:9")
    done = client.post(address("policy_boost"), says)
    assert (done.status_code, done.headers["location"]) == (302, "/admin/limits_app/")


FINDS = {
    "boost_policy": {"resource"},
    "reset_resource": {"resource"},
    "top_up_resource": {"resource"},
    "add_policy": {"resource", "entity", "plan"},
    "change_entity": {"entity", "plan"},
    "add_resource": {"pool"},
    "change_endpoint": {"resource"},
    "view_plan": {"plan"},
    "view_usagesnapshot": set(),
}
"""The models of which rows are found with one permission: those that a form offers which it may send."""
_FIELDS = {"resource": "policy", "entity": "policy", "plan": "policy", "pool": "resource"}


@pytest.mark.parametrize("name", FINDS)
def test_a_form_finds_the_rows_that_it_offers_without_more_permissions(name: str, visitor: Any) -> None:
    client: Client = visitor(name)
    queries = {
        field: {"app_label": "limits_app", "model_name": model, "field_name": field} for field, model in _FIELDS.items()
    }
    found = {field for field, query in queries.items() if client.get("/admin/autocomplete/", query).status_code == 200}
    assert found == FINDS[name]


def test_what_a_form_may_find_opens_no_list(visitor: Any, policy: Policy) -> None:
    client: Client = visitor("boost_policy")
    pages = ("resource", "entity", "plan", "policy")
    assert {client.get(address(f"{page}_changelist")).status_code for page in pages} == {403}


@pytest.mark.django_db
def test_permissions_exist_only_for_models_with_pages() -> None:
    given = Permission.objects.filter(content_type__app_label="limits_app").select_related("content_type")
    about = {permission.content_type.model_class() for permission in given}
    assert Policy in about
    assert about <= set(admin.site._registry)
