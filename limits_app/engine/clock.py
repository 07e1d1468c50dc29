"""Clocks, which return whole microseconds, and time zones by their IANA names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from time import monotonic_ns, time_ns
from typing import Final, Protocol

from limits_app.engine.amounts import shown
from limits_app.engine.errors import InvalidRequest

DEFAULT_ZONE: Final = "UTC"
LONGEST_ZONE_NAME: Final = 64

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class Paced(Protocol):
    """An object that depends on the time, and is notified when a test moves a clock."""

    def moved(self, now: int) -> int | None:
        """Act at the time `now`; return when to be notified next (None: at the end of the move)."""


class Clock:
    """A clock that moves by itself, read by a function that returns microseconds.

    A clock that a test moves sets `moves_by_itself` to False: then no waiter sleeps for a time, and attached objects
    are notified instead.
    """

    moves_by_itself = True

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def __call__(self) -> int:
        """Return the time in whole microseconds."""
        return self._read()

    def attach(self, paced: Paced) -> None:
        """Notify `paced` when the clock is moved; a clock that moves by itself ignores this."""


def system_us() -> int:
    """Return microseconds since 1970 by the clock of the machine, which all its processes share."""
    return time_ns() // 1000


def monotonic_us() -> int:
    """Return microseconds of a clock that is not set while the machine runs."""
    return monotonic_ns() // 1000


def lasts(start: float, length: float, now: float) -> bool:
    """Return whether a period that began at `start` lasts.

    One that would begin later than `now` is over: the clock was set back since, which tests that freeze time also do
    with the monotonic clock.
    """
    return 0 <= now - start < length


def as_clock(clock: Callable[[], int]) -> Clock:
    """Return a Clock for a clock or a callable; InvalidRequest when it does not return whole microseconds."""
    if isinstance(clock, Clock):
        return clock
    if not isinstance(now := clock(), int):
        raise InvalidRequest(
            f"clock must return whole microseconds, as lambda: time.time_ns() // 1000 does, not {shown(now)}"
        )
    return Clock(clock)


def zone_of(name: object) -> tzinfo | None:
    """Return the time zone of a name, or None where there is no such zone; UTC needs no database of zones."""
    if name == DEFAULT_ZONE:
        return UTC
    if not isinstance(name, str) or len(name) > LONGEST_ZONE_NAME:
        return None
    # Imported on use: few limits have a zone.
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # a directory of zones, for instance, raises OSError
        return None
