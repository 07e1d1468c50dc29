"""The attendant of a store in trouble: does beside the requests what they must not wait for."""

from __future__ import annotations

from collections.abc import Callable
from random import random
from threading import RLock, Thread
from time import sleep
from typing import Final

from limits_app.core.clock import Clock
from limits_app.core.forking import on_fork

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
            starts = self._due is None
            if starts:
                self._due = self._moment(self._first_us)
        if starts and self._clock.moves_by_itself:
            Thread(target=self._work, name="limits-attendant", daemon=True).start()

    def moved(self, now: int) -> int | None:
        """Look in time while a clock is moved by hand."""
        if self._due is not None and now >= self._due:
            self._come()
        return self._due

    def _work(self) -> None:
        while (due := self._due) is not None:
            sleep(max(due - self._clock(), 0) / _SECOND)
            self._come()

    def _come(self) -> None:
        self._called = False
        again_us = None
        try:
            again_us = self._look()
        finally:
            with self._lock:
                if again_us is None and self._called:
                    again_us = self._first_us
                self._due = None if again_us is None else self._moment(again_us)

    def _moment(self, within_us: int) -> int:
        return self._clock() + round(within_us * (0.5 + self._jitter() / 2))
