"""The commit log: whether a commit whose reply was lost has taken effect.

Every connection to a server has one row in the table `limits_app_commit` with the number of its last commit. A
transaction writes its number there before it commits, so the number is there exactly when the transaction took effect.

A commit whose reply was lost is in doubt. When the same work is tried again, it first locks the same rows, which waits
until the transaction in doubt has ended, and then looks for the number.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from limits_app.engine.plan import Claim
    from limits_app.stores.database.connections import Statement, StoreConnection

KEPT_US: Final = 86_400_000_000
"""How long the row of a closed connection is kept; far longer than a connection is used."""

FORGET_COMMITS: Final = "DELETE FROM limits_app_commit WHERE number < %s"
CHANGE_COMMIT: Final = "UPDATE limits_app_commit SET number = %s WHERE connection = %s"
_ADD_COMMIT: Final = "INSERT INTO limits_app_commit (number, connection) VALUES (%s, %s)"
_FIND_COMMIT: Final = "SELECT number FROM limits_app_commit WHERE connection = %s"
_MAX_DOUBTS: Final = 10_000


class Commit(NamedTuple):
    """A commit: a random number for its connection, and its own, the server's time in microseconds or a little more."""

    connection: int
    number: int


class Doubt(NamedTuple):
    """A commit without a reply, and its result if it took effect."""

    commit: Commit
    result: object


class AlreadyCommittedError(Exception):
    """Work that is tried again took effect the first time."""


class CommitLog:
    """Numbers the commits of one connection."""

    def __init__(self) -> None:
        self._connection = int.from_bytes(os.urandom(8)) >> 1
        self._last = 0
        self._has_row = False

    def next_commit(self, now: int) -> tuple[Commit, Statement]:
        """Return the next commit, and the statement that writes its number; `now` is the server's time."""
        self._last = max(self._last + 1, now)
        sql = CHANGE_COMMIT if self._has_row else _ADD_COMMIT
        return Commit(self._connection, self._last), (sql, (self._last, self._connection))

    def committed(self) -> None:
        """Note that a commit took effect, so that the connection has its row."""
        self._has_row = True


class Doubts(dict["tuple[Claim, str]", Doubt]):
    """The commits in doubt of this process, by claim and verb: the oldest are forgotten when there are too many."""

    def add(self, claim: Claim, verb: str, doubt: Doubt) -> None:
        """Remember that it is unknown whether a verb took effect for a claim."""
        while len(self) >= _MAX_DOUBTS:
            self.pop(next(iter(self)))
        self[claim, verb] = doubt


def was_committed(connection: StoreConnection, commit: Commit) -> bool:
    """Return whether a commit took effect; valid while the rows that its transaction had locked are locked again."""
    return [row[0] for row in connection.execute(_FIND_COMMIT, (commit.connection,))] == [commit.number]
