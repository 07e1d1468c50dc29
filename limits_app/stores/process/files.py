"""The state directory and the LMDB file in it: private to the user, reserved on disk, replaced when unreadable.

What operating systems offer under different names or not at all is here too: file locks, reserved space, named pipes.
"""

from __future__ import annotations

import getpass
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

import lmdb

from limits_app.engine.errors import StoreUnavailable

logger = logging.getLogger("limits_app")

_MEGABYTE: Final = 1024 * 1024
_DATA, _LOCK, _OPENING = "data.mdb", "lock.mdb", "opening.lock"
UNREADABLE: Final = (
    lmdb.InvalidError,
    lmdb.CorruptedError,
    lmdb.VersionMismatchError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
)
"""What LMDB raises for a file that is damaged or was not written by LMDB."""


def _module(name: str) -> ModuleType | None:
    """A module of Python that only some systems have."""
    try:
        return import_module(name)
    except ImportError:
        return None


fcntl, msvcrt, pwd = _module("fcntl"), _module("msvcrt"), _module("pwd")

_SECONDS_BETWEEN_TRIES: Final = 0.01
SECONDS_BETWEEN_CHECKS: Final = 1.0
"""How often a process checks whether its files were deleted."""
_CHUNK: Final = bytes(_MEGABYTE)


def default_directory() -> Path:
    """A directory for the current user that the system does not clean up, as far as there is one.

    It is in the directory for state (`XDG_STATE_HOME`, or that in the home of the user), else in `/var/lib`, or where
    neither can be written, in that for temporary files.
    """
    bases = [base for base in (_state_home(), Path("/var/lib")) if base is not None and _can_be_written(base)]
    base = bases[0] if bases else _temporary_files()
    return base.resolve() / f"limits_app-{_user_name()}"


def is_temporary(directory: Path) -> bool:
    """Whether a directory is in that for temporary files."""
    return _temporary_files().resolve() in directory.resolve().parents


def _temporary_files() -> Path:
    """The directory for temporary files, or the usual one where none can be written: opening a store reports that."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # in a container with a read-only file system
        return Path(os.sep, "tmp")


def _state_home() -> Path | None:
    """Where programs of the current user keep state; None where that is unknown.

    Without the variable it does not depend on HOME, which may differ between the processes of a user.
    """
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    if configured.is_absolute():
        return configured
    user = _user_id()
    if pwd is None or user is None:
        return None
    try:
        return Path(pwd.getpwuid(user).pw_dir) / ".local" / "state"
    except KeyError:  # a container may run under a number that no user has
        return None


def _can_be_written(directory: Path) -> bool:
    """Whether a directory can be written or made."""
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists())
    except PermissionError:  # a directory above it belongs to another user
        return False
    return existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)


def private_directory(directory: Path) -> Path:
    """Create `directory/state`, accessible only to the current user.

    Directories that are created on the way are private too. `state`, its parent and its grandparent must belong to
    the current user or, above `state`, to the system. They must not be symbolic links, since the owner of a link
    chooses where it leads. Raises StoreUnavailable, which says what to change.
    """
    state = directory.absolute() / "state"
    try:
        for path in reversed((state, *state.parents)):
            path.mkdir(mode=0o700, exist_ok=True)
            if path in (state, *state.parents[:2]):
                _check_private(path, is_state=path == state)
        if state.stat().st_mode & 0o077:
            state.chmod(0o700)
    except OSError as error:
        raise unusable(state, error) from error
    return state


def unusable(state: Path, error: OSError) -> StoreUnavailable:
    """The error for a directory that cannot be written, as in a container with a read-only file system."""
    return StoreUnavailable(
        f"the state directory {state} cannot be used ({error.strerror}): "
        "set LIMITS['STATE_DIR'] to a directory that can be written, in a container to one on a volume"
    )


def _check_private(path: Path, *, is_state: bool) -> None:
    """Raise StoreUnavailable when another user could replace the content of a directory."""
    status, user = path.lstat(), _user_id()
    if stat.S_ISLNK(status.st_mode):
        raise StoreUnavailable(
            f"{path} is a symbolic link to {os.path.realpath(path)}: "
            "set LIMITS['STATE_DIR'] to the path of a directory without links, or remove the link"
        )
    if user is None:
        return
    if status.st_uid != user and (is_state or status.st_uid != 0):
        raise StoreUnavailable(f"{path} belongs to another user: set LIMITS['STATE_DIR'] to a directory of your own")
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX and not is_state:
        raise StoreUnavailable(
            f"{path} can be written by all users: remove that permission, or set LIMITS['STATE_DIR']"
        )


def open_environment(state: Path, map_megabytes: int) -> lmdb.Environment:
    """Open the file of a state directory. An interruption leaves no environment open: no variable here refers to it.

    An unreadable file is set aside with a warning. The whole map is reserved on disk before it is used, so that a full
    disk raises StoreUnavailable here and never ends the process later, when a page is written. A file that is larger
    already keeps its size.
    """
    with exclusively(state):
        size = _size(state)
        if not size:
            _new_lock(state)
        elif not (state / _LOCK).exists():
            # Another program has deleted it. Processes that use the old one notice that within a second.
            time.sleep(SECONDS_BETWEEN_CHECKS + 0.1)
        megabytes = max(map_megabytes, size // _MEGABYTE)
        try:
            try:
                return _open_reserved(state, megabytes)
            except UNREADABLE as error:
                _set_aside(state, error)
                return _open_reserved(state, megabytes)
        except OSError as error:
            if _size(state) > size:
                os.truncate(state / _DATA, size)
            raise StoreUnavailable(
                f"{megabytes} MB cannot be reserved in {state} ({error.strerror}): "
                "free some space, or lower LIMITS['MAP_MEGABYTES']"
            ) from error
        except lmdb.Error as error:
            raise StoreUnavailable(f"the state file in {state} cannot be opened: {error}") from error


def _open_reserved(state: Path, megabytes: int) -> lmdb.Environment:
    """Open the file with its space reserved; OSError when there is too little."""
    # Without `writemap` LMDB writes the first pages of a new file, and makes the file no larger than they are.
    lmdb.open(str(state), map_size=_MEGABYTE, mode=0o600, lock=False).close()
    _reserve(state / _DATA, megabytes * _MEGABYTE)
    return lmdb.open(
        str(state),
        map_size=megabytes * _MEGABYTE,
        mode=0o600,
        writemap=True,
        map_async=True,
        sync=False,
        metasync=False,
        meminit=False,
        readahead=False,
        max_readers=1024,
    )


def _reserve(path: Path, size: int) -> None:
    """Make a file `size` bytes large, with its space on disk; OSError when there is too little.

    Where the system does not reserve space for files, zeros are written after the end.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        if getattr(os, "posix_fallocate", None) is not None:
            os.posix_fallocate(descriptor, 0, size)
            return
        missing = size - os.lseek(descriptor, 0, os.SEEK_END)
        while missing > 0:
            missing -= os.write(descriptor, _CHUNK[:missing])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def data_file(state: Path) -> Path:
    """The path of the file."""
    return state / _DATA


