"""What the database store is made of, where it is rarely needed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic, time_ns

import pytest
from django.db import connections
from pytest_django import DjangoDbBlocker

from limits_app.core.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.models import LayoutDefinition, ScopeCount, ScopeState, StoreVersion, WaitingBatch
from limits_app.stores import codecs
from limits_app.stores.database import DatabaseStore, latest, lending, pool, steps, trail
from limits_app.stores.database.clock import ServerClock
from limits_app.stores.database.links import Link, Promise, new_stamp
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import claim_of, limits_in, scoped, settle
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, PATIENT, Settings, database
from tests.stores.support import limits_of, used

YEAR = 366 * 86_400
FIXED = RateLimitAlgorithm.FIXED_WINDOW


@pytest.fixture
def file_store(sqlite: Settings, django_db_blocker: DjangoDbBlocker) -> Iterator[DatabaseStore]:
    """A store in a file."""
    with django_db_blocker.unblock(), database(sqlite):
        store = DatabaseStore(ALIAS)
        yield store
        store.close()


def test_what_another_process_wrote_under_other_limits_is_read_by_their_definitions(open_store: Open) -> None:
    window = RateLimit("units", 10, YEAR, RateLimitAlgorithm.SLIDING_WINDOW)
    before = limits_of(open_store(), window, RateLimit("more", 10, YEAR, RateLimitAlgorithm.SLIDING_WINDOW))
    assert before.try_acquire({"units": 4, "more": 3})
    after = limits_of(open_store(), CallLimit(9, YEAR), window)
    assert used(after, "units") == 4
    assert after.try_acquire({"units": 1})
    assert used(limits_of(open_store(), window), "units") == 5


@pytest.mark.parametrize("definitions", [None, b"[1, [[]]]"], ids=["gone", "of_a_newer_version"])
def test_what_nobody_can_read_counts_as_unused(open_store: Open, definitions: bytes | None) -> None:
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


def test_what_nobody_can_read_is_forgotten(file_store: DatabaseStore) -> None:
    assert limits_of(file_store, CallLimit(3, YEAR)).try_acquire()
    LayoutDefinition._default_manager.using(ALIAS).all().delete()
    other = DatabaseStore(ALIAS)
    for number in range(64):
        assert limits_of(other, CallLimit(4, YEAR), entity=str(number)).try_acquire()
    assert ScopeState._default_manager.using(ALIAS).count() == 64
    other.close()


def test_a_store_that_nobody_has_closed_leaves_no_connection_open(open_store: Open) -> None:
    open_store()
    store = DatabaseStore(ALIAS, **PATIENT)
    store.version()
    [link] = store._pool._idle
    del store
    gc.collect()
    with pytest.raises(link.driver.Error):
        link.version()


def test_processes_that_create_the_same_row_at_the_same_time_count_together(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    for number in range(10):
        sets = [limits_of(store, CallLimit(3, YEAR), entity=f"new {number}") for store in stores]
        with ThreadPoolExecutor(4) as executor:
            assert sum(executor.map(lambda limits: bool(limits.try_acquire()), sets)) == 3


def test_a_commit_that_never_arrived_is_known_not_to_be_done_and_never_will_be(open_store: Open) -> None:
    store = open_store()
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    scope = limits._shapes.all().parts[0].short_key

    def was_done(link: Link) -> bool:
        return link.was_done(Promise(scope, 1, 2, lambda: None))

    assert store._steps.take(was_done) is False  # before there is a row
    assert limits.try_acquire()
    stamps = ScopeState._default_manager.using(ALIAS).values_list("stamp", flat=True)
    before = list(stamps.all())
    if store._pool.kind.keeps_notes:
        assert store._steps.take(was_done) is False
        assert list(stamps.all()) != before
    assert limits.try_acquire()
    assert used(limits) == 2


def test_old_and_idle_connections_are_closed(file_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    links = file_store._pool
    first, second = links.take(), links.take()
    links.give(first)
    monkeypatch.setattr(pool, "_IDLE_SECONDS", -1.0)
    links.give(second)
    assert list(links._idle) == [second]
    monkeypatch.setattr(pool, "_LIFE_SECONDS", -1.0)
    links.give(links.take())
    assert not links._idle


class Interrupting(FakeClock):
    """A clock in whose reading somebody presses Ctrl-C."""

    armed = False

    def __call__(self) -> int:
        if self.armed:
            raise KeyboardInterrupt
        return super().__call__()


def test_an_interrupted_step_changes_nothing_and_its_connection_is_not_used_again(open_store: Open) -> None:
    clock = Interrupting()
    store = open_store(clock=clock)
    limits = limits_of(store, CallLimit(9, YEAR, FIXED))
    assert limits.try_acquire()
    clock.armed = True
    with pytest.raises(KeyboardInterrupt):
        limits.try_acquire()
    clock.armed = False
    assert not store._pool._idle
    assert used(limits) == 1


def test_a_claim_is_settled_once_whatever_else_is_in_the_row(open_store: Open) -> None:
    store = open_store()
    parts = [scoped(store, RateLimit("units", 100, YEAR), entity=who) for who in ("one", "two")]
    limits = limits_in(store, *parts)
    claim = claim_of(limits, {"units": 50})
    assert store.acquire(claim)
    for _ in range(3):
        settle(limits, claim, {"units": -30})
    assert claim.settled
    assert used(limits, "units") == pytest.approx(20, abs=1)


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


def test_a_link_that_was_closed_is_not_alive(open_store: Open) -> None:
    store = open_store()
    if store._pool.kind.keeps_notes:
        link = store._pool.take()
        link.close()
        assert not link.is_alive()


def test_layouts_that_are_remembered_are_bounded(file_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codecs, "_MOST", 2)
    for most in range(1, 4):
        assert limits_of(file_store, CallLimit(most, YEAR)).try_acquire()
    assert used(limits_of(file_store, CallLimit(3, YEAR, FIXED))) == 3


def test_doubts_are_bounded(file_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_MOST_DOUBTS", 2)
    limits = limits_of(file_store, CallLimit(9, YEAR))
    for number in range(4):
        link = file_store._pool.take()
        link.promise = Promise(b"", number, number, lambda: None)
        file_store._steps._lost(link, claim_of(limits))
    assert len(file_store._steps._doubts) == 2


def test_what_was_written_last_is_bounded(file_store: DatabaseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "_MOST", 2)
    for who in "abc":
        assert limits_of(file_store, CallLimit(9, YEAR), entity=who).try_acquire()
    assert len(file_store._ledger._latest._records) == 1


def test_a_trail_keeps_the_last_links_and_the_last_stamp_of_each() -> None:
    left = b""
    for number in range(100):
        left = trail.noted(trail.noted(left, number, 1), number, 2)
    assert [trail.left_by(left, number) for number in (35, 36, 99)] == [None, 2, 2]
    assert trail.unframed(trail.framed(left) + b"states") == (left, b"states")


def test_a_lease_is_found_though_its_name_stands_across_others_by_chance() -> None:
    rule = next(iter(limits_rules()))
    name = b"tagtagta" + b"holderxx"
    leases = b"abcd" + name + bytes(20) + lending.lend(b"", name, rule, amount=1, now=5)
    assert lending.take_back(leases, name) == leases[:40]


def limits_rules() -> Iterator[lending.Rule]:
    """The rules of a resource limit."""
    from limits_app.core.record import schema_of

    yield from schema_of((ResourceLimit("db", 1),)).rules


def test_the_clock_of_a_server_is_asked_for_once_and_never_ahead() -> None:
    asked = []

    def ask() -> int:
        asked.append(monotonic())
        return 5_000_000

    clock = ServerClock(ask)
    started = monotonic()
    readings = [clock() for _ in range(1000)]
    assert len(asked) == 1
    assert readings == sorted(readings)
    assert readings[0] >= 5_000_000
    assert readings[-1] <= 5_000_000 + (monotonic() - started) * 1_000_000


def test_rows_say_what_they_are() -> None:
    assert str(ScopeState(scope=b"\x01\x02")) == "0102"
    assert str(LayoutDefinition(name=b"\x03")) == "03"
    assert str(StoreVersion(version=7)) == "7"
    assert str(ScopeCount(hour=8, label=b'["api"]')) == '["api"] in hour 8'
    assert str(WaitingBatch(name="batch")) == "batch"
    assert new_stamp() != new_stamp()
    assert ALIAS not in connections.settings
