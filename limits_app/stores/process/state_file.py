"""The open state file of one process: its transactions, its errors, and what happens when the process forks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import lmdb

from limits_app.acquiring import around_fork
from limits_app.engine.errors import StoreFull, StoreUnavailable
from limits_app.stores.process import files
from limits_app.stores.process.opened_file import DeletedError, OpenedFile
from limits_app.stores.process.presence import Presence, is_alive
from limits_app.stores.steps import Steps, in_step

logger = logging.getLogger("limits_app")

if TYPE_CHECKING:
    Txn = lmdb.Transaction[bytes]
else:
    Txn = lmdb.Transaction  # not generic at run time
A = TypeVar("A")
T = TypeVar("T")

_WRITES_PER_CHECK: Final = 16
"""How often it is checked whether the file may still grow."""
TIGHT: Final = 15 / 16
"""The share of the map beyond which no step may use more pages: without free ones, nothing could be changed."""

_MOVED: Final = b"moved"
"""The key that a deleted file has when its content was written into another one."""

_INHERITED: Final[list[object]] = []
"""The files of parent processes: to close them here would drop locks of this process."""


class NoRoomError(lmdb.MapFullError):
    """A step needs more pages than it may use; it is repeated in the context `making_room` of its transaction."""

    def __init__(self, making_room: Callable[[Txn], AbstractContextManager[None]] | None = None) -> None:
        super().__init__("the last pages are needed for changes of stored records")
        self.making_room = making_room


class StateFile:
    """Opens the file when it is needed, and again in a child process.

    Everything happens in `steps`: one thread at a time, each in one transaction. `on_open` is called whenever the
    file was opened, since it may be another one. `make_room` is called, outside of a step, when the file is full.
    When another program has deleted the file it is written again. Where another process has made a new one meanwhile,
    `transfer` is called, with transactions of the deleted file and of the new one, to add the content of the former.

    An exception that a signal handler raises can come at any point of a step. It leaves the file unlocked and the
    transaction either complete or without effect.
    """

    def __init__(
        self,
        directory: Path,
        map_megabytes: int,
        steps: Steps,
        make_room: Callable[[], None],
        *,
        on_open: Callable[[], None],
        transfer: Callable[[Txn, Txn], None],
    ) -> None:
        self._parent = directory
        self.directory = files.private_directory(directory)
        self._map_megabytes = map_megabytes
        self.steps = steps
        self._make_room = make_room
        self._on_open = on_open
        self._transfer = transfer
        self.environment: lmdb.Environment | None = None
        self._opened: lmdb.Environment | None = None
        """The same, and one that an interrupted call has left open."""
        self._close_data: Callable[[], object] = lambda: None
        self.presence: Presence | None = None
        self.fork_lock = steps.lock
        """Held during every step, so that no transaction is open when the process forks."""
        self._is_tight = False
        """Whether more than TIGHT was in use at the last check."""
        self._writes = 0
        self.open()
        around_fork(self)

    def before_fork(self) -> None:
        """Close the file for a while: no transaction survives a fork, and no child may use the parent's descriptors."""
        self.fork_lock.acquire()
        self._close()

    def after_fork(self) -> None:
        """Give a child process its own identity, and no step of its parent."""
        _INHERITED.append((self.presence, self._opened))
        self.environment = self._opened = self.presence = None
        self.steps.after_fork()
        self.fork_lock = self.steps.lock

    def open(self) -> lmdb.Environment:
        """The environment, opened if it is closed."""
        return self.environment or self.steps.run_within(self._open)

    def close(self) -> None:
        """Close the file and remove the files of this process; the next step opens it again."""
        self.steps.run_within(self._leave)

    def fullness(self) -> float:
        """The share of the map that is in use."""
        environment = self.environment or self._open()
        stat = environment.stat()
        return _pages(stat) * stat["psize"] / self._map_size

    def grows(self, txn: Txn) -> bool:
        """Whether a transaction uses more pages than before."""
        environment = self.open()
        return _pages(txn.stat(environment.open_db())) > _pages(environment.stat())

    def forget_dead_readers(self) -> None:
        """Make the pages available again that a process was reading when it was killed."""
        self.steps.run_within(lambda: self._open().reader_check())

    def identity(self) -> bytes:
        """The 8 bytes that name this process to others."""
        return (self.presence or self.steps.run_within(self._show)).identity

    def listen(self, receive: Callable[[bytes], None]) -> bool:
        """See `Presence.listen`."""
        return self.steps.run_within(lambda: self._show().listen(receive))

    def is_gone(self, process: bytes) -> bool:
        """Whether another process has ended; to be called in a step."""
        return process != self.identity() and not is_alive(self.directory, process)

    def transact(self, step: Callable[[Txn, A], T], argument: A, *, write: bool = True, mending: bool = True) -> T:
        """Call `step` with a transaction, which is committed when it returns, and has no effect when it raises.

        When the file is full, damaged, or was made larger by another process, it is prepared and the step is called
        once more. Raises StoreUnavailable when that does not help, StoreFull when the file is full, and InStep in the
        middle of another step of the same thread.
        """
        try:
            done: T = self._transact((step, argument, write))
        except lmdb.Error as error:
            if mending and isinstance(error, NoRoomError) and error.making_room is not None:
                return self.transact(partial(_within, error.making_room, step), argument, mending=False)
            self._mend(error, possible=mending and not isinstance(error, NoRoomError))
            return self.transact(step, argument, write=write, mending=False)
        return done

    @in_step
    def _transact(self, request: tuple[Callable[[Txn, A], T], A, bool]) -> T:
        step, argument, write = request
        environment = self.environment or self._open()
        if self._data.check() and self.presence is not None:
            self.presence.restore()
        with environment.begin(None, None, write) as txn:
            if txn.get(_MOVED) is not None:
                raise DeletedError("another process has written the content of the deleted state file into another one")
            done = step(txn, argument)
            if write:
                self._check_growth(txn)
        return done

    def _open(self) -> lmdb.Environment:
        if self.environment is None:
            self._close()
            self._on_open()
            files.private_directory(self._parent)
            self._opened = files.open_environment(self.directory, self._map_megabytes)
            self._data = OpenedFile(self.directory)
            self._close_data = self._data.close
            self._map_size: int = self._opened.info()["map_size"]
            self.environment = self._opened
        return self.environment

    def _restore(self) -> None:
        """Go on with the file in the directory, which gets the content of this one if that was deleted."""
        deleted = self.environment
        files.private_directory(self._parent)
        if deleted is not None and self._data.is_deleted():
            with deleted.begin(write=True) as old:  # other processes wait, and notice then
                if old.get(_MOVED) is None:
                    self._move(deleted, old)
                    old.put(_MOVED, b"")
        self._close()
        if self.presence is not None:
            self.presence.restore()

    def _move(self, deleted: lmdb.Environment, old: Txn) -> None:
        """Write the content of a deleted file into the one in the directory, which is created if it is missing."""
        if not files.copy_if_missing(self.directory, deleted):
            files.drop_lock(self.directory, self._data.lock_number)
            try:
                with (
                    closing(files.open_environment(self.directory, self._map_megabytes)) as environment,
                    environment.begin(write=True) as new,
                ):
                    self._transfer(old, new)
            except files.UNREADABLE as error:
                files.set_aside(self.directory, error, files.file_numbers(self.directory)[0])
                raise
        logger.warning(
            "the files in %s were deleted while they were in use: they were written again, and no limit has changed; "
            "set LIMITS['STATE_DIR'] to a directory that nothing cleans up",
            self.directory,
        )

    def _check_growth(self, txn: Txn) -> None:
        """Raise MapFullError when a step uses more pages although almost all are in use."""
        self._writes += 1
        if self._is_tight or self._writes % _WRITES_PER_CHECK == 0:
            self._is_tight = self.fullness() > TIGHT
            if self._is_tight and self.grows(txn):
                raise lmdb.MapFullError("the last pages are needed for changes of stored records")

    def _close(self) -> None:
        """Close the file; the next step opens it, or the one that has replaced it."""
        self.environment = None
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self._close_data()

    def _show(self) -> Presence:
        if self.presence is None:
            self.presence = Presence(self.directory)
        return self.presence

    def _leave(self) -> None:
        presence, self.presence = self.presence, None
        if presence is not None:
            presence.leave()
        self._close()

    def _replace(self, error: Exception) -> None:
        """Begin with a new file, because this one is damaged."""
        self._close()
        files.set_aside(self.directory, error, self._data.number)

    def _mend(self, error: lmdb.Error, *, possible: bool) -> None:
        """Prepare the file for another attempt, or raise what its error means to the caller."""
        if possible and isinstance(error, lmdb.MapFullError):
            with suppress(StoreUnavailable):
                self._make_room()
        elif possible and isinstance(error, lmdb.MapResizedError):
            self.steps.run_within(self._close)  # another process has made it larger
        elif possible and isinstance(error, DeletedError):
            try:
                self.steps.run_within(self._restore)
            except (lmdb.Error, OSError) as failure:
                raise StoreUnavailable(
                    f"the state file {files.data_file(self.directory)} was deleted and cannot be written again "
                    f"({failure}): free some space, or set LIMITS['STATE_DIR'] to another directory"
                ) from failure
        elif possible and isinstance(error, files.UNREADABLE):
            self.steps.run_within(lambda: self._replace(error))
        elif isinstance(error, lmdb.MapFullError):
            raise StoreFull(
                f"all {self._map_megabytes} MB of {self.directory} are in active use: raise LIMITS['MAP_MEGABYTES']"
            ) from error
        else:
            raise StoreUnavailable(
                f"the state file {files.data_file(self.directory)} cannot be used ({error}): if the error persists, "
                "stop all processes that use it and delete it; counting starts again then"
            ) from error


def _within(
    making_room: Callable[[Txn], AbstractContextManager[None]], step: Callable[[Txn, A], T], txn: Txn, argument: A
) -> T:
    """Call a step in a context."""
    with making_room(txn):
        return step(txn, argument)


def _pages(stat: Mapping[str, Any]) -> int:
    """The pages that a database uses."""
    pages: int = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    return pages
