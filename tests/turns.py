"""Turns: a test that measures time waits until no other test runs, and the others wait for it.

Several processes share the tests between them. Each test holds the room while it runs, together with others;
one that is marked `alone` has it for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: run the tests there in one process
    fcntl = None

__all__ = ["turn"]


@contextmanager
def turn(directory: Path, *, alone: bool) -> Iterator[None]:
    """Wait for a turn among all processes that name this directory, and have it while the block runs."""
    if fcntl is None:
        yield
        return
    with (directory / "door.lock").open("ab") as door, (directory / "room.lock").open("ab") as room:
        # Whoever waits to be alone stands in the door, so that nobody else comes in meanwhile.
        fcntl.flock(door, fcntl.LOCK_EX)
        try:
            fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            # A child that the test forked has the same lock: closing the file would leave it locked.
            fcntl.flock(room, fcntl.LOCK_UN)
