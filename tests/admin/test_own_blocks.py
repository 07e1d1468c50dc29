"""Blocks that also hit their author, or everyone, are saved once they are confirmed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app.models import Entity, Policy

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
def test_a_policy_that_blocks_its_author_or_everyone_asks_for_confirmation(
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
