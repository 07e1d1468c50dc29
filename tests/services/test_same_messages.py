"""The same mistake has the same message in the admin, the REST API, a command, a limits file, an import and in code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client

from limits_app import InvalidLimit, limits
from limits_app.engine.notation import parse_limit
from limits_app.models import Entity, Limit, Policy, Resource
from limits_app.services import limits_file
from limits_app.services.limit_fields import split
from tests.admin.test_exchange import upload
from tests.api.site import ROOT, as_user
from tests.commands.running import run_words

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

RPM: Final = "rpm=1000/min"
MISTAKES: Final = {
    "no limits": ({"limits": []}, "Add at least one limit, or choose the effect “unlimited” or “blocked”."),
    "limits of a block": (
        {"effect": "blocked", "limits": [RPM]},
        "A policy with the effect “blocked” cannot have limits: remove this one, or use “limits”.",
    ),
    "extends without limits": (
        {"effect": "unlimited", "extends": True, "limits": []},
        "A policy that extends a broader one must have the effect “limits”.",
    ),
    "shared by one entity": (
        {"entity": "user:1", "limits": [f"{RPM}:shared"]},
        "Only limits of a resource or of the system can be shared, not those of an entity or of a plan.",
    ),
    "hours": ({"weekly_hours": "never", "limits": [RPM]}, "'never' is not a day: use"),
    "time zone": (
        {"weekly_hours": "sat", "time_zone": "Mars/Olympus", "limits": [RPM]},
        "'Mars/Olympus' is not a time zone: use its IANA name",
    ),
    "an end before the beginning": (
        {"valid_from": "2026-01-02T00:00:00+00:00", "valid_until": "2026-01-01T00:00:00+00:00", "limits": [RPM]},
        "The start must be before the end.",
    ),
}


def by_code(policy: dict[str, Any]) -> str:
    options = {name: value for name, value in policy.items() if name not in {"limits", "resource", "entity"}}
    about = {"resource": "api"} if "entity" in policy else {}
    write = limits.set_entity_limits if "entity" in policy else limits.set_resource_limits
    with pytest.raises(InvalidLimit) as caught:
        write(policy.get("entity", "api"), policy["limits"], **about, **options)  # type: ignore[operator]
    return str(caught.value)


def by_api(policy: dict[str, Any]) -> str:
    answer = as_user(User.objects.get(username="admin")).post(f"{ROOT}policies/", policy, format="json")
    assert answer.status_code == 400
    return " ".join(one["detail"] for one in answer.data["errors"])


def by_command(policy: dict[str, Any]) -> str:
    options = {"valid_from": "--from", "valid_until": "--until", "weekly_hours": "--hours", "time_zone": "--time-zone"}
    scope = ["entity", "set", policy["entity"], "--on", "api"] if "entity" in policy else ["resource", "set", "api"]
    words = [word for name, option in options.items() if name in policy for word in (option, policy[name])]
    effect = [policy["effect"]] if "effect" in policy else []
    extends = ["--extends"] if policy.get("extends") else []
    ran = run_words(*scope, *policy["limits"], *effect, *words, *extends)
    assert ran.code == 2
    return ran.err


def by_file(policy: dict[str, Any]) -> str:
    entities = {"entities": {policy["entity"]: {}}} if "entity" in policy else {}
    with pytest.raises(limits_file.InvalidFile) as caught:
        limits_file.read_content(yaml.safe_dump({**entities, "policies": [policy]}))
    return str(caught.value)


def fields_of(text: str) -> dict[str, Any]:
    """A limit as its fields."""
    noted = parse_limit(text)
    row = Limit.from_definition(Policy(), noted.limit, shared=noted.shared)
    return {name: value for name, value in split(row).items() if value not in {None, "", False}}


def by_import(policy: dict[str, Any]) -> str:
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    texts = [{**fields_of(text), "capacity": 1000, "window_seconds": 60} for text in policy["limits"]]
    row = {"effect": "limits", "extends": False, "weekly_hours": "", "entity": None, "valid_from": None, **policy}
    page = upload(client, "policy", [row | {"limits": json.dumps(texts)}]).content.decode()
    return page.replace("&#x27;", "'")


def by_admin(policy: dict[str, Any]) -> str:
    client = Client()
    client.force_login(User.objects.get(username="admin"))
    parts = [fields_of(text) for text in policy["limits"]]
    form = {
        "resource": Resource.objects.get().pk,
        "effect": "limits",
        "enforcement": "enforce",
        "counted": "each",
        "rollout_percent": 100,
        "limits-TOTAL_FORMS": len(parts),
        "limits-INITIAL_FORMS": 0,
    }
    for name in ("effect", "weekly_hours", "time_zone"):
        form |= {name: policy[name]} if name in policy else {}
    for name in ("valid_from", "valid_until"):
        form |= {f"{name}_0": policy[name][:10], f"{name}_1": "00:00:00"} if name in policy else {}
    if "entity" in policy:
        form["entity"] = Entity.objects.get().pk
    form |= {"extends": "on"} if policy.get("extends") else {}
    for number, part in enumerate(parts):
        form |= {f"limits-{number}-{name}": value for name, value in part.items()}
    return client.post("/admin/limits_app/policy/add/", form).content.decode().replace("&#x27;", "'")


@pytest.mark.parametrize("ask", [by_code, by_api, by_command, by_file, by_import, by_admin])
def test_messages_are_the_same(ask: Callable[[dict[str, Any]], str]) -> None:
    User.objects.create_superuser("admin")
    Resource.objects.create(name="api")
    Entity.objects.create(identifier="user:1")
    for mistake, (policy, message) in MISTAKES.items():
        said = " ".join(ask({"resource": "api", **policy}).split())
        assert message in said, mistake
    assert not Policy.objects.filter(resource__name="api").exists()
