"""Links: connections of the store's own, beside those of the site's requests.

A step of the store is a transaction of its own, so that nothing that a request rolls back takes a count with it.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from limits_app.core.version import least_version
from limits_app.stores.database import statements
from limits_app.stores.database.statements import COMMIT, Change, Statement
from limits_app.stores.database.trail import framed, left_by, unframed

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["Failure", "Found", "Link", "LinkOptions", "Promise", "Row", "new_stamp"]


class Row(NamedTuple):
    """The state of a scope as it is stored; `logs` reads its logs."""

    scope: bytes
    stamp: int
    states: bytes
    logs: Callable[[], bytes | None]
    trail: bytes

    def is_of(self, layout: bytes) -> bool:
        """Whether the layout with this name has written it."""
        return self.states.startswith(layout)


class LinkOptions(NamedTuple):
    """How long a link waits for locks and for its connection, in seconds, and whether time is the server's."""

    lock_timeout: float
    connect_timeout: float
    reads_clock: bool

    @property
    def idle_timeout(self) -> float:
        """How long others wait for the next word of a process that was frozen in the middle of a step."""
        return max(self.lock_timeout / 2, _LEAST_IDLE)

    @property
    def statement_timeout(self) -> float:
        """How long a statement may take, which may wait for several locks."""
        return 2 * self.lock_timeout

    @property
    def reply_timeout(self) -> float:
        """How long an answer is waited for: a server that lives has ended the statement before."""
        return self.statement_timeout + _ON_THE_WAY


class Found(NamedTuple):
    """What a step starts from: the rows there are, the database's time, and the version of the configuration."""

    rows: list[Row]
    now: int
    version: int


class Promise(NamedTuple):
    """A commit that a link has sent: of which row, among others, with which stamp, and what to do once it is done."""

    scope: bytes
    link: int
    stamp: int
    conclude: Callable[[], None]


class Failure(NamedTuple):
    """What an error of the driver means: whether the same may work now, and whether the connection is of no use.

    A `silent` server has not answered in time, and would keep the next one waiting as long.
    One without tables or columns of ours is `unmigrated`.
    """

    transient: bool
    lost: bool
    silent: bool = False
    unmigrated: bool = False


_ON_THE_WAY: Final = 0.5
_LEAST_IDLE: Final = 0.5
"""Seconds that a process on a busy machine may need between two statements."""
_BY_SCOPE: Final = attrgetter("scope")
_RANDOM: Final = Random()
os.register_at_fork(after_in_child=_RANDOM.seed)


def new_stamp() -> int:
    """A random number of 63 bits, which nobody draws twice."""
    return _RANDOM.getrandbits(63)


