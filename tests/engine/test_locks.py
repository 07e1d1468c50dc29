"""The lock of the package: reentrant, exclusive, and free after a signal handler that raises."""

from __future__ import annotations

import re
from threading import Thread

import pytest

from limits_app.engine.locks import RLock
from tests.docs.pages import ROOT
from tests.interruptions import interrupt_anywhere


def is_free(lock: RLock) -> bool:
    """Whether another thread can acquire a lock now."""
    acquired: list[bool] = []

    def attempt() -> None:
        acquired.append(lock.acquire(blocking=False))
        if acquired[0]:
            lock.release()

    thread = Thread(target=attempt)
    thread.start()
    thread.join()
    return acquired[0]


def test_interruptions_anywhere_leave_no_lock_locked() -> None:
    lock = RLock()

    def steps() -> None:
        for _ in range(1_000):
            with lock:
                pass

    assert interrupt_anywhere(steps) > 1_000
    assert is_free(lock)


def test_the_lock_is_exclusive_and_reentrant() -> None:
    lock = RLock()
    with lock:
        with lock:
            assert not is_free(lock)
        assert not is_free(lock)
    assert is_free(lock)


def test_an_error_in_the_block_releases_the_lock() -> None:
    lock = RLock()
    with pytest.raises(ValueError, match="in the block"), lock:
        raise ValueError("in the block")
    assert is_free(lock)


def test_all_reentrant_locks_of_the_package_are_this_one() -> None:
    others = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "limits_app").rglob("*.py")
        if path.stem != "locks" and re.search(r"threading(\.| import .*\b)RLock\b", path.read_text())
    ]
    assert others == []
