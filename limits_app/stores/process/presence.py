"""Presence: what one process shows the others of the machine.

A file that it keeps locked while it lives, since the kernel drops the lock however it ends;
and a pipe by which the others wake its waiters.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from limits_app.core.threads import started
from limits_app.stores.process.files import guard

__all__ = ["ID_LENGTH", "MESSAGE_LENGTH", "Presence", "is_alive", "wake"]

ID_LENGTH: Final = 8
MESSAGE_LENGTH: Final = 16


class Presence:
    """This process, as the others see it; `identity` is 8 bytes that no other process has had."""

    def __init__(self, directory: Path) -> None:
        self.identity = secrets.token_bytes(ID_LENGTH)
        self._directory = directory
        self._pipe: int | None = None
        self._lock = Lock()
        with guard(directory):
            _remove_dead(directory)
            # Never opened again by this process: closing a second descriptor would drop the lock.
            self._alive = os.open(_alive_file(directory, self.identity), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            fcntl.lockf(self._alive, fcntl.LOCK_EX)

    def listen(self, told: Callable[[bytes], None]) -> None:
        """From now on, call `told` with each message of 16 bytes that another process sends."""
        with self._lock:
            if self._pipe is None:
                path = _pipe_file(self._directory, self.identity)
                os.mkfifo(path, 0o600)
                # Open for writing too, so that reading never meets an end.
                pipe = os.open(path, os.O_RDWR)
                if started(partial(self._hear, pipe, told), "limits-wake-up") is not None:
                    self._pipe = pipe
                    return
                # Without being woken, a waiter asks when the store has said that it may fit.
                os.close(pipe)
                path.unlink()

    def leave(self) -> None:
        """Take the files away."""
        for path in (_alive_file(self._directory, self.identity), _pipe_file(self._directory, self.identity)):
            path.unlink(missing_ok=True)

    def _hear(self, pipe: int, told: Callable[[bytes], None]) -> None:
        while True:
            messages = os.read(pipe, MESSAGE_LENGTH * 64)
            for start in range(0, len(messages), MESSAGE_LENGTH):
                told(messages[start : start + MESSAGE_LENGTH])


def is_alive(directory: Path, identity: bytes) -> bool:
    """Whether the process still lives; never to be asked about the calling process. Removes what a dead one left."""
    path = _alive_file(directory, identity)
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    path.unlink(missing_ok=True)
    _pipe_file(directory, identity).unlink(missing_ok=True)
    return False


def wake(directory: Path, identity: bytes, message: bytes) -> bool:
    """Send a message of 16 bytes; False when nobody listens any more. A full pipe means that it will wake anyway."""
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


def _remove_dead(directory: Path) -> None:
    """Remove what processes have left that ended without leaving."""
    for path in directory.glob("*.alive"):
        is_alive(directory, bytes.fromhex(path.stem))


def _alive_file(directory: Path, identity: bytes) -> Path:
    return directory / f"{identity.hex()}.alive"


def _pipe_file(directory: Path, identity: bytes) -> Path:
    return directory / f"{identity.hex()}.pipe"
