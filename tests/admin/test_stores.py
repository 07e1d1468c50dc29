"""The store of a resource, as administrators choose it."""

from __future__ import annotations

import re

import pytest
from django.test import Client
from pytest_django import Settings

from limits_app import limits
from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from limits_app.models import AuditEvent, Limit, Pool, PoolMember, Resource
from tests.admin.browsing import address, changelist
from tests.admin.test_exchange import exported, imported, upload

SEVERAL = {"default": {"KIND": "memory"}, "scratch": {"KIND": "memory"}}


@pytest.fixture
def several(settings: Settings) -> None:
    settings.LIMITS = {"STORES": SEVERAL}


def form(client: Client, resource: Resource | None = None) -> str:
    where = address("resource_add") if resource is None else address("resource_change", resource.pk)
    return client.get(where).content.decode()


def offered(page: str) -> list[str]:
    """The stores that a form offers; the one that is chosen has a star."""
    [select] = re.findall(r'<select name="store".*?</select>', page, re.DOTALL)
    options = re.findall(r'<option value="([^"]*)"( selected)?>', select)
    return [value + ("*" if chosen else "") for value, chosen in options]


def test_the_form_has_no_field_for_the_only_store(admin_client: Client) -> None:
    assert 'name="store"' not in form(admin_client)
    admin_client.post(address("resource_add"), {"name": "api", "store": "scratch"})
    assert Resource.objects.get().store == ""
    assert "column-store" not in changelist(admin_client, "resource").content.decode()


@pytest.mark.usefixtures("several")
def test_the_form_explains_the_choice_of_several_stores(admin_client: Client) -> None:
    page = form(admin_client)
    assert offered(page) == ["*", "default", "scratch"]
    assert "the default one (default)" in page
    assert "Changing the store resets all counters" in page
    admin_client.post(address("resource_add"), {"name": "api", "store": "scratch"})
    resource = Resource.objects.get()
    assert resource.store == "scratch"
    assert offered(form(admin_client, resource)) == ["", "default", "scratch*"]
    after = {"name": "api", "description": "", "pool": None, "store": "scratch", "request_priority": ""}
    after |= {"made_for_rule": False}
    assert AuditEvent.objects.get().after == after
    assert 'field-store">scratch' in changelist(admin_client, "resource").content.decode()


def test_a_store_that_is_gone_stays_chosen_until_another_is(admin_client: Client) -> None:
    resource = Resource.objects.create(name="api", store="gone")
    assert offered(form(admin_client, resource)) == ["", "default", "gone*"]
    where = address("resource_change", resource.pk)
    page = admin_client.post(where, {"name": "api", "store": "gone"}).content.decode()
    assert "has no store &#x27;gone&#x27;: choose one of &#x27;default&#x27;" in page
    admin_client.post(where, {"name": "api", "store": ""})
    assert Resource.objects.get().store == ""


@pytest.mark.usefixtures("several")
def test_files_have_the_store(admin_client: Client) -> None:
    Resource.objects.create(name="api", store="scratch")
    assert exported(admin_client, "resource", "csv") == "name,description,pool,store,request_priority\napi,,,scratch,\n"
    imported(admin_client, "resource", [{"name": "api", "store": "default"}])
    assert Resource.objects.get().store == "default"
    shown = upload(admin_client, "resource", [{"name": "api", "store": "gone"}])
    assert "has no store" in shown.content.decode()


@pytest.mark.usefixtures("several")
def test_the_members_of_a_pool_are_shown_as_they_are_used_in_each_store(admin_client: Client) -> None:
    pool = Pool.objects.create(name="regions")
    member = PoolMember.objects.create(pool=pool, name="eu")
    Limit.from_definition(member, CallLimit(5, 60, RateLimitAlgorithm.FIXED_WINDOW)).save()
    Resource.objects.create(name="far", pool=pool, store="scratch")
    limits.acquire("far")
    where = address("pool_change", pool.pk)
    assert "requests: 1 / 5" in admin_client.get(where).content.decode()
    Resource.objects.create(name="near", pool=pool)
    page = admin_client.get(where).content.decode()
    assert "default: requests: 0 / 5; scratch: requests: 1 / 5" in page


@pytest.mark.usefixtures("several")
def test_effective_limits_show_their_store(admin_client: Client) -> None:
    Resource.objects.create(name="api", store="scratch")
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    page = admin_client.get(address("explain"), {"resource": "api"}).content.decode()
    assert "Store: scratch." in page
