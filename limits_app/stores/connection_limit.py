"""How many connections to one server a process uses at the same time; further callers wait for one.

So a burst of requests in a process without connections opens a bounded number of them, and a healthy server is not
reported as unavailable because it accepts no more, or because opening hundreds takes longer than a timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final
from weakref import ref

from limits_app.acquiring import on_fork
from limits_app.engine.errors import StoreUnavailable

MOST_CONNECTIONS: Final = 32
"""Enough for the threads of a server process, and for all that one process can decide in a second."""
_PATIENCE: Final = 100
"""How many times as long a caller waits while none has found the server silent: the process may be short of CPU."""


class Checkout:
    """The right to use one connection. One that is dropped, as by an exception of a signal handler, returns itself."""

    __slots__ = ("_free",)

    def __init__(self, free: Callable[[], SimpleQueue[Checkout] | None]) -> None:
        self._free = free

    def __del__(self) -> None:
        free = self._free()
        if free is not None:
            free.put(Checkout(self._free))


class ConnectionLimit:
    """The connections to one server that threads may use; a finalizer or a signal handler may call any method."""

    def __init__(self) -> None:
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start again in a child process, where no thread uses a connection."""
        self._free = SimpleQueue[Checkout]()
        for _ in range(MOST_CONNECTIONS):
            self._free.put(Checkout(ref(self._free)))
        self._answered_at = self._silent_at = 0.0

    def check_out(self, seconds: float) -> Checkout:
        """Return the right to use a connection, which belongs to the caller until it calls `check_in`.

        The wait goes on while the server answers other callers. Raises StoreUnavailable when it has answered none of
        them for so many seconds, and one of them has found it silent; for `_PATIENCE` times as long, if none has.
        """
        try:
            return self._free.get(block=False)
        except Empty:
            return self._wait(seconds)

    def _wait(self, seconds: float) -> Checkout:
        began = monotonic()
        while True:
            since = max(began, self._answered_at)
            most = seconds if self._silent_at > since else _PATIENCE * seconds
            left = since + most - monotonic()
            if left <= 0:
                raise unanswered(most)
            with suppress(Empty):
                return self._free.get(timeout=min(left, seconds))

    def check_in(self, checkout: Checkout) -> None:
        """Let another caller use a connection."""
        self._free.put(checkout)

    def answered(self) -> None:
        """Note that the server has answered."""
        self._answered_at = monotonic()

    def silent(self) -> None:
        """Note that the server has not answered a caller in time."""
        self._silent_at = monotonic()


def unanswered(seconds: float) -> StoreUnavailable:
    """Return the error for a caller that has waited for a connection while the server answered no call."""
    return StoreUnavailable(
        f"none of {MOST_CONNECTIONS} connections became free: the server has not answered for {seconds:g} s"
    )
