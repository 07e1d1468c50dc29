"""Presence: how the processes of a machine see each other.

Each process keeps a file locked while it lives: the kernel drops the lock however the process ends.
It reads a named pipe, through which other processes wake its waiters.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import time
from typing import Final

from limits_app.acquiring import start_thread
from limits_app.engine.errors import StoreUnavailable
from limits_app.stores.process.files import can_lock, exclusively, lock, make_pipe, try_lock

ID_LENGTH: Final = 8
MESSAGE_LENGTH: Final = 16
_ENDED: Final = "ended."
_ENDED_SECONDS: Final = 60
"""Ended processes are noted in one file for so many seconds; it is read for as long again.

Later this is not needed: the leases of a process that ended have expired.
"""
_IDENTITY: Final = re.compile(f"[0-9a-f]{{{2 * ID_LENGTH}}}")

logger = logging.getLogger("limits_app")


class Presence:
    """The files of this process; `identity` is 8 bytes that no other process has had.

    Without file locks no file is made: other processes cannot see whether this one lives, and its permits return when
    their leases expire. Raises StoreUnavailable when the files cannot be made.
    """

    def __init__(self, directory: Path) -> None:
        self.identity = secrets.token_bytes(ID_LENGTH)
        self._directory = directory
        self._alive: int | None = None
        self._listens = False
        if can_lock():
            with _errors_reported(directory), exclusively(directory):
                _remove_dead(directory)
                self._show()

    def restore(self) -> None:
        """Make the file of this process again if another program has deleted it; not thread safe."""
        alive = self._alive
        if alive is not None and not _alive_file(self._directory, self.identity).exists():
            with _errors_reported(self._directory), exclusively(self._directory):
                self._show()
            os.close(alive)

    def _show(self) -> None:
        # This process never opens the file again: to close a second descriptor would drop the lock.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._alive = os.open(_alive_file(self._directory, self.identity), flags, 0o600)
        lock(self._alive)

    def listen(self, receive: Callable[[bytes], None]) -> bool:
        """From now on, call `receive` with each message of 16 bytes that another process sends.

        Returns False where the system has no named pipes or no more threads: then waiters look again by themselves.
        Not thread safe.
        """
        if not self._listens:
            path = _pipe_file(self._directory, self.identity)
            with _errors_reported(self._directory):
                pipe = make_pipe(path)
            if pipe is None:
                return False
            if start_thread(partial(_receive, pipe, receive), "limits-wake-up") is None:
                os.close(pipe)
                path.unlink(missing_ok=True)
                return False
            self._listens = True
        return True

    def leave(self) -> None:
        """Remove the files."""
        alive, self._alive = self._alive, None
        if alive is not None:
            os.close(alive)  # Windows removes no file that is open
        _remove_files(self._directory, self.identity)


def is_alive(directory: Path, identity: bytes) -> bool:
    """Whether another process still lives, which must not be the calling one; removes the files of a dead process.

    Where files cannot be locked, or the file of a process was deleted by another program, it counts as alive: its
    permits are free when their leases end.
    """
    if not can_lock():
        return True
    with _errors_reported(directory):
        try:
            descriptor = os.open(_alive_file(directory, identity), os.O_RDWR)
        except FileNotFoundError:
            return not _has_ended(directory, identity)
        try:
            is_dead = try_lock(descriptor)
        finally:
            os.close(descriptor)
    if is_dead:
        _remove_files(directory, identity)
    return not is_dead


def wake(directory: Path, identity: bytes, message: bytes) -> bool:
    """Send a message of 16 bytes to a process; False when it no longer listens.

    A pipe that is full needs no further message: its process wakes anyway.
    """
    with _errors_reported(directory):
        try:
            pipe = os.open(_pipe_file(directory, identity), os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENXIO):
                return False
            raise
        try:
            os.write(pipe, message)
        except BlockingIOError:
            return True
        finally:
            os.close(pipe)
    return True


def _receive(pipe: int, receive: Callable[[bytes], None]) -> None:
    # Selectors of gevent and eventlet let other greenlets run, which a blocking read does not.
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            selector.select()
            messages = os.read(pipe, MESSAGE_LENGTH * 64)
            for start in range(0, len(messages), MESSAGE_LENGTH):
                receive(messages[start : start + MESSAGE_LENGTH])


def _remove_dead(directory: Path) -> None:
    """Remove the files of processes that ended without removing them; other files stay."""
    for path in {*directory.glob(f"{_ENDED}*")} - {*_ended_files(directory)}:
        path.unlink(missing_ok=True)
    for path in directory.glob("*.alive"):
        if _IDENTITY.fullmatch(path.stem):
            is_alive(directory, bytes.fromhex(path.stem))
        else:
            logger.warning("%s is not a file of the process store, which ignores it: remove it", path)


def _remove_files(directory: Path, identity: bytes) -> None:
    """Remove the files of a process; before that, note that it has ended."""
    alive = _alive_file(directory, identity)
    with _errors_reported(directory):
        _pipe_file(directory, identity).unlink(missing_ok=True)
        if alive.exists():
            ended = os.open(_ended_files(directory)[0], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(ended, identity)
            finally:
                os.close(ended)
            alive.unlink(missing_ok=True)


def _has_ended(directory: Path, identity: bytes) -> bool:
    """Whether it was noted that a process has ended."""
    for path in _ended_files(directory):
        with suppress(FileNotFoundError):
            noted = path.read_bytes()
            if any(noted[start : start + ID_LENGTH] == identity for start in range(0, len(noted), ID_LENGTH)):
                return True
    return False


def _ended_files(directory: Path) -> list[Path]:
    """The file that notes ended processes now, and the one before it."""
    number = int(time()) // _ENDED_SECONDS
    return [directory / f"{_ENDED}{number}", directory / f"{_ENDED}{number - 1}"]


def _alive_file(directory: Path, identity: bytes) -> Path:
    return directory / f"{identity.hex()}.alive"


def _pipe_file(directory: Path, identity: bytes) -> Path:
    return directory / f"{identity.hex()}.pipe"


@contextmanager
def _errors_reported(directory: Path) -> Iterator[None]:
    """Raise StoreUnavailable for an OSError in the block, which is about the files of a process."""
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(
            f"cannot create the process registry in {directory} ({error}): check permissions, or set "
            "LIMITS['STATE_DIR'] to another directory"
        ) from error
