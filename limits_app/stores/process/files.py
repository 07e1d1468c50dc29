"""The state directory and the file in it: made private, reserved in full, and set aside when it cannot be read."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from limits_app.core.errors import StoreUnavailable

__all__ = [
    "UNREADABLE",
    "data_file",
    "default_directory",
    "file_number",
    "guard",
    "open_environment",
    "private_directory",
    "set_aside",
]

logger = logging.getLogger("limits_app")

_MEGABYTE: Final = 1024 * 1024
_DATA, _LOCK = "data.mdb", "lock.mdb"
UNREADABLE: Final = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
"""What LMDB says of a file that is damaged, or none of its own."""


def default_directory() -> Path:
    """A directory of the user's own under the system's directory for temporary files."""
    return Path(tempfile.gettempdir()) / f"limits_app-{os.geteuid()}"


def private_directory(directory: Path) -> Path:
    """Make `directory/state`, which nobody but the user may enter; StoreUnavailable says what is in the way.

    What is made on the way is private too, and the directories above must belong to the user or to the system:
    their owner could put another one in its place.
    """
    state = directory / "state"
    try:
        for path in reversed((state, *state.parents)):
            path.mkdir(mode=0o700, exist_ok=True)
        for path in (state, directory, directory.parent):
            if path.stat().st_uid not in {os.geteuid()} | ({0} if path != state else set()):
                raise StoreUnavailable(
                    f"{path} belongs to another user: set LIMITS['STATE_DIR'] to a directory of your own"
                )
        if state.stat().st_mode & 0o077:
            state.chmod(0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"the state directory {state} cannot be used ({error.strerror}): set LIMITS['STATE_DIR'] to one that can"
        ) from error
    return state


def open_environment(state: Path, map_megabytes: int) -> lmdb.Environment:
    """Open the file of a state directory; one that cannot be read is set aside with a warning.

    The whole map is reserved on disk first, so that a full disk is a StoreUnavailable here
    and never a crash when a page is written later. A file that is larger already is taken as it is.
    """
    with guard(state):
        size = _size(state)
        map_megabytes = max(map_megabytes, size // _MEGABYTE)
        try:
            environment = _open(state, map_megabytes)
        except UNREADABLE as error:
            _set_aside(state, error)
            environment = _open(state, map_megabytes)
        try:
            _reserve(state, map_megabytes)
        except OSError as error:
            environment.close()
            os.truncate(state / _DATA, size)
            raise StoreUnavailable(
                f"{map_megabytes} MB cannot be reserved in {state} ({error.strerror}): "
                "free some space, or lower LIMITS['MAP_MEGABYTES']"
            ) from error
    return environment


def data_file(state: Path) -> Path:
    """The file itself."""
    return state / _DATA


def file_number(state: Path) -> int:
    """What tells the file from another one in its place."""
    return data_file(state).stat().st_ino


def set_aside(state: Path, error: Exception, number: int) -> None:
    """Put the file out of the way that turned out to be damaged, unless another process has done so already."""
    with guard(state):
        if file_number(state) == number:
            _set_aside(state, error)


def _open(state: Path, map_megabytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            str(state),
            map_size=map_megabytes * _MEGABYTE,
            mode=0o600,
            writemap=True,
            map_async=True,
            sync=False,
            metasync=False,
            meminit=False,
            readahead=False,
            max_readers=1024,
        )
    except UNREADABLE:
        raise
    except lmdb.Error as error:
        raise StoreUnavailable(f"the state file in {state} cannot be opened: {error}") from error


def _size(state: Path) -> int:
    try:
        return (state / _DATA).stat().st_size
    except FileNotFoundError:
        return 0


def _reserve(state: Path, map_megabytes: int) -> None:
    descriptor = os.open(state / _DATA, os.O_RDWR)
    try:
        os.posix_fallocate(descriptor, 0, map_megabytes * _MEGABYTE)
    finally:
        os.close(descriptor)


def _set_aside(state: Path, error: Exception) -> None:
    aside = state / f"{_DATA}.unreadable-{time.time_ns()}"
    (state / _DATA).rename(aside)
    (state / _LOCK).unlink(missing_ok=True)
    logger.warning(
        "the state file could not be read (%s): it was set aside as %s, and counting starts anew", error, aside
    )


@contextmanager
def guard(state: Path) -> Iterator[None]:
    """One process at a time opens or replaces the file, comes or is taken away."""
    descriptor = os.open(state / "opening.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
