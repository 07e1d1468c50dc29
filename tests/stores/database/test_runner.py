"""Steps that are rolled back are tried again after a pause and not indefinitely; late replies; records as bytes."""

from __future__ import annotations

from array import array
from threading import Event
from threading import enumerate as enumerate_threads
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limits_app.engine.algorithms.window_log import Log
from limits_app.engine.clock import Clock
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores.database.connections import Failure
from limits_app.stores.database.housekeeping import RowHousekeeping
from limits_app.stores.database.records import RecordTable, pack_leases, pack_logs, unpack_leases, unpack_log
from limits_app.stores.database.runner import TransactionRunner
from limits_app.stores.database.servers import ReplyTimer
from limits_app.stores.database.transaction import Transaction
from tests.stores.support import PATIENCE, until
from tests.threads import no_more_threads


class Deadlock(Exception):
    """The error of a driver for the transaction that a database has rolled back."""


class Connection:
    """A connection whose transactions are rolled back so many times."""

    error = Deadlock
    begin_sql = "BEGIN"
    is_clean = True

    def __init__(self, deadlocks: int) -> None:
        self.deadlocks = deadlocks
        self.executed: list[str] = []

    def execute(self, sql: str) -> None:
        self.executed.append(sql)
        if sql == "COMMIT" and self.executed.count(sql) <= self.deadlocks:
            raise Deadlock("try again")

    def rollback(self) -> None:
        self.execute("ROLLBACK")

    def failure(self, _error: Exception) -> Failure:
        return Failure(transient=True, lost=False)


def run(connection: Connection, pauses: list[float]) -> object:
    """Run a step; the pauses between its attempts take no time."""
    kind = SimpleNamespace(is_local=False)
    connections: Any = SimpleNamespace(alias="limits", kind=kind, current=lambda: connection)

    def step(transaction: Transaction) -> str:
        transaction.begin()
        transaction.commit()
        return "done"

    table, housekeeping, clock = RecordTable(), RowHousekeeping(), Clock(lambda: 0)
    steps = TransactionRunner(connections, table, housekeeping, clock, settle=lambda *_: None, pause=pauses.append)
    return steps.run(step)


@pytest.mark.parametrize("deadlocks", [0, 1, 19])
def test_a_step_that_was_rolled_back_is_tried_again_after_a_random_pause(deadlocks: int) -> None:
    connection, pauses = Connection(deadlocks), list[float]()
    assert run(connection, pauses) == "done"
    assert connection.executed == ["BEGIN", "COMMIT", "ROLLBACK"] * deadlocks + ["BEGIN", "COMMIT"]
    assert len(pauses) == deadlocks
    assert all(0 <= pause <= attempt / 1000 for attempt, pause in enumerate(pauses, 1))


def test_a_step_that_is_rolled_back_each_time_is_an_error() -> None:
    pauses: list[float] = []
    with pytest.raises(StoreUnavailable, match="'limits' failed 20 times in a row: try again"):
        run(Connection(100), pauses)
    assert sum(pauses) < 0.21


class Waiting:
    """A connection that waits for a reply."""

    def __init__(self) -> None:
        self.interrupted = Event()

    def interrupt(self) -> None:
        assert not self.interrupted.is_set()
        self.interrupted.set()


def test_a_late_reply_is_interrupted_once_and_one_in_time_is_not() -> None:
    before = enumerate_threads()
    timer, late, early, patient = ReplyTimer(interval_us=1000), Waiting(), Waiting(), Waiting()
    with timer.closing:  # so that the timer cannot look in between
        timer.start(early, 0)
        timer.stop(early)
    for _ in range(2):  # the second time, its thread has ended
        late.interrupted.clear()
        timer.start(late, 0)
        timer.start(patient, PATIENCE)
        assert late.interrupted.wait(PATIENCE)
        timer.stop(late)
        timer.stop(patient)
        until(lambda: {*enumerate_threads()} <= {*before})
    assert not early.interrupted.is_set()
    assert not patient.interrupted.is_set()


def test_replies_have_no_timeout_until_a_thread_starts() -> None:
    timer, waiting = ReplyTimer(), Waiting()
    with no_more_threads():
        timer.start(waiting, 0)
    timer.check()
    assert waiting.interrupted.is_set()


NUMBERS = st.integers(-(2**63), 2**63 - 1)
ENTRIES = st.lists(st.tuples(NUMBERS, NUMBERS), max_size=9)
LEASES = st.dictionaries(
    st.tuples(st.text("abz_-", min_size=1, max_size=64), st.binary(min_size=16, max_size=16)),
    st.tuples(NUMBERS, NUMBERS, NUMBERS),
    max_size=9,
)
DAY_US = 86_400_000_000


def log(*entries: tuple[int, int]) -> Log:
    return Log(array("q", [time for time, _ in entries]), array("q", [total for _, total in entries]))


@settings(max_examples=60)
@given(st.lists(ENTRIES, max_size=3))
def test_logs_are_read_as_they_were_written(entries: list[list[tuple[int, int]]]) -> None:
    logs = [log(*some) for some in entries]
    packed = pack_logs(logs)
    assert [unpack_log(packed, index) for index in range(len(logs))] == [one.pack() for one in logs]
    assert unpack_log(packed, len(logs)) is None


@pytest.mark.parametrize(("window_us", "amount", "most"), [(100_000_000, 5, 6), (DAY_US, 5, 7), (DAY_US, 40_000, 9)])
def test_a_full_log_takes_less_than_half_of_the_bytes_of_its_numbers(window_us: int, amount: int, most: int) -> None:
    start, step = 1_800_000_000_000_000, window_us // 1024 + 7
    full = log(*[(start + number * step, 1 + number * amount) for number in range(1024)])
    assert len(pack_logs([full])) <= most * 1024 + 64


@settings(max_examples=60)
@given(LEASES)
def test_leases_are_read_as_they_were_written(leases: dict[tuple[str, bytes], tuple[int, int, int]]) -> None:
    assert unpack_leases(pack_leases(leases)) == leases
