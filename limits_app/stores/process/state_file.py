"""The open state file of one process: its transactions, its errors, and what becomes of it when the process forks."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Final

import lmdb

from limits_app.core.errors import StoreUnavailable
from limits_app.core.forking import on_fork
from limits_app.stores.process.files import open_environment, private_directory
from limits_app.stores.process.presence import Presence, is_alive

__all__ = ["StateFile"]

_INHERITED: Final[list[object]] = []
"""What parent processes show of themselves: closing one here would take locks away from this process."""


class StateFile:
    """Opens the file when it is needed, and anew in a child process; `identity` names the process to others."""

    def __init__(self, directory: Path, map_megabytes: int) -> None:
        self.directory = private_directory(directory)
        self._map_megabytes = map_megabytes
        self.environment: lmdb.Environment | None = None
        self.presence: Presence | None = None
        self._lock = RLock()
        self.turn = RLock()
        """Held inside of every transaction, so that none is under way when the process forks."""
        self.open()
        on_fork(self)
        _LIVING.add(self)

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

    def open(self) -> lmdb.Environment:
        """The environment, opened where it is not yet."""
        with self._lock:
            if self.environment is None:
                self.environment = open_environment(self.directory, self._map_megabytes)
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

    def reopen(self) -> None:
        """Open the file again, as large as it is now."""
        with self.turn:
            if self.environment is not None:
                self.environment.close()
                self.environment = None

    def identity(self) -> bytes:
        """What names this process to the others."""
        presence = self.presence
        if presence is not None:
            return presence.identity
        with self._lock:
            if self.presence is None:
                self.presence = Presence(self.directory)
            return self.presence.identity

    def is_alive(self, process: bytes) -> bool:
        """Whether another process still lives."""
        return is_alive(self.directory, process)

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A transaction that changes nothing."""
        with self._failing_clearly(), self.turn, (self.environment or self.open()).begin() as txn:
            yield txn

    @contextmanager
    def writing(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A transaction that is committed at the end of the block, or not at all."""
        with self._failing_clearly(), self.turn, (self.environment or self.open()).begin(write=True) as txn:
            yield txn

    def failure(self, error: lmdb.Error) -> StoreUnavailable:
        """What an error of the file means to the caller."""
        if isinstance(error, lmdb.MapFullError):
            return StoreUnavailable(
                f"all {self._map_megabytes} MB of {self.directory} are in active use: raise LIMITS['MAP_MEGABYTES']"
            )
        return StoreUnavailable(f"the state file in {self.directory} cannot be used: {error}")

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            raise self.failure(error) from error


_LIVING: Final[weakref.WeakSet[StateFile]] = weakref.WeakSet()
_WAITING: Final[list[StateFile]] = []


def _before_fork() -> None:
    for file in list(_LIVING):
        file.before_fork()
        _WAITING.append(file)


def _after_fork_in_parent() -> None:
    while _WAITING:
        _WAITING.pop().turn.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_WAITING.clear)
