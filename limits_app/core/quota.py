"""Quotas: an amount per calendar period or session, which does not refill gradually."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final, Self

from limits_app.core.amounts import MULTIPLES, from_milli, shown, to_milli
from limits_app.core.clock import DEFAULT_ZONE, zone_of
from limits_app.core.errors import InvalidLimit
from limits_app.core.limit_checks import check_key, check_positive, check_seconds, check_soft, keep_plain

_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMG]?)\s*/\s*([A-Za-z]+)\s*(?:@\s*(\S+)\s*)?", re.ASCII)


class QuotaPeriod(StrEnum):
    """Calendar periods after which a quota starts again; weeks start on Monday."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """At most `capacity` units per period; requests name their amount and report the usage.

    The period is a calendar period (`period`: hour, day, week or month, as clocks in `time_zone` show it),
    or a session of `session_seconds`, which starts with the first use.
    At its end all of the capacity is available again; before that only unused amounts are refunded.
    A `soft` quota rejects nothing: over-use is recorded as debt, and the outcome has `overdrawn`.
    Raises InvalidLimit (a ValueError) that names the limit and the field.
    """

    key: str
    capacity: int
    period: str | None = None
    time_zone: str = DEFAULT_ZONE
    session_seconds: float | None = None
    soft: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        check_positive(self.key, "capacity", self.capacity, decimals=False)
        check_soft(self.key, self.soft)
        if (self.period is None) is (self.session_seconds is None):
            raise InvalidLimit(f"limit {self.key!r}: period or session_seconds must be given, and only one of them")
        if self.session_seconds is None:
            self._check_calendar()
        else:
            self._check_session()
        keep_plain(self, "capacity", "session_seconds")

    @property
    def ceiling(self) -> int:
        """The largest amount that can be admitted at one time."""
        return self.capacity

    @classmethod
    def per_hour(cls, key: str, capacity: int, time_zone: str = DEFAULT_ZONE, *, soft: bool = False) -> Self:
        """At most `capacity` per full hour of the clock."""
        return cls(key, capacity, QuotaPeriod.HOUR, time_zone, soft=soft)

    @classmethod
    def per_day(cls, key: str, capacity: int, time_zone: str = DEFAULT_ZONE, *, soft: bool = False) -> Self:
        """At most `capacity` from midnight to midnight."""
        return cls(key, capacity, QuotaPeriod.DAY, time_zone, soft=soft)

    @classmethod
    def per_week(cls, key: str, capacity: int, time_zone: str = DEFAULT_ZONE, *, soft: bool = False) -> Self:
        """At most `capacity` from Monday to Sunday."""
        return cls(key, capacity, QuotaPeriod.WEEK, time_zone, soft=soft)

    @classmethod
    def per_month(cls, key: str, capacity: int, time_zone: str = DEFAULT_ZONE, *, soft: bool = False) -> Self:
        """At most `capacity` per month of the calendar."""
        return cls(key, capacity, QuotaPeriod.MONTH, time_zone, soft=soft)

    @classmethod
    def per_session(cls, key: str, capacity: int, session_seconds: float, *, soft: bool = False) -> Self:
        """At most `capacity` within `session_seconds` from the first use on."""
        return cls(key, capacity, session_seconds=session_seconds, soft=soft)

    @classmethod
    def parse(cls, text: str, key: str = "quota", *, soft: bool = False) -> Self:
        """Read `"1000/day"` or `"5M/month@Europe/Berlin"` as a limit called `key`.

        The periods are hour, day, week and month; `k`, `M` and `G` are thousands, millions and thousands of them.
        """
        match = _PATTERN.fullmatch(text) if isinstance(text, str) and len(text) <= 128 else None
        if match is None:
            raise InvalidLimit(f"quota {shown(text)} must look like '1000/day' or '5M/month@Europe/Berlin'")
        number, multiple, period, zone = match.groups()
        try:
            milli = to_milli(Decimal(number), decimals=True) * MULTIPLES[multiple]
        except ValueError as error:
            raise InvalidLimit(f"quota {shown(text)}: {error}") from None
        return cls(key, from_milli(milli), period.lower(), zone or DEFAULT_ZONE, soft=soft)  # type: ignore[arg-type]  # checked when made

    def _check_calendar(self) -> None:
        periods = ", ".join(QuotaPeriod)
        if not isinstance(self.period, str) or self.period not in tuple(QuotaPeriod):
            raise InvalidLimit(f"limit {self.key!r}: period must be one of {periods}, not {shown(self.period)}")
        if zone_of(self.time_zone) is None:
            raise InvalidLimit(
                f"limit {self.key!r}: time_zone {shown(self.time_zone)} is not known here: "
                "use an IANA name such as 'Europe/Berlin', and install tzdata where the system has no time zones"
            )

    def _check_session(self) -> None:
        check_seconds(self.key, "session_seconds", self.session_seconds)
        if self.time_zone != DEFAULT_ZONE:
            raise InvalidLimit(f"limit {self.key!r}: time_zone goes with a period; leave it out for a session")
