"""Databases that fail: locked, full, killed, frozen, and replies that are lost after the commit."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from threading import Barrier
from time import monotonic
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from pytest_django import DjangoDbBlocker

from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.keys import short_key
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores.database import DatabaseStore
from limits_app.stores.database.transaction import Transaction
from limits_app.testing.conformance.contract import claim_of, limits_in, scoped
from tests.servers.mariadb import mariadb_server
from tests.servers.postgres import PostgresServer, postgres_server
from tests.servers.proxy import Proxy
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database, opened
from tests.stores.support import PATIENCE, Loser, again, holders, limits_of, running, until, used

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


@contextmanager
def locked(limits: LimitSet) -> Iterator[None]:
    """Another transaction has locked the row of the set's scope."""
    with transaction.atomic(using=ALIAS), connections[ALIAS].cursor() as cursor:
        key = short_key(limits.scoped[0].scope.key)
        cursor.execute("UPDATE limits_app_state SET label = label WHERE scope = %s", [key])
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
        with pytest.raises(StoreUnavailable, match="limits") as failure:
            limits.try_acquire()
        assert monotonic() - started < 3
    assert "migrate" not in str(failure.value)
    assert limits.try_acquire()
    assert used(limits) == 2


@pytest.mark.parametrize("what", ["limits_app_state", "limits_app_state states"])
def test_missing_tables_or_columns_name_the_command_to_run(open_store: Open, what: str) -> None:
    store = open_store()
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    with renamed(*what.split()), pytest.raises(StoreUnavailable, match=r"run `manage\.py migrate --database limits`$"):
        limits.try_acquire()
    assert limits.try_acquire()


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
@pytest.mark.parametrize("start", [postgres_server, mariadb_server])
def test_a_frozen_server_is_an_error_in_time_and_charges_at_most_once(
    start: Callable[..., object], django_db_blocker: DjangoDbBlocker
) -> None:
    with start() as server, django_db_blocker.unblock(), database(server.settings):  # type: ignore[attr-defined]
        store = DatabaseStore(ALIAS, lock_timeout=0.1)
        limits = limits_of(store, CallLimit(9, YEAR, FIXED))
        assert limits.try_acquire()
        claim = claim_of(limits)
        with server.frozen():
            for error in ("does not reply", "cannot be reached"):  # the second one opens a connection
                started = monotonic()
                with pytest.raises(StoreUnavailable, match=error):
                    store.acquire(claim)
                assert monotonic() - started < 3
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


def _stop_in_the_middle(pipe: Connection, settings: Settings, method: str) -> None:
    """Freeze with the row of a scope locked; say how it went afterwards."""
    store = opened(settings)
    proceed = getattr(Transaction, method)

    def proceed_after_a_pause(transaction: Transaction) -> object:
        setattr(Transaction, method, proceed)  # the next one is not interrupted
        os.kill(os.getpid(), signal.SIGSTOP)
        return proceed(transaction)

    setattr(Transaction, method, proceed_after_a_pause)
    try:
        pipe.send(bool(limits_of(store, CallLimit(9, YEAR, FIXED)).try_acquire()))
    except StoreUnavailable as error:
        pipe.send(str(error))


@pytest.mark.parametrize(
    ("server", "method", "outcome"),
    [
        ("postgres", "write", True),
        ("mariadb", "write", True),
        ("postgres", "commit", True),
        ("mariadb", "commit", "did not reply to a COMMIT"),
    ],
)
def test_a_process_frozen_in_a_step_loses_its_locks_and_repeats_the_step(
    server: str, method: str, outcome: object, request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker
) -> None:
    settings = request.getfixturevalue(server).settings
    with django_db_blocker.unblock(), database(settings):
        store = DatabaseStore(ALIAS, **PATIENT)
        limits = limits_of(store, CallLimit(9, YEAR, FIXED))
        assert limits.try_acquire()
        with running(_stop_in_the_middle, settings, method) as other:
            assert other.process.pid is not None
            os.waitid(os.P_PID, other.process.pid, os.WSTOPPED)
            assert limits.try_acquire()
            assert used(limits) == 2
            os.kill(other.process.pid, signal.SIGCONT)
            heard = other.hear()
        assert heard is True if outcome is True else str(outcome) in str(heard)
        assert used(limits) == 2 + (outcome is True)
        store.close()


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


def test_a_deadlock_with_another_transaction_is_retried(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker
) -> None:
    settings = {**postgres.settings, "OPTIONS": {"options": "-c deadlock_timeout=500ms"}}
    with django_db_blocker.unblock(), database(postgres.settings):
        connections[ALIAS].settings_dict.update(settings)
        store = DatabaseStore(ALIAS, lock_timeout=5, **PATIENT)
        family = limits_in(store, *[scoped(store, CallLimit(9, YEAR, FIXED), entity=who) for who in ("one", "two")])
        assert family.try_acquire()
        first, second = sorted(short_key(part.scope.key) for part in family.scoped)
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


