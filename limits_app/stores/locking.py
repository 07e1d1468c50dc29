"""Locks that are held for a moment, taken and released without `with`, which would cost twice as much.

    try:
        if not lock.acquire(False):
            acquire_patiently(lock)
        ...
    except BaseException:
        unlock(lock)
        raise
    lock.release()

An interruption can come at any point of this and finds the lock released.
"""

from __future__ import annotations

from contextlib import suppress
from threading import RLock
from time import sleep
from typing import Final

_TRIES: Final = 200


def acquire_patiently(lock: RLock) -> None:
    """Acquire a lock that will be free in a moment: threads that block on it at once hand it over one by one."""
    for _ in range(_TRIES):
        sleep(0)
        if lock.acquire(blocking=False):
            return
    lock.acquire()


def unlock(lock: RLock) -> None:
    """Release after an interruption, which may have come before the lock was ours."""
    with suppress(RuntimeError):
        lock.release()
