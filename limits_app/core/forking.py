"""Forking: what a child process must not inherit as it is."""

from __future__ import annotations

import os
from threading import Lock, RLock
from typing import Final, Protocol

from limits_app.core.living import Living

__all__ = ["Forked", "Stepping", "around_fork", "lock_over_forks", "on_fork"]


class Forked(Protocol):
    """Something with locks, threads or handles of its process."""

    def after_fork(self) -> None:
        """Start afresh in a child."""


class Stepping(Forked, Protocol):
    """Something that a process must not fork in the middle of: `turn` is held during every step."""

    turn: RLock

    def before_fork(self) -> None:
        """Take the turn, which the parent gives back after the fork, and close what no child could go on with."""


_FORKED: Final[Living[Forked]] = Living()
_STEPPING: Final[Living[Stepping]] = Living()
_WAITING: Final[list[Stepping]] = []


def on_fork(forked: Forked) -> None:
    """Call `after_fork` in every child, as long as the object lives."""
    _FORKED.add(forked)


def around_fork(stepping: Stepping) -> None:
    """`on_fork`, and let no step be under way when the process forks."""
    on_fork(stepping)
    _STEPPING.add(stepping)


def lock_over_forks() -> Lock:
    """A lock that is held while the process forks, so that no child gets it locked by somebody else."""
    lock = Lock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def _before() -> None:
    for stepping in _STEPPING.all():
        stepping.before_fork()
        _WAITING.append(stepping)


def _in_parent() -> None:
    while _WAITING:
        _WAITING.pop().turn.release()


def _in_child() -> None:
    _WAITING.clear()
    for forked in _FORKED.all():
        forked.after_fork()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
