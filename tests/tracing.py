"""Coverage in forked children: the lock of its tracer, which another thread may have had while the process forked."""

from __future__ import annotations

import os
import sys
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coverage import Coverage

__all__ = ["free_the_tracer_in_children"]

_MEASURING: list[Coverage] = []
"""What measured the parent, if anything did."""


def free_the_tracer_in_children() -> None:
    """Give what measured the parent a lock of its own in every child.

    A child that ends by `os._exit` saves that too, and never would: coverage 7.17 leaves it the lock as it was.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_note, after_in_child=_free)


def _note() -> None:
    coverage = sys.modules.get("coverage")
    measuring = coverage and coverage.Coverage.current()
    _MEASURING[:] = [measuring] if measuring else []


def _free() -> None:
    for measuring in _MEASURING:
        if (collector := measuring._collector) is not None:
            collector.data_lock = Lock()
