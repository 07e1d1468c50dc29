"""Who sees what: each permission opens its addresses in the admin, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.contrib.messages.middleware import MessageMiddleware
from django.core.exceptions import PermissionDenied
from django.test import Client
from django.urls import resolve, reverse
from django.utils import timezone
from rest_framework.test import APIRequestFactory

from limits_app import limits
from limits_app.admin.menu import MENU
from limits_app.engine.limits import RateLimit
from limits_app.models import (
    Alert,
    AlertRule,
    AuditEvent,
    Candidate,
    Endpoint,
    Plan,
    Policy,
    Pool,
    PoolMember,
    Price,
    Resource,
)
from tests.flushing import made_once

IN_FILES = ("policy", "resource", "entity", "endpoint")
"""The models that can be imported and exported."""
READING = "{0}_changelist {0}_change {0}_history"
SENT = ("process_import", "preview", "alertrule_test")
"""The addresses to which forms are sent."""


def table() -> Iterator[tuple[str, str]]:
    """What somebody may do, and which addresses that opens."""
    yield "", ""
    for model in IN_FILES:
        explains = " explain client exemptions" if model == "policy" else ""
        reading = f"{READING.format(model)} {model}_export{explains}"
        yield f"view_{model}", reading
        yield f"change_{model}", reading
        yield f"add_{model}", f"{model}_add"
        yield f"delete_{model}", f"{model}_delete"
        more = " entity_block" if model == "entity" else ""
        yield f"add_{model} change_{model}", f"{reading} {model}_add {model}_import {model}_process_import{more}"
    # Members belong to their pool.
    reading = f"{READING.format('pool')} {READING.format('poolmember')}"
    yield "view_pool", reading
    yield "change_pool", f"{reading} poolmember_delete"
    yield "add_pool", "pool_add poolmember_changelist poolmember_add"
    yield "delete_pool", "pool_delete"
    yield "view_poolmember add_poolmember change_poolmember delete_poolmember", ""
    rules = f"{READING.format('alertrule')}"
    yield "view_alertrule", rules
    yield "change_alertrule", f"{rules} alertrule_test"
    yield "add_alertrule", "alertrule_add"
    yield "delete_alertrule", "alertrule_delete"
    yield "view_alert", READING.format("alert")
    reading = READING.format("plan")
    yield "view_plan", reading
    yield "change_plan", reading
    yield "add_plan", "plan_add"
    yield "delete_plan", "plan_delete"
    reading = READING.format("price")
    yield "view_price", reading
    yield "change_price", reading
    yield "add_price", "price_add price_table"
    yield "delete_price", "price_delete"
    yield "add_policy add_resource add_endpoint", "policy_add resource_add endpoint_add limit"
    events = READING.format("auditevent")
    yield "view_auditevent", events
    yield "view_auditevent revert_auditevent", events
    yield "view_auditevent revert_auditevent delete_resource", f"{events} auditevent_revert resource_delete"
    yield "add_auditevent change_auditevent delete_auditevent", ""
    usage = "overview_changelist denial_changelist usagesnapshot_changelist live live_state"
    yield "view_usagesnapshot", usage
    yield "view_usagesnapshot add_policy", f"{usage} policy_add preview"
    yield "boost_policy", "policy_boost explain client exemptions"
    candidates = READING.format("candidate")
    yield "view_candidate", candidates
    yield "add_candidate", "candidate_add"
    yield "delete_candidate", "candidate_delete"
    decisions = "candidate_promote candidate_discard candidate_revert"
    policies = f"{READING.format('policy')} policy_export explain client exemptions"
    yield "change_candidate change_policy", f"{candidates} {policies} {decisions}"
    yield "view_emergencyswitch", "emergencyswitch_changelist"
    yield "change_emergencyswitch", "emergencyswitch_changelist"
    yield "reset_resource top_up_resource", ""
    yield "erase_entity", "entity_erase"
    yield "block_entity register_entity", "entity_block"


def addresses() -> Iterator[tuple[str, str]]:
    """Everything that the app has in the admin, by its name, about the first row of each model."""
    for model, model_admin in admin.site._registry.items():
        if model._meta.app_label == "limits_app":
            number = model._default_manager.order_by("pk").values_list("pk", flat=True).first()
            values = {"object_id": number, "kind": "json"}
            for pattern in model_admin.urls:
                if pattern.name is not None:  # others lead to those that have one
                    arguments = {name: values[name] for name in pattern.pattern.converters}
                    yield pattern.name.removeprefix("limits_app_"), reverse(f"admin:{pattern.name}", kwargs=arguments)


def is_open(user: User, name: str, address: str) -> bool:
    """Whether the view of an address lets a user in; one to which forms are sent is sent an empty one."""
    requests = APIRequestFactory()
    request = (requests.post if name.endswith(SENT) else requests.get)(address)
    request.user = user
    view, arguments, named = resolve(address)
    answer: Any = MessageMiddleware(lambda request: view(request, *arguments, **named))
    try:
        answered = answer(request).status_code
    except PermissionDenied:
        return False
    assert answered in {200, 302, 405}, (name, answered)
    return True


@pytest.fixture(autouse=True)
def rows(db: None, settings: Any) -> None:
    """One row of each model; the first event is that of a resource. Views need no session to say something."""
    settings.MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"
    made_once("permission matrix", make_rows)


def make_rows() -> None:
    limits.set_entity_limits("user:1", [RateLimit("tpm", 1000, 60)], resource="api")
    Endpoint.objects.create(name="e", path="/", resource=Resource.objects.get())
    Plan.objects.create(name="free")
    Candidate.objects.create(policy=Policy.objects.get(), limits="tpm=1/min")
    hour = timezone.make_aware(datetime(2100, 1, 1))  # noqa: DTZ001 - in the time zone of the site
    Price.objects.create(resource="api", unit="tpm", amount=1, currency="usd", valid_from=hour)
    PoolMember.objects.create(pool=Pool.objects.create(name="regions"), name="eu")
    rule = AlertRule.objects.create(name="r", kind="store", target="a@example.com")
    Alert.objects.create(rule=rule, payload={"text": "t"}, created_at=timezone.now())


TABLE = list(table())


@pytest.mark.parametrize(("permissions", "opened"), TABLE, ids=[permissions or "nothing" for permissions, _ in TABLE])
def test_a_permission_opens_its_addresses_and_no_others(permissions: str, opened: str) -> None:
    user = User.objects.create_user("ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions.split()))
    pages = {*opened.split()}
    entries = {
        f"{entry._meta.model_name}_changelist" for entry, tabs in MENU.items() if pages & {one.name for one in tabs}
    }
    assert {name for name, address in addresses() if is_open(user, name, address)} == pages | entries


def test_superusers_may_open_all_pages_except_forbidden_actions(admin_user: User) -> None:
    pages = ((name, address) for name, address in addresses() if not name.endswith("_autocomplete"))  # needs a field
    closed = {name for name, address in pages if not is_open(admin_user, name, address)}
    assert closed == {"alert_add", "alert_delete", "auditevent_add", "auditevent_delete"}


@pytest.mark.parametrize("is_known", [False, True])
def test_users_who_are_not_staff_may_open_no_page(is_known: bool, client: Client) -> None:
    if is_known:
        client.force_login(User.objects.create_user("somebody", is_superuser=True))
    for name, address in addresses():
        for answer in (client.get(address), client.post(address)):
            assert (answer.status_code, "/admin/login/" in answer.headers["location"]) == (302, True), name
    assert not AuditEvent.objects.filter(source="admin").exists()
