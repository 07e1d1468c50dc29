"""Records of other limits, connections, interrupted steps, and the clock of a server."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time_ns

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.engine.errors import StaleConfiguration
from limits_app.engine.limits import Blocked, CallLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.models import LayoutDefinition, ScopeState, StoreVersion
from limits_app.stores.database import DatabaseStore
from limits_app.stores.database.transaction import DatabaseClock
from limits_app.testing.conformance.contract import claim_of, limits_in
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, Settings, database
from tests.stores.support import ActingClock, connections_of, limits_of, used

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


@pytest.fixture
def file_store(sqlite: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseStore]:
    """A store in a file."""
    with django_db_blocker.unblock(), database(sqlite):
        store = DatabaseStore(ALIAS)
        yield store
        store.close()


@pytest.mark.parametrize("definitions", [None, b"[1, [[]]]"], ids=["gone", "of_a_newer_version"])
def test_what_cannot_be_read_counts_as_unused(open_store: Open, definitions: bytes | None) -> None:
    assert limits_of(open_store(), CallLimit(3, YEAR)).try_acquire()
    rows = LayoutDefinition._default_manager.using(ALIAS)
    if definitions is None:
        rows.all().delete()
    else:
        rows.all().update(definitions=definitions)
    other = open_store()
    other.reset([limits_of(other, CallLimit(4, YEAR)).scoped[0].scope.key])
    limits = limits_of(other, CallLimit(4, YEAR))
    assert [bool(limits.try_acquire()) for _ in range(5)] == [True] * 4 + [False]


def test_what_cannot_be_read_is_forgotten(file_store: DatabaseStore) -> None:
    assert limits_of(file_store, CallLimit(3, YEAR)).try_acquire()
    LayoutDefinition._default_manager.using(ALIAS).all().delete()
    other = DatabaseStore(ALIAS)
    for number in range(64):
        assert limits_of(other, CallLimit(4, YEAR), entity=str(number)).try_acquire()
    assert ScopeState._default_manager.using(ALIAS).count() == 64
    other.close()


def test_processes_that_create_the_same_row_at_the_same_time_count_together(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    for number in range(10):
        sets = [limits_of(store, CallLimit(3, YEAR), entity=f"new {number}") for store in stores]
        with ThreadPoolExecutor(4) as executor:
            assert sum(executor.map(lambda limits: bool(limits.try_acquire()), sets)) == 3


def test_an_interrupted_step_changes_nothing_and_its_connection_is_not_used_again(open_store: Open) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    clock = ActingClock()
    store = open_store(clock=clock)
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    assert limits.try_acquire()
    clock.deed = interrupt
    with pytest.raises(KeyboardInterrupt):
        limits.try_acquire()
    assert connections_of(store)._of_thread.closed_at_end.connection.wrapper.connection is None
    assert used(limits) == 1


def test_permits_whose_row_is_gone_are_lost(open_store: Open) -> None:
    store = open_store()
    claim = claim_of(limits_of(store, ResourceLimit("db", 1)))
    assert store.acquire(claim)
    ScopeState._default_manager.using(ALIAS).all().delete()
    assert store.renew([claim]) == [claim]


def test_nothing_to_reset_and_nothing_to_limit_is_all_right(open_store: Open) -> None:
    store = open_store()
    store.reset([])
    free = limits_in(store, version=store.version())
    assert free.try_acquire()


def test_the_clock_can_be_read_before_anything_was_asked(open_store: Open) -> None:
    assert abs(open_store().clock() - time_ns() // 1000) < 60_000_000


def test_the_clock_of_a_server_is_asked_for_once_and_never_ahead() -> None:
    asked = []

    def ask() -> int:
        asked.append(monotonic())
        return 5_000_000

    clock = DatabaseClock(ask)
    started = monotonic()
    readings = [clock() for _ in range(1000)]
    assert len(asked) == 1
    assert readings == sorted(readings)
    assert readings[0] >= 5_000_000
    assert readings[-1] <= 5_000_000 + (monotonic() - started) * 1_000_000


def test_rows_have_a_readable_name() -> None:
    assert str(StoreVersion(id=1, version=7)) == "limits_app_version 1"
    assert ALIAS not in connections.settings


def test_the_version_is_compared_before_a_record_is_rewritten(open_store: Open) -> None:
    store = open_store()
    assert limits_of(store, CallLimit(9, YEAR)).try_acquire()
    rows = ScopeState._default_manager.using(ALIAS).values_list("states")
    before = list(rows.all())
    stale = limits_of(store, Blocked(), version=store.version() + 1)
    for verb in (store.acquire, store.peek):
        with pytest.raises(StaleConfiguration):
            verb(claim_of(stale))
    assert list(rows.all()) == before
