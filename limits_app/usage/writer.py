"""Writes what a process remembers to the database every second, in a background thread."""

from __future__ import annotations

import atexit
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import ClassVar, Final

from django.db import connections

from limits_app.core.clock import Clock, as_clock
from limits_app.core.runtime import on_fork
from limits_app.stores.background import BackgroundTask
from limits_app.stores.memory import monotonic_us

__all__ = ["BackgroundWriter", "is_under_test"]

logger = logging.getLogger("limits_app")

_EVERY_US: Final = 1_000_000
_EXIT_SECONDS: Final = 3.0


def is_under_test() -> bool:
    """Whether Django's test databases are set up."""
    utils = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")


class BackgroundWriter(ABC):
    """Calls `flush` in a background thread until it succeeds, and once more when the process ends.

    Subclasses keep what is not written yet behind `_lock`, and hold `_writing` while they write.
    """

    what: ClassVar[str]
    """What is written, for the log."""

    def __init__(self, *, clock: Clock | None = None, under_test: Callable[[], bool] = is_under_test) -> None:
        self._under_test = under_test
        self._leaves: Callable[[], None] | None = None
        self._task = BackgroundTask(self._look, _EVERY_US, clock=as_clock(monotonic_us) if clock is None else clock)
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start with new locks in a child process."""
        self._lock = Lock()
        self._writing = Lock()
        self._is_failing = False

    @abstractmethod
    def flush(self) -> int:
        """Write everything; returns how much that was. On an error, everything is kept."""

    def _schedule_writing(self) -> None:
        if self._under_test():
            return  # a thread cannot see the transaction of a test; tests call flush()
        if self._leaves is None:
            self._leaves = atexit.register(self._at_exit)
        self._task.start()

    def _look(self) -> int | None:
        """Write; returns the delay until the next attempt after a failure."""
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - any error is retried
            if not self._is_failing:
                logger.warning("%s cannot be written now; they are kept and written later: %s", self.what, error)
            self._is_failing = True
            return _EVERY_US
        finally:
            connections.close_all()  # those of this thread
        self._is_failing = False
        return None

    def _at_exit(self) -> None:
        if self._writing.acquire(timeout=_EXIT_SECONDS):
            self._writing.release()
            with suppress(Exception):
                self.flush()
