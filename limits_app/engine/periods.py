"""Units of time and periods of calendars, with their names and lengths: what parsers, writers and forms read."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SECOND: Final = 1
MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86_400
WEEK: Final = 604_800
SECOND_US: Final = 1_000_000
"""A second in microseconds, the unit of clocks and records."""
HOUR_US: Final = HOUR * SECOND_US
HOUR_MINUTES: Final = HOUR // MINUTE


class TimeUnit(NamedTuple):
    """A unit of time: its symbol in limit notation, its name, its length, and how else it may be written."""

    symbol: str
    name: str
    milliseconds: int
    spellings: tuple[str, ...]


UNITS: Final = (
    TimeUnit("d", "day", DAY * 1000, ("days",)),
    TimeUnit("h", "hour", HOUR * 1000, ("hr", "hrs", "hours")),
    TimeUnit("min", "minute", MINUTE * 1000, ("m", "mins", "minutes")),
    TimeUnit("s", "second", SECOND * 1000, ("sec", "secs", "seconds")),
    TimeUnit("ms", "millisecond", 1, ("milliseconds",)),
)
"""The units of windows, the longest first."""


class QuotaPeriod(StrEnum):
    """Calendar periods after which a quota starts again; weeks start on Monday."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"

    @property
    def shortest_seconds(self) -> int:
        """The length of the shortest period, without changes of the clock such as daylight saving time."""
        return _LENGTHS[self][0]

    @property
    def longest_seconds(self) -> int:
        """The length of the longest period, without changes of the clock such as daylight saving time."""
        return _LENGTHS[self][1]

    @property
    def seconds(self) -> int | None:
        """The length, where all periods have the same; None for months."""
        shortest, longest = _LENGTHS[self]
        return longest if shortest == longest else None


_LENGTHS: Final[Mapping[str, tuple[int, int]]] = {
    "hour": (HOUR, HOUR),
    "day": (DAY, DAY),
    "week": (WEEK, WEEK),
    "month": (28 * DAY, 31 * DAY),
}


NAMES: Final[Mapping[float, str]] = {unit.milliseconds / 1000: unit.name for unit in UNITS} | {WEEK: "week"}
"""The names of lengths of time, by seconds: those that a text can call “per minute”."""
