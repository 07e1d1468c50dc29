"""Steps that are rolled back for others: they are tried again after a pause, and not indefinitely."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from limits_app.core.clock import Clock
from limits_app.core.errors import StoreUnavailable
from limits_app.stores.database import commit_log, runner
from limits_app.stores.database.commit_log import Commit, Doubt, Doubts
from limits_app.stores.database.connections import Failure
from limits_app.stores.database.records import RecordTable
from limits_app.stores.database.runner import Housekeeping, TransactionRunner


class Deadlock(Exception):
    """The error of a driver for the transaction that a database has rolled back."""


class Connection:
    """A connection whose transactions are rolled back so many times."""

    error = Deadlock

    def __init__(self, deadlocks: int) -> None:
        self.deadlocks = deadlocks
        self.tried = 0

    def step(self) -> str:
        self.tried += 1
        if self.tried <= self.deadlocks:
            raise Deadlock("try again")
        return "done"

    def failure(self, _error: Exception) -> Failure:
        return Failure(transient=True, lost=False)

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which take no time."""
    paused: list[float] = []
    monkeypatch.setattr(runner, "sleep", paused.append)
    return paused


def run(connection: Connection) -> object:
    given: list[Connection] = []
    pool: Any = SimpleNamespace(
        alias="limits",
        is_busy=False,
        turn=nullcontext(),
        take=lambda: connection,
        give=given.append,
    )
    try:
        transactions = TransactionRunner(pool, RecordTable(), Housekeeping(), Clock(lambda: 0))
        return transactions.run(lambda transaction: transaction.connection.step())  # type: ignore[attr-defined]
    finally:
        assert given == [connection] * connection.tried


@pytest.mark.parametrize("deadlocks", [0, 1, 19])
def test_a_step_that_was_rolled_back_is_tried_again_after_a_random_pause(deadlocks: int, paused: list[float]) -> None:
    assert run(Connection(deadlocks)) == "done"
    assert len(paused) == deadlocks
    assert all(0 <= pause <= attempt / 1000 for attempt, pause in enumerate(paused, 1))


def test_a_step_that_is_rolled_back_each_time_is_an_error(paused: list[float]) -> None:
    with pytest.raises(StoreUnavailable, match="'limits' failed 20 times in a row: try again"):
        run(Connection(100))
    assert sum(paused) < 0.21


def test_doubts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_MAX_DOUBTS", 2)
    doubts, claims = Doubts(), [object() for _ in range(4)]
    for number, claim in enumerate(claims):
        doubts.add(claim, "acquire", Doubt(Commit(1, number), None))  # type: ignore[arg-type]  # by its identity
    assert len(doubts) == 2
    assert (claims[0], "acquire") not in doubts