def _new_lock(state: Path) -> None:
    """Make the file with the locks of a new data file; processes that use a deleted one still have the old locks."""
    (state / _LOCK).unlink(missing_ok=True)
    (state / _LOCK).touch(0o600)


def file_numbers(state: Path) -> tuple[int, int]:
    """The inodes of the file and of its lock, which differ when other files have replaced them; 0 for one without."""
    return _number(state / _DATA), _number(state / _LOCK)


def _number(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def set_aside(state: Path, error: Exception, number: int) -> None:
    """Rename the damaged file with this inode, unless another process has already replaced it."""
    with exclusively(state):
        if _number(state / _DATA) == number:
            _set_aside(state, error)


def copy_if_missing(state: Path, environment: lmdb.Environment) -> bool:
    """Copy an environment whose files were deleted, unless another process has made new ones; returns whether it was.

    The calling thread may be in a transaction, which is not copied.
    """
    with exclusively(state):
        if (state / _DATA).exists():
            return False
        _new_lock(state)
        copy = state / f"{_DATA}.copy"
        try:
            descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                # Without compaction LMDB would wait for the transaction to end.
                environment.copyfd(descriptor, compact=True)
            finally:
                os.close(descriptor)
            copy.rename(state / _DATA)  # complete, so that a disk that is full leaves no file that cannot be read
        finally:
            copy.unlink(missing_ok=True)
        return True


def drop_lock(state: Path, number: int) -> None:
    """Delete the file with the locks if it is the one with this inode, which belongs to a deleted data file."""
    with exclusively(state):
        if _number(state / _LOCK) == number:
            (state / _LOCK).unlink()


def _set_aside(state: Path, error: Exception) -> None:
    aside = state / f"{_DATA}.unreadable-{time.time_ns()}"
    (state / _DATA).rename(aside)
    (state / _LOCK).unlink(missing_ok=True)
    logger.warning("the state file could not be read (%s): it is now %s, and counting starts again", error, aside)


def _size(state: Path) -> int:
    try:
        return (state / _DATA).stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def exclusively(state: Path) -> Iterator[None]:
    """While in the block, no other process opens or replaces the file, or adds or removes files of processes."""
    is_current = False
    while not is_current:  # another program may delete the file while it is waited for
        try:
            descriptor = os.open(state / _OPENING, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise unusable(state, error) from error
        try:
            lock(descriptor)
            is_current = os.fstat(descriptor).st_ino == _number(state / _OPENING)
            if is_current:
                yield
        finally:
            os.close(descriptor)


def can_lock() -> bool:
    """Whether files can be locked, with locks that end with their process."""
    return fcntl is not None or msvcrt is not None


def lock(descriptor: int) -> None:
    """Lock a file, and wait until it is free; does nothing where files cannot be locked."""
    if fcntl is not None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX)
        return
    while can_lock() and not try_lock(descriptor):
        time.sleep(_SECONDS_BETWEEN_TRIES)


def try_lock(descriptor: int) -> bool:
    """Lock a file if it is free; False when another process has locked it, or files cannot be locked."""
    try:
        if fcntl is not None:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError:
        return False
    return can_lock()


def make_pipe(path: Path) -> int | None:
    """Create a named pipe for reading, in the place of an older one; None where the system has no named pipes."""
    if getattr(os, "mkfifo", None) is None:
        return None
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    # Open for writing too, so that reading never meets an end.
    return os.open(path, os.O_RDWR)


def _user_id() -> int | None:
    """The number of the current user; None where users have no numbers."""
    return os.geteuid() if getattr(os, "geteuid", None) is not None else None


def _user_name() -> str:
    """The number of the current user, or the name where users have no numbers."""
    number = _user_id()
    return getpass.getuser() if number is None else str(number)
