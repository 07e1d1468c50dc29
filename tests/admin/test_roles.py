"""The groups that `manage.py limits roles` makes: each does its tasks in the admin, and no others."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from io import StringIO
from typing import Any, Final

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.core.management import call_command
from django.db import transaction
from django.test import Client

from limits_app import limits
from limits_app.engine.limits import CallLimit
from limits_app.models import AlertRule, AuditEvent, Entity, Plan, Policy
from limits_app.services.roles import Role, make_roles
from tests.admin.browsing import act, address

CLIENT: Final = "user:7"
"""A client without a row."""
OPEN: Final = "user:1"
BLOCKED: Final = "user:2"
SETTINGS: Final = {"name": "", "unlimited": "on", "metadata": "{}"}
Task = Callable[[Client], Any]


def on_client_page(identifier: str = CLIENT, **form: str) -> Task:
    return lambda client: client.post(f"{address('client')}?entity={identifier}", form)


def limit_new(client: Client) -> Any:
    form = {"target": "new", "who": "client", "number_1": "5", "per_1": "min"}
    return client.post(address("limit"), form)


def revert_last(client: Client) -> Any:
    event = AuditEvent.objects.filter(object_type="policy").latest("number")
    return client.post(address("auditevent_revert", event.pk), {"reason": "a mistake"})


VIEWED: Final = ("overview_changelist", "denial_changelist", "usagesnapshot_changelist", "live", "exemptions")
LISTED: Final = ("policy", "resource", "entity", "plan", "endpoint", "candidate", "auditevent", "alert", "alertrule")
TASKS: Final[Mapping[str, tuple[Task, set[Role]]]] = {
    "boost": (
        on_client_page(_boost="1", factor="2", reason="waits for an answer", ends="hour"),
        {Role.SUPPORT, Role.ADMINISTRATOR},
    ),
    "block": (
        lambda client: client.post(address("entity_block"), {"entity": CLIENT, "reason": "an attack"}),
        {Role.SUPPORT, Role.ADMINISTRATOR},
    ),
    "block a client that has a row": (
        lambda client: client.post(address("entity_block"), {"entity": OPEN, "reason": "an attack"}),
        {Role.SUPPORT, Role.ADMINISTRATOR},
    ),
    "block in the list": (
        lambda client: act(
            client, "block_entities", Entity.objects.get(identifier=OPEN), reason="an attack", confirmed="1"
        ),
        {Role.SUPPORT, Role.ADMINISTRATOR},
    ),
    "unblock": (on_client_page(BLOCKED, _unblock="1"), {Role.SUPPORT, Role.ADMINISTRATOR}),
    "plan": (on_client_page(_plan="1", plan="gold"), {Role.ADMINISTRATOR}),
    "plan of a client that has a row": (on_client_page(OPEN, _plan="1", plan="gold"), {Role.ADMINISTRATOR}),
    "a row with a plan and no limits": (
        lambda client: client.post(address("entity_add"), SETTINGS | {"identifier": "user:8"}),
        {Role.ADMINISTRATOR},
    ),
    "all settings of a client": (
        lambda client: client.post(
            address("entity_change", Entity.objects.get(identifier=OPEN).pk), SETTINGS | {"identifier": OPEN}
        ),
        {Role.ADMINISTRATOR},
    ),
    "exempt": (
        lambda client: client.post(address("exemptions"), {"entity": "203.0.113.0/24", "reason": "our office"}),
        {Role.ADMINISTRATOR},
    ),
    "limit": (limit_new, {Role.ADMINISTRATOR}),
    "candidate": (
        lambda client: client.post(
            address("candidate_add"),
            {
                "policy": Policy.objects.earliest("pk").pk,
                "limits": "calls=3/min",
                "percent": "50",
                "revert_minutes": "10",
            },
        ),
        {Role.ADMINISTRATOR},
    ),
    "alert": (
        lambda client: client.post(
            address("alertrule_add"),
            {"name": "near", "kind": "threshold", "percent": "80", "channel": "email", "target": "a@example.org"},
        ),
        {Role.ADMINISTRATOR},
    ),
    "revert": (revert_last, {Role.ADMINISTRATOR}),
    "everything off": (
        lambda client: client.post(
            address("emergencyswitch_changelist"), {"mode": "off", "reason": "an outage", "confirmed": "1"}
        ),
        {Role.ADMINISTRATOR},
    ),
    "delete": (
        lambda client: act(client, "delete_selected", Policy.objects.earliest("pk"), post="yes"),
        {Role.ADMINISTRATOR},
    ),
}


@pytest.fixture
def member() -> Callable[[Role], Client]:
    """Log a member of staff in who has just this role."""
    make_roles()
    limits.set_resource_limits("api", [CallLimit(20, 60)])
    limits.set_resource_limits("api", [CallLimit(10, 60)])
    Plan.objects.create(name="gold")
    limits.set_entity(OPEN)
    limits.set_entity(BLOCKED, blocked=True)

    def log_in(role: Role) -> Client:
        user = User.objects.create_user(role.value, is_staff=True)
        user.groups.add(Group.objects.get(name=role.value))
        client = Client()
        client.force_login(user)
        return client

    return log_in


def changes_of(role: Role) -> int:
    """What a role changed; alert rules are not in the audit log."""
    return AuditEvent.objects.filter(source="admin", actor=role.value).count() + AlertRule.objects.count()


@pytest.mark.parametrize("role", Role)
def test_a_role_does_its_tasks_and_no_others(role: Role, member: Any) -> None:
    client, done = member(role), set()
    for name, (do, _roles) in TASKS.items():
        with transaction.atomic():
            before = changes_of(role)
            do(client)
            if changes_of(role) > before:
                done.add(name)
            transaction.set_rollback(True)
    assert done == {name for name, (_do, roles) in TASKS.items() if role in roles}


@pytest.mark.parametrize("role", Role)
def test_every_role_views_every_page(role: Role, member: Any) -> None:
    client = member(role)
    pages = [*VIEWED, *(f"{name}_changelist" for name in (*LISTED, "emergencyswitch", "pool"))]
    assert [page for page in pages if client.get(address(page)).status_code != 200] == []
    assert client.get(address("client"), {"entity": CLIENT}).status_code == 200
    assert client.get(address("explain"), {"resource": "api", "entity": CLIENT}).status_code == 200


def test_support_may_help_a_client_without_a_row(member: Any) -> None:
    assert not Entity.objects.filter(identifier=CLIENT).exists()
    TASKS["boost"][0](member(Role.SUPPORT))
    assert Policy.objects.filter(entity__identifier=CLIENT, extends=True).exists()


def made(*options: str) -> dict[str, Any]:
    out = StringIO()
    call_command("limits", "roles", "--format", "json", *options, stdout=out, stderr=StringIO())
    return {row["group"]: row for row in json.loads(out.getvalue())}


def test_command_adds_missing_permissions_and_keeps_the_rest() -> None:
    assert made("--dry-run").keys() == {*Role}
    assert not Group.objects.exists()
    made()
    support = Group.objects.get(name=Role.SUPPORT)
    own = Permission.objects.get(codename="view_group")
    support.permissions.add(own)
    support.permissions.remove(Permission.objects.get(codename="boost_policy"))
    again = made()
    assert again[Role.SUPPORT]["added"] == ["boost_policy"]
    assert again[Role.VIEWER]["added"] == []
    assert own in support.permissions.all()
    every = Permission.objects.filter(content_type__app_label="limits_app")
    assert {*Group.objects.get(name=Role.ADMINISTRATOR).permissions.all()} == {*every}
