"""The page “Rejections”, and what it offers about an entity."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.test import Client, RequestFactory
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, limits
from limits_app.admin import LimitsUserAdminMixin
from limits_app.models import AuditEvent, Denial, Entity, Policy
from limits_app.usage import reading
from tests.admin.conftest import Visitor
from tests.admin.pages.test_pages import get, words

PAGE = "limits_app_denial_changelist"


def denied(entity: str = "user:7", *, hours_ago: float = 0, **fields: Any) -> Denial:
    """A rejection."""
    at = datetime.now(UTC) - timedelta(hours=hours_ago)
    minute = at.replace(second=0, microsecond=0)
    whose = {"resource": "api", "key": "call_count", **fields}
    return Denial.objects.create(**whose, entity=entity, minute=minute, count=3, first=at, last=at)


def test_a_rejection_shows_its_reason_and_links_to_the_policy_at_that_time(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    then = AuditEvent.objects.get(object_type="policy")
    denied()
    limits.set_resource_limits("api", [CallLimit.per_minute(500)])
    response = get(admin_client, PAGE)
    page = response.content.decode()
    assert "user:7 reached the limit of 100 requests per minute on api." in words(response)
    assert reverse("admin:limits_app_auditevent_change", args=[then.pk]) in page
    assert f"{reverse('admin:limits_app_explain')}?resource=api&amp;entity=user%3A7" in page
    assert f"{reverse('admin:limits_app_entity_block')}?entity=user%3A7" in page


def test_links_are_those_that_the_user_may_follow(visitor: Visitor) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    denied()
    page = get(visitor("view_usagesnapshot"), PAGE).content.decode()
    assert "reached the limit" in page
    assert not any(f"{place}/" in page for place in ("auditevent", "explain", "block", "limit"))


def test_recent_changes_are_undone_from_the_first_page_of_activity(visitor: Visitor, admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    limits.set_resource_limits("api", [CallLimit.per_minute(5)], reason="by mistake")
    undo = reverse("admin:limits_app_auditevent_revert", args=[AuditEvent.objects.get(reason="by mistake").pk])
    page = get(admin_client, PAGE)
    assert "Each client on api: 100 → 5 requests per minute" in words(page)
    assert undo in page.content.decode()
    assert "Recent changes" not in words(get(admin_client, PAGE, entity="user:7"))
    assert "Recent changes" not in words(get(visitor("view_usagesnapshot"), PAGE))
    may_read = get(visitor("view_usagesnapshot", "view_auditevent"), PAGE)
    assert "Recent changes" in words(may_read)
    assert undo not in may_read.content.decode()


def test_without_events_a_row_links_to_the_policy_as_it_is(admin_client: Client) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    QuerySet(AuditEvent).delete()
    denied()
    policy = reverse("admin:limits_app_policy_change", args=[Policy.objects.get().pk])
    assert policy in get(admin_client, PAGE).content.decode()


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({}, {"now", "early", "literally"}),
        ({"entity": "now"}, {"now"}),
        ({"resource": "api", "key": "call_count", "entity": "early"}, {"early"}),
        ({"resource": "other"}, set()),
        ({"key": "tokens"}, set()),
        ({"key": "requests", "request_id": "0c1d"}, {"early"}),
        ({"key": "requests"}, {"now", "early", "literally"}),
        ({"request_id": "0c1d", "from": "2999-01-01T00:00"}, set()),
        ({"from": "2h"}, None),
        ({"from": "2026-02-30T10:00"}, None),
        ({"to": "0001-01-01T00:00"}, None),
        ({"entity": "a\0"}, None),
    ],
)
def test_rejections_are_filtered_and_bad_times_are_an_error(
    query: dict[str, str], shown: set[str] | None, admin_client: Client
) -> None:
    denied("now")
    denied("early", hours_ago=3, request_ids="77ab 0c1d")
    denied("literally", hours_ago=3, key="requests", resource="named")
    response = get(admin_client, PAGE, **query)
    found = {name for name in ("now", "early", "literally") if f"{name} reached" in words(response)}
    assert ("limits-verdict--unknown" in response.content.decode()) == (shown is None)
    assert found == (shown or set())


@pytest.mark.parametrize("has_zones", [True, False])
def test_the_minute_itself_is_included_and_links_choose_a_time(
    has_zones: bool, admin_client: Client, settings: Settings
) -> None:
    settings.USE_TZ = has_zones
    at = "2026-01-31T10:03"
    minute = datetime(2026, 1, 31, 10, 3, tzinfo=UTC if has_zones else None)
    settings.TIME_ZONE = "UTC"
    row = {"resource": "api", "key": "call_count", "entity": "user:7", "minute": minute, "count": 1}
    Denial.objects.create(**row, first=minute, last=minute)
    assert "user:7 reached" in words(get(admin_client, PAGE, **{"from": at, "to": at}))
    response = get(admin_client, PAGE, **{"from": "2026-01-31T10:04"})
    assert "user:7 reached" not in words(response)
    assert [one["label"] for one in response.context["spans"]] == ["Last hour", "Today", "Yesterday"]


def test_pages_have_a_hundred_rows_and_are_not_counted(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(100)])
    for number in range(101):
        denied(f"user:{number}")
    with django_assert_max_num_queries(12):
        first = get(admin_client, PAGE)
    assert (len(first.context["rows"]), first.context["newer"], first.context["older"]) == (100, 0, 2)
    second = get(admin_client, PAGE, p="2")
    assert (len(second.context["rows"]), second.context["newer"], second.context["older"]) == (1, 1, None)
    assert len(get(admin_client, PAGE, p="x").context["rows"]) == 100


@pytest.mark.parametrize("asked", [{}, {"entity": "user:7"}, {"resource": "api"}])
def test_rejections_are_found_by_an_index(asked: dict[str, str]) -> None:
    found = reading.denied(asked.get("resource"), asked.get("entity"), None, since=None, until=None)
    assert "USING INDEX limits_app_denial" in found.explain() or "USING INDEX sqlite_autoindex" in found.explain()


def test_an_entity_is_blocked_in_two_clicks_and_audited(admin_client: Client) -> None:
    address = reverse("admin:limits_app_entity_block", query={"entity": "user:7", "next": reverse(f"admin:{PAGE}")})
    assert "Block user:7" in words(admin_client.get(address))
    assert not Entity.objects.exists()
    response = admin_client.post(address, {"reason": "abuse"})
    assert response.url == reverse(f"admin:{PAGE}")
    assert Entity.objects.get().blocked
    assert AuditEvent.objects.latest("number").reason == "abuse"


@pytest.mark.parametrize("pattern", ["ip:203.0.113.0/24", "key:trial-*"])
def test_a_network_is_blocked_by_a_policy_that_needs_the_right_to_add_one(
    pattern: str, admin_client: Client, admin_user: User, visitor: Visitor
) -> None:
    address = reverse("admin:limits_app_entity_block", query={"entity": pattern})
    support = visitor("block_entity", "add_entity", "change_entity", "view_entity")
    assert support.post(address, {"reason": "attack"}).status_code == 403
    assert admin_client.post(address, {"reason": "attack"}).status_code == 302
    policy = Policy.objects.get()
    assert (policy.entity.identifier, policy.effect) == (pattern, "blocked")  # type: ignore[union-attr]  # it has one
    event = AuditEvent.objects.filter(object_type="policy").latest("number")
    assert (event.reason, event.actor) == ("attack", admin_user.get_username())
    assert "errorlist" in admin_client.post(address, {"reason": "again"}).content.decode()


def test_a_block_of_the_network_of_its_author_asks_for_confirmation(admin_client: Client) -> None:
    address = reverse("admin:limits_app_entity_block", query={"entity": "ip:127.0.0.0/8"})
    assert "errorlist" in admin_client.post(address, {"reason": "attack"}).content.decode()
    assert not Policy.objects.exists()
    assert admin_client.post(address, {"reason": "attack", "confirm_block": "on"}).status_code == 302
    assert Policy.objects.get().effect == "blocked"


@pytest.mark.parametrize("entity", ["", "a\0", "vip"])
def test_invalid_identifier_to_block_is_a_form_error(entity: str, admin_client: Client) -> None:
    Entity.objects.create(identifier="vip", unlimited=True)
    address = reverse("admin:limits_app_entity_block", query={"entity": entity, "next": "https://example.com/"})
    assert "errorlist" in admin_client.post(address).content.decode()
    assert 'example.com/"' not in admin_client.get(address).content.decode().replace("next=", "")
    assert not Entity.objects.filter(blocked=True).exists()


def test_the_mixin_adds_links_to_the_pages_of_users(admin_user: User) -> None:
    class LimitedUserAdmin(LimitsUserAdminMixin, UserAdmin):  # type: ignore[misc, type-arg]
        pass

    request = RequestFactory().get("/")
    request.user = admin_user
    page = LimitedUserAdmin(User, site)
    assert page.get_list_display(request)[-1] == "limits_links"
    assert "limits_links" in page.get_readonly_fields(request)
    assert page.get_fieldsets(request) == list(UserAdmin(User, site).get_fieldsets(request))
    assert page.get_fieldsets(request, admin_user)[-1][1] == {"fields": ["limits_links"]}
    assert f"block/?entity=user%3A{admin_user.pk}" in page.limits_links(admin_user)
    assert page.limits_links(User()) == "-"
