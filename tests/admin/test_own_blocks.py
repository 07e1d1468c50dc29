"""Blocks that also hit their author, or everyone, are saved once they are confirmed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app.audit import acting
from limits_app.models import AuditEvent, Entity, Policy
from tests.admin.browsing import act, address, said
from tests.admin.test_exchange import confirm, upload

pytestmark = pytest.mark.django_db

LIMITS = {"limits-TOTAL_FORMS": "0", "limits-INITIAL_FORMS": "0"}


def own(admin_user: User) -> str:
    return f"user:{admin_user.pk}"


@pytest.mark.parametrize(
    ("identifier", "asks"),
    [
        (own, True), ("user:*", True), ("ip:127.0.0.1", True), ("ip:10.0.0.0/8", True), ("ip:192.0.0.0/2", True),
        ("ip:*", True), ("ip:0.0.0.0/0", True), ("ip:fe80::/10", True), ("ip:203.0.0.0/16", True),
        ("ip:8.8.8.0/24", False), ("key:*", False), ("user:987", False), (None, True),
    ],
)  # fmt: skip
def test_a_policy_that_blocks_its_author_or_all_clients_needs_confirmation(
    identifier: Any, asks: bool, admin_client: Client, admin_user: User, settings: Settings
) -> None:
    settings.LIMITS = settings.LIMITS | {"TRUSTED_PROXIES": ["203.0.113.0/28", "192.168.0.0/16"]}
    name = identifier(admin_user) if callable(identifier) else identifier
    entity = "" if name is None else Entity.objects.create(identifier=name).pk
    counted = "total" if name is None else "each"
    data = {"entity": entity, "counted": counted, "effect": "blocked", "enforcement": "enforce", "rollout_percent": 100}
    path = reverse("admin:limits_app_policy_add")
    assert b"confirm_block" not in admin_client.get(path).content
    response = admin_client.post(path, {**data, **LIMITS, "slice_seconds": 0})
    assert (response.status_code == 200) is asks
    assert Policy.objects.exists() is not asks
    if asks:
        assert "confirm_block" in response.context["adminform"].form.errors
        assert b"confirm_block" in response.content
        response = admin_client.post(path, {**data, **LIMITS, "slice_seconds": 0, "confirm_block": "on"})
        assert (response.status_code, Policy.objects.count()) == (302, 1)


def test_the_pages_of_an_entity_ask_too(admin_client: Client, admin_user: User) -> None:
    row = Entity.objects.create(identifier=own(admin_user))
    data = {"identifier": row.identifier, "blocked": "on", "metadata": "{}"}
    pages = (
        (reverse("admin:limits_app_entity_change", args=[row.pk]), data),
        (f"{reverse('admin:limits_app_entity_block')}?entity={row.identifier}", {"confirmed": "1"}),
    )
    for path, sent in pages:
        assert admin_client.post(path, sent).status_code == 200
        row.refresh_from_db()
        assert not row.blocked
        assert admin_client.post(path, {**sent, "confirm_block": "on"}).status_code == 302
        row.refresh_from_db()
        assert row.blocked
        Entity.objects.filter(pk=row.pk).update(blocked=False)


def test_the_action_that_enforces_blocks_asks_too(admin_client: Client, admin_user: User) -> None:
    policies = [
        Policy.objects.create(entity=Entity.objects.create(identifier=name), effect="blocked", enforcement="shadow")
        for name in ("user:987", own(admin_user))
    ]
    assert b"confirm_block" not in act(admin_client, "enable_policies", policies[0]).content
    assert b"confirm_block" not in act(admin_client, "disable_policies", *policies).content
    assert b"confirm_block" in act(admin_client, "enable_policies", *policies).content
    asked = act(admin_client, "enable_policies", *policies, confirmed="1")
    assert f"This also blocks {own(admin_user)}." in asked.content.decode()
    assert not Policy.objects.filter(enforcement="enforce").exists()
    act(admin_client, "enable_policies", *policies, confirmed="1", confirm_block="on")
    assert Policy.objects.filter(enforcement="enforce").count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_revert_that_blocks_again_asks_too(admin_client: Client) -> None:
    with acting(actor="ann"):
        row = Entity.objects.create(identifier="ip:10.1.2.3", blocked=True)
    with acting(actor="ann"):
        row.blocked = False
        row.save()
    path = reverse("admin:limits_app_auditevent_revert", args=[AuditEvent.objects.order_by("number").last().pk])
    assert b"confirm_block" not in admin_client.get(path).content
    asked = admin_client.post(path, {"reason": "again"})
    assert "This also blocks a private network." in asked.content.decode()
    assert b"confirm_block" in asked.content
    assert not Entity.objects.get().blocked
    assert admin_client.post(path, {"reason": "again", "confirm_block": "on"}).status_code == 302
    assert Entity.objects.get().blocked


@pytest.mark.parametrize(
    ("model", "row"),
    [
        ("entity", {"identifier": "ip:10.0.0.1", "blocked": True, "metadata": "{}"}),
        (
            "policy",
            {
                "resource": "",
                "entity": "ip:10.0.0.1",
                "plan": "",
                "counted": "each",
                "effect": "blocked",
                "enforcement": "enforce",
                "rollout_percent": 100,
                "valid_from": "",
                "weekly_hours": "",
            },
        ),
    ],
)
def test_an_import_asks_too(model: str, row: dict[str, Any], admin_client: Client) -> None:
    if model == "policy":
        Entity.objects.create(identifier="ip:10.0.0.1")
    blocked = Policy.objects.all() if model == "policy" else Entity.objects.all()
    shown = upload(admin_client, model, [row])
    assert "This also blocks a private network." in shown.content.decode()
    form = shown.context["confirm_form"]
    assert form.fields["confirm_block"].required
    refused = confirm(admin_client, model, shown)
    assert "This also blocks" in said(refused)[0]
    assert not blocked.exists()
    shown = upload(admin_client, model, [row])
    done = admin_client.post(
        address(f"{model}_process_import"), {**shown.context["confirm_form"].initial, "confirm_block": "on"}
    )
    assert "Import finished" in said(done)[0]
    assert blocked.count() == 1
    again = upload(admin_client, model, [row])
    assert "confirm_block" not in again.context["confirm_form"].fields  # the block is there already
