"""What a site says to the framework, or of its time, changes nothing that the API says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings
from rest_framework.filters import SearchFilter
from rest_framework.settings import DEFAULTS
from rest_framework.test import APIClient

from limits_app import CallLimit, services
from limits_app.models import AuditEvent, Policy, Resource
from tests.api.other_settings import REST_FRAMEWORK
from tests.api.site import ROOT

pytestmark = pytest.mark.django_db(transaction=True)

SCHEMA = f"{Path(__file__).parent / 'test_schema.py'}::test_the_api_describes_itself_alone_where_it_is_mounted"
LIMIT = {"kind": "call", "capacity": 5, "window_seconds": 60}


@pytest.mark.parametrize("page", ["resources/", "me/", "status/?resource=api", "boosts/"])
def test_anonymous_requests_are_rejected_without_an_anonymous_user(page: str, settings: Settings) -> None:
    settings.REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
    client = APIClient()
    answer = client.post(ROOT + page) if page == "boosts/" else client.get(ROOT + page)
    assert answer.status_code in {401, 403}
    assert answer["Content-Type"] == "application/problem+json"


def test_words_are_searched_for_by_the_parameter_of_the_api(root: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SearchFilter, "search_param", "q")
    for name in ("one", "two"):
        Resource.objects.create(name=name)
    assert [one["name"] for one in root.get(f"{ROOT}resources/?search=tw").data["results"]] == ["two"]
    assert root.get(f"{ROOT}resources/?q=tw").status_code == 400


def test_moments_are_reported_in_full_and_can_be_sent_back(root: APIClient, settings: Settings) -> None:
    settings.REST_FRAMEWORK = {"DATETIME_FORMAT": "%Y-%m-%d %H:%M", "DATETIME_INPUT_FORMATS": ["%d.%m.%Y %H:%M"]}
    ends = {"valid_from": "2027-01-01T10:11:12Z", "valid_until": "2027-01-01T10:11:42Z"}
    made = root.post(f"{ROOT}policies/", {"limits": [LIMIT], **ends}, format="json")
    assert {name: made.data[name] for name in ends} == ends
    where = f"{ROOT}policies/{made.data['id']}/"
    assert root.put(where, made.data, format="json", headers={"If-Match": made["ETag"]}).status_code == 200
    assert datetime.fromisoformat(root.get(f"{ROOT}audit-events/").data["results"][0]["when"]).microsecond > 0


@pytest.fixture(params=["America/New_York", "Europe/Berlin"])
def wall(request: pytest.FixtureRequest, settings: Settings) -> None:
    """Moments without a zone, by the clock of a place."""
    settings.USE_TZ = False
    settings.TIME_ZONE = request.param


@pytest.mark.usefixtures("wall")
def test_a_moment_with_an_offset_is_that_moment_also_where_the_site_has_none(root: APIClient) -> None:
    services.set_resource_limits("api", [CallLimit(1, 60)])
    now = datetime.now(UTC)
    ends = {"valid_from": now - timedelta(minutes=30), "valid_until": now + timedelta(minutes=30)}
    sent: dict[str, Any] = {name: end.isoformat() for name, end in ends.items()}
    made = root.post(f"{ROOT}policies/", {"resource": "api", "effect": "blocked", **sent}, format="json")
    assert {name: datetime.fromisoformat(made.data[name]) for name in ends} == ends
    assert not services.try_acquire("api")
    boost = {"entity": "u", "resource": "api", "limits": [LIMIT], "until": sent["valid_until"], "reason": "x"}
    granted = root.post(f"{ROOT}boosts/", boost, format="json")
    assert datetime.fromisoformat(granted.data["valid_until"]) == ends["valid_until"]
    since = (now - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert root.get(f"{ROOT}audit-events/?since={since}").data["count"] == AuditEvent.objects.count() > 0


@pytest.mark.usefixtures("wall")
@pytest.mark.parametrize(
    ("begins", "ends"), [("0001-01-01T00:00:00", "2030-01-01T00:00:00"), ("2026-01-01T00:00:00", "9999-12-31T23:59:59")]
)
def test_a_policy_may_hold_from_or_to_the_end_of_the_calendar(begins: str, ends: str, root: APIClient) -> None:
    sent = {"valid_from": begins, "valid_until": ends, "limits": [LIMIT]}
    made = root.post(f"{ROOT}policies/", sent, format="json")
    assert made.status_code == 201
    assert services.try_acquire("api", entity="u")
    assert services.explain("api").outcome.passed
    assert root.delete(f"{ROOT}policies/{made.data['id']}/", headers={"If-Match": made["ETag"]}).status_code == 204
    assert not Policy.objects.exists()
    assert timezone.is_naive(timezone.now())


@pytest.mark.release
def test_no_view_depends_on_a_setting_of_the_framework_that_the_site_chose() -> None:
    """The tests of the API in another process, since classes read settings of the framework when they are made."""
    changed = {name for name, value in DEFAULTS.items() if REST_FRAMEWORK.get(name, value) != value}
    assert changed == {*DEFAULTS}
    folder = Path(__file__).parent
    files = [str(folder / f"test_{name}.py") for name in ("configuration", "permissions", "reverting", "state")]
    run_with("other_settings", *files, SCHEMA)


def test_the_description_needs_no_schema_class_of_the_site() -> None:
    run_with("bare_settings", SCHEMA, f"{SCHEMA.partition('::')[0]}::test_the_description_is_refused_as_all_else_is")


def run_with(settings: str, *tests: str) -> None:
    """Run tests in another process with the settings in a module of this folder."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-cov", "-p", "no:randomly", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": f"tests.api.{settings}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert re.fullmatch(r"[0-9]+ passed( in .*)?", done.stdout.rstrip().splitlines()[-1].strip("= ")), done.stdout[
        -3000:
    ]
