"""Background tasks: work that repeats in a separate thread, beside the requests, until it is done."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom
from threading import Thread, current_thread
from time import sleep
from typing import Final

from limits_app.acquiring import jittered, on_fork, start_thread
from limits_app.engine import SECOND_US, Clock
from limits_app.engine.locks import RLock

JITTER: Final = SystemRandom().random
"""Not `random.random`, whose numbers after `random.seed` belong to the program and not to a background thread."""


class BackgroundTask:
    """Runs `step` again and again after it was started, until it returns None.

    `step` returns in how many microseconds it is to run again. The pause is between half of that time and all of it,
    at random, so that the tasks of many processes do not run together. The first one follows `pause_us` after `start`.

    The steps run in a daemon thread, which ends when there is nothing to do. With a clock that a test moves they run
    in the thread that moves it. An exception ends the task; the next `start` starts it again.
    """

    def __init__(
        self, step: Callable[[], int | None], pause_us: int, *, clock: Clock, jitter: Callable[[], float] = JITTER
    ) -> None:
        self._step = step
        self._pause_us = pause_us
        self._clock = clock
        self._jitter = jitter
        self.after_fork()
        clock.attach(self)
        on_fork(self)

    def after_fork(self) -> None:
        """Stop in a child, which has none of its parent's threads."""
        # Reentrant, because a finalizer may start the task while this thread holds the lock.
        self._lock = RLock()
        self._thread: Thread | None = None
        self._due: int | None = None
        """When the next step is due."""
        self._wanted = False
        """Whether the task was started since the last step began."""

    def start(self) -> None:
        """Run the step soon, and once more if it runs just now.

        Where the system has no thread to give, the next `start` tries again.
        """
        with self._lock:
            self._wanted = True
            if not self._clock.moves_by_itself:
                self._due = self._due or self._clock() + self._jittered(self._pause_us)
            elif self._thread is None or not self._thread.is_alive():
                self._thread = None
                self._thread = start_thread(self._run, "limits-background")

    def moved(self, now: int) -> int | None:
        """Run the step if it is due, while a test moves the clock."""
        if self._due is not None and now >= self._due:
            self._run_step()
        return self._due

    def _run(self) -> None:
        pause_us: int | None = self._jittered(self._pause_us)
        while pause_us is not None:
            # Not until a time: the clock may be set meanwhile.
            sleep(pause_us / SECOND_US)
            # Another thread has taken over where a signal interrupted `start` before it knew of this one.
            pause_us = self._run_step() if self._thread in {None, current_thread()} else None

    def _run_step(self) -> int | None:
        """Run the step once; returns in how many microseconds it is due again, or None when there is nothing to do."""
        self._wanted = False
        again_us = pause_us = None
        try:
            again_us = self._step()
        finally:
            with self._lock:
                if again_us is None and self._wanted:
                    again_us = self._pause_us
                if again_us is None:
                    self._thread = None
                pause_us = None if again_us is None else self._jittered(again_us)
                self._due = None if pause_us is None else self._clock() + pause_us
        return pause_us

    def _jittered(self, pause_us: int) -> int:
        return round(jittered(pause_us, below=pause_us / 2, random=self._jitter))
