"""Verdicts: the index of who may be blocked or exempt, explanations, and the command that lifts blocks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.sql.compiler import SQLCompiler
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import conf, limits
from limits_app.engine.errors import Unresolved
from limits_app.models import Entity, Policy
from limits_app.models.patterns import Patterns
from limits_app.policies import Access, AccessTable, verdict_on
from tests.services.failing import fail_to_read

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def table() -> AccessTable:
    return AccessTable.read("default")


@pytest.mark.release
def test_many_blocked_clients_take_eight_bytes_each_and_others_no_query(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    Entity.objects.bulk_create([Entity(identifier=f"user:{number}", blocked=True) for number in range(20_000)])
    found = table()
    digests = found.index.digests
    assert len(digests) * digests.itemsize == 160_000
    with django_assert_num_queries(0):
        assert found.verdict([("user:x", None), ("ip:192.0.2.1", None)]).access is Access.LIMITED
    with django_assert_num_queries(1):
        verdicts = [found.verdict([("user:7", None)]) for _ in range(3)]
    assert {one.access for one in verdicts} == {Access.BLOCKED}


def test_flags_are_looked_up_in_an_index() -> None:
    limits.set_entity_limits("user:1", "5/min")
    limits.set_entity("user:2", unlimited=True)
    limits.set_entity("user:3", blocked=True)
    limits.set_entity_limits("user:4", [], effect="blocked", resource="api")
    with CaptureQueriesContext(connection) as captured:
        found = table()
    with connection.cursor() as cursor:
        steps = []
        for query in captured.captured_queries:
            cursor.execute("EXPLAIN QUERY PLAN " + query["sql"].replace("%", "%%"))
            steps += [row[-1] for row in cursor.fetchall()]
    assert [step for step in steps if step.startswith("SCAN limits_app_entity") and "INDEX" not in step] == []
    assert [found.index.must_read(f"user:{number}") for number in (1, 2, 3, 4)] == [False, True, True, True]


def test_address_is_blocked_and_exempt_by_the_row_of_its_network(settings: Settings) -> None:
    limits.set_entity("ip:2001:db8::/64", blocked=True)
    limits.set_entity("ip:2001:db8:0:1::/64", unlimited=True)
    identities = ("ip:2001:db8::9", "ip:2001:db8:0:1::9", "ip:2001:db8:0:2::9")
    assert [table().verdict([(name, None)]).access for name in identities] == [
        Access.BLOCKED,
        Access.EXEMPT,
        Access.LIMITED,
    ]
    assert [name in Patterns(["ip:2001:db8::/64"]) for name in identities] == [True, False, False]


def test_nothing_blocked_is_one_query_whose_text_is_made_once(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_entity_limits("user:1", "5/min")
    limits.set_entity_limits("key:*", "5/min")
    assert not table().index
    monkeypatch.setattr(SQLCompiler, "as_sql", None)
    with django_assert_num_queries(1):
        assert not table().index


@pytest.mark.parametrize(
    "identity", ["user:1", "key:a", "ip:10.1.2.3", "team:a", "user:2", "user:3", "ip:10.9.9.9", "tenant:x", "user:eu-1"]
)
def test_index_agrees_with_the_rows_of_one_client(identity: str) -> None:
    above = Entity.objects.create(identifier="tenant:x", blocked=True)
    Entity.objects.create(identifier="team:a", parent=above, cascade=True)
    Entity.objects.create(identifier="user:3", parent=above)
    limits.set_entity_limits("user:2", [], effect="unlimited")
    limits.set_entity_limits("key:*", [], effect="blocked")
    limits.set_entity_limits("user:eu-*", [], effect="unlimited")
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked")
    limits.set_entity_limits("ip:10.9.0.0/16", "5/min")
    assert table().verdict([(identity, None)]).access is verdict_on(identity).access


def test_an_explanation_names_the_blocked_client_and_the_reason() -> None:
    limits.set_resource_limits("api", "5/min")
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked")
    explained = limits.explain("api", entity="ip:10.1.2.3")
    policy = Policy.objects.get(entity__identifier="ip:10.0.0.0/8")
    assert explained.as_dict()["access"] == {
        "verdict": "blocked", "subject": "ip:10.0.0.0/8", "level": "pattern", "policy": policy.pk,
    }  # fmt: skip
    assert "ip:10.0.0.0/8 is blocked on all URLs, by the policy of ip:10.0.0.0/8" in str(explained)
    assert limits.explain("api", entity="ip:11.1.2.3").as_dict()["access"]["verdict"] == "limited"  # type: ignore[index]


def test_the_command_lifts_the_blocks_of_an_entity_and_names_others() -> None:
    Entity.objects.create(identifier="ip:10.1.2.3", blocked=True)
    limits.set_entity_limits("ip:10.1.2.3", [], resource="api", effect="blocked")
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked")
    out, notes = StringIO(), StringIO()
    call_command("limits", "unblock", "ip:10.1.2.3", "--yes", "--reason", "ours", stdout=out, stderr=notes)
    assert "still blocked by ip:10.0.0.0/8" in out.getvalue() + notes.getvalue()
    call_command("limits", "unblock", "ip:10.0.0.0/8", "--yes", stdout=out, stderr=notes)
    assert verdict_on("ip:10.1.2.3").access is Access.LIMITED
    assert not Policy.objects.filter(effect="blocked").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("identities", "access"),
    [
        (["ip:10.1.2.3", "user:5"], Access.BLOCKED),
        (["user:5", "ip:10.1.2.3"], Access.BLOCKED),
        (["ip:192.0.2.1", "team:west-5"], Access.BLOCKED),
        (["ip:192.0.2.1", "user:5"], Access.LIMITED),
        (["ip:192.0.2.1", "key:partner-5"], Access.LIMITED),
        (["ip:172.16.0.1", "user:5"], Access.EXEMPT),
    ],
)
@pytest.mark.parametrize("unresolved", ["allow", "block"])
def test_what_is_known_decides_while_the_database_cannot_be_read(
    identities: list[str], access: Access, unresolved: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    limits.set_entity_limits("ip:10.0.0.0/8", [], effect="blocked")
    limits.set_entity_limits("ip:172.16.0.0/12", [], effect="unlimited")
    limits.set_entity_limits("team:west-*", [], effect="blocked")
    limits.set_entity_limits("key:partner-*", [], effect="unlimited")
    for name in ("user:5", "team:west-5", "key:partner-5"):
        limits.set_entity_limits(name, "5/min", resource="api")
    limits.set_entity_limits("user:5", [], effect="blocked")
    found = table()
    fail_to_read(monkeypatch)
    if unresolved == "block" and access is not Access.BLOCKED:
        with pytest.raises(Unresolved):
            found.verdict([(name, None) for name in identities])
    else:
        assert found.verdict([(name, None) for name in identities]).access is access


@pytest.mark.parametrize("unresolved", ["allow", "block"])
def test_a_system_that_blocks_everything_does_so_while_the_database_cannot_be_read(
    unresolved: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.LIMITS = settings.LIMITS | {"ON_UNRESOLVED": unresolved}
    limits.set_system_limits([], effect="blocked", counted="total")
    Entity.objects.create(identifier="user:5", unlimited=True)
    found = table()
    fail_to_read(monkeypatch)
    assert found.verdict([("user:5", None)]).blocks_everything


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (["staff"], "must be a dict"),
        ({"staff": True}, "does not take 'staff', only 'STAFF'"),
        ({"STAFF": 1}, "STAFF must be True or False"),
        ({"NETWORKS": ["10.0.0.0/33"]}, "NETWORKS must be a list of addresses and networks"),
        ({"GROUPS": "Friends"}, "GROUPS must be a list of names of groups"),
        ({"ENTITIES": [""]}, "ENTITIES must be an identifier"),
    ],
)
def test_an_invalid_setting_is_rejected_with_the_allowed_values(value: Any, said: str, settings: Settings) -> None:
    settings.LIMITS = {"EXEMPT": value}
    problems = [one for one in conf.problems() if one.check_id == "limits_app.E059"]
    assert [said in one.message for one in problems] == [True], json.dumps([one.message for one in problems])