class Link(ABC):
    """One connection, used by one thread at a time."""

    begins: ClassVar[str] = "BEGIN"
    locks: ClassVar[str] = " FOR UPDATE"
    skips: str = ""
    """What makes a statement that locks rows leave out those that are locked, where the database can."""
    adds: ClassVar[tuple[str, str]] = ("INSERT INTO", " ON CONFLICT DO NOTHING")
    clock: ClassVar[str] = "0"
    has_clock: ClassVar[bool] = True
    """Whether the server has a clock that is not this machine's."""
    keeps_notes: ClassVar[bool] = True
    """Whether the server may have done what the client never heard of."""
    is_far: ClassVar[bool] = True
    """Whether a server is asked, which may not answer."""
    takes_turns: ClassVar[bool] = False
    """Whether one thread of a process at a time uses links."""

    def __init__(self, wrapper: BaseDatabaseWrapper, options: LinkOptions) -> None:
        self.alias = wrapper.alias
        self.options = options
        self.driver: Any = wrapper.Database  # type: ignore[attr-defined]  # every wrapper has it
        self.error: type[Exception] = self.driver.Error
        self.number = new_stamp()
        """What the link is called in the trails of rows."""
        self.promise: Promise | None = None
        """A commit that was sent and not answered."""
        self.opened_at = self.used_at = monotonic()
        try:
            wrapper.connect()
            self._raw: Any = wrapper.connection
            self.cursor: Any = self._raw.cursor()
            if wrapper.features.has_select_for_update_skip_locked:
                self.skips = " SKIP LOCKED"
            self.prepare()
        except BaseException:
            if wrapper.connection is not None:
                with suppress(self.error):
                    wrapper.connection.close()
            raise

    @staticmethod  # noqa: B027 - a server has no such callers
    def check_caller(alias: str) -> None:
        """Raise StoreBlocked where the store would wait for who asks it."""

    @abstractmethod
    def prepare(self) -> None:
        """Set the connection up."""

    @abstractmethod
    def meaning(self, error: Exception) -> Failure:
        """What an error of the driver means."""

    def batch(self, batch: Sequence[Statement]) -> list[list[Any]]:
        """Run statements one after the other, in as few round trips as the driver can; their rows."""
        return [self.run(sql, values) for sql, values in batch]

    def run(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """Run one statement; its rows."""
        self.cursor.execute(sql, values)
        return self.cursor.fetchall() if self.cursor.description else []

    def now(self) -> int:
        """The time of the database."""
        return int(self.run(f"SELECT {self.clock}")[0][0])

    @classmethod
    @abstractmethod
    def configure(cls, wrapper: BaseDatabaseWrapper, options: LinkOptions) -> None:
        """Change the settings of a connection that is not open yet."""

    def begin(self, scopes: Sequence[bytes], *, skips_locked: bool = False) -> Found:
        """Begin a transaction in which nobody else changes the rows of these scopes.

        With `skips_locked`, rows that others change just now may be left out.
        """
        batch: list[Statement] = [(self.begins, ())]
        if scopes:
            locks = self.locks + self.skips if skips_locked else self.locks
            batch.append((statements.rows(len(scopes)) + locks, scopes))
        batch.append((statements.moment(self.clock), ()))
        return self._found(self.batch(batch), scopes)

    def logs(self, scope: bytes) -> bytes | None:
        """The logs of a row."""
        rows = self.run(statements.LOGS, (scope,))
        return _read(rows[0][0]) if rows else None

    def commit(self, changes: Sequence[Change], stamp: int, conclude: Callable[[], None]) -> bool:
        """Write and commit; False, with nothing written, when another has created one of the rows meanwhile."""
        for change in sorted([change for change in changes if change.old is None], key=_BY_SCOPE):
            mark = change.mark or (None, None)
            self.run(statements.add(*self.adds), (change.scope, stamp, change.states, change.logs, *mark))
            if self.cursor.rowcount == 0:
                self.rollback()
                return False
        batch = [statements.change(change, stamp) for change in changes if change.old is not None]
        tallied = [one for change in changes for one in change.tallied]
        if tallied:
            batch.append(statements.tally(tallied))
        self.promise = Promise(changes[0].scope, self.number, stamp, conclude)
        self.batch([*batch, COMMIT])
        self.promise = None
        conclude()
        return True

    def swap(  # a link that can do it has its own
        self,
        change: Change,  # noqa: ARG002
        stamp: int,  # noqa: ARG002
        *,
        now: int,  # noqa: ARG002
        version: int | None,  # noqa: ARG002
        conclude: Callable[[], None],  # noqa: ARG002
    ) -> int | None:
        """Write one row, if it has its old stamp still and the time and the version are right; the time, or None.

        Always None where that takes as long as reading the row first.
        """
        return None

    def rollback(self) -> None:
        """End the transaction; nothing of it counts."""
        self.run("ROLLBACK")

    def look(self, scopes: Sequence[bytes]) -> Found:
        """The rows of these scopes with their logs, as they are at one moment, without a lock."""
        batch: list[Statement] = [(statements.rows_with_logs(len(scopes)), scopes)] if scopes else []
        batch.append((statements.moment(self.clock), ()))
        return self._found([[], *self.batch(batch)], scopes)

    def version(self) -> int:
        """The version of the configuration."""
        return int(self.run(statements.moment("0"))[0][1])

    def advance_version(self) -> int:
        """Give the configuration its next version."""
        add, least = statements.first_version(*self.adds), least_version()
        self.batch([(add, ()), (self.begins, ()), (statements.ADVANCE, (least, least))])
        version = self.version()
        self.run(*COMMIT)
        return version

    def define(self, name: bytes, definitions: bytes) -> None:
        """Keep the definitions of a layout."""
        self.run(statements.define(*self.adds), (name, definitions))

    def definitions(self, name: bytes) -> bytes | None:
        """The definitions of a layout."""
        rows = self.run(statements.DEFINITIONS, (name,))
        return bytes(rows[0][0]) if rows else None

    def scopes_after(self, scope: bytes, number: int) -> list[Row]:
        """The next rows, in the order of their scopes."""
        return [self._row(row) for row in self.run(statements.NEXT, (scope, number))]

    def remove(self, rows: Iterable[tuple[bytes, int]]) -> None:
        """Delete the rows that still have these stamps."""
        values = [value for row in rows for value in row]
        if values:
            self.run(statements.remove(len(values) // 2), values)

    def was_done(self, promise: Promise) -> bool:
        """Whether the commit of another link was done; if not, it never will be."""
        self.run(self.begins)
        # Waits for whoever is creating the row.
        self.run(statements.add(*self.adds), (promise.scope, new_stamp(), framed(b""), None, None, None))
        if self.cursor.rowcount:
            self.rollback()
            return False
        trail, _ = unframed(bytes(self.run(statements.STATES, (promise.scope,))[0][0]))
        done = left_by(trail, promise.link) == promise.stamp
        if not done:
            # It may be on its way still, and goes by the stamp.
            self.run(statements.FENCE, (new_stamp(), promise.scope))
        self.run(*COMMIT)
        return done

    def is_alive(self) -> bool:
        """Whether the connection still works; ends the transaction."""
        try:
            self.rollback()
        except self.error:
            return False
        return True

    def close(self) -> None:
        """Close the connection."""
        with suppress(self.error):
            self._raw.close()

    def _found(self, results: list[list[Any]], scopes: Sequence[bytes]) -> Found:
        now, version = results[-1][0]
        rows = results[-2] if scopes else []
        return Found([self._row(row) for row in rows], int(now), int(version))

    def _row(self, row: Sequence[Any]) -> Row:
        scope = bytes(row[0])
        trail, states = unframed(bytes(row[2]))
        logs = partial(_read, row[3]) if len(row) > 3 else partial(self.logs, scope)
        return Row(scope, row[1], states, logs, trail)


def _read(logs: Any) -> bytes | None:
    return None if logs is None else bytes(logs)
