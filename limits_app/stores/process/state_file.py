"""The open state file of one process: its transactions, its errors, and what becomes of it when the process forks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Final, TypeVar

import lmdb

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import around_fork
from limits_app.stores.locking import acquire_patiently, unlock
from limits_app.stores.process.files import (
    UNREADABLE,
    data_file,
    file_number,
    open_environment,
    private_directory,
    set_aside,
)
from limits_app.stores.process.presence import Presence, is_alive

__all__ = ["StateFile", "Txn"]

if TYPE_CHECKING:
    Txn = lmdb.Transaction[bytes]
else:
    Txn = lmdb.Transaction  # it takes no parameters when the code runs
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")

_CROWDED: Final = 7 / 8

_INHERITED: Final[list[object]] = []
"""What parent processes show of themselves: closing one here would take locks away from this process."""


class StateFile:
    """Opens the file when it is needed, and anew in a child process; `identity` names the process to others.

    `opened` is called whenever that was done: what was known of the file need not hold any more.
    """

    def __init__(
        self,
        directory: Path,
        map_megabytes: int,
        make_room: Callable[[], None],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = private_directory(directory)
        self._map_megabytes = map_megabytes
        self._make_room = make_room
        self._tell = opened
        self.environment: lmdb.Environment | None = None
        self.presence: Presence | None = None
        self._lock = RLock()
        self.turn = RLock()
        """Held inside of every transaction, so that none is under way when the process forks."""
        self._stepping = 0
        self._later: list[Callable[[], None]] = []
        self.open()
        around_fork(self)

    def before_fork(self) -> None:
        """Close the file for a while: no transaction survives a fork, and neither process could open it twice."""
        self.turn.acquire()
        if self.environment is not None:
            self.environment.close()
            self.environment = None

    def after_fork(self) -> None:
        """A child shows itself under a name of its own."""
        _INHERITED.append(self.presence)
        self.environment = None
        self.presence = None
        self._lock = RLock()
        self.turn = RLock()
        self._stepping = 0
        self._later = []

    def open(self) -> lmdb.Environment:
        """The environment, opened where it is not yet."""
        with self._lock:
            if self.environment is None:
                self.environment = open_environment(self.directory, self._map_megabytes)
                self._opened = file_number(self.directory)
                self._tell()
            return self.environment

    def close(self) -> None:
        """Close the file and take this process's traces away; what is used again opens it anew."""
        with self._lock:
            if self.presence is not None:
                self.presence.leave()
                self.presence = None
            if self.environment is not None:
                self.environment.close()
                self.environment = None

    def is_crowded(self) -> bool:
        """Whether so much of the map is in use that the rest is needed for changing what is there."""
        environment = self.environment or self.open()
        stat = environment.stat()
        pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        return pages * stat["psize"] > environment.info()["map_size"] * _CROWDED

    def forget_dead_readers(self) -> None:
        """Let pages be used again that a process was reading when it was killed."""
        with self.turn:
            (self.environment or self.open()).reader_check()

    def _replace(self, error: Exception) -> None:
        """Begin with a new file, because this one is damaged."""
        with self.turn:
            self._reopen()
            set_aside(self.directory, error, self._opened)

    def _reopen(self) -> None:
        """Open the file again, as it is now, when it is asked next."""
        with self.turn:
            if self.environment is not None:
                self.environment.close()
                self.environment = None

    def shown(self) -> Presence:
        """What this process shows the others."""
        with self._lock:
            if self.presence is None:
                self.presence = Presence(self.directory)
            return self.presence

    def identity(self) -> bytes:
        """What names this process to the others."""
        return (self.presence or self.shown()).identity

    def is_alive(self, process: bytes) -> bool:
        """Whether another process still lives."""
        return is_alive(self.directory, process)

    def transact(self, step: Callable[[Txn, C, D], T], claim: C, charges: D, *, mending: bool = True) -> T:
        """Take one step in a write transaction, which it commits itself; fast, for what is asked all the time.

        When the file is full, damaged, or was made larger elsewhere, it is made ready and the step is taken once more.
        Raises StoreUnavailable when that does not help.
        """
        turn, thread = self.turn, get_ident()
        try:
            if not turn.acquire(False):  # a keyword costs more
                acquire_patiently(turn)
            if self._stepping == thread:
                raise StoreUnavailable("nobody can ask in the middle of a step")  # noqa: TRY301 - unlocked below
            txn = (self.environment or self.open()).begin(None, None, True)  # a keyword costs more here, too
            self._stepping = thread
            try:
                done = step(txn, claim, charges)
            finally:
                # Nothing after a commit, and all that is needed after anything else.
                txn.abort()
                self._stepping = 0
        except lmdb.Error as error:
            unlock(turn)
            self._mend(error, possible=mending)
            return self.transact(step, claim, charges, mending=False)
        except BaseException:
            unlock(turn)
            raise
        turn.release()
        if self._later:
            self._catch_up()
        return done

    def write(self, step: Callable[[Txn], T], *, mending: bool = True) -> T:
        """Take one step in a write transaction, which is committed at its end; for all else."""
        return self.transact(_committed, step, None, mending=mending)

    def read(self, step: Callable[[Txn], T], *, mending: bool = True) -> T:
        """Take one step in a transaction that changes nothing; mends the file as `transact` does."""
        try:
            with self.turn, (self.environment or self.open()).begin() as txn:
                return step(txn)
        except lmdb.Error as error:
            self._mend(error, possible=mending)
        return self.read(step, mending=False)

    def _catch_up(self) -> None:
        while (deed := self._next_deed()) is not None:
            deed()

    def _next_deed(self) -> Callable[[], None] | None:
        with self.turn:
            return self._later.pop(0) if self._later else None

    def _mend(self, error: lmdb.Error, *, possible: bool) -> None:
        """Make the file ready for another try, or raise what its error means to the caller."""
        possible = possible and not self.is_stepping()
        if possible and isinstance(error, lmdb.MapFullError):
            with suppress(StoreUnavailable):
                self._make_room()
        elif possible and isinstance(error, lmdb.MapResizedError):
            self._reopen()  # another process has made it larger
        elif possible and isinstance(error, UNREADABLE):
            self._replace(error)
        else:
            raise self.failure(error) from error

    def is_stepping(self) -> bool:
        """Whether the running thread is in the middle of a step: what asks now is a finalizer or a signal handler."""
        return self._stepping != 0 and self._stepping == get_ident()

    def do_later(self, deed: Callable[[], None]) -> None:
        """Do something once the step that is under way has been taken."""
        self._later.append(deed)

    def failure(self, error: lmdb.Error) -> StoreUnavailable:
        """What an error of the file means to the caller."""
        if isinstance(error, lmdb.MapFullError):
            return StoreUnavailable(
                f"all {self._map_megabytes} MB of {self.directory} are in active use: raise LIMITS['MAP_MEGABYTES']"
            )
        return StoreUnavailable(
            f"the state file {data_file(self.directory)} cannot be used ({error}): if that goes on, stop all processes "
            "that use it and delete it, and counting starts anew"
        )


def _committed(txn: Txn, step: Callable[[Txn], T], _: None) -> T:
    done = step(txn)
    txn.commit()
    return done
