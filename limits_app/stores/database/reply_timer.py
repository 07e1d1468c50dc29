"""A timeout for replies, for drivers that wait for a reply without a limit.

psycopg has no timeout for reading, and a server that is stopped or swapped out acknowledges packets, so that the
timeouts of TCP do not apply either. One thread in each process shuts the socket of such a connection down, whose
waiting thread then gets the driver's error for a lost connection.
"""

from __future__ import annotations

from threading import Lock
from time import monotonic, sleep
from typing import Final, Protocol

from limits_app.core.runtime import on_fork, start_thread

__all__ = ["REPLY_TIMER", "Interruptible", "ReplyTimer"]

_INTERVAL_SECONDS: Final = 0.2
"""How exact the timeouts are."""
_IDLE_ROUNDS: Final = 50


class Interruptible(Protocol):
    """A connection that waits for a reply in another thread."""

    def interrupt(self) -> None:
        """End the wait with an error."""


class ReplyTimer:
    """Interrupts connections whose reply is late."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """A child process has no thread, and waits for no reply of its parent."""
        self.closing = Lock()
        """Held while a connection is interrupted, and by those who close one."""
        self._deadlines: dict[Interruptible, float] = {}
        self.is_running = False

    def start(self, connection: Interruptible, seconds: float) -> None:
        """Interrupt a connection unless `stop` is called within so many seconds."""
        self._deadlines[connection] = monotonic() + seconds
        if not self.is_running:
            # Where the system has no thread to give, replies have no timeout until it has.
            self.is_running = start_thread(self._watch, "limits-reply-timer") is not None

    def stop(self, connection: Interruptible) -> None:
        """A reply has arrived."""
        self._deadlines.pop(connection, None)

    def check(self) -> None:
        """Interrupt the connections whose time is up."""
        now = monotonic()
        for connection, deadline in self._deadlines.copy().items():
            if deadline <= now:
                with self.closing:
                    if self._deadlines.pop(connection, None) is not None:
                        connection.interrupt()

    def _watch(self) -> None:
        idle_rounds = 0
        while True:
            sleep(_INTERVAL_SECONDS)
            idle_rounds = 0 if self._deadlines else idle_rounds + 1
            self.check()
            if idle_rounds > _IDLE_ROUNDS:
                self.is_running = False
                # A thread that has begun to wait before this line found the timer running.
                if not self._deadlines:
                    return
                self.is_running = True


REPLY_TIMER: Final = ReplyTimer()
"""The timer of this process."""
