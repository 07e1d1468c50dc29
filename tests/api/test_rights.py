"""The table of rights: each action takes the same permissions in the admin and in the REST API."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.utils import timezone

import limits_app
from limits_app import limits
from limits_app.api import urls
from limits_app.api.permissions import Permission
from limits_app.models import AlertRule, AuditEvent, Candidate, Entity, Policy
from limits_app.services.rights import RIGHTS, Action
from tests.api.site import ROOT, person
from tests.flushing import made_once

pytestmark = pytest.mark.django_db

ADMIN: Final = "/admin/limits_app/"
SOON: Final = timedelta(hours=1)
Ask = Callable[[Client], Any]


def get(url: str) -> Ask:
    return lambda client: client.get(url)


def form(url: str, **data: Any) -> Ask:
    return lambda client: client.post(ADMIN + url, data)


def act(action: str, *more: str, **data: Any) -> tuple[str, Ask]:
    """An action on the list of entities, for which the user must also be able to see the list."""
    sent = {"action": action, "confirmed": "1", "token": "t", "reason": "x", **data}
    return "view_entity", lambda client: client.post(
        f"{ADMIN}entity/", sent | {"_selected_action": [Entity.objects.get(identifier="user:1").pk]}
    )


def api(page: str, method: str = "POST", **body: Any) -> Ask:
    return lambda client: client.generic(method, ROOT + page, json.dumps(body), content_type="application/json")


def requests() -> dict[Action, list[Ask | tuple[str, Ask]]]:
    """How each action is done, in the admin and in the API; with a permission that only this page needs besides."""
    policy, event = Policy.objects.get(entity=None), AuditEvent.objects.filter(object_type="policy").earliest("number")
    candidate, rule = Candidate.objects.get(), AlertRule.objects.get()
    until = timezone.now() + SOON
    factor = {"factor": "2", "until": f"{until:%Y-%m-%dT%H:%M}"}
    boost = {"whom": "entity", "entity": "user:1", "reason": "x", **factor}
    raised = {"entity": "user:1", "limits": ["calls=9/min"], "until": until.isoformat(), "reason": "x"}
    entity = {"resource": "api", "entity": "user:1", "reason": "x"}
    credit = {"key": "call_count", "amount": 1}
    sentence = {"target": "new", "who": "client", "number_1": "5", "per_1": "min"}
    tried = {"policy": Policy.objects.exclude(entity=None).get().pk, "limits": "calls=1/min"}
    return {
        Action.VIEW_LIMITS: [
            get(f"{ADMIN}clientsentry/effective/?resource=api"),
            get(f"{ADMIN}settingsentry/exemptions/"),
            *[get(f"{ROOT}{page}") for page in ("explain/?resource=api", "status/?resource=api", "shadow-refusals/")],
        ],
        Action.VIEW_USAGE: [
            *[get(f"{ADMIN}{page}/") for page in ("overview", "usagesnapshot", "denial", "activityentry/live")],
            *[get(f"{ROOT}{page}/") for page in ("usage", "denials")],
        ],
        Action.BOOST: [form("policy/boost/", **boost), act("boost_entities", **factor), api("boosts/", **raised)],
        Action.BOOST_POLICIES: [form("policy/boost/", **boost | {"whom": "everybody", "listed": "1"})],
        Action.RESET: [act("reset_state"), api("resets/", **entity)],
        Action.TOP_UP: [
            act("top_up_state", **credit, resource=policy.resource_id),
            api("top-ups/", **entity, **credit),
        ],
        Action.USE_LIMITS: [
            api("acquire/", resource="free"),
            *[api(f"{verb}/", token="no token", amounts={}) for verb in ("extend", "settle", "renew", "cancel")],
        ],
        Action.BLOCK: [form("entity/block/", entity="user:1", reason="x")],
        Action.CREATE_CLIENT: [
            ("block_entity", form("entity/block/", entity="user:76", reason="x")),
            ("boost_policy", form("policy/boost/", **boost | {"entity": "user:76"})),
            ("boost_policy", api("boosts/", **raised | {"entity": "user:76"})),
        ],
        Action.EXEMPT: [("view_policy", form("settingsentry/exemptions/", entity="user:2"))],
        Action.ERASE: [form("entity/erase/", entity="user:1")],
        Action.ERASE_POLICIES: [],  # test_configuration_is_removed_only_with_the_permissions_for_that
        Action.LIMIT_SOMETHING: [form("limitsentry/limit/", **sentence)],
        Action.VIEW_CANDIDATES: [get(f"{ADMIN}candidate/"), get(f"{ROOT}candidates/")],
        Action.SET_CANDIDATE: [
            form("candidate/add/", **tried, percent="50", revert_minutes="10"),
            api("candidates/", **tried, action="set"),
        ],
        Action.DECIDE_CANDIDATE: [
            *[form(f"candidate/{candidate.pk}/{one}/") for one in ("promote", "discard")],
            *[api("candidates/", policy=policy.pk, action=one) for one in ("promote", "discard")],
        ],
        Action.VIEW_EMERGENCY: [get(f"{ADMIN}emergencyswitch/"), get(f"{ROOT}emergency/")],
        Action.SET_EMERGENCY: [
            form("emergencyswitch/", mode="off", reason="x", confirmed="1"),
            api("emergency/", "PUT", mode="off", reason="x", until=None),
        ],
        Action.TEST_ALERT: [form(f"alertrule/{rule.pk}/test/")],
        Action.VIEW_HISTORY: [get(f"{ADMIN}auditevent/"), get(f"{ROOT}audit-events/")],
        Action.REVERT: [
            (f"{verb}_policy", ask)
            for verb, ask in (
                ("delete", form(f"auditevent/{event.pk}/revert/", reason="x", force="on")),
                ("delete", api(f"audit-events/{event.pk}/revert/", force=True)),
            )
        ],
    }  # fmt: skip


@pytest.fixture(autouse=True)
def rows() -> None:
    made_once("rights", make_rows)


def make_rows() -> None:
    policy = limits.set_resource_limits("api", "calls=5/min")
    limits.set_system_limits("calls=5/min")
    Policy.objects.filter(resource=None).delete()
    limits.set_candidate(policy, "calls=3/min")
    limits.set_entity_limits("user:1", "calls=6/min")
    limits.set_entity("user:2")
    AlertRule.objects.create(name="r", kind="store", target="a@example.com")


def outcome(user: User, ask: Ask) -> tuple[bool, bool]:
    """Whether a request is answered without a refusal, and whether it changed something; the change is rolled back."""
    client = Client()
    client.force_login(user)
    with transaction.atomic():
        before = AuditEvent.objects.count()
        response = ask(client)
        has_changed = AuditEvent.objects.count() != before
        transaction.set_rollback(True)
    assert response.status_code < 500
    return response.status_code not in {401, 403}, has_changed


def sufficient(action: Action) -> Iterator[set[str]]:
    """The smallest sets of permissions for an action."""
    needed = RIGHTS[action]
    for one in needed.any_of or (None,):
        yield {*needed.all_of} | ({one} - {None})  # type: ignore[arg-type]


def test_every_action_is_in_the_table_and_has_a_request() -> None:
    assert {*RIGHTS} == {*Action} == {*requests()}


@pytest.mark.parametrize("action", Action, ids=lambda one: one.name)
def test_an_action_takes_its_permissions_in_the_admin_and_in_the_api(action: Action) -> None:
    for number, request in enumerate(requests()[action]):
        besides, ask = request if isinstance(request, tuple) else ("", request)
        more = {besides} - {""}
        changes = outcome(person(f"root{number}", is_staff=True, is_superuser=True), ask)[1]
        for place, needed in enumerate(sufficient(action)):
            staff = person(f"user{number}-{place}", *needed | more, is_staff=True)
            assert outcome(staff, ask) == (True, changes), (number, needed)
            for left_out in needed:
                fewer = needed - {left_out} | more
                staff = person(f"user{number}-{place}-{left_out}", *fewer, is_staff=True)
                is_answered, has_changed = outcome(staff, ask)
                assert not has_changed, (number, fewer)
                assert changes or not is_answered, (number, fewer)


SENT: Final = {"entity": "user:77", "reason": "x"}
BY_SENTENCE: Final = {"target": "new", "number_1": "5", "per_1": "min"}
TO_LIMIT: Final = "add_policy add_resource add_endpoint"


def creating() -> dict[str, tuple[str, Ask]]:
    """The requests that create the row of an entity, and the permissions that they need besides."""
    until = timezone.now() + SOON
    on_page = {"whom": "entity", "factor": "2", "until": f"{until:%Y-%m-%dT%H:%M}"}
    in_api = {"resource": "api", "limits": ["calls=9/min"], "until": until.isoformat()}
    return {
        "a boost on the page": ("boost_policy", form("policy/boost/", **SENT, **on_page)),
        "a boost in the API": ("boost_policy", api("boosts/", **SENT, **in_api)),
        "a block": ("block_entity", form("entity/block/", **SENT)),
        "a limit of one client": (TO_LIMIT, form("limitsentry/limit/", **SENT, **BY_SENTENCE, who="entity")),
        "a limit of each user": (TO_LIMIT, form("limitsentry/limit/", **BY_SENTENCE, who="user")),
    }


@pytest.mark.parametrize("name", creating())
def test_an_entity_is_created_only_with_that_permission(name: str) -> None:
    limits.set_system_limits("calls=5/min")
    permissions, ask = creating()[name]
    assert not outcome(person("ann", *permissions.split(), is_staff=True), ask)[1]
    assert outcome(person("bob", *permissions.split(), "add_entity", is_staff=True), ask) == (True, True)


def test_configuration_is_removed_only_with_the_permissions_for_that(transactional_db: None) -> None:
    needed = RIGHTS[Action.ERASE_POLICIES].all_of
    for number, left_out in enumerate((*needed[1:], "")):
        client = Client()
        client.force_login(person(f"ann{number}", *{*needed} - {left_out}, is_staff=True))
        response = client.post(f"{ADMIN}entity/erase/", {"entity": "user:1", "with_policies": "on", "reason": "x"})
        assert response.status_code == 302
        assert Entity.objects.filter(identifier="user:1").exists() is bool(left_out)


def test_a_candidate_is_replaced_only_with_the_permission_to_delete_it() -> None:
    ask = api("candidates/", policy=Candidate.objects.get().policy_id, action="set", limits="calls=1/min")
    assert outcome(person("ann", "add_candidate"), ask) == (False, False)
    assert outcome(person("bob", "add_candidate", "delete_candidate"), ask) == (True, True)


def test_setting_a_candidate_shows_others_with_view_permission_only() -> None:
    policy = limits.set_entity_limits("user:7", "calls=9/min")
    body = {"policy": policy.pk, "action": "set", "limits": "calls=8/min"}
    everything = {policy.pk, *Candidate.objects.values_list("policy_id", flat=True)}
    for number, (more, seen) in enumerate([((), {policy.pk}), (("view_candidate",), everything)]):
        client = Client()
        client.force_login(person(f"ann{number}", "add_candidate", "delete_candidate", *more))
        answer = client.post(f"{ROOT}candidates/", body, content_type="application/json").json()
        assert {one["policy_id"] for one in answer} == seen
    assert len(everything) > 1


def test_every_view_of_the_api_names_its_rights() -> None:
    for route in (one for part in urls.urlpatterns for one in part.url_patterns):
        view = getattr(route.callback, "cls", None)
        if Permission in getattr(view, "permission_classes", ()):
            assert {one for actions in view.rights.values() for one in actions} <= {*Action}


def test_permissions_are_named_in_the_table_only() -> None:
    package = Path(limits_app.__file__).parent
    pattern = re.compile(
        r"has_perms?\(|perms\.limits_app|limits_app\.(?:add|change|delete|view|boost|reset|top_up|revert)_"
    )
    named = {
        str(file.relative_to(package))
        for kind in ("*.py", "*.html")
        for file in package.rglob(kind)
        if pattern.search(file.read_text())
    }
    assert named == {"services/rights.py"}


def test_the_documentation_has_the_table() -> None:
    text = (Path(limits_app.__file__).parent.parent / "docs" / "security.md").read_text()
    for action, needed in RIGHTS.items():
        names = " and ".join(f"`{one}`" for one in needed.all_of) or " or ".join(f"`{one}`" for one in needed.any_of)
        assert f"| {action} | {names} |" in text
