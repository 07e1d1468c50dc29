"""Who may do what: each page and action with each kind of staff."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from limits_app import limits
from limits_app.core.limits import RateLimit
from limits_app.models import AuditEvent, Policy
from tests.admin.browsing import act, address

TPM = RateLimit("tpm", 1000, 60)

KINDS: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "viewer": ("view_policy", "view_resource", "view_entity", "view_auditevent"),
    "editor": ("view_policy", "add_policy", "change_policy", "delete_policy"),
    "booster": ("view_policy", "boost_policy"),
    "resetter": ("view_policy", "reset_resource"),
    "giver": ("view_policy", "top_up_resource"),
}

PAGES: dict[str, set[str]] = {
    "policy_changelist": {"viewer", "editor", "booster", "resetter", "giver"},
    "policy_add": {"editor"},
    "policy_import": {"editor"},
    "policy_export/json": {"viewer", "editor", "booster", "resetter", "giver"},
    "policy_boost": {"booster"},
    "policy_change/1": {"viewer", "editor", "booster", "resetter", "giver"},
    "policy_delete/1": {"editor"},
    "resource_changelist": {"viewer"},
    "resource_add": set(),
    "resource_import": set(),
    "entity_changelist": {"viewer"},
    "entity_import": set(),
    "endpoint_changelist": set(),
    "pool_changelist": set(),
    "auditevent_changelist": {"viewer"},
}

ACTIONS: dict[str, tuple[set[str], dict[str, str]]] = {
    "enable_policies": ({"editor"}, {}),
    "shadow_policies": ({"editor"}, {}),
    "disable_policies": ({"editor"}, {}),
    "delete_selected": ({"editor"}, {"post": "yes"}),
    "boost_entities": ({"booster"}, {"factor": "2"}),
    "reset_state": ({"resetter"}, {}),
    "top_up_state": ({"giver"}, {"key": "tpm", "amount": "1"}),
}


@pytest.fixture
def policy() -> Policy:
    return limits.set_entity_limits("user:1", [TPM], resource="api", enforcement="enforce")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_staff_sees_its_pages_and_no_others(kind: str, visitor: Any, policy: Policy) -> None:
    client: Client = visitor(*KINDS[kind])
    seen = set()
    for page in PAGES:
        name, *rest = page.split("/")
        arguments = [policy.pk if one == "1" else one for one in rest]
        status = client.get(address(name, *arguments)).status_code
        assert status in {200, 403}, page
        if status == 200:
            seen.add(page)
    assert seen == {page for page, kinds in PAGES.items() if kind in kinds}


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
def test_each_kind_of_staff_is_offered_what_it_may_do(kind: str, visitor: Any, policy: Policy) -> None:
    page = visitor(*KINDS[kind]).get(address("policy_changelist")).content.decode()
    offered = {action for action in ACTIONS if f'value="{action}"' in page}
    assert offered == {action for action, (kinds, _says) in ACTIONS.items() if kind in kinds}
    assert (address("policy_boost") in page) is (kind == "booster")
    assert (address("policy_import") in page) is (kind == "editor")


@pytest.mark.parametrize("page", ["policy_changelist", "policy_boost", "policy_import", "policy_process_import"])
def test_strangers_are_sent_to_the_door(page: str, client: Client) -> None:
    for answer in (client.get(address(page)), client.post(address(page))):
        assert answer.status_code == 302
        assert "/admin/login/" in answer.headers["location"]


def test_who_may_not_import_cannot_confirm_an_import_either(visitor: Any, policy: Policy) -> None:
    assert visitor("view_policy").post(address("policy_process_import"), {}).status_code == 403


def test_who_may_only_grant_boosts_is_led_there_and_told_what_is_missing(visitor: Any, policy: Policy) -> None:
    limits.set_system_limits([TPM])
    client: Client = visitor("boost_policy")
    index = client.get("/admin/").content.decode()
    assert "permission to view or edit anything" not in index
    assert address("policy_changelist") not in index
    granting = client.get("/admin/limits_app/").content.decode()
    assert address("policy_boost") in granting
    page = client.get(address("policy_boost")).content.decode()
    assert "you need the permission to view resources" in page
    assert address("policy_changelist") not in page
    until = f"{timezone.now() + timedelta(days=1):%Y-%m-%dT%H:%M}"
    says = {"entity": "user:9", "factor": "2", "until": until, "reason": "a test"}
    done = client.post(address("policy_boost"), says)
    assert (done.status_code, done.headers["location"]) == (302, "/admin/limits_app/")
    for more in ("view_resource", "change_resource"):
        page = visitor("boost_policy", more).get(address("policy_boost")).content.decode()
        assert "you need the permission to view resources" not in page


@pytest.mark.django_db
def test_permissions_are_only_about_what_has_pages() -> None:
    given = Permission.objects.filter(content_type__app_label="limits_app").select_related("content_type")
    about = {permission.content_type.model_class() for permission in given}
    assert Policy in about
    assert about <= set(admin.site._registry)
