"""Limits that were written past validation: requests, pages, exports and the API go on without them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from limits_app import limits
from limits_app.models import Endpoint, Entity, Limit, Policy, Pool, PoolMember, Resource
from limits_app.policies import resolver
from limits_app.services.doctor import diagnose
from limits_app.services.limits_file import export
from tests.admin.browsing import policy_form
from tests.api.site import ROOT

pytestmark = pytest.mark.django_db

INVALID = [{"text": "many"}, {"key": "a b"}, {"text": "5/min:shared"}, {"key": "calls"}, {"text": ""}, {"key": ""}]
STORED = "'call_count'='many'"


def spoil(**fields: str) -> None:
    """Change a limit of two requests per minute past every check, as SQL of a site may."""
    assert QuerySet.update(Limit.objects.filter(key="call_count", text="2/min"), **fields) == 1
    resolver.clear()


def admitted(resource: str, **options: Any) -> int:
    """How many of some requests are allowed."""
    return sum(bool(limits.try_acquire(resource, **options)) for _ in range(9))


@pytest.mark.parametrize("fields", INVALID, ids=str)
def test_broader_limit_applies_in_place_of_an_invalid_one(
    fields: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    limits.set_system_limits("calls=5/d tokens=7/d")
    limits.set_resource_limits("api", "calls=2/min rows=3/d")
    spoil(**fields)
    explained = limits.explain("api", requested={"rows": 1, "tokens": 1})
    passed = {one.key: one.level for one in explained.outcome.passed}
    assert passed == {"call_count": "system", "rows": "resource", "tokens": "system"}
    assert admitted("api", requested={"rows": 0, "tokens": 0}) == 5
    [policy] = Policy.objects.filter(resource__name="api")
    assert f"a limit of policy {policy.pk} is left out: " in caplog.text


def test_limits_of_a_policy_with_an_invalid_one_stay_in_force() -> None:
    limits.set_entity_limits("user:1", "calls=2/min rows=3/d", resource="api")
    spoil(text="2 in a minute")
    assert admitted("api", entity="user:1", requested={"rows": 1}) == 3


def test_member_of_a_pool_with_an_invalid_limit_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool.objects.create(name="regions")
    for name, text in (("east", "2/min"), ("west", "3/d")):
        member = PoolMember.objects.create(pool=pool, name=name)
        Limit.objects.create(member=member, key="call_count", text=text)
    Resource.objects.create(name="chat", pool=pool)
    spoil(text="many")
    chosen = [one.member for _ in range(3) for one in limits.try_acquire("chat").outcome.passed]
    assert chosen == ["west", "west", "west"]
    assert not limits.try_acquire("chat")
    assert "member east of pool regions is not used, because of a limit: " in caplog.text


def test_limits_of_a_url_rule_replace_an_invalid_one() -> None:
    rule = Endpoint.objects.create(name="api", path="/api/", limits="2/min")
    spoil(text="many")
    rule.limits = "3/min"
    rule.save()
    assert [str(one) for one in Limit.objects.all()] == ["calls=3/min"]


@pytest.mark.slow
def test_pages_and_exports_show_stored_limits(admin_client: Client) -> None:
    limits.set_resource_limits("api", "calls=2/min")
    Entity.objects.create(identifier="user:1")
    policy = Policy.objects.get()
    spoil(text="many")
    lists = [reverse(f"admin:limits_app_{name}_changelist") for name in ("policy", "resource", "entity")]
    for page in (*lists, "/admin/limits_app/overview/", "/admin/limits_app/limitsentry/limit/"):
        assert admin_client.get(page, follow=True).status_code == 200, page
    assert STORED in "".join(export()).replace("''", "'")
    [finding] = [one for one in diagnose() if one.id == "limits_app.D030"]
    assert f"policy resource api has the invalid limit {STORED}" in finding.message

    page = admin_client.get(reverse("admin:limits_app_policy_change", args=[policy.pk]))
    assert "The stored limit &#x27;call_count&#x27;=&#x27;many&#x27; is invalid" in page.content.decode()
    row = {"id": Limit.objects.get().pk, "policy": policy.pk, "kind": "call", "key": "call_count"}
    form = policy_form(row, existing=1, resource=policy.resource_id)
    refused = admin_client.post(reverse("admin:limits_app_policy_change", args=[policy.pk]), form)
    assert "This field is required" in refused.content.decode()
    mended = policy_form(row | {"capacity": "4", "window_seconds": "1h"}, existing=1, resource=policy.resource_id)
    assert admin_client.post(reverse("admin:limits_app_policy_change", args=[policy.pk]), mended).status_code == 302
    assert policy.limits.get().text == "4/h:sliding_window"


def test_the_api_shows_an_invalid_limit_with_its_error_and_without_amounts() -> None:
    limits.set_resource_limits("api", "calls=2/min")
    spoil(text="many")
    client = APIClient()
    client.force_authenticate(User.objects.create_superuser("root"))
    where = f"{ROOT}policies/{Policy.objects.get().pk}/"
    shown = client.get(where)
    assert [(one["key"], one["capacity"]) for one in shown.data["limits"]] == [("call_count", None)]
    headers = {"If-Match": shown["ETag"]}
    refused = client.patch(where, {"reason": "x"}, format="json", headers=headers)
    assert refused.status_code == 400
    assert "amount 'many' must be a number" in str(refused.data)
    mended = client.patch(where, {"limits": ["calls=4/h"]}, format="json", headers=headers)
    assert (mended.status_code, Limit.objects.get().text) == (200, "4/h")


def test_database_has_no_columns_but_key_and_text() -> None:
    with connection.cursor() as cursor:
        columns = {one.name for one in connection.introspection.get_table_description(cursor, Limit._meta.db_table)}
    assert columns == {"id", "policy_id", "member_id", "key", "text", "shared"}
