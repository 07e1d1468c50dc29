"""Releases that a signal handler or a finalizer interrupts or makes, on each database: each is settled once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import FrameType

import pytest

from limits_app.acquiring.acquisition import Acquisition
from limits_app.acquiring.limit_set import LimitSet
from limits_app.engine.errors import StoreUnavailable
from limits_app.engine.limits import RateLimit
from limits_app.stores.database import DatabaseStore
from limits_app.stores.database.transaction import Transaction
from tests.interrupting import Interrupted, interrupted_at_event
from tests.replacing import at_next_call
from tests.stores.database.conftest import Open
from tests.stores.database.databases import in_step
from tests.stores.support import limits_of


@pytest.fixture
def refundable(open_store: Open) -> tuple[DatabaseStore, LimitSet, Acquisition]:
    """A store, a limit of 10 of which 9 are used, and an acquisition of 4 of these that used nothing."""
    store = open_store()
    limits = limits_of(store, RateLimit("x", 10, 86_400))
    spent = limits.try_acquire({"x": 5})
    spent.update({"x": 5})
    spent.release()
    acquired = limits.try_acquire({"x": 4})
    acquired.update({"x": 0})
    return store, limits, acquired


@pytest.mark.parametrize("commits", [True, False])
def test_a_release_that_is_interrupted_at_its_commit_is_settled_at_most_once(
    refundable: tuple[DatabaseStore, LimitSet, Acquisition], monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    _, limits, acquired = refundable

    def interrupted(commit: Callable[[Transaction], None], transaction: Transaction) -> None:
        if commits:
            commit(transaction)
        raise KeyboardInterrupt

    at_next_call(monkeypatch, Transaction, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acquired.release()
    acquired.release()
    assert limits.get_stats()["x"]["used"] == pytest.approx(5 if commits else 9, abs=0.1)


def test_a_release_that_is_interrupted_before_its_commit_is_settled_by_the_next_one(
    refundable: tuple[DatabaseStore, LimitSet, Acquisition], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, limits, acquired = refundable

    def interrupted(write: Callable[[Transaction], bool], transaction: Transaction) -> bool:
        write(transaction)
        raise KeyboardInterrupt

    at_next_call(monkeypatch, Transaction, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        acquired.release()
    acquired.release()
    assert limits.get_stats()["x"]["used"] == pytest.approx(5, abs=0.1)


def test_threads_that_release_at_the_same_time_settle_once(
    refundable: tuple[DatabaseStore, LimitSet, Acquisition],
) -> None:
    store, limits, acquired = refundable
    claim, barrier = acquired.claim, Barrier(4)

    def settle(_: int) -> None:
        barrier.wait()
        store.settle(claim, [-amount for amount in claim.amounts])

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(settle, range(4)))
    assert limits.get_stats()["x"]["used"] == pytest.approx(5, abs=0.1)


def test_a_release_within_a_step_that_fails_is_settled_after_it(
    refundable: tuple[DatabaseStore, LimitSet, Acquisition],
) -> None:
    store, limits, acquired = refundable

    def fail(_transaction: Transaction) -> None:
        acquired.release()
        raise StoreUnavailable("for a test")

    with pytest.raises(StoreUnavailable, match="for a test"):
        in_step(store, fail)
    assert limits.get_stats()["x"]["used"] == pytest.approx(5, abs=0.1)


def test_second_settle_within_a_step_is_ignored(
    refundable: tuple[DatabaseStore, LimitSet, Acquisition],
) -> None:
    store, limits, acquired = refundable

    def settle_twice(_transaction: Transaction) -> None:
        for _ in range(2):
            store.settle(acquired.claim, [-amount for amount in acquired.claim.amounts])

    in_step(store, settle_twice)
    assert acquired.claim.settled
    assert limits.get_stats()["x"]["used"] == pytest.approx(5, abs=0.1)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a connection that was just made
def test_a_statement_that_is_interrupted_leaves_no_row_locked_while_its_exception_is_handled(open_store: Open) -> None:
    store, other = open_store(), open_store(lock_timeout=0.5)
    limits, others = (limits_of(one, RateLimit("x", 10**6, 86_400)) for one in (store, other))
    assert limits.try_acquire({"x": 1})

    def is_ours(frame: FrameType, event: str) -> bool:
        return event in {"call", "c_return"} and "limits_app/stores/database" in frame.f_code.co_filename

    for number in range(1, 1000):
        try:
            with interrupted_at_event(number, is_ours):
                limits.try_acquire({"x": 1})
        except Interrupted:
            assert others.try_acquire({"x": 1}), number
        else:
            break
    assert 10 < number < 999
