"""Which limits apply, in which store: what is read, when it is read again, and what is kept of many."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
from types import FrameType
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import Model
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoAssertNumQueries, Settings

from limits_app import CallLimit, LimitSet, RateLimit, RateLimitAlgorithm, ResourceLimit, limits, signals
from limits_app.engine.change_log import Change
from limits_app.engine.errors import InvalidLimit, StoreUnavailable
from limits_app.engine.limits import Blocked
from limits_app.engine.locks import RLock
from limits_app.models import Entity, Limit, Plan, Policy
from limits_app.policies import ResolvedSet, advance_version, client_resolver, resolve, resolver
from limits_app.policies.base_resolver import BaseResolver
from limits_app.policies.client_resolver import Resolver
from limits_app.policies.resolution import read_policies
from limits_app.stores import registry
from limits_app.stores.memory import MemoryStore
from limits_app.stores.resilient import ResilientStore
from limits_app.testing import FakeClock
from tests.forking import exit_code_of_child
from tests.opened import put_store


@pytest.mark.parametrize(
    "definition",
    [
        CallLimit(10, 60),
        CallLimit(10**12, 31_622_400, RateLimitAlgorithm.SLIDING_WINDOW),
        RateLimit("tpm", 0.001, 0.001, RateLimitAlgorithm.GCRA, burst=12.5),
        RateLimit("tpm", 999_999_999_999, 1, RateLimitAlgorithm.LEAKY_BUCKET, burst=1),
        RateLimit("tpm", 5, 1.5, RateLimitAlgorithm.FIXED_WINDOW),
        ResourceLimit("db", 3),
        ResourceLimit("db", 3, 0.25),
    ],
)
def test_definition_is_read_as_it_was_set(definition: CallLimit | RateLimit | ResourceLimit) -> None:
    limits.set_resource_limits("api", [definition])
    assert list(limits.limit_set("api")) == [definition]
    assert Limit.objects.get().definition() == definition


def test_a_change_counts_on_the_next_acquire() -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]
    Limit.objects.update(text="5/min")
    assert [bool(limits.try_acquire("api")) for _ in range(5)] == [True] * 4 + [False]


def test_a_transaction_that_is_rolled_back_changes_nothing() -> None:
    limits.set_resource_limits("api", [CallLimit(2, 60)])
    assert limits.try_acquire("api")
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(9, 60)])
        assert [limit.capacity for limit in resolve("api", None).resolved.limit_set] == [9]
        transaction.set_rollback(True)
    assert [bool(limits.try_acquire("api")) for _ in range(2)] == [True, False]


def test_others_see_a_change_only_after_the_commit() -> None:
    limits.set_resource_limits("api", [CallLimit(3, 60)])
    assert limits.try_acquire("api")
    before = registry.store().version()
    with transaction.atomic():
        limits.set_resource_limits("api", [CallLimit(1, 60)])
        assert registry.store().version() == before
    assert registry.store().version() > before


def test_kept_limits_are_bounded(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 10}
    own = Resolver()
    for number in range(100):
        own.get(("api", f"user:{number}", (), None))
    assert own.info() == (0, 100, 10)
    own.get(("api", "user:99", (), None))
    assert own.info() == (1, 100, 10)
    own.get(("api", "user:0", (), None))
    assert own.info() == (1, 101, 10)
    own.clear()
    assert own.info().size == 0
    own.get(("api", "user:0", (), None))
    assert own.info() == (1, 102, 1)


def test_calls_that_bring_limits_of_their_own_each_have_theirs() -> None:
    own, capacities = Resolver(), (1, 2, 1, 2)

    def found(capacity: int) -> int:
        [limit] = own.get(("api", "user:1", (CallLimit(capacity, 60),), None)).limit_set
        return int(limit.ceiling)

    with CaptureQueriesContext(connection) as queries:
        assert tuple(map(found, capacities)) == capacities
    assert sum(Policy._meta.db_table in query["sql"] for query in queries) == 2
    assert own.info() == (2, 2, 2)


def test_a_call_may_bring_a_block() -> None:
    assert not limits.try_acquire("api", default_limits=(Blocked(),))  # type: ignore[arg-type]  # as a rate of 0 does
    assert limits.try_acquire("api")


def test_kept_limits_become_too_old(settings: Settings, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_TTL_SECONDS": 1e-9}
    own = Resolver()
    with django_assert_num_queries(3):
        for _ in range(3):
            own.get(("api", None, (), None))


def test_an_unreachable_store_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(MemoryStore):
        def advance_version(self, changes: Collection[Change] = (), namespace: str = "") -> int:
            raise StoreUnavailable("not now")

    put_store(monkeypatch, Deaf())
    advance_version(using="default")
    [record] = [one for one in caplog.records if "has not received" in one.message]
    assert record.message.endswith("the store 'default' is unavailable: not now")
    assert record.exc_info is None, "one line, also in commands"


def test_the_state_of_entities_with_limits_of_their_own_lasts() -> None:
    def lasting(resource: str, entity: str | None) -> list[bool]:
        return [scoped.lasting for scoped in resolver.get((resource, entity, (), None)).limit_set.scoped]

    limits.set_resource_limits("api", [CallLimit(10, 60)])
    limits.set_entity_limits("vip", [CallLimit(10, 60)], resource="api")
    limits.set_entity_limits("tenant", [CallLimit(10, 60)])
    assert lasting("api", "vip") == [True]
    assert lasting("other", "tenant") == [True]
    assert lasting("api", "anybody") == [False]
    assert lasting("api", None) == [False]


def test_sets_of_mode_process_use_the_store_of_the_site(settings: Settings, tmp_path: Path) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}}, "STATE_DIR": str(tmp_path), "MAP_MEGABYTES": 1}
    gate = LimitSet([CallLimit(1, 60)], shared=True, mode="process")
    assert gate.store is registry.process_store()
    assert [bool(gate.try_acquire()) for _ in range(2)] == [True, False]
    gate.store.close()


def test_other_settings_count_immediately(settings: Settings) -> None:
    settings.LIMITS = {"STORES": {"default": {"KIND": "memory"}, "other": {"KIND": "memory"}}}
    first = _store_of_limits()
    settings.LIMITS = {**settings.LIMITS, "STORE": "other"}
    assert _store_of_limits() is registry.store("other")
    assert first is registry.store("default")


def test_a_lost_lease_is_reported(heard: Callable[..., list[object]]) -> None:
    lost = heard(signals.lease_lost, "claim")
    held = LimitSet([ResourceLimit("db", 1, max_hold_seconds=1)], store=MemoryStore(clock=(clock := FakeClock())))
    acquisition = held.acquire()
    clock.advance(10)
    assert lost == [acquisition]


def _store_of_limits() -> object:
    """The store that limits really use, behind its circuit breaker."""
    guarded = limits.limit_set("api", "a").store
    assert isinstance(guarded, ResilientStore)
    return guarded.inner


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
        return read_policies(*key, **options)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowResolving]:
    """The database takes its time."""
    slow = SlowResolving()
    monkeypatch.setattr(client_resolver, "read_policies", slow)
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


def locks_of(own: Resolver) -> Any:
    """The locks of keys that threads resolve now."""
    return own._locks


_WAITING = BaseResolver.read.__code__
_ENTERING = getattr(type(RLock()).__enter__, "__code__", None)


def passengers() -> int:
    """The threads that wait in `read` for a lock, which in Python 3.14 has a frame of its own."""
    return sum(map(is_waiting, sys._current_frames().values()))


def is_waiting(frame: FrameType) -> bool:
    caller = frame.f_back if frame.f_code is _ENTERING else frame
    return caller is not None and caller.f_code is _WAITING


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
    assert not locks_of(own)


def test_threads_that_need_different_things_do_not_wait_for_each_other(slow: SlowResolving) -> None:
    own = Resolver()
    [thread] = in_threads(1, lambda: own.get(("api", "user:1", (), None)))
    assert slow.begun.wait(20)
    slow.may_end.set()
    assert isinstance(own.get(("mail", "user:2", (), None)), ResolvedSet)
    thread.join(20)
    assert slow.count == 2


def test_a_child_does_not_wait_for_key_locks_of_its_parent(slow: SlowResolving) -> None:
    own = Resolver()
    [thread] = in_threads(1, lambda: own.get(("api", None, (), None)))
    assert slow.begun.wait(20)
    assert exit_code_of_child(lambda: len(locks_of(own))) == 0
    slow.may_end.set()
    thread.join(20)


def test_entities_without_own_limits_share_compiled_ones(settings: Settings) -> None:
    settings.LIMITS = {**settings.LIMITS, "RESOLVER_MAX_ENTRIES": 50}
    limits.set_resource_limits("api", [CallLimit(5, 60)])
    own = Resolver()
    layouts = {id(own.get(("api", f"user:{number}", (), None)).limit_set.scoped[0].schema) for number in range(500)}
    assert len(layouts) == 1
    assert own.info().size == 50
    assert not locks_of(own)


@pytest.mark.slow
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


@pytest.mark.parametrize("name", [["user:1"], {}, {"user:1"}])
def test_an_unhashable_name_is_an_error_once_limits_are_kept(name: Any) -> None:
    limits.set_resource_limits("api", [CallLimit(1, 60)])
    assert limits.try_acquire("api")
    assert resolver.cached(("api", name, (), None)) is None
    with pytest.raises(InvalidLimit):
        resolver.get(("api", name, (), None))


@pytest.mark.parametrize("name", [["api"], {}, 5, None])
def test_an_invalid_name_is_rejected_and_not_kept(name: Any) -> None:
    own = Resolver()
    assert own.cached((name, None, (), None)) is None
    with pytest.raises(InvalidLimit):
        own.get((name, None, (), None))
    assert own.info().size == 0
    assert not locks_of(own)
