"""The data file that a process has opened: whether it is still the one in the directory, and as large as it was."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from weakref import finalize

import lmdb

from limits_app.engine import lasts
from limits_app.stores.process import files


class DeletedError(lmdb.Error):
    """Another program has deleted or moved files of the store."""


class OpenedFile:
    """A descriptor of the file; `number` is its inode, and `lock_number` that of the file with its locks."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._numbers = files.file_numbers(state)
        self.number, self.lock_number = self._numbers
        self._descriptor = os.open(files.data_file(state), os.O_RDONLY)
        self.close = finalize(self, os.close, self._descriptor)
        self._size = os.lseek(self._descriptor, 0, os.SEEK_END)
        self._checked_at = monotonic()

    def check(self) -> bool:
        """Raise DeletedError when another program has deleted the file; returns whether a second has passed.

        Once a second, also when the file was moved, or the file with the locks deleted.
        Raises CorruptedError when another program has truncated the file: the kernel ends a process that reads on.
        """
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0:
            raise DeletedError("the state file was deleted")
        if status.st_size < self._size:
            raise lmdb.CorruptedError("another program has truncated it")
        now = monotonic()
        if lasts(self._checked_at, files.SECONDS_BETWEEN_CHECKS, now):
            return False
        self._checked_at = now
        if files.file_numbers(self._state) != self._numbers:
            raise DeletedError("the state file was moved, or the file with its locks was deleted")
        return True

    def is_deleted(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._descriptor).st_nlink == 0
