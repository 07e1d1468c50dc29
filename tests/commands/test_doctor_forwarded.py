"""The doctor knows that proxies ask the site about requests to other programs."""

from __future__ import annotations

import pytest
from django.http import HttpRequest, HttpResponse
from django.urls import path
from pytest_django import Settings

from limits_app.integrations.forward_auth import forward_auth
from limits_app.services.doctor import diagnose
from limits_app.services.limits_file import apply, read_content

pytestmark = pytest.mark.django_db


def own(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


PAGE = path("own/", own, name="own")
ASKED = path("limits/", forward_auth)
RULES = """
resources: {api: {}, free: {}}
policies:
  - {resource: api, limits: [calls=1/s, slots=5, "jobs=2"]}
  - {resource: free, limits: [calls=1/s, slots=5]}
endpoints:
  - {name: other, path: /other/*, resource: api}
  - {name: named, view_name: own, resource: free}
"""


def found(settings: Settings, *urls: object) -> dict[str, list[str]]:
    """What the doctor finds about rules for some URLs, by its id."""
    settings.ROOT_URLCONF = urls
    settings.MIDDLEWARE = []
    apply(read_content(RULES))
    messages: dict[str, list[str]] = {}
    for finding in diagnose():
        messages.setdefault(finding.id.removeprefix("limits_app."), []).append(finding.message)
    return messages


def test_rules_that_do_not_apply_to_other_programs_are_found(settings: Settings) -> None:
    does_not = "does not apply to requests about which a proxy asks"
    assert found(settings, PAGE, ASKED).get("D031") == [
        f"the rule 'named' is for a view by its name: it {does_not}",
        f"the limit 'jobs' of the resource 'api' is for requests at the same time: it {does_not}",
        f"the limit 'slots' of the resource 'api' is for requests at the same time: it {does_not}",
    ]


def test_rules_for_other_programs_have_an_effect_without_the_middleware(settings: Settings) -> None:
    findings = found(settings, PAGE, ASKED)
    assert "D024" not in findings
    assert "D019" not in findings


def test_a_site_that_no_proxy_asks_has_neither(settings: Settings) -> None:
    findings = found(settings, PAGE)
    assert "D024" in findings
    assert "D031" not in findings