@pytest.mark.parametrize(
    "people",
    [pytest.param(["one"], marks=pytest.mark.release, id="one_scope"), pytest.param(["one", "two"], id="two_scopes")],
)
def test_acquire_and_settle_charge_at_most_once_when_a_fifth_of_the_replies_is_lost(
    lossy_store: DatabaseStore, lossy: Proxy, loser: Loser, people: list[str]
) -> None:
    parts = [scoped(lossy_store, RateLimit("units", 10**6, YEAR), entity=who) for who in people]
    limits, sent, refunds = limits_in(lossy_store, *parts), 0, 0
    loser.share = 0.2
    claims: list[Claim] = []
    while len(claims) < 300:
        claim, sent = claim_of(limits, {"units": 10}), sent + 1
        with suppress(StoreUnavailable):
            assert lossy_store.acquire(claim)
            claims.append(claim)
            continue
        assert claim.admitted is None
    for claim in claims:
        changes = [-4 * limit.rule.parts_per_unit for limit in claim.shape.limits]
        again(lambda claim=claim, changes=changes: lossy_store.settle(claim, changes))  # type: ignore[misc]  # bound now
        assert claim.settled
        refunds += not claim.unanswered
    loser.share = 0
    assert lossy.lost >= sent - refunds > 80  # the reply to a release may be lost again
    shares = [float(str(used(limits_in(lossy_store, part), "units"))) for part in parts]
    assert 10 * 300 - 4 * 300 - 2 <= min(shares) == pytest.approx(max(shares))
    assert max(shares) <= 10 * sent - 4 * refunds + 2


class Owner:
    """The owner of a claim, which counts how often it is notified of a lost lease."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.times = 0
        claim.lose_lease = self.lose_lease  # type: ignore[method-assign]

    def lose_lease(self) -> None:
        self.times += 1


@pytest.mark.parametrize("people", [["one"], ["one", "two"]], ids=["one_scope", "two_scopes"])
def test_a_lost_lease_is_reported_once_unless_a_reply_to_the_release_was_lost(
    lossy_store: DatabaseStore, lossy: Proxy, loser: Loser, people: list[str]
) -> None:
    def limits(*, max_hold_seconds: float) -> LimitSet:
        db = ResourceLimit("db", 1, max_hold_seconds=max_hold_seconds)
        return limits_in(lossy_store, *[scoped(lossy_store, db, entity=who) for who in people])

    def admitted(hold: LimitSet) -> bool:
        owners.append(Owner(claim_of(hold)))
        return lossy_store.acquire(owners[-1].claim)

    short, long = limits(max_hold_seconds=0.001), limits(max_hold_seconds=60)
    owners = list[Owner]()
    for hold in [short] * 60 + [long]:
        until(partial(admitted, hold))
    held = [owner for owner in owners if owner.claim.admitted]
    loser.share = 0.2
    for owner in held:
        again(partial(lossy_store.settle, owner.claim, owner.claim.shape.changes({}, owner.claim.amounts)))
    loser.share = 0
    assert lossy.lost > 5
    assert [owner.times for owner in held] == [not owner.claim.unanswered for owner in held[:-1]] + [0]


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("entities", ["a", "ab"], ids=["one_claim", "two_claims"])
def test_an_acquire_whose_reply_was_lost_is_not_sent_again(
    lossy_store: DatabaseStore, lossy: Proxy, loser: Loser, entities: str, *, arrives: bool
) -> None:
    sets = [limits_of(lossy_store, CallLimit(9, YEAR, FIXED), entity=entity) for entity in entities]
    claims = [claim_of(one) for one in sets]
    loser.share, loser.arrives = 1, arrives
    with pytest.raises(StoreUnavailable, match="did not reply to a COMMIT, which may have taken effect"):
        lossy_store.acquire_first(claims)
    loser.share = 0
    assert [claim.admitted for claim in claims] == [None] * len(sets)
    assert [used(one) for one in sets] == [int(arrives)] + [0] * (len(sets) - 1)
    assert all(one.try_acquire() for one in sets)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_release_whose_reply_was_lost_delivers_permits_and_debt_but_no_refund(
    lossy_store: DatabaseStore, loser: Loser, *, arrives: bool
) -> None:
    limits = limits_of(
        lossy_store, RateLimit("debt", 10**6, YEAR), RateLimit("refund", 10**6, YEAR), ResourceLimit("db", 1)
    )
    claim = claim_of(limits, {"debt": 100, "refund": 100})
    owner = Owner(claim)
    assert lossy_store.acquire(claim)
    used_parts = [used * limit.rule.parts_per_unit for used, limit in zip((130, 60), claim.shape.limits, strict=False)]
    changes = claim.shape.changes(dict(enumerate(used_parts)), claim.amounts)
    loser.share, loser.arrives = 1, arrives
    with pytest.raises(StoreUnavailable):
        lossy_store.settle(claim, changes)
    loser.share = 0
    assert not claim.settled
    lossy_store.settle(claim, changes)
    assert claim.settled
    assert holders(limits) == 0
    assert used(limits, "debt") == pytest.approx(160 if arrives else 130, abs=1)
    assert used(limits, "refund") == pytest.approx(60 if arrives else 100, abs=1)
    assert owner.times == 0


def test_a_connection_that_cannot_be_set_up_is_closed(
    postgres: PostgresServer, django_db_blocker: DjangoDbBlocker, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    with django_db_blocker.unblock(), database(postgres.settings):
        store = DatabaseStore(ALIAS, lock_timeout=10**12, **PATIENT)
        close = connections[ALIAS].Database.Connection.close
        monkeypatch.setattr(
            connections[ALIAS].Database.Connection,
            "close",
            lambda connection: (closed.append(connection), close(connection)),
        )
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
