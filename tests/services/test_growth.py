"""Growth: what the resolver keeps and asks when there are many of everything."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from threading import Barrier, Event, Thread
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from limits_app import CallLimit, RateLimit, limits
from limits_app.core.errors import InvalidLimit
from limits_app.models import Entity, Limit, Plan, Policy
from limits_app.resolver import cache
from limits_app.resolver.cache import Resolver, resolver
from limits_app.resolver.resolution import resolve
from limits_app.resolver.resolved_set import ResolvedSet
from tests.forking import exit_code_of_child


class SlowResolving:
    """Resolves as ever, but not before a test lets it; counts how often."""

    def __init__(self) -> None:
        self.begun = Event()
        self.may_end = Event()
        self.count = 0

    def __call__(self, *key: Any, **options: Any) -> Any:
        self.count += 1
        self.begun.set()
        assert self.may_end.wait(20)
        return resolve(*key, **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowResolving]:
    """The database takes its time."""
    slow = SlowResolving()
    monkeypatch.setattr(cache, "resolve", slow)
    yield slow
    slow.may_end.set()


def in_threads(number: int, do: Callable[[], object]) -> list[Thread]:
    together = Barrier(number)

    def run() -> None:
        together.wait(20)
        do()
        connection.close()

    threads = [Thread(target=run) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads


def passengers() -> int:
    return sum(frame.f_code is Resolver.get.__code__ for frame in sys._current_frames().values())


def test_threads_that_need_the_same_ask_only_once(slow: SlowResolving) -> None:
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    own, found = Resolver(), []
    threads = in_threads(8, lambda: found.append(own.get(("api", "user:1", (), None))))
    assert slow.begun.wait(20)
    while passengers() < 7:  # the eighth one resolves
        pass
    slow.may_end.set()
    for thread in threads:
        thread.join(20)
    assert slow.count == 1
    assert len(set(map(id, found))) == 1
    assert not own._key_locks


def test_threads_that_need_different_things_do_not_wait_for_each_other(slow: SlowResolving) -> None:
    own = Resolver()
    [thread] = in_threads(1, lambda: own.get(("api", "user:1", (), None)))
    assert slow.begun.wait(20)
    slow.may_end.set()
    assert isinstance(own.get(("api", "user:2", (), None)), ResolvedSet)
    thread.join(20)
    assert slow.count == 2


def test_whoever_finds_out_late_forgets_nothing_that_is_fresh() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    stale = resolver.get(("api", None, (), None))
    resolver.forget(("api", None, (), None), stale)
    fresh = resolver.get(("api", None, (), None))
    resolver.forget(("api", None, (), None), stale)
    assert resolver.cached(("api", None, (), None)) is fresh
    resolver.forget(("api", None, (), None))
    assert resolver.cached(("api", None, (), None)) is None


def test_a_child_does_not_wait_for_key_locks_of_its_parent(slow: SlowResolving) -> None:
    own = Resolver()
    [thread] = in_threads(1, lambda: own.get(("api", None, (), None)))
    assert slow.begun.wait(20)
    assert exit_code_of_child(lambda: len(own._key_locks)) == 0
    slow.may_end.set()
    thread.join(20)


def test_entities_with_nothing_of_their_own_share_what_is_compiled(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 50}
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    own = Resolver()
    layouts = {id(own.get(("api", f"user:{number}", (), None)).limit_set.scoped[0].schema) for number in range(500)}
    assert len(layouts) == 1
    assert own.info().size == 50
    assert not own._key_locks


def test_memory_stays_where_it_was_however_many_entities_come(settings: Settings) -> None:
    # `benchmarks` has the same with a million of them.
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 50}
    limits.set_resource_limits("api", [CallLimit(5, 60), RateLimit("tpm", 1000, 60)])
    own, kept = Resolver(), []
    tracemalloc.start()
    try:
        for number in range(400):
            own.get(("api", f"user:{number}", (), None))
            if number in {99, 399}:
                gc.collect()
                kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[1] - kept[0] < 30_000, "that would be a hundred bytes for each"
    assert kept[1] < 50 * 20_000


@pytest.mark.slow
def test_ten_thousand_patterns_are_one_query_that_searches_by_indexes() -> None:
    plan = Plan.objects.create(name="pro")
    parent = Entity.objects.create(identifier="tenant:1", plan=plan)
    Entity.objects.create(identifier="user:eu-77", parent=parent, cascade=True)
    pattern = Entity.objects.create(identifier="key:0-*")
    copied(pattern, 10_000, identifier="'key:' || number || '-*'")
    copied(Policy.objects.create(entity=pattern), 10_000, entity_id=f"{pattern.pk} + number")
    rows: list[tuple[int, dict[str, Any]]] = [
        (1, {"entity": Entity.objects.create(identifier="user:eu-*")}),
        (2, {"plan": plan, "counted": "total"}),
        (3, {"counted": "total"}),
        (4, {"entity": parent}),
    ]
    for capacity, fields in rows:
        Limit.from_definition(Policy.objects.create(**fields), CallLimit(capacity, 60)).save()
    resolver.clear()
    with CaptureQueriesContext(connection) as queries:
        outcome = limits.check("api", entity="user:eu-77")
    found = {(one.level, one.capacity) for one in (*outcome.passed, *outcome.violations)}
    assert found == {("pattern", 1), ("plan_total", 2), ("system_total", 3), ("entity", 4)}
    [query] = queries.captured_queries
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN QUERY PLAN {query['sql']}")
        steps = [row[3] for row in cursor.fetchall()]
    searched = [step for step in steps if re.match(r"SEARCH [ep] USING .*INDEX", step)]
    assert len(searched) >= 4
    assert not [step for step in steps if re.match(r"SCAN [epln]\b", step)], "rows of policies and entities"


def copied(row: Model, times: int, **columns: str) -> None:
    """Copy a row past Python and the log, which would take all the time; their keys go on from the row's.

    Some columns are what SQL makes of `number`.
    """
    table, key = row._meta.db_table, row._meta.pk.column
    names = [str(field.column) for field in row._meta.concrete_fields if field.column != key]
    values = [columns.get(name, name) for name in names]
    numbers = f"WITH RECURSIVE numbers(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT {times})"  # noqa: S608
    copies = f"SELECT {key} + number, {', '.join(values)} FROM {table}, numbers WHERE {key} = {row.pk}"  # noqa: S608
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} ({key}, {', '.join(names)}) {numbers} {copies}")


@pytest.mark.parametrize("name", [["api"], {}, 5, None])
def test_what_cannot_be_a_name_says_so_and_is_not_kept(name: Any) -> None:
    own = Resolver()
    assert own.cached((name, None, (), None)) is None
    with pytest.raises(InvalidLimit):
        own.get((name, None, (), None))
    assert own.info().size == 0
    assert not own._key_locks
