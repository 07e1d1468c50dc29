"""Forking: what a child process must not inherit as it is."""

from __future__ import annotations

import os
from threading import RLock, local
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
_OPENING: Final = RLock()


class _Forking(local):
    """What the running thread has taken in order to fork."""

    def __init__(self) -> None:
        self.taken: list[RLock] = []


_FORKING: Final = _Forking()


def on_fork(forked: Forked) -> None:
    """Call `after_fork` in every child, as long as the object lives."""
    _FORKED.add(forked)


def around_fork(stepping: Stepping) -> None:
    """`on_fork`, and let no step be under way when the process forks."""
    on_fork(stepping)
    _STEPPING.add(stepping)


def lock_over_forks() -> RLock:
    """The lock that is held while the process forks, so that no child gets it locked by somebody else.

    Whoever asks is given the same one: what is opened inside something else has no order to mind.
    """
    return _OPENING


def _before() -> None:
    # First, since a step may be taken in the middle of opening.
    _OPENING.acquire()
    _FORKING.taken.append(_OPENING)
    for stepping in _STEPPING.all():
        stepping.before_fork()
        _FORKING.taken.append(stepping.turn)


def _release() -> None:
    # Nothing, if the fork had begun before this module was there.
    while _FORKING.taken:
        _FORKING.taken.pop().release()


def _in_child() -> None:
    _release()
    for forked in _FORKED.all():
        forked.after_fork()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_in_child)
