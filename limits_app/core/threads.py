"""Threads that work beside the program, where the system has any left to give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

__all__ = ["started"]

logger = logging.getLogger("limits_app")


def started(work: Callable[[], object], name: str) -> Thread | None:
    """A thread that runs, and ends with the process at the latest; None, with a warning, where none can be had.

    So it is at the end of the process, and where that may have no more threads.
    """
    thread = Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        logger.warning("the thread %s could not be started, which is tried again later: %s", name, error)
        return None
    return thread
