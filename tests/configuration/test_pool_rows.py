"""Pools as rows: what can be stored, and what the admin makes of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.db.models import ProtectedError
from django.test import Client
from django.urls import reverse

from limits_app.engine.limits import CallLimit
from limits_app.models import AuditEvent, Limit, Policy, Pool, PoolMember, Resource
from tests.configuration.rows import complaint, rate, staff
from tests.opened import VERBS, fail_at

pytestmark = pytest.mark.django_db


@pytest.fixture
def pool() -> Pool:
    return Pool.objects.create(name="bedrock/claude")


@pytest.fixture
def member(pool: Pool) -> PoolMember:
    return PoolMember.objects.create(pool=pool, name="us-east-1/1")


def of_member(member: PoolMember, **fields: Any) -> Limit:
    return rate(None, member=member, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "no name"}, "must be a letter"),
        ({"name": ""}, "This field cannot be blank"),
        ({"load_balancing": "dice"}, "is not a valid choice"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(fields: dict[str, str], said: str) -> None:
    sound = {"name": "other", "load_balancing": "random"}
    assert said in complaint(Pool(**(sound | fields)).full_clean)
    with pytest.raises(IntegrityError), transaction.atomic():
        Pool.objects.create(name="", load_balancing="dice")


def test_no_way_of_writing_makes_a_limit_of_a_member_that_is_no_definition(member: PoolMember) -> None:
    of_member(member).save()
    with pytest.raises(IntegrityError, match="limit key 'a b:c' must be"), transaction.atomic():
        member.limits.all().update(key="a b:c")
    member.limits.all().update(key="sound")
    Pool.objects.update(description="sound too")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weight": 0}, "greater than or equal to 1"),
        ({"weight": 10_001}, "less than or equal to 10000"),
        ({"config": ["a"]}, "Must be a JSON object"),
        ({"config": {"member": "me"}}, "is reserved for the name of the member"),
        ({"config": {"api_key": "sk-123"}}, "Do not store secrets"),
        ({"config": {"auth": [{"x-Access-Key": "sk"}]}}, "Do not store secrets"),
        ({"config": {"tokens": {"password": ["hush"]}}}, "Do not store secrets"),
        ({"config": {"bearer": "sk"}}, "Do not store secrets"),
        ({"config": {"credential": "sk"}}, "Do not store secrets"),
        ({"config": {"sentry_dsn": "https://x"}}, "Do not store secrets"),
        ({"config": {"openai_key": "sk"}}, "Do not store secrets"),
        ({"config": {"account-key": "sk"}}, "Do not store secrets"),
        ({"config": {"pass": "hush"}}, "Do not store secrets"),
        ({"config": {"cookie": "hush"}}, "Do not store secrets"),
        ({"config": {"tokens": ["hush"]}}, "Do not store secrets"),
        ({"config": {"connection_string": "hush"}}, "Do not store secrets"),
        ({"config": {"base_url": "https://user:pass@host/v1"}}, "Do not store secrets"),
        ({"config": {"region": {"env": "no name"}}}, "is not a valid reference"),
        ({"config": {"region": {"setting": 5}}}, "is not a valid reference"),
    ],
)
def test_a_member_that_cannot_be_is_refused(pool: Pool, fields: dict[str, Any], said: str) -> None:
    assert said in complaint(PoolMember(**({"pool": pool, "name": "a"} | fields)).full_clean, *fields)


def test_secrets_may_be_named(pool: Pool) -> None:
    config = {"api_key": {"env": "KEY"}, "auth": [{"token": {"setting": "TOKEN"}}], "max_tokens": 5, "region": "eu"}
    PoolMember(pool=pool, name="a", config=config).full_clean()
    empty = PoolMember(pool=pool, name="b", config=None)
    empty.full_clean()
    assert empty.config == {}


def test_no_way_of_writing_stores_or_logs_a_secret(pool: Pool, member: PoolMember) -> None:
    config = {"api_key": "sk-123"}
    before = AuditEvent.objects.count()
    for write in (
        lambda: PoolMember.objects.create(pool=pool, name="b", config=config),
        lambda: PoolMember.objects.bulk_create([PoolMember(pool=pool, name="b", config=config)]),
        lambda: pool.members.update(config=config),
    ):
        with pytest.raises(IntegrityError, match="config: Do not store secrets"), transaction.atomic():
            write()
    assert AuditEvent.objects.count() == before
    member.refresh_from_db()
    assert member.config != config


def test_names_of_a_pool_are_unique(pool: Pool, member: PoolMember) -> None:
    assert "already" in complaint(PoolMember(pool=pool, name=member.name).full_clean)
    with pytest.raises(IntegrityError), transaction.atomic():
        PoolMember.objects.create(pool=pool, name=member.name)


def test_a_limit_belongs_to_a_policy_or_to_a_member_and_not_to_both(policy: Policy, member: PoolMember) -> None:
    of_member(member).full_clean()
    both = rate(policy, member=member)
    assert "to either a policy or a pool member" in complaint(both.full_clean, "policy")
    for wrong in (both, rate(None), of_member(member, shared=True)):  # type: ignore[arg-type]
        with pytest.raises(IntegrityError), transaction.atomic():
            wrong.save()
    assert "always shared" in complaint(of_member(member, shared=True).full_clean, "shared")
    of_member(member).save()
    assert "already" in complaint(of_member(member).full_clean)


def test_a_definition_becomes_the_row_of_a_member(member: PoolMember) -> None:
    row = Limit.from_definition(member, CallLimit(5, 60))
    assert (row.policy, row.member) == (None, member)
    assert row.definition() == CallLimit(5, 60)


def test_a_pool_that_serves_a_resource_cannot_be_deleted(pool: Pool, member: PoolMember) -> None:
    of_member(member).save()
    resource = Resource.objects.create(name="chat", pool=pool)
    with pytest.raises(ProtectedError):
        pool.delete()
    resource.delete()
    pool.delete()
    assert not Limit.objects.exists()


def pool_form(*members: dict[str, Any], existing: int = 0, **fields: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"name": "chat", "load_balancing": "weighted", "failover": "on"} | fields
    form |= {"members-TOTAL_FORMS": len(members), "members-INITIAL_FORMS": existing}
    for number, member in enumerate(members):
        row = {"order": 1, "weight": 1, "enabled": "on", "config": "{}"} | member
        form |= {f"members-{number}-{name}": value for name, value in row.items()}
    return form


def member_form(*limits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"name": "us-east-1/1", "order": 1, "weight": 2, "enabled": "on", "config": "{}"} | fields
    form |= {"limits-TOTAL_FORMS": len(limits), "limits-INITIAL_FORMS": 0}
    for number, limit in enumerate(limits):
        form |= {f"limits-{number}-{name}": value for name, value in limit.items()}
    return form


def page(name: str, *args: Any) -> str:
    return reverse(f"admin:limits_app_{name}", args=args)


def test_a_pool_is_made_and_changed_with_its_members_and_their_limits(admin_client: Client) -> None:
    config = '{"api_key": {"env": "KEY"}}'
    eu = {"name": "eu", "config": config, "limits_text": "calls=5/min tokens=400k/min"}
    assert 'name="members-2-name"' in admin_client.get(page("pool_add")).content.decode()
    for wrong, said in (
        ({"limits_text": "tokens=x"}, "tokens=x&#x27;"),
        ({"config": '{"api_key": "sk-1"}'}, "Do not store"),
    ):
        assert said in admin_client.post(page("pool_add"), pool_form(eu | wrong)).content.decode()
        assert not Pool.objects.exists()
    assert admin_client.post(page("pool_add"), pool_form(eu, {"name": "us"})).status_code == 302
    [event] = AuditEvent.objects.all()
    assert (event.source, event.object_type) == ("admin", "pool")
    assert event.after["members"][0]["config"] == {"api_key": {"env": "KEY"}}

    first, second = PoolMember.objects.order_by("name")
    limits = {limit.key: limit.pk for limit in first.limits.all()}
    assert limits.keys() == {"call_count", "tokens"}
    change = page("pool_change", first.pool_id)
    assert "calls=5/min tokens=400k/min" in admin_client.get(change).content.decode()
    rows = [{"id": one.pk, "pool": one.pool_id, "name": one.name} for one in (first, second)]
    admin_client.post(change, pool_form(rows[0] | {"limits_text": eu["limits_text"]}, rows[1], existing=2))
    assert {limit.key: limit.pk for limit in first.limits.all()} == limits
    admin_client.post(change, pool_form(rows[0] | {"limits_text": "calls=6/min"}, rows[1], existing=2))
    assert [str(limit) for limit in Limit.objects.all()] == ["calls=6/min"]


def test_a_member_has_a_page_with_its_limits(admin_client: Client, member: PoolMember) -> None:
    limit = {"kind": "rate", "key": "tpm", "capacity": "1000", "window_seconds": "60"}
    response = admin_client.post(page("poolmember_change", member.pk), member_form(limit))
    assert response.status_code == 302
    assert [str(one) for one in member.limits.all()] == ["tpm=1000/min"]
    shown = admin_client.get(page("pool_change", member.pool_id)).content.decode()
    assert "tpm=1000/min</" in shown
    in_use = re.findall(r'class="field-use">\s*<p>(.*?)</p>', shown, re.DOTALL)
    assert [words.strip() for words in in_use if words.strip() not in {"", "-"}] == ["tpm: 0 / 1,000"]
    assert page("poolmember_change", member.pk) in shown
    assert 'name="limits-0-policy"' not in admin_client.get(page("poolmember_change", member.pk)).content.decode()


def test_use_during_an_outage(admin_client: Client, member: PoolMember, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, *VERBS, reason="nobody knows about it")
    shown = admin_client.get(page("pool_change", member.pool_id)).content.decode()
    assert "nobody knows about it" in shown


def test_lists_can_be_shown(admin_client: Client, member: PoolMember) -> None:
    PoolMember.objects.create(pool=member.pool, name="b", enabled=False)
    assert "us-east-1/1, b (off)" in admin_client.get(page("pool_changelist")).content.decode()
    assert admin_client.get(page("poolmember_changelist")).status_code == 200
    assert admin_client.get(page("poolmember_add")).status_code == 200
    Resource.objects.create(name="chat", pool=member.pool)
    assert "bedrock/claude" in admin_client.get(page("resource_changelist")).content.decode()
    assert "/poolmember/" not in admin_client.get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize(("verb", "status"), [("view", 403), ("change", 302), ("", 403)])
def test_permission_to_change_members(client: Client, member: PoolMember, verb: str, status: int) -> None:
    staff(client, f"{verb}_pool")
    assert client.get(page("pool_change", member.pool_id)).status_code == (200 if verb else 403)
    assert client.post(page("poolmember_change", member.pk), member_form()).status_code == status


def test_few_queries_for_a_page(admin_client: Client, pool: Pool, django_assert_max_num_queries: Any) -> None:
    for number in range(20):
        of_member(PoolMember.objects.create(pool=pool, name=f"m{number}")).save()
    admin_client.get(page("pool_change", pool.pk))  # counts that wait in the process are written with it
    with django_assert_max_num_queries(30):
        admin_client.get(page("pool_change", pool.pk))
