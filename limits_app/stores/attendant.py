"""The attendant of a store in trouble: does beside the requests what they must not wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import random
from threading import RLock
from time import sleep
from typing import Final

from limits_app.core.clock import Clock
from limits_app.core.runtime import on_fork, start_thread

__all__ = ["Attendant"]

_SECOND: Final = 1_000_000


class Attendant:
    """Once called it looks after something again and again, until `look` says that all is well.

    `look` gives the microseconds after which to look again at the latest, and None when that is not needed.
    The attendant comes between half of that time and all of it, at random, so that those of many processes
    do not come together. It has a thread of its own, or runs when a test moves the clock.
    """

    def __init__(
        self, look: Callable[[], int | None], first_us: int, *, clock: Clock, jitter: Callable[[], float] = random
    ) -> None:
        self._look = look
        self._first_us = first_us
        self._clock = clock
        self._jitter = jitter
        self.after_fork()
        clock.attach(self)
        on_fork(self)

    def after_fork(self) -> None:
        """A child has no threads."""
        # Reentrant, since a finalizer may call it in the middle of anything.
        self._lock = RLock()
        self._due: int | None = None
        self._called = False

    def call(self) -> None:
        """Have it look, and look again if it looks already."""
        with self._lock:
            self._called = True
            if self._due is None:
                self._due = due = self._moment(self._first_us)
                if self._clock.moves_by_itself and start_thread(partial(self._work, due), "limits-attendant") is None:
                    self._due = None  # whoever calls next tries again

    def moved(self, now: int) -> int | None:
        """Look in time while a clock is moved by hand."""
        if self._due is not None and now >= self._due:
            self._come()
        return self._due

    def _work(self, due: int) -> None:
        again: int | None = due
        while again is not None:
            sleep(max(again - self._clock(), 0) / _SECOND)
            again = self._come()

    def _come(self) -> int | None:
        """Look; says when to look again, or None, after which another one may look."""
        self._called = False
        again_us = None
        try:
            again_us = self._look()
        finally:
            with self._lock:
                if again_us is None and self._called:
                    again_us = self._first_us
                self._due = due = None if again_us is None else self._moment(again_us)
        return due

    def _moment(self, within_us: int) -> int:
        return self._clock() + round(within_us * (0.5 + self._jitter() / 2))
