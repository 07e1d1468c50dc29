"""The page “Overview”."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, limits
from limits_app.models import BucketKind, Policy
from limits_app.stores.memory import MemoryStore
from tests.admin.pages.snapshots import used
from tests.admin.pages.test_pages import get, words
from tests.opened import put_store
from tests.services.failing import FailingStore

PAGE = "limits_app_overview_changelist"


def test_an_empty_site_shows_the_first_steps(admin_client: Client) -> None:
    response = get(admin_client, PAGE)
    assert "Start here" in words(response)
    for step in ("limits_app_limit", "limits_app_endpoint_add", "limits_app_live"):
        assert f'href="{reverse(f"admin:{step}")}"' in response.content.decode()


def test_rejections_and_tight_limits_and_ending_policies_are_shown(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    soon = datetime.now(UTC) + timedelta(days=2)
    limits.set_resource_limits("api", [CallLimit.per_minute(5)], valid_until=soon, reason="a sale")
    for _ in range(4):
        limits.acquire("api", entity="user:1").release()
    used("api", "user:1", "call_count", 4, refused=9)
    used("api", "", "call_count", 4, refused=3)
    used("api", "eu", "tokens", 4, refused=2, bucket=BucketKind.MEMBER)
    with django_assert_max_num_queries(19):
        response = get(admin_client, PAGE)
    page = words(response)
    assert "Start here" not in page
    assert [(one["name"], one["count"]) for one in response.context["by_limit"]] == [
        ("requests", "12"),
        ("tokens", "2"),
    ]
    assert [one["name"] for one in response.context["by_client"]] == [
        "user:1",
        "No user (whole site)",
        "eu (member of the pool)",
    ]
    assert "4 of 5 used, 1 left" in page
    assert "a sale" in page
    assert f"{reverse('admin:limits_app_entity_block')}?entity=user%3A1" in response.content.decode()


@pytest.mark.parametrize("page", [PAGE, "index"])
def test_boost_of_several_limits_is_one_exception_that_ends_soon(page: str, admin_client: Client) -> None:
    for resource in ("api", "reports"):
        limits.set_resource_limits(resource, [CallLimit.per_minute(4)])
    soon = datetime.now(UTC) + timedelta(days=2)
    limits.boost_each("user:1", 2, soon, "a launch", plan="")
    limits.set_resource_limits("api", [CallLimit.per_minute(9)], valid_until=soon, reason="a launch")
    assert Policy.objects.exclude(valid_until=None).count() > 2
    response = admin_client.get(reverse(f"admin:{page}"))
    shown = response.content.decode()
    assert re.search(r"Exceptions ending soon</a></dt><dd>(\d+)", shown)[1] == "2"  # type: ignore[index]
    overview = get(admin_client, PAGE).content.decode()
    for label, part in (("Exceptions ending soon", "limits-ending"), ("Clients at a limit", "limits-tightest")):
        assert f'<a href="{reverse(f"admin:{PAGE}")}#{part}">{label}</a>' in shown
        assert f'id="{part}"' in overview


def test_warnings_show_disabled_limits_and_unavailable_stores(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_emergency("off", reason="an attack", until=datetime.now(UTC) + timedelta(hours=1))
    limits.set_resource_limits("api", [CallLimit.per_minute(4)])
    used("api", "user:1", "call_count", 1)
    store = FailingStore(MemoryStore())
    put_store(monkeypatch, store)
    store.down = True
    get(admin_client, PAGE)
    page = words(get(admin_client, PAGE))
    assert "All limits are off: nothing is limited. Reason: an attack. Until" in page
    assert "A store is unavailable: current usage is unknown." in page


def test_the_menu_has_six_entries(admin_client: Client) -> None:
    response = admin_client.get(reverse("admin:app_list", args=["limits_app"]))
    names = {model["name"] for model in response.context["app_list"][0]["models"]}
    assert names == {"Overview", "Limits", "Clients", "Activity", "Alerts", "Settings"}
