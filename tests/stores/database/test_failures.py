"""Databases that fail: locked, full, killed, and replies that get lost after the database has done its work."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Barrier, Event, Thread, current_thread
from time import monotonic
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from pytest_django import DjangoDbBlocker

from limits_app.core.plan import Claim
from limits_app.core.errors import StoreUnavailable
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.database import DatabaseStore
from limits_app.stores.database.opening import in_time
from limits_app.testing.conformance.contract import claim_of, limits_in, scoped
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.proxy import Proxy
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database, opened
from tests.stores.database.losing import Loser, again
from tests.stores.support import PATIENCE, limits_of, running, until, used
from tests.threads import no_more_threads

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


@contextmanager
def locked(limits: LimitSet) -> Iterator[None]:
    """Somebody else has the row of a scope locked."""
    with transaction.atomic(using=ALIAS), connections[ALIAS].cursor() as cursor:
        cursor.execute(
            "UPDATE limits_app_state SET stamp = stamp + 1 WHERE scope = %s",
            [limits_of(limits.store, CallLimit(9, YEAR, FIXED))._shapes.all().parts[0].short_key],
        )
        yield


@contextmanager
def renamed(table: str, column: str | None = None) -> Iterator[None]:
    """A table, or a column of one, has another name."""

    def change(before: str, after: str) -> None:
        what = f"TO {after}" if column is None else f"COLUMN {before} TO {after}"
        with connections[ALIAS].cursor() as cursor:
            cursor.execute(f"ALTER TABLE {before if column is None else table} RENAME {what}")

    own = column or table
    change(own, "elsewhere")
    try:
        yield
    finally:
        change("elsewhere", own)


def test_a_row_that_stays_locked_is_an_error_in_time_and_nothing_was_charged(open_store: Open) -> None:
    limits = limits_of(open_store(lock_timeout=0.2), CallLimit(9, YEAR, FIXED))
    assert limits.try_acquire()
    with locked(limits):
        started = monotonic()
        with pytest.raises(StoreUnavailable, match="limits"):
            limits.try_acquire()
        assert monotonic() - started < 3
    assert limits.try_acquire()
    assert used(limits) == 2


@pytest.mark.parametrize("what", ["limits_app_state", "limits_app_state states"])
def test_a_database_without_our_tables_or_columns_says_what_to_run(open_store: Open, what: str) -> None:
    store = open_store()
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    with renamed(*what.split()), pytest.raises(StoreUnavailable, match=r"run `manage\.py migrate --database limits`$"):
        limits.try_acquire()
    assert limits.try_acquire()


def test_another_error_of_a_database_does_not_tell_to_migrate(open_store: Open) -> None:
    limits = limits_of(open_store(lock_timeout=0.2), CallLimit(9, YEAR, FIXED))
    assert limits.try_acquire()
    with locked(limits), pytest.raises(StoreUnavailable) as failure:
        limits.try_acquire()
    assert "migrate" not in str(failure.value)


@pytest.mark.parametrize("start", [postgres_server, mariadb_server])
def test_a_server_that_is_killed_under_load_is_an_error_and_works_again_once_it_is_back(
    start: Callable[..., object], django_db_blocker: DjangoDbBlocker
) -> None:
    with start() as server, django_db_blocker.unblock(), database(server.settings):  # type: ignore[attr-defined]
        store = DatabaseStore(ALIAS, **PATIENT)
        limits = limits_of(store, CallLimit(10**6, YEAR, FIXED), ResourceLimit("db", 9))
        barrier = Barrier(4)

        def load(_: int) -> int:
            done = 0
            barrier.wait()
            while True:
                try:
                    with limits.try_acquire() as acquired:
                        done += bool(acquired)
                except StoreUnavailable:
                    return done
                if done == 20:
                    barrier.wait()

        with ThreadPoolExecutor(4) as executor:
            loads = [executor.submit(load, number) for number in range(3)]
            barrier.wait()
            barrier.wait()
            server.kill()
            done = sum(one.result(30) for one in loads)
        started = monotonic()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            limits.try_acquire()
        assert monotonic() - started < 2
        server.start()
        assert limits.try_acquire()
        assert done <= float(str(used(limits))) - 1 <= done + 3  # whoever was interrupted may have been charged
        store.close()


@pytest.mark.alone
@pytest.mark.parametrize(("start", "first"), [(postgres_server, 1), (mariadb_server, 3)])
def test_a_server_that_is_frozen_is_an_error_in_time_and_what_it_did_counts_once_when_it_goes_on(
    start: Callable[..., object], first: float, django_db_blocker: DjangoDbBlocker
) -> None:
    with start() as server, django_db_blocker.unblock(), database(server.settings):  # type: ignore[attr-defined]
        store = DatabaseStore(ALIAS, lock_timeout=0.1)
        limits = limits_of(store, CallLimit(9, YEAR, FIXED))
        assert limits.try_acquire()
        claim = claim_of(limits)
        with server.frozen():
            for seconds in (first, 1):  # the second one asks for a connection
                started = monotonic()
                with pytest.raises(StoreUnavailable, match=r"does not answer|cannot be reached"):
                    store.acquire(claim)
                assert monotonic() - started < seconds
        again(lambda: store.acquire(claim))
        assert claim.admitted
        assert used(limits) == 2
        store.close()


def test_a_lock_is_waited_for_as_long_as_the_server_lives(open_store: Open) -> None:
    limits = limits_of(open_store(lock_timeout=PATIENCE), CallLimit(9, YEAR, FIXED))
    assert limits.try_acquire()
    with ThreadPoolExecutor(1) as executor:
        with locked(limits):
            waiting = executor.submit(limits.try_acquire)
            assert not wait([waiting], 0.5).done
        assert waiting.result(PATIENCE)
    assert used(limits) == 2


def _stop_in_the_middle(pipe: Connection, settings: Settings) -> None:
    """Freeze with the row of a scope locked; say how it went afterwards."""
    store = opened(settings)
    kind = store._pool.kind
    commit = kind.commit

    def commit_after_a_pause(*args: Any) -> bool:
        kind.commit = commit  # type: ignore[method-assign]  # the next one is not interrupted
        os.kill(os.getpid(), signal.SIGSTOP)
        return commit(*args)

    kind.commit = commit_after_a_pause  # type: ignore[method-assign]
    pipe.send(bool(limits_of(store, CallLimit(9, YEAR, FIXED)).try_acquire()))


@pytest.mark.parametrize("server", ["postgres", "mariadb"])
def test_whoever_is_frozen_in_the_middle_of_a_step_loses_its_locks_and_takes_it_again(
    server: str, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> None:
    settings = request.getfixturevalue(server).settings
    with django_db_blocker.unblock(), database(settings):
        store = DatabaseStore(ALIAS, **PATIENT)
        limits = limits_of(store, CallLimit(9, YEAR, FIXED))
        assert limits.try_acquire()
        with running(_stop_in_the_middle, settings) as other:
            assert other.process.pid is not None
            os.waitid(os.P_PID, other.process.pid, os.WSTOPPED)
            assert limits.try_acquire()
            assert used(limits) == 2
            os.kill(other.process.pid, signal.SIGCONT)
            assert other.hear() is True
        assert used(limits) == 3
        store.close()


def test_what_is_opened_too_late_is_closed() -> None:
    begin, ended = Event(), Event()

    class Late:
        def __init__(self) -> None:
            begin.wait(PATIENCE)

        def close(self) -> None:
            ended.set()

    with pytest.raises(TimeoutError):
        in_time(Late, 0.001)
    begin.set()
    assert ended.wait(PATIENCE)


def test_what_cannot_be_opened_in_the_end_needs_no_closing() -> None:
    begin = Event()
    failed: list[Thread] = []

    def fail() -> Proxy:
        failed.append(current_thread())
        begin.wait(PATIENCE)
        raise OSError

    with pytest.raises(TimeoutError):
        in_time(fail, 0.1)
    begin.set()
    failed[0].join(PATIENCE)
    assert not failed[0].is_alive()


def test_where_no_thread_can_be_had_a_connection_is_opened_without_one() -> None:
    class Opened:
        def close(self) -> None:
            raise AssertionError

    with no_more_threads():
        assert isinstance(in_time(Opened, 0.1), Opened)


def test_a_server_without_free_connections_is_an_error_until_it_has_some(django_db_blocker: DjangoDbBlocker) -> None:
    options = ("max_connections=4", "superuser_reserved_connections=0", "max_wal_senders=0")
    with postgres_server(*options) as server, django_db_blocker.unblock(), database(server.settings):
        store = DatabaseStore(ALIAS, **PATIENT)
        limits = limits_of(store, CallLimit(9, YEAR))
        others: list[psycopg.Connection[Any]] = []
        until(lambda: _are_all(others, f"host=127.0.0.1 port={server.port} user=limits dbname=postgres"))
        with pytest.raises(StoreUnavailable, match="too many clients"):
            limits.try_acquire()
        for other in others:
            other.close()
        until(lambda: _works(limits))
        store.close()


def _are_all(connections: list[psycopg.Connection[Any]], where: str) -> bool:
    """Take one more of four connections; somebody who has left may have one for a while."""
    with suppress(psycopg.OperationalError):
        connections.append(psycopg.connect(where))
    return len(connections) == 4


def _works(limits: LimitSet) -> bool:
    try:
        return bool(limits.try_acquire())
    except StoreUnavailable:
        return False


def test_claims_over_the_same_scopes_in_any_order_never_stand_in_each_others_way(open_store: Open) -> None:
    store = open_store()
    parts = [scoped(store, CallLimit(10**4, YEAR, FIXED), entity=who) for who in ("one", "two", "three")]
    families = [limits_in(store, *order) for order in (parts, parts[::-1], parts[1:] + parts[:1], parts[:2])]
    with ThreadPoolExecutor(4) as executor:
        admitted = list(executor.map(lambda number: bool(families[number % 4].try_acquire()), range(80)))
    assert all(admitted)
    assert [used(limits_in(store, part)) for part in parts] == [80, 80, 60]


def test_a_deadlock_that_somebody_else_brings_about_is_got_out_of(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker
) -> None:
    settings = {**postgres.settings, "OPTIONS": {"options": "-c deadlock_timeout=500ms"}}
    with django_db_blocker.unblock(), database(postgres.settings):
        connections[ALIAS].settings_dict.update(settings)
        store = DatabaseStore(ALIAS, lock_timeout=5, **PATIENT)
        family = limits_in(store, *[scoped(store, CallLimit(9, YEAR, FIXED), entity=who) for who in ("one", "two")])
        assert family.try_acquire()
        first, second = sorted(part.short_key for part in family._shapes.all().parts)
        lock = "SELECT 1 FROM limits_app_state WHERE scope = %s FOR UPDATE"
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        where = f"host=127.0.0.1 port={postgres.port} user=limits dbname=postgres"
        with psycopg.connect(where) as other, psycopg.connect(where, autocommit=True) as watcher:
            other.execute("SET LOCAL deadlock_timeout = '30s'")
            other.execute(lock, [second])
            with ThreadPoolExecutor(1) as executor:
                acquired = executor.submit(family.try_acquire)
                until(lambda: watcher.execute(waits).fetchone() == (1,))
                other.execute(lock, [first])
                other.rollback()
                assert acquired.result(20)
        assert used(limits_in(store, family.scoped[0])) == 2
        store.close()


@pytest.mark.parametrize("people", [["one"], ["one", "two"]], ids=["one_scope", "two_scopes"])
def test_a_thousand_acquisitions_are_charged_and_settled_once_each_when_a_fifth_of_the_replies_is_lost(
    lossy_store: DatabaseStore, lossy: Proxy, loser: Loser, people: list[str]
) -> None:
    parts = [scoped(lossy_store, RateLimit("units", 10**6, YEAR), entity=who) for who in people]
    limits = limits_in(lossy_store, *parts)
    loser.share = 0.2
    claims: list[Claim] = []
    for _ in range(500):
        claim = claim_of(limits, {"units": 10})
        again(lambda claim=claim: lossy_store.acquire(claim))  # type: ignore[misc]  # bound now
        assert claim.admitted
        claims.append(claim)
    for claim in claims:
        changes = [-4 * ask.scale for ask in claim.plan.asks]
        again(lambda claim=claim, changes=changes: lossy_store.settle(claim, changes))  # type: ignore[misc]  # bound now
        assert claim.settled
    loser.share = 0
    assert lossy.lost > 150
    assert [used(limits_in(lossy_store, part), "units") for part in parts] == [pytest.approx(3000, abs=2)] * len(people)


class Told(Claim):
    """A claim that counts how often it is told that it has lost permits."""

    times = 0

    def lapse(self) -> None:
        self.times += 1


@pytest.mark.parametrize("people", [["one"], ["one", "two"]], ids=["one_scope", "two_scopes"])
def test_whoever_has_lost_permits_is_told_once_when_a_fifth_of_the_replies_is_lost(
    lossy_store: DatabaseStore, lossy: Proxy, loser: Loser, people: list[str]
) -> None:
    def limits(*, max_hold_seconds: float) -> LimitSet:
        db = ResourceLimit("db", 1, max_hold_seconds=max_hold_seconds)
        return limits_in(lossy_store, *[scoped(lossy_store, db, entity=who) for who in people])

    def admitted(hold: LimitSet) -> bool:
        claim = claim_of(hold)
        claims.append(Told(claim.plan, claim.amounts))
        again(lambda: lossy_store.acquire(claims[-1]))
        return claims[-1].admitted is True

    short, long = limits(max_hold_seconds=0.001), limits(max_hold_seconds=60)
    claims, loser.share = list[Told](), 0.2
    for hold in [short] * 60 + [long]:
        until(partial(admitted, hold))
    held = [claim for claim in claims if claim.admitted]
    for one in held:
        again(partial(lossy_store.settle, one, one.plan.given_back(one.amounts)))
    loser.share = 0
    assert lossy.lost > 10
    assert [one.times for one in held] == [1] * 60 + [0]


def test_a_connection_that_cannot_be_set_up_is_closed(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    with django_db_blocker.unblock(), database(postgres.settings):
        store = DatabaseStore(ALIAS, lock_timeout=10**12, **PATIENT)
        driver = connections[ALIAS].Database.Connection
        close = driver.close
        monkeypatch.setattr(driver, "close", lambda connection: (closed.append(connection), close(connection)))
        with pytest.raises(StoreUnavailable, match="lock_timeout"):
            store.version()
    assert len(closed) >= 1
    assert all(connection.closed for connection in closed)


def test_a_connection_that_is_not_made_has_nothing_to_close(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker
) -> None:
    nowhere = {**postgres.settings, "PORT": "1"}
    with django_db_blocker.unblock(), database(nowhere, bare=True), pytest.raises(StoreUnavailable):
        DatabaseStore(ALIAS).version()
