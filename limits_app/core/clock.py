"""Clocks: callables that return whole microseconds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Final, Protocol

from limits_app.core.amounts import shown
from limits_app.core.errors import InvalidRequest

__all__ = ["EPOCH", "MICROSECOND", "Clock", "Paced", "as_clock", "system_us"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class Paced(Protocol):
    """Something that depends on the time, and must be told when a test moves it."""

    def moved(self, now: int) -> int | None:
        """The time is `now`; returns the next moment at which it wants to be told (None: at the end of the move)."""


class Clock:
    """A clock that moves by itself, read by a function that returns microseconds.

    One that a test moves says so in `moves_by_itself`: then nobody sleeps for a time, and what was attached runs.
    """

    moves_by_itself = True

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def __call__(self) -> int:
        """The time in whole microseconds."""
        return self._read()

    def attach(self, paced: Paced) -> None:
        """Tell `paced` when the clock is moved; time that passes by itself has no use for it."""


def system_us() -> int:
    """Microseconds since 1970 by the machine's clock, which all its processes share."""
    return time_ns() // 1000


def as_clock(clock: Callable[[], int]) -> Clock:
    """Take a clock, or any callable that returns microseconds, as a clock; InvalidRequest when it returns others."""
    if isinstance(clock, Clock):
        return clock
    if not isinstance(now := clock(), int):
        raise InvalidRequest(
            f"clock must return whole microseconds, as lambda: time.time_ns() // 1000 does, not {shown(now)}"
        )
    return Clock(clock)
