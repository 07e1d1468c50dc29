"""Forking: what a child process must not inherit as it is."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

__all__ = ["Forked", "on_fork"]


class Forked(Protocol):
    """Something with locks, threads or handles of its process."""

    def after_fork(self) -> None:
        """Start afresh in a child."""


_LIVING: Final[weakref.WeakSet[Forked]] = weakref.WeakSet()


def on_fork(forked: Forked) -> None:
    """Call `after_fork` in every child, as long as the object lives."""
    _LIVING.add(forked)


def _in_child() -> None:
    for forked in list(_LIVING):
        forked.after_fork()


os.register_at_fork(after_in_child=_in_child)
