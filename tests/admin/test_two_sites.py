"""The pages of a second admin site, which has another name and path: each link stays on that site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from html import unescape
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.auth.models import Group, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from limits_app import CallLimit, ResourceLimit, limits
from limits_app.models import AlertRule, AuditEvent, Candidate, Endpoint, Entity, Plan, Policy, Pool, Price, Resource
from tests.admin import two_sites
from tests.flushing import made_once

_HOUR: Final = datetime(2026, 1, 31, 13, tzinfo=UTC)
_SECOND: Final = "/internal/operations/"
_LINK: Final = re.compile(r'\s(?:href|src|action|formaction|data-[a-z-]*url)="([^"]*)"')
_NOT_FOLLOWED: Final = ("logout/", "password_change/", "jsi18n/", "/static/", "autocomplete/", "/auth/group/")
_MOST_PAGES: Final = 300


@pytest.fixture
def client(settings: Settings) -> Client:
    """A superuser who has opened the second site, on which there is a row of each kind."""
    settings.ROOT_URLCONF = "tests.admin.two_sites"
    made_once("two sites", make_rows)
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("root"))
    return client


def make_rows() -> None:
    limits.set_resource_limits("search", [CallLimit(1, 60), ResourceLimit("tokens", 100, 60)], shared=["call_count"])
    limits.set_entity_limits("user:7", [CallLimit(5, 60)], resource="search")
    Plan.objects.create(name="gold")
    Price.objects.create(
        resource="search", unit="tokens_read", amount=Decimal("0.25"), currency="usd", valid_from=_HOUR
    )
    Endpoint.objects.create(name="Orders", path="/orders/", limits="60/min")
    Pool.objects.create(name="regions").members.create(name="west")
    Candidate.objects.create(policy=Policy.objects.earliest("pk"), limits="3/min")
    AlertRule.objects.create(name="outages", kind="store", target="ann@example.org")


def links(response: Any) -> list[str]:
    """The addresses that a page or a redirect names, with those of its widgets."""
    here = response.wsgi_request.get_full_path()
    if "Location" in response:
        return [urljoin(here, response["Location"])]
    if not response["Content-Type"].startswith("text/html"):
        return []
    return [urljoin(here, unescape(link)) for link in _LINK.findall(response.content.decode())]


def leaving(response: Any) -> list[str]:
    """The links to the first site."""
    return [link for link in links(response) if urlsplit(link).path.startswith("/admin/")]


def crawled(client: Client, begin: str) -> Iterator[tuple[str, Any]]:
    """Follow all links; of pages that differ in numbers or in queries only one is opened, with and without a query."""
    waiting, seen = [begin], set[tuple[str, bool]]()
    for address in waiting:
        response = client.get(address)
        yield address, response
        for link in links(response):
            parts = urlsplit(link)
            known = re.sub(r"\d+", "N", parts.path), bool(parts.query)
            if known not in seen and parts.path.startswith(_SECOND) and not any(one in link for one in _NOT_FOLLOWED):
                seen.add(known)
                waiting.append(link)
        assert len(waiting) < _MOST_PAGES


def test_no_page_links_to_the_first_site(client: Client) -> None:
    opened, found = set[str](), list[tuple[str, str]]()
    for address, response in crawled(client, reverse("operations:app_list", args=["limits_app"])):
        assert response.status_code in {200, 301, 302, 405}, address
        opened.add(re.sub(r"\d+", "N", urlsplit(address).path.removeprefix(_SECOND)))
        found += [(address, link) for link in leaving(response)]
    assert found == []
    pages = {
        f"limits_app/{model._meta.model_name}/"
        for model in two_sites.operations._registry
        if model not in {User, Group}
    }
    pages |= {
        f"limits_app/{page}/"
        for page in ("policy/boost", "policy/import", "limitsentry/limit", "clientsentry/client", "entity/block")
    }
    pages |= {"limits_app/auditevent/N/revert/", "limits_app/usagesnapshot/preview/", "auth/user/N/change/"}
    assert pages <= opened


@pytest.mark.parametrize("model", [Policy, Resource, Entity])
def test_no_action_leads_to_the_first_site(client: Client, model: Any) -> None:
    page = two_sites.operations.get_model_admin(model)
    address = reverse(f"operations:limits_app_{model._meta.model_name}_changelist")
    names = [name for name in client.get(address).context["action_form"].fields["action"].choices if name[0]]
    assert len(names) > 2
    row = model._default_manager.earliest("pk")
    data = {ACTION_CHECKBOX_NAME: [row.pk], "reason": "x", "factor": "2", "until": "2099-01-01T00:00"}
    for name, _label in names:
        for more in ({}, {"confirmed": "yes"}):
            response = client.post(address, {**data, "action": name, **more})
            assert response.status_code in {200, 302}, (page, name)
            assert leaving(response) == [], (name, more)


@pytest.mark.parametrize(
    ("name", "args", "data"),
    [
        ("limits_app_emergencyswitch_changelist", [], {"mode": "shadow", "reason": "x", "confirmed": "yes"}),
        ("limits_app_policy_boost", [], {"whom": "entity", "entity": "user:7", "factor": "2", "reason": "x"}),
        ("limits_app_entity_block", [], {"entity": "user:8", "reason": "x"}),
        ("limits_app_entity_erase", [], {"entity": "\0"}),
        ("limits_app_limit", [], {"what": "everything", "who": "user", "text": "5/min"}),
        ("limits_app_limit", [], {"what": "url", "who": "user", "text": "5/min", "_preview": "1"}),
        ("limits_app_candidate_promote", ["Candidate"], {}),
        ("limits_app_candidate_discard", ["Candidate"], {}),
        ("limits_app_auditevent_revert", ["AuditEvent"], {"reason": "x"}),
        ("limits_app_plan_add", [], {"name": "silver"}),
        ("limits_app_plan_add", [], {"name": "silver", "_continue": "1"}),
        ("limits_app_plan_delete", ["Plan"], {"post": "yes"}),
        ("limits_app_preview", [], {"limits-TOTAL_FORMS": "0", "limits-INITIAL_FORMS": "0"}),
    ],
)
def test_no_saved_form_leads_to_the_first_site(
    client: Client, name: str, args: list[str], data: dict[str, str]
) -> None:
    models = {model.__name__: model for model in (AuditEvent, Candidate, Plan)}
    keys = [models[model]._default_manager.latest("pk").pk for model in args]
    response = client.post(reverse(f"operations:{name}", args=keys), data)
    assert response.status_code in {200, 302}
    assert links(response)
    assert leaving(response) == []


def test_no_import_leads_to_the_first_site(client: Client) -> None:
    file = SimpleUploadedFile("rows.csv", b"name\nreports\n")
    preview = client.post(reverse("operations:limits_app_resource_import"), {"import_file": file, "format": "0"})
    confirmed = client.post(
        reverse("operations:limits_app_resource_process_import"), preview.context["confirm_form"].initial
    )
    assert (preview.status_code, confirmed.status_code, leaving(preview), leaving(confirmed)) == (200, 302, [], [])
