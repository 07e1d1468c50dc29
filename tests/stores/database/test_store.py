"""The database store: its own connections, what others write meanwhile, and what it says when it cannot be used."""

from __future__ import annotations

import pickle
from itertools import count
from random import Random

import pytest
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.test import override_settings

from limits_app.engine.claims import Claim
from limits_app.engine.errors import NotShareable, StaleConfiguration, StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.stores import registry
from limits_app.stores.database import DatabaseStore, open_database_store
from limits_app.stores.memory import MemoryStore
from limits_app.testing import FakeClock
from limits_app.testing.conformance.contract import give_back, taken
from tests.forking import exit_code_of_child
from tests.stores.database.conftest import Open
from tests.stores.database.databases import ALIAS, database
from tests.stores.support import ActingClock, holders, limits_of, used

DAY = 86_400
_DIFFERENT = count(1)
"""So that each test has a store of its own."""


def test_rollback_of_a_request_keeps_its_counts(open_store: Open) -> None:
    limits = limits_of(open_store(), CallLimit(2, DAY))
    with transaction.atomic(using=ALIAS):
        connections[ALIAS].ensure_connection()
        assert limits.try_acquire()
        transaction.set_rollback(True, using=ALIAS)
    assert [bool(limits.try_acquire()) for _ in range(2)] == [True, False]


def test_a_record_that_was_cut_short_counts_as_unused_and_is_written_again(open_store: Open) -> None:
    limits = limits_of(open_store(), CallLimit(2, DAY))
    assert limits.try_acquire()
    rows = apps.get_model("limits_app", "ScopeState").objects.using(ALIAS)
    rows.update(states=bytes(rows.get().states)[:-1])
    assert [bool(limits.try_acquire()) for _ in range(3)] == [True, True, False]


def test_random_timelines_are_decided_as_in_memory(open_store: Open) -> None:
    clock, random = FakeClock(), Random(7)
    # Nothing is renewed meanwhile, since each store would do that at its own moments.
    stores = [open_store(clock=clock, lease_seconds=10**6) for _ in range(2)]
    rates = [RateLimit(algorithm.value, 50, 1, algorithm) for algorithm in RateLimitAlgorithm]
    kinds = [*rates, CallLimit(40, 1), ResourceLimit("db", 3)]
    sets = [limits_of(store, *kinds) for store in (MemoryStore(clock=clock, lease_seconds=10**6), *stores)]
    open_claims = []
    for _ in range(300):
        clock.move(random.choice([0, 900, 5_000, 40_000, 400_000]))
        amounts = {rate.key: random.randint(0, 20) for rate in rates} | {"db": random.randint(0, 2)}
        memory, shared = sets[0].try_acquire(amounts), random.choice(sets[1:]).try_acquire(amounts)
        assert bool(memory) == bool(shared)
        assert memory.outcome.as_dict() == shared.outcome.as_dict()
        open_claims.append((memory, shared))
        if random.random() < 0.7:
            usage = {rate.key: random.randint(0, 20) for rate in rates}
            for one in open_claims.pop(random.randrange(len(open_claims))):
                if one:
                    one.update(usage)
                one.release()
        assert sets[0].get_stats() == random.choice(sets[1:]).get_stats()


def test_a_change_of_the_version_is_seen_by_every_store_immediately(open_store: Open) -> None:
    one, other = open_store(), open_store()
    limits = limits_of(one, CallLimit(9, DAY), version=one.version())
    for _ in range(3):
        assert limits.try_acquire()
    other.advance_version()
    with pytest.raises(StaleConfiguration):
        limits.try_acquire()
    assert one.version() == other.version() > 0


