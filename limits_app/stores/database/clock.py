"""The clock of a database server, as a client knows it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns

from limits_app.core.clock import Clock

__all__ = ["ServerClock"]

_SLACK: int = 1024
"""One part in so many, by which this machine's clock may be faster than the server's and still be behind its time."""


class ServerClock(Clock):
    """The server's time as it was told last, and what has passed here since; never ahead of the server."""

    def __init__(self, ask: Callable[[], int]) -> None:
        super().__init__(ask)
        self._told: tuple[int, int] | None = None

    def __call__(self) -> int:
        """The time in whole microseconds; asks the server when it has said nothing yet."""
        told = self._told
        if told is None:
            told = self.hear(super().__call__())
        server, here = told
        passed = monotonic_ns() // 1000 - here
        return server + passed - passed // _SLACK

    def hear(self, now: int) -> tuple[int, int]:
        """The server said what time it was a moment ago; returns that, and the time here."""
        self._told = told = now, monotonic_ns() // 1000
        return told
