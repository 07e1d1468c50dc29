"""Who may do what."""

from __future__ import annotations

from typing import Any, Final

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import get_resolver
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import services
from limits_app.api import urls
from limits_app.integrations.identity import entity_of_key
from limits_app.models import AlertRule, AuditEvent, Endpoint, Entity, Plan, Policy, Pool, Price, Resource
from tests.api.site import ROOT, as_user, fill, person

pytestmark = pytest.mark.django_db

MODELS: Final = {
    "resources": Resource,
    "entities": Entity,
    "policies": Policy,
    "pools": Pool,
    "plans": Plan,
    "prices": Price,
    "endpoints": Endpoint,
    "alert-rules": AlertRule,
    "audit-events": AuditEvent,
}
PEOPLE: Final = ["anonymous", "user", "viewer", "changer", "superuser"]
READ: Final = {"viewer", "changer", "superuser"}
CHANGE: Final = {"changer", "superuser"}
ALL: Final = {"superuser"}
NOBODY: Final[set[str]] = set()

TABLE: Final = [
    *[(verb, kind, "list", READ) for verb in ("get", "head") for kind in MODELS],
    *[("get", kind, "row", READ) for kind in MODELS],
    *[(verb, kind, "row", CHANGE) for verb in ("put", "patch") for kind in MODELS if kind != "audit-events"],
    *[("post", kind, "list", ALL) for kind in MODELS if kind != "audit-events"],
    *[("delete", kind, "row", ALL) for kind in MODELS if kind != "audit-events"],
    *[("get", page, "", READ) for page in ("status/?resource=x", "explain/?resource=x", "shadow-refusals/")],
    *[("get", page, "", {"viewer", "superuser"}) for page in ("usage/", "spend/", "denials/")],
    ("get", "candidates/", "", ALL),
    ("post", "candidates/", "", ALL),
    ("get", "emergency/", "", ALL),
    ("put", "emergency/", "", ALL),
    *[("post", page, "", ALL) for page in ("resets/", "top-ups/", "boosts/", "audit-events/0/revert/")],
    *[("get", page, "", {*PEOPLE} - {"anonymous"}) for page in ("", "me/", "schema/")],
]


def somebody(kind: str) -> APIClient:
    names = [model._meta.model_name for model in MODELS.values()]
    match kind:
        case "anonymous":
            return as_user(None)
        case "user":
            return as_user(person("user"))
        case "viewer":
            return as_user(person("viewer", *[f"view_{name}" for name in [*names, "usagesnapshot"]], is_staff=True))
        case "changer":
            views = ["view_policy", "view_auditevent"]
            changes = [f"change_{name}" for name in names if name != "auditevent"]
            return as_user(person("changer", *views, *changes, is_staff=True))
        case _:
            return as_user(person("root", is_superuser=True))


@pytest.mark.parametrize("kind", PEOPLE)
def test_each_verb_needs_its_permission(kind: str) -> None:
    fill([1])
    client = somebody(kind)
    for verb, page, part, allowed in TABLE:
        address = {"list": f"{page}/", "row": f"{page}/{_some(page)}/"}.get(part, page)
        answered = getattr(client, verb)(ROOT + address, format="json")
        refused = answered.status_code in {401, 403}
        assert refused == (kind not in allowed), (verb, address, answered.status_code)
        assert answered.status_code < 500, (verb, address)


def _some(page: str) -> int:
    model: Any = MODELS.get(page, Resource)
    return int(model.objects.values_list("pk", flat=True)[0])


def test_a_request_with_an_api_key_shows_the_limits_of_the_key(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": lambda request: request.headers.get("X-Key")}
    assert Client().get(f"{ROOT}me/").status_code in {401, 403}
    Resource.objects.create(name="api")
    [mine] = Client().get(f"{ROOT}me/", headers={"X-Key": "secret"}).json()["results"]
    assert mine == {"resource": "api", "entity": entity_of_key("secret"), "limits": {}, "usage": {}}
    services.set_plan_limits("pro", ["calls=5/min"])
    settings.LIMITS = settings.LIMITS | {"PLAN_OF_REQUEST": lambda request: "pro"}
    [mine] = Client().get(f"{ROOT}me/", headers={"X-Key": "secret"}).json()["results"]
    assert mine["limits"]["call_count"]["capacity"] == 5


def test_a_change_is_recorded_as_that_of_a_user_or_else_of_the_api_key(settings: Settings) -> None:
    settings.LIMITS = settings.LIMITS | {"API_KEY_OF_REQUEST": lambda request: request.headers.get("X-Key")}
    named, nameless = (person(name, is_superuser=True) for name in ("ann", "bob"))
    nameless.username = ""
    for number, user in enumerate((named, nameless)):
        asked = {"name": f"resource{number}"}
        made = as_user(user).post(f"{ROOT}resources/", asked, format="json", headers={"X-Key": "secret"})
        assert made.status_code == 201
    as_user(nameless).post(f"{ROOT}resources/", {"name": "x"}, format="json")
    actors = AuditEvent.objects.order_by("number").values_list("actor", flat=True)
    assert [*actors] == ["ann", entity_of_key("secret"), ""]


def test_every_address_is_in_the_table() -> None:
    names = {entry.name for part in urls.urlpatterns for entry in part.url_patterns if entry.name}
    assert get_resolver().namespace_dict.keys() >= {"limits_api"}
    known = {"boost", "denial-list", "explain", "me", "reset", "revert", "schema", "shadow-refusal-list", "status"}
    known |= {"candidate-list", "emergency", "index", "spend", "top-up", "usage"}
    known |= {"acquire", "extend", "settle", "renew", "cancel"}
    rows = {f"{model._meta.model_name}-{part}" for model in MODELS.values() for part in ("list", "detail")}
    assert names == known | rows
    assert User.objects.count() == 0
