"""Every field that takes an identifier either matches patterns, as policies do, or rejects them with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app import checks, conf, limits
from limits_app.engine.errors import InvalidLimit, InvalidRequest
from limits_app.integrations.celery.demand import Demand
from limits_app.integrations.decorators import limited
from limits_app.models import AlertRule, BucketKind, Denial, Endpoint, Entity, Policy, UsageSnapshot
from limits_app.services import limits_file
from tests.api.site import ROOT
from tests.commands.running import run
from tests.flushing import made_once

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

PATTERN = "is a pattern"
SEPARATOR = "A pattern needs one of"
CIDR = "Write the network as “ip:10.0.0.0/8”"
WRONG = [("key*", SEPARATOR), ("ip:10.0.0.1/8", CIDR)]
"""What looks like a pattern, and is none."""
SOON = datetime.now(UTC) + timedelta(days=1)
"""Later than the end of a run of all tests, which begins when this module is imported."""
CLIENTS = ("key:a", "key:b", "user:7", "ip:10.1.2.3", "ip:11.1.2.3")

Field = Callable[[str], object]
"""Sends a value to a field; returns the error that is shown, or else whom it matches."""


def make_limits() -> None:
    limits.set_resource_limits("api", "calls=5/min")
    for name in CLIENTS:
        limits.set_entity_limits(name, "calls=5/min")
        limits.set_entity(f"of {name}", parent=name)


@pytest.fixture
def rows() -> None:
    made_once("pattern fields", make_limits)
    times = {
        "minute": (now := datetime.now(UTC).replace(second=0, microsecond=0)),
        "first": now,
        "last": now,
        "count": 1,
    }
    for name in CLIENTS:
        Denial.objects.create(resource="api", bucket=BucketKind.ENTITY, entity=name, key="call_count", **times)
        start = now.replace(minute=0, hour=0)
        common = {"resource": "api", "bucket": BucketKind.ENTITY, "key": "call_count", "period": "day", "start": start}
        UsageSnapshot.objects.create(**common, entity=name, admitted_milli=1000)


def root() -> User:
    return User.objects.filter(username="root").first() or User.objects.create_superuser("root")


def raised(field: Callable[[str], object]) -> Field:
    def sent(value: str) -> object:
        try:
            return field(value)
        except (InvalidLimit, InvalidRequest) as error:
            return str(error)
        except ValidationError as error:
            return " ".join(error.messages)

    return sent


def api(path: str, key: str, column: str = "") -> Field:
    """A filter of the API, whose results are compared by a column; without one, a parameter."""

    def sent(value: str) -> object:
        client = APIClient()
        client.force_authenticate(root())
        answer = client.get(f"{ROOT}{path}", {"resource": "api", key: value} if not column else {key: value})
        if answer.status_code == 400:
            [error] = answer.data["errors"]
            assert error["parameter"] == key
            return error["detail"]
        assert answer.status_code == 200
        return {one[column] for one in answer.data["results"]}

    return sent


def posted(path: str, **body: Any) -> Field:
    def sent(value: str) -> object:
        client = APIClient()
        client.force_authenticate(root())
        answer = client.post(f"{ROOT}{path}", {"reason": "x", **body, "entity": value}, format="json")
        assert answer.status_code == 400
        return answer.data["errors"][0]["detail"]

    return sent


def page(name: str, **data: Any) -> Field:
    """A page of the admin, to which a reason is sent with a form."""

    def sent(value: str) -> object:
        client = Client()
        client.force_login(root())
        address = reverse(f"admin:limits_app_{name}")
        given = {**data, "entity": value}
        answer = client.post(address, given) if "reason" in data else client.get(address, given)
        assert answer.status_code == 200
        return answer.content.decode().replace("&#x27;", "'")

    return sent


def command(line: str) -> Field:
    return lambda value: run(line.format(value)).err


def of_file(text: str) -> Field:
    def sent(value: str) -> object:
        try:
            content = limits_file.read_content(text.format(value), name="limits.yaml")
            limits_file.apply(content, file="limits.yaml")
        except limits_file.InvalidFile as error:
            return str(error)
        return None

    return sent


REJECTING: dict[str, Field] = {
    "reset": raised(lambda value: limits.reset("api", entity=value)),
    "top-up": raised(lambda value: limits.top_up("api", key="call_count", amount=1, entity=value)),
    "boost": raised(lambda value: limits.boost(value, None, 2, SOON, "x")),
    "boost of limits": raised(lambda value: limits.grant_boost(value, None, ["calls=9/min"], SOON, "x")),
    "erase": raised(limits.erase),
    "entity of a decorator": raised(lambda value: limited("api", entity=value)),
    "entity of a task": raised(lambda value: Demand("api", entity=value)),
    "API: status": api("status/", "entity"),
    "API: explain": api("explain/", "entity"),
    "API: reset": posted("resets/", resource="api"),
    "API: top-up": posted("top-ups/", resource="api", key="call_count", amount=1),
    "API: boost": posted("boosts/", limits=["calls=9/min"], until=SOON.isoformat()),
    "command: check": command("check api --entity '{}'"),
    "command: explain": command("explain api --entity '{}'"),
    "command: status": command("status api --entity '{}'"),
    "command: reset": command("reset api --yes --entity '{}'"),
    "command: boost": command("boost '{}' calls=9/min --for 2h --reason x"),
    "command: erase": command("erase '{}' --yes"),
    "admin: effective limits": page("explain", resource="api"),
    "admin: erase": page("entity_erase", reason="x"),
    "admin: boost": page("policy_boost", whom="entity", factor="2", until=f"{SOON:%Y-%m-%dT%H:%M}", reason="x"),
}


@pytest.mark.parametrize("name", REJECTING)
@pytest.mark.parametrize(("value", "error"), [("key:*", PATTERN), ("ip:10.0.0.0/8", PATTERN), *WRONG])
def test_a_field_for_one_client_rejects_patterns(name: str, value: str, error: str) -> None:
    assert error in str(REJECTING[name](value))


PARENTS: dict[str, Field] = {
    "code": raised(lambda value: limits.set_entity("user:1", parent=value)),
    "limits file": of_file("version: 1\nentities: {{'{0}': {{}}, 'user:1': {{parent: '{0}'}}}}\n"),
}


@pytest.mark.parametrize("name", PARENTS)
@pytest.mark.parametrize("value", ["key:*", "ip:10.0.0.0/8"])
def test_a_pattern_cannot_be_a_parent(name: str, value: str) -> None:
    assert "pattern cannot be a parent" in str(PARENTS[name](value))
    assert not Entity.objects.filter(parent__isnull=False).exists()


def of_rule(value: str) -> object:
    rule = Endpoint(name="r", path="/", limits="calls=1/min", exempt_entities=value)
    rule.full_clean()
    return None


def of_alert(value: str) -> object:
    AlertRule(name="r", kind="rejections", rejections=1, target="a@example.com", entity=value).full_clean()
    return None


FILTERS: dict[str, Field] = {
    "rejections": raised(lambda value: {one.count.entity for one in limits.rejections(entity=value)}),
    "denials": raised(lambda value: {one.entity for one in limits.denials(entity=value)}),
    "usage": raised(lambda value: {one.entity for one in limits.usage(entity=value, by="entity")}),
    "API: denials": api("denials/", "entity", "entity"),
    "API: policies": api("policies/", "entity", "entity"),
    "API: entities": api("entities/", "identifier", "identifier"),
}
FIELDS: dict[str, Field] = FILTERS | {
    "exempt entities of a rule": raised(of_rule),
    "entity of an alert rule": raised(of_alert),
    "entity of a policy": raised(lambda value: limits.set_entity_limits(value, "calls=1/min")),
    "command: usage": command("usage --entity '{}'"),
    "command: denials": command("denials --entity '{}'"),
    "command: why": command("why '{}'"),
    "admin: rejections": page("denial_changelist"),
    "admin: usage": page("usagesnapshot_changelist"),
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(("value", "error"), WRONG)
def test_field_of_patterns_rejects_invalid_patterns(name: str, value: str, error: str) -> None:
    assert error in str(FIELDS[name](value))


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(
    ("value", "found"),
    [("key:*", {"key:a", "key:b"}), ("ip:10.0.0.0/8", {"ip:10.1.2.3"}), ("user:7", {"user:7"}), ("tenant:*", set())],
)
def test_a_filter_matches_patterns(name: str, value: str, found: set[str], rows: None) -> None:
    assert FILTERS[name](value) == found


def test_a_filter_by_parent_matches_patterns_and_policies_of_a_pattern_are_among_those_that_match(rows: None) -> None:
    assert api("entities/", "parent", "identifier")("key:*") == {"of key:a", "of key:b"}
    assert api("entities/", "parent", "identifier")("ip:10.0.0.0/8") == {"of ip:10.1.2.3"}
    limits.set_entity_limits("key:*", "calls=1/min")
    limits.set_entity_limits("KEY:c", "calls=1/min")
    assert api("policies/", "entity", "entity")("key:*") == {"key:*", "key:a", "key:b"}
    assert Policy.objects.count() == len(CLIENTS) + 3


def test_the_setting_of_exempt_entities(settings: Settings) -> None:
    for value, error in (("key:*", ""), ("ip:10.0.0.0/8", ""), *WRONG):
        settings.LIMITS = settings.LIMITS | {"EXEMPT": {"ENTITIES": [value]}}
        found = [one.msg for one in checks.check_settings() if one.id == conf.EXEMPT.check_id]
        assert (error in found[0]) if error else not found


def test_values_can_be_read_from_a_file(tmp_path: Path) -> None:
    for text in ("endpoints: [{{name: r, path: /, limits: 'calls=1/min', exempt_entities: '{}'}}]",):
        for value, error in WRONG:
            assert error in str(of_file(f"version: 1\n{text}\n")(value))
