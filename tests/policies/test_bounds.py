"""What a process keeps of clients and code is bounded, and what was dropped is read again."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries

from limits_app import CallLimit, limits
from limits_app.engine import HOUR
from limits_app.models import CodeLimits, Entity, Policy
from limits_app.policies import AccessTable, access_by_identities, client_resolver, configuration, resolver
from limits_app.policies.access_by_policies import Access
from tests.policies.test_following import capacity, queries, read_all

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("_api")]

LIMIT = CallLimit(1000, HOUR)


@pytest.fixture
def _api() -> None:
    """A limit of 1,000 for each client on a resource, as a process knows it."""
    limits.set_resource_limits("api", [LIMIT])
    read_all()
    capacity()


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_clients_beyond_those_that_are_kept_cost_no_query(rounds: int) -> None:
    names = [f"key:{number}" for number in range(600)]
    for _ in range(rounds):
        assert queries(*names) == 0
    assert capacity(names[0]) == 1000


def test_limits_of_clients_beyond_those_whose_sets_are_kept_are_the_same() -> None:
    names = [f"key:{number}" for number in range(300)]
    for first in range(0, 300, 100):
        some = names[first : first + 100]
        assert [capacity(name) for name in (*some, *some)] == [1000] * 200
    assert queries(*names) == 0
    assert capacity(names[0]) == 1000


@pytest.mark.slow
def test_more_changed_clients_than_are_noted_are_read_again() -> None:
    limits.set_entity_limits("user:own", [CallLimit(500, HOUR)], resource="api")
    assert capacity("user:own") == 500
    before = configuration.current().generation
    for first in range(0, 4200, 60):
        names = [f"key:{number}" for number in range(first, first + 60)]
        Entity.objects.bulk_create([Entity(identifier=name) for name in names])
        capacity("user:own")
    assert configuration.current().generation != before
    assert len(configuration.current().touched) < 4096
    assert [capacity(name) for name in ("user:own", "key:0", "key:4199")] == [500, 1000, 1000]


def test_verdicts_on_more_clients_than_are_kept_are_the_same(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(access_by_identities, "_MOST_KEPT", 3)
    names = [f"user:{number}" for number in range(5)]
    for name in names:
        limits.set_entity_limits(name, [], effect="blocked")
    resolver.get(("api", None, (), None))
    table = AccessTable.read("default")
    for _ in range(2):
        verdicts = [table.verdict([(name, None)]).access for name in (*names, "key:1", "key:2", "key:3", "key:4")]
        assert verdicts == [Access.BLOCKED] * 5 + [Access.LIMITED] * 4
    with django_assert_num_queries(0):
        table.verdict([(names[-1], None)])
    assert table.is_limited(["key:4"])
    assert not table.is_limited(["key:1"])


@pytest.mark.django_db(transaction=True)
def test_verdict_that_was_read_in_a_transaction_is_not_kept_when_it_is_rolled_back() -> None:
    limits.set_entity_limits("user:1", [], effect="blocked")
    resolver.get(("api", None, (), None))
    table = AccessTable.read("default")
    with transaction.atomic():
        Policy.objects.filter(entity__identifier="user:1").delete()
        assert table.verdict([("user:1", None)]).access is Access.LIMITED
        transaction.set_rollback(True)
    assert table.verdict([("user:1", None)]).access is Access.BLOCKED


def test_limits_of_code_beyond_those_that_are_noted_are_all_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_resolver, "_MOST_NOTED", 2)
    names = [f"code-{number}" for number in range(5)]
    for name in [*names, *names]:
        assert limits.try_acquire(name, default_limits=[CallLimit(7, HOUR)])
    assert {row.resource for row in CodeLimits.objects.all()} == {*names}
    assert len(configuration.current().noted) <= 2


def test_limits_of_code_are_written_where_several_clients_are_read() -> None:
    code = (CallLimit(7, HOUR),)
    with CaptureQueriesContext(connection) as captured:
        resolver.prefetch([(name, "user:1", code, None) for name in ("mail", "chat")])
    assert len([query for query in captured if query["sql"].startswith("SELECT")]) >= 1
    assert {row.resource for row in CodeLimits.objects.all()} == {"mail", "chat"}
    acquire = partial(limits.try_acquire, entity="user:1", default_limits=code)
    assert [status.capacity for name in ("mail", "chat") for status in acquire(name).outcome.passed] == [7, 7]
