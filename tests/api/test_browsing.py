"""The index of the API, its pages for browsers, and the rules for alerts."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from pytest_django import Settings
from rest_framework.test import APIClient

from limits_app.models import AlertRule, AuditEvent, Resource
from tests.api.site import ROOT, as_user, person

BROWSER = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
RULE = {"name": "on-call", "kind": "threshold", "percent": 80, "target": "ops@example.com"}


def test_index_lists_readable_endpoints(root: APIClient) -> None:
    index = root.get(ROOT).json()
    assert {"policies", "alert-rules", "usage", "schema"} <= index.keys()
    for name, url in index.items():
        assert url == f"http://testserver{ROOT}{name}/"
        assert root.get(url).status_code == 200, name
    assert APIClient().get(ROOT).status_code in {401, 403}


@pytest.mark.parametrize("page", ["", "resources/", "policies/", "usage/", "emergency/", "alert-rules/"])
def test_pages_are_shown_to_browsers_without_forms(root: APIClient, page: str, settings: Settings) -> None:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    Resource.objects.create(name="chat", description="<script>alert(1)</script>")
    shown = root.get(ROOT + page, headers=BROWSER)
    text = shown.content.decode()
    assert (shown.status_code, shown["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert ("ETag" in shown, shown["Cache-Control"]) == (False, "no-store")
    assert "<script>alert" not in text
    assert 'name="_content"' not in text
    assert root.get(ROOT + page)["Content-Type"] == "application/json"


@pytest.mark.parametrize("accept", ["*/*", "application/json, text/html", "", "text/plain"])
def test_other_clients_get_json(root: APIClient, accept: str) -> None:
    assert root.get(f"{ROOT}resources/", headers={"Accept": accept})["Content-Type"] == "application/json"


def test_errors_are_problem_details_for_browsers_too(root: APIClient, settings: Settings) -> None:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    for page, status in (("resources/99/", 404), ("resources/?x=1", 400), ("nowhere/", 404)):
        answer = root.get(ROOT + page, headers=BROWSER)
        assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
        assert answer.json()["status"] == status


def test_a_site_without_the_templates_of_the_framework_answers_with_json(root: APIClient) -> None:
    assert root.get(f"{ROOT}resources/", headers=BROWSER)["Content-Type"] == "application/json"


def post(client: APIClient, **fields: Any) -> Any:
    return client.post(f"{ROOT}alert-rules/", RULE | fields, format="json")


def test_a_rule_is_made_changed_and_deleted(root: APIClient) -> None:
    made = post(root, channel="webhook", target="https://example.com/hook", secret="s3cret")
    assert made.status_code == 201
    assert "s3cret" not in made.content.decode()
    url, rule = f"{ROOT}alert-rules/{made.json()['id']}/", AlertRule.objects.get()
    assert (rule.secret, rule.target) == ("s3cret", "https://example.com/hook")
    for body, secret in (({"percent": 90}, "s3cret"), ({"secret": "other"}, "other"), ({"secret": ""}, "")):
        tag = {"If-Match": root.get(url)["ETag"]}
        changed = root.patch(url, body, format="json", headers=tag)
        rule.refresh_from_db()
        expected = 400 if "percent" in body else 200
        assert (changed.status_code, rule.secret) == (expected, secret)
    whole = root.get(url).json() | {"name": "office"}
    put = root.put(url, whole, format="json", headers={"If-Match": root.get(url)["ETag"]})
    assert put.status_code == 200, put.json()["errors"]
    assert root.get(f"{ROOT}alert-rules/?name=office&kind=threshold").json()["count"] == 1
    assert root.delete(url, headers={"If-Match": root.get(url)["ETag"]}).status_code == 204
    assert not AlertRule.objects.exists()
    assert not AuditEvent.objects.filter(object_type="alertrule").exists()


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"percent": 81}, "#/percent"),
        ({"kind": "rejections"}, "#/rejections"),
        ({"target": "nobody"}, "#/target"),
        ({"secret": "x" * 300}, "#/secret"),
        ({"secret": 5 * [1]}, "#/secret"),
        ({"colour": "red"}, "#/colour"),
    ],
)
def test_wrong_rules_are_rejected_where_they_are_wrong(root: APIClient, fields: dict[str, Any], pointer: str) -> None:
    answer = post(root, **fields)
    assert (answer.status_code, [error["pointer"] for error in answer.json()["errors"]]) == (400, [pointer])
    assert not AlertRule.objects.exists()


def test_the_target_is_shown_with_permission_to_change_it(db: None) -> None:
    AlertRule.objects.create(**RULE, secret="s3cret")
    viewer: User = person("viewer")
    viewer.user_permissions.add(Permission.objects.get(codename="view_alertrule"))
    [rule] = as_user(viewer).get(f"{ROOT}alert-rules/").json()["results"]
    assert (rule["name"], rule["target"], "secret" in rule) == ("on-call", "", False)
    assert as_user(person("nobody")).get(f"{ROOT}alert-rules/").status_code == 403