def test_a_forked_child_counts_with_its_parent_and_leaves_its_connections_alone(open_store: Open) -> None:
    limits = limits_of(open_store(), CallLimit(5, DAY, RateLimitAlgorithm.FIXED_WINDOW), ResourceLimit("db", 2))
    held = limits.try_acquire()

    def permits() -> int:
        # All are kept until the end: a permit is released when nothing refers to its acquisition.
        got = [limits.try_acquire({"db": 1}) for _ in range(3)] if held else []
        return 0 if sum(map(bool, got)) == 1 else 2

    assert exit_code_of_child(permits) == 0
    assert used(limits) == 2
    held.release()
    assert holders(limits) == 1


def test_a_store_can_be_sent_to_another_process_unless_its_clock_is_its_own(open_store: Open) -> None:
    open_store()
    shared = open_database_store(ALIAS, lock_timeout=next(_DIFFERENT))
    assert pickle.loads(pickle.dumps(shared)) is shared
    assert repr(shared) == "DatabaseStore('limits')"
    with pytest.raises(NotShareable):
        pickle.dumps(open_store(clock=FakeClock()))
    shared.close()


def test_settings_name_a_database_store(open_store: Open) -> None:
    open_store()
    seconds = next(_DIFFERENT)
    entry = {"KIND": "database", "USING": ALIAS, "LOCK_TIMEOUT_SECONDS": 0.25, "CONNECT_TIMEOUT_SECONDS": seconds}
    with override_settings(LIMITS={"STORES": {"default": entry}}):
        store = registry.store()
        assert isinstance(store, DatabaseStore)
        assert store is open_database_store(ALIAS, lock_timeout=0.25, connect_timeout=seconds)
        assert registry.shared_store() is store
        assert limits_of(store, CallLimit(1, DAY)).try_acquire()
        store.close()


def test_an_acquire_within_a_step_is_rejected_and_a_settlement_is_deferred(open_store: Open) -> None:
    clock = ActingClock()
    store = open_store(clock=clock)
    limits, other = limits_of(store, CallLimit(9, DAY)), limits_of(store, ResourceLimit("db", 1), entity="other")
    claim = taken(other)

    def ask() -> None:
        give_back(other, claim)
        limits.try_acquire()

    clock.deed = ask
    assert limits.try_acquire()
    assert "within a step of the same thread" in str(clock.failure)
    assert holders(other) == 0
    assert used(limits) == 1


@pytest.mark.parametrize("watched", [True, False])
def test_a_release_in_the_middle_of_a_step_that_fails_is_settled_later_and_no_error_of_the_step(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, watched: bool
) -> None:
    clock = ActingClock()
    store = open_store(clock=clock)
    limits, other = limits_of(store, CallLimit(9, DAY)), limits_of(store, ResourceLimit("db", 1), entity="other")
    claim = taken(other)
    kept: list[Claim] = []

    def fail(*_: object) -> bool:
        raise StoreUnavailable("locked")

    clock.deed = lambda: give_back(other, claim)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(store, "_settle", fail)
        meanwhile.setattr(store, "settle_later", (lambda claim, _changes: kept.append(claim)) if watched else None)
        assert limits.try_acquire()
    assert kept == [claim] * watched
    assert ("repeated after the next step" in caplog.text) is not watched
    assert limits.try_acquire()
    assert holders(other) == watched
    give_back(other, claim)
    assert holders(other) == 0


def test_a_database_in_memory_is_rejected_with_a_hint() -> None:
    settings = {"ENGINE": "django.db.backends.sqlite3", "NAME": "file:shared?mode=memory&cache=shared"}
    with database(settings, bare=True), pytest.raises(ImproperlyConfigured, match="TEST"):
        limits_of(DatabaseStore(ALIAS), CallLimit(1, DAY)).try_acquire()


def test_missing_database_or_one_of_another_kind_is_named() -> None:
    with pytest.raises(ImproperlyConfigured, match="nowhere"):
        DatabaseStore("nowhere")
    with (
        database({"ENGINE": "django.db.backends.dummy"}, bare=True),
        pytest.raises(ImproperlyConfigured, match="sqlite"),
    ):
        DatabaseStore(ALIAS)
