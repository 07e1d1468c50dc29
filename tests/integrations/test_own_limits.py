"""What users see of their own limits: the page, and the tags for templates."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from django.contrib.auth.models import User
from django.contrib.staticfiles.storage import StaticFilesStorage
from django.http import HttpRequest
from django.template import Context, Template
from django.test import Client, RequestFactory
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import limits
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import CallLimit, LimitDefinition, QuotaLimit, RateLimit, ResourceLimit

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
        (CallLimit(5, window_seconds=90), "1 of 5 requests per 90s used"),
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


@pytest.mark.parametrize("resources", [2, 60])
def test_limits_of_a_user_are_a_few_queries_however_many_resources_there_are(
    user: User, resources: int, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_entity_limits(f"user:{user.pk}", [RateLimit("tokens", 9, 60)], counted="total")
    for number in range(resources):
        limits.set_resource_limits(f"api{number:02}", [CallLimit(number + 2, 60)])
    request = request_of(user)
    rendered("{% own_limits 'other' as mine %}", request)
    with django_assert_num_queries(3):  # the resources, the limits that code has used, and the policies
        page = rendered("{% own_limits_table %}", request)
    assert page.count("requests per minute used</td>") == resources
    assert page.count("tokens per minute used</td>") == 1


def test_the_page_is_for_users_who_are_logged_in(user: User) -> None:
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
    with patch("limits_app.services.limit_words.status_of_each", side_effect=StoreUnavailable("down")):
        assert "cannot be shown at the moment" in rendered("{% own_limits_table %}", request_of(user))
    with patch.object(StaticFilesStorage, "url", side_effect=ValueError("Missing staticfiles manifest entry")):
        assert rendered("{% limits_stylesheet as url %}{{ url }}", request_of(user)) == "None"


def test_a_user_without_limits_is_told_so(user: User) -> None:
    assert "You have no limits." in rendered("{% own_limits_table %}", request_of(user))
