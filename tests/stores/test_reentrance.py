"""Calls within a step of the same thread, as of finalizers and signal handlers, and steps that are interrupted."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import lmdb
import pytest

from limits_app import engine
from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.acquiring.store import CountingStore
from limits_app.engine.claims import Claim
from limits_app.engine.errors import StoreBlocked, StoreUnavailable
from limits_app.engine.limits import CallLimit, RateLimit, ResourceLimit
from limits_app.engine.record import Record
from limits_app.engine.scoped_limits import ScopedLimits
from limits_app.stores.memory import MemoryStore
from limits_app.stores.process import ProcessStore
from limits_app.stores.process import store as store_module
from limits_app.stores.process.files import file_numbers, set_aside
from limits_app.stores.process.state_file import Txn
from limits_app.stores.resilient import ResilientStore
from tests.replacing import at_next_call
from tests.stores.support import ActingClock, entries, file_of, holders, limits_of, used


@pytest.fixture
def clock() -> ActingClock:
    """The clock of the stores."""
    return ActingClock()


@pytest.fixture
def limits(store: CountingStore) -> LimitSet:
    return limits_of(store, RateLimit("x", 10, 86_400), ResourceLimit("db", 5))


@pytest.fixture
def acquired(limits: LimitSet) -> Acquisition:
    """An acquisition of 4, of which 1 is used."""
    acquired = limits.try_acquire({"x": 4})
    acquired.update({"x": 1})
    return acquired


@pytest.mark.parametrize("verb", ["acquire", "peek", "renew", "reset", "collect_counts"])
@pytest.mark.parametrize("step", ["acquire", "settle"])
def test_a_verb_within_a_step_is_rejected_and_the_step_continues(
    store: CountingStore, clock: ActingClock, limits: LimitSet, acquired: Acquisition, step: str, verb: str
) -> None:
    clock.deed = {
        "acquire": lambda: limits.try_acquire({"x": 2}),
        "peek": limits.get_stats,
        "renew": lambda: store.renew([acquired.claim]),
        "reset": lambda: store.reset([limits.scoped[0].scope.key]),
        "collect_counts": store.collect_counts,
    }[verb]
    if step == "acquire":
        assert limits.try_acquire({"x": 1})
    else:
        acquired.update({"x": 6})
        acquired.release()
    assert "within a step" in str(clock.failure)
    assert used(limits, "x") == (5 if step == "acquire" else 6)
    assert limits.try_acquire({"x": 2})


def test_a_release_within_a_step_is_settled_once_and_after_the_step(
    store: CountingStore, clock: ActingClock, limits: LimitSet, acquired: Acquisition
) -> None:
    def release() -> None:
        acquired.release()
        assert acquired.is_released
        store.settle(acquired.claim, [-amount for amount in acquired.claim.amounts])

    clock.deed = release
    assert limits.try_acquire({"x": 2, "db": 0})
    assert clock.failure is None
    acquired.release()
    assert (used(limits, "x"), holders(limits)) == (3, 0)


def test_second_settle_within_a_step_is_ignored(store: CountingStore, clock: ActingClock, limits: LimitSet) -> None:
    assert limits.try_acquire({"x": 5})
    claim = limits.try_acquire({"x": 2}).claim

    def settle_twice() -> None:
        for _ in range(2):
            store.settle(claim, [-amount for amount in claim.amounts])

    clock.deed = settle_twice
    assert limits.try_acquire({"x": 1, "db": 0})
    assert clock.failure is None
    assert claim.settled
    assert (used(limits, "x"), holders(limits)) == (6, 1)


def test_a_release_in_the_middle_of_its_own_release_settles_once(
    clock: ActingClock, limits: LimitSet, acquired: Acquisition
) -> None:
    kept = limits.try_acquire({"x": 2})
    clock.deed = acquired.release
    acquired.release()
    assert kept
    assert clock.failure is None
    assert (used(limits, "x"), holders(limits)) == (3, 1)


def test_a_release_within_a_step_that_fails_is_settled_after_it(
    store: CountingStore, clock: ActingClock, limits: LimitSet, acquired: Acquisition
) -> None:
    def release_and_fail() -> None:
        acquired.release()
        raise KeyboardInterrupt

    clock.deed = release_and_fail
    with pytest.raises(KeyboardInterrupt):
        limits.try_acquire({"x": 1})
    store.version()  # the process store makes up for it after the next step
    assert used(limits, "x") == 1


def test_release_by_the_garbage_collector_within_a_step_succeeds(
    store: CountingStore, clock: ActingClock, limits: LimitSet
) -> None:
    def holding() -> Iterator[list[object]]:
        with limits.try_acquire({"x": 8}) as acquired:
            assert acquired
            itself: list[object] = []
            yield itself

    gc.disable()
    try:
        generator = holding()
        next(generator).append(generator)  # nothing else refers to it any more
        del generator
        clock.deed = gc.collect
        assert limits_of(store, RateLimit("x", 10, 86_400), ResourceLimit("db", 5)).try_acquire({"x": 1})
    finally:
        gc.enable()
    assert (used(limits, "x"), holders(limits)) == (1, 1)


def test_settle_during_collection_in_memory_follows_it(clock: ActingClock) -> None:
    store = MemoryStore(clock=clock)
    limits = limits_of(store, RateLimit("x", 10, 3600), ResourceLimit("db", 5))
    acquired = limits.try_acquire({"x": 4})

    def release_and_request() -> None:
        acquired.cancel()
        limits.try_acquire({"x": 1})

    clock.deed = release_and_request
    store.collect_counts()
    assert isinstance(clock.failure, StoreUnavailable)
    assert (used(limits, "x"), holders(limits)) == (0, 0)


def test_an_interrupted_first_step_of_a_scope_affects_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore(clock=ActingClock())

    def interrupted(_insert: object, scope: ScopedLimits, record: Record, now: int) -> None:
        store._to_check.append(scope.key)
        raise KeyboardInterrupt

    at_next_call(monkeypatch, store, "_insert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        limits_of(store, CallLimit(2, 3600), entity="first").try_acquire()
    for entity in ("second", "third", "first"):
        assert limits_of(store, CallLimit(2, 3600), entity=entity).try_acquire()


def test_a_file_that_another_process_has_replaced_stays(process_store: ProcessStore) -> None:
    state = process_store.directory / "state"
    numbers = file_numbers(state)
    set_aside(state, ValueError("damaged"), numbers[0] + 1)
    assert file_numbers(state) == numbers


@pytest.mark.parametrize("store", ["process"], indirect=True)
def test_a_release_within_a_step_is_settled_later_when_the_file_cannot_be_used(
    clock: ActingClock,
    limits: LimitSet,
    acquired: Acquisition,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock.deed = acquired.release

    def fail(*_: object) -> bool:
        raise StoreUnavailable("no room")

    with monkeypatch.context() as failing:
        failing.setattr(engine, "settle", fail)
        assert limits.try_acquire({"x": 2})
        assert acquired.is_released
        assert used(limits, "x") == 6
    assert "repeated after the next step" in caplog.text
    assert limits.try_acquire({"x": 1})
    assert used(limits, "x") == 4


@pytest.mark.parametrize("store", ["process"], indirect=True)
def test_a_settling_that_was_undone_is_repeated_after_the_file_was_mended(
    limits: LimitSet, acquired: Acquisition, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise lmdb.MapResizedError("larger elsewhere")

    at_next_call(monkeypatch, store_module, "any_watchers", fail)
    acquired.release()
    assert used(limits, "x") == 1


def test_any_number_of_releases_within_a_step_is_settled(
    store: CountingStore, clock: ActingClock, limits: LimitSet
) -> None:
    many = limits_of(store, RateLimit("x", 10_000, 86_400), ResourceLimit("db", 2_000), entity="many")
    held = [many.try_acquire({"x": 2}) for _ in range(2_000)]

    def release() -> None:
        for acquired in held:
            acquired.cancel()

    clock.deed = release
    assert limits.try_acquire({"x": 1})
    assert clock.failure is None
    assert (used(many, "x"), holders(many)) == (0, 0)


def test_a_release_within_a_step_that_fails_is_logged_and_the_next_one_is_settled(
    store: CountingStore, clock: ActingClock, limits: LimitSet, acquired: Acquisition, caplog: pytest.LogCaptureFixture
) -> None:
    invalid = limits.try_acquire({"x": 2}).claim

    def release() -> None:
        store.settle(invalid, [])
        acquired.release()

    clock.deed = release
    assert limits.try_acquire({"x": 1})
    assert "a release during a step failed" in caplog.text
    assert acquired.claim.settled
    assert used(limits, "x") == 4


def test_a_call_within_a_step_does_not_count_as_an_outage(
    store: CountingStore, clock: ActingClock, limits: LimitSet
) -> None:
    resilient = ResilientStore("default", lambda _: store)
    inner = limits_of(resilient, RateLimit("x", 10, 86_400))
    clock.deed = lambda: inner.try_acquire({"x": 1})
    assert limits.try_acquire({"x": 1})
    assert isinstance(clock.failure, StoreBlocked)
    assert not resilient.failing


class TestInterruptedTransactions:
    @pytest.mark.parametrize("commits", [False, True])
    def test_uncommitted_changes_have_no_effect(self, process_store: ProcessStore, commits: bool) -> None:
        def interrupted(txn: Txn, key: bytes) -> None:
            txn.put(key, b"value")
            if commits:
                txn.commit()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            file_of(process_store).transact(interrupted, b"key")
        assert entries(process_store, b"key") == [b"key"] * commits

    @pytest.mark.parametrize("store", ["memory", "process"], indirect=True)
    def test_a_claim_whose_step_was_interrupted_is_not_admitted(
        self, store: CountingStore, limits: LimitSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its release would refund what others have used."""
        assert limits.try_acquire({"x": 3, "db": 0})
        charge = engine.charge

        def charge_and_raise(claim: Claim, *args: Any) -> bool:
            assert charge(claim, *args)
            assert claim.admitted
            raise KeyboardInterrupt

        prepared = limits.prepare({"x": 2})
        with monkeypatch.context() as interrupting:
            interrupting.setattr(engine, "charge", charge_and_raise)
            with pytest.raises(KeyboardInterrupt):
                store.acquire(prepared.claim)
        assert prepared.claim.admitted is None
        prepared.cancel()
        assert used(limits, "x") in {3, 5}
