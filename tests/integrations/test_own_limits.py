"""What users see of their own limits: the page, and the tags for templates."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import HttpRequest
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit, RateLimit, ResourceLimit
from limits_app.integrations.identity import entity_of_key
from limits_app.models import Endpoint, Plan, Resource
from limits_app.services.limit_words import own_limits
from tests.opened import fail_at

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user(settings: Settings) -> User:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}}
    return User.objects.create_user("ann")


def rendered(text: str, request: HttpRequest) -> str:
    return Template("{% load limits %}" + text).render(Context({"request": request}))


def request_of(user: User) -> HttpRequest:
    request = RequestFactory().get("/")
    request.user = user
    return request


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (CallLimit.per_minute(1_000), "1 of 1,000 requests per minute used"),
        (CallLimit(5, window_seconds=90), "1 of 5 requests per 90 seconds used"),
        (RateLimit.per_day("input_tokens", 2_000), "500 of 2,000 input tokens per day used"),
        (QuotaLimit.per_month("credits", 1_000), "500 of 1,000 credits per month used"),
        (CallLimit.per_hour(1), "1 of 1 request per hour used"),
        (ResourceLimit("connections", 4), "1 of 4 connections in use"),
        (ResourceLimit("calls", 4), "1 of 4 requests in use"),
    ],
)
def test_each_kind_of_limit_has_a_sentence(user: User, limit: LimitDefinition, text: str) -> None:
    limits.set_resource_limits("api", [limit])
    requested = {limit.key: 500} if isinstance(limit, RateLimit | QuotaLimit) else None
    acquisition = limits.acquire("api", entity=f"user:{user.pk}", requested=requested)
    page = rendered("{% own_limits_table %}", request_of(user))
    acquisition.cancel()
    assert f"<td>{text}</td>" in page


@pytest.mark.parametrize("resources", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_limits_of_a_user_take_a_constant_number_of_queries(
    user: User, resources: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_entity_limits(f"user:{user.pk}", [RateLimit("tokens", 9, 60)], counted="total")
    for number in range(resources):
        limits.set_resource_limits(f"api{number:02}", [CallLimit(number + 2, 60)])
    request = request_of(user)
    rendered("{% own_limits 'other' as mine %}", request)
    with django_assert_num_queries(4):  # the resources, the limits that code has used, the policies, and the plan
        page = rendered("{% own_limits_table %}", request)
    assert page.count("requests per minute used</td>") == resources
    assert page.count("tokens per minute used</td>") == 1


def test_the_page_needs_a_logged_in_user(user: User) -> None:
    limits.set_resource_limits("api", [CallLimit.per_day(10)])
    limits.set_entity_limits(f"user:{user.pk}", [], resource="reports", effect="blocked")
    limits.set_resource_limits("unused", [], effect="unlimited")
    client = Client()
    assert client.get("/limits/").status_code == 302
    client.force_login(user)
    response = client.get("/limits/")
    page = response.content.decode()
    assert "0 of 10 requests per day used" in page
    assert "Access blocked" in page
    assert "unused" not in page
    assert "no-store" in response["Cache-Control"]


def test_a_template_can_name_resources(user: User) -> None:
    for name in ("api", "reports"):
        limits.set_resource_limits(name, [CallLimit.per_day(10)])
    text = '{% own_limits "api" as mine %}{% for limit in mine %}{{ limit.resource }} {{ limit.percent }}{% endfor %}'
    assert rendered(text, request_of(user)) == "api 0"


def test_an_outage_and_missing_static_files_do_not_fail_the_page(user: User) -> None:
    limits.set_resource_limits("api", [CallLimit.per_day(10)])
    with pytest.MonkeyPatch.context() as monkeypatch:
        fail_at(monkeypatch, "peek", reason="down")
        assert "cannot be shown at the moment" in rendered("{% own_limits_table %}", request_of(user))
        client = Client(headers={"Accept": "application/json"})
        client.force_login(user)
        assert client.get("/limits/").status_code == 503
    with patch.object(StaticFilesStorage, "url", side_effect=ValueError("Missing staticfiles manifest entry")):
        assert rendered("{% limits_stylesheet as url %}{{ url }}", request_of(user)) == "None"


def test_a_user_without_limits_sees_a_note(user: User) -> None:
    assert "You have no limits." in rendered("{% own_limits_table %}", request_of(user))


def rows(user: User) -> list[tuple[str, int]]:
    text = "{% own_limits as mine %}{% for limit in mine %}{{ limit.name }}={{ limit.percent }};{% endfor %}"
    pairs = (part.split("=") for part in rendered(text, request_of(user)).split(";") if part)
    return [(name, int(percent)) for name, percent in pairs]


def test_blocked_resources_and_used_limits_are_first(user: User) -> None:
    for name, used in (("a", 1), ("b", 4), ("c", 2)):
        limits.set_resource_limits(name, [CallLimit.per_day(4)])
        for _ in range(used):
            limits.acquire(name, entity=f"user:{user.pk}").release()
    limits.set_entity_limits(f"user:{user.pk}", [], resource="d", effect="blocked")
    assert rows(user) == [("d", 0), ("b", 100), ("c", 50), ("a", 25)]


def test_a_resource_of_a_url_rule_is_named_by_its_path(user: User) -> None:
    Endpoint.objects.create(name="r", path="/reports/", limits="5/min", counted_by="entity")
    assert rows(user) == [("/reports/", 0)]
    [named] = Resource.objects.values_list("name", flat=True)
    text = f'{{% own_limits "{named}" as mine %}}{{{{ mine.0.name }}}} {{{{ mine.0.resource }}}}'
    assert rendered(text, request_of(user)) == f"/reports/ {named}"


def test_a_used_limit_shows_its_reset(user: User) -> None:
    limits.set_resource_limits("api", [CallLimit.per_hour(4), QuotaLimit.per_month("credits", 10)])
    entity = f"user:{user.pk}"
    assert all(limit.resets_at is None for limit in own_limits(entity))
    limits.acquire("api", entity=entity, requested={"credits": 5}).release()
    now = timezone.now()
    ends = {limit.unit: limit.resets_at for limit in own_limits(entity)}
    assert ends.keys() == {"requests", "credits"}
    assert timedelta(minutes=10) < ends["requests"] - now <= timedelta(hours=2)
    assert timedelta(0) < ends["credits"] - now <= timedelta(days=31)


@pytest.mark.parametrize("by_row", [True, False])
def test_the_plan_is_shown_and_its_limits_apply(by_row: bool, user: User, settings: Settings) -> None:
    Plan.objects.create(name="gold")
    limits.set_resource_limits("api", [CallLimit.per_day(4)])
    limits.set_plan_limits("gold", [CallLimit.per_day(9)], resource="api")
    if by_row:
        limits.set_entity(f"user:{user.pk}", plan="gold")
    else:
        settings.LIMITS = {**settings.LIMITS, "PLAN_OF_REQUEST": lambda request: "gold"}
    page = rendered("{% own_limits_table %}", request_of(user))
    assert "<strong>gold</strong>" in page
    assert "0 of 9 requests per day used" in page


def test_a_client_gets_its_limits_as_json_by_session_or_by_key(user: User, settings: Settings) -> None:
    settings.LIMITS = {
        **settings.LIMITS,
        "API_KEY_OF_REQUEST": lambda request: {"good": "secret"}.get(request.headers.get("X-Key", "")),
    }
    limits.set_resource_limits("api", [CallLimit.per_day(10)])
    limits.acquire("api", entity=entity_of_key("secret")).release()
    client, accept = Client(), {"Accept": "application/json"}
    for headers in (accept, {**accept, "X-Key": "bad"}):
        assert client.get("/limits/", headers=headers).status_code == 401
    assert client.get("/limits/", headers={"X-Key": "bad"}).status_code == 302
    by_key = client.get("/limits/", headers={**accept, "X-Key": "good"})
    assert by_key.json()["limits"][0]["text"] == "1 of 10 requests per day used"
    assert "no-store" in by_key["Cache-Control"]
    assert "1 of 10 requests" in client.get("/limits/", headers={"X-Key": "good"}).content.decode()
    client.force_login(user)
    own = client.get("/limits/", headers=accept).json()
    assert (own["plan"], own["limits"][0]["used"], own["limits"][0]["resource"]) == ("", 0, "api")


def test_the_page_wears_the_template_of_the_site(user: User, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "site.html").write_text(
        "<title>{% block title %}{% endblock %}</title>Shop{% block content %}{% endblock %}"
    )
    [engine] = settings.TEMPLATES
    settings.TEMPLATES = [{**engine, "DIRS": [*engine["DIRS"], tmp_path]}]
    settings.LIMITS = {**settings.LIMITS, "BASE_TEMPLATE": "site.html"}
    client = Client()
    client.force_login(user)
    page = client.get("/limits/").content.decode()
    assert "Shop<h1>Your limits</h1>" in page
    assert "<title>Your limits</title>" in page
