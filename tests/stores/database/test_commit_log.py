"""Commits whose reply was lost: the step takes effect once, whether the commit did, did not, or is late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import psycopg
import pytest
from pytest_django import DjangoDbBlocker

from limits_app.engine.limits import CallLimit, RateLimitAlgorithm
from limits_app.models import LastCommit
from limits_app.stores.database import DatabaseStore, commit_log
from limits_app.stores.database.connections import StoreConnection
from limits_app.testing import FakeClock
from tests.servers.postgres import PostgresServer
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.support import limits_of, until, used

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


@pytest.fixture(params=["postgres", "mariadb"])
def settings(request: pytest.FixtureRequest) -> Settings:
    """Each kind of server."""
    return request.getfixturevalue(request.param).settings  # type: ignore[no-any-return]


@pytest.fixture
def store(settings: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseStore]:
    with django_db_blocker.unblock(), database(settings):
        store = DatabaseStore(ALIAS, lock_timeout=20, **PATIENT)
        yield store
        store.close()


def lose_next_reply(store: DatabaseStore, before: Callable[[Callable[[], None]], None]) -> None:
    """Have the next commit end without a reply; `before` gets the function that commits."""
    kind: Any = store._pool.kind
    commit = kind.commit

    def commit_without_reply(connection: StoreConnection, batch: Any = ()) -> None:
        kind.commit = commit
        before(lambda: commit(connection, batch))
        raise connection.driver.OperationalError(2013, "Lost connection")

    kind.commit = commit_without_reply


@pytest.mark.parametrize("acquired_before", [0, 1], ids=["new_row", "row"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_takes_effect_once(store: DatabaseStore, acquired_before: int, *, arrives: bool) -> None:
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    for _ in range(acquired_before):
        assert limits.try_acquire()
    lose_next_reply(store, lambda commit: commit() if arrives else None)
    assert limits.try_acquire()
    assert used(limits) == acquired_before + 1
    assert len(store._runner.doubts) == 0


@pytest.mark.parametrize("acquired_before", [0, 1], ids=["new_row", "row"])
def test_a_commit_that_is_late_is_waited_for(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch, acquired_before: int
) -> None:
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    with (
        django_db_blocker.unblock(),
        database(postgres.settings),
        psycopg.connect(f"host=127.0.0.1 port={postgres.port} user=limits dbname=postgres", autocommit=True) as watcher,
    ):
        store = DatabaseStore(ALIAS, lock_timeout=20, **PATIENT)
        limits = limits_of(store, CallLimit(1 + acquired_before, YEAR, FIXED))
        for _ in range(acquired_before):
            assert limits.try_acquire()
        late: list[Thread] = []

        def commit_later(commit: Callable[[], None]) -> None:
            def wait_and_commit() -> None:
                until(lambda: watcher.execute(waits).fetchone() == (1,))
                commit()

            late.append(Thread(target=wait_and_commit))
            late[0].start()

        dropped: list[StoreConnection] = []
        monkeypatch.setattr(store._pool, "drop", dropped.append)  # so that it can commit
        lose_next_reply(store, commit_later)
        assert limits.try_acquire()
        late[0].join()
        assert used(limits) == acquired_before + 1
        assert not limits.try_acquire()
        dropped[0].close()
        store.close()


def test_rows_of_closed_connections_are_deleted(store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = LastCommit._default_manager.using(ALIAS)
    limits = limits_of(store, CallLimit(9, YEAR))
    assert limits.try_acquire()
    store.close()
    assert limits.try_acquire()
    assert rows.count() == 2
    monkeypatch.setattr(commit_log, "KEPT_US", 0)
    store._runner.run(store._runner._housekeeping.clean)
    assert rows.count() == 2
    store._runner._housekeeping._counted_hour = 1  # counts were added in an hour that was not cleaned yet
    store._runner.run(store._runner._housekeeping.clean)
    assert rows.count() == 0


def test_the_numbers_of_commits_rise_also_where_the_clock_does_not() -> None:
    log, clock = commit_log.CommitLog(), FakeClock()
    numbers = [log.next_commit(now)[0].number for now in (clock(), clock(), clock() - 5)]
    assert numbers == [clock(), clock() + 1, clock() + 2]
