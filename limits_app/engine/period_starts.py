"""When calendar periods begin: at midnight of their first day, or on another day and at another time.

The text of a start is a day of the month (`15`), a weekday (`sun`), a time after midnight (`6h`), a day and a time
(`15+6h`), or `client`: then each client has the day and the time of its own billing date.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from limits_app.engine.periods import DAY, HOUR, MINUTE, QuotaPeriod

CLIENT_START: Final = "client"
"""The start of a quota whose periods begin with the billing date of each client."""

WEEKDAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAMES: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_TIME: Final = re.compile(r"([0-9]{1,4})(h|min)", re.ASCII)
_MOST_DAYS: Final = 31
_ALLOWED: Final = {
    QuotaPeriod.DAY: "a time such as 6h or 390min",
    QuotaPeriod.WEEK: "a weekday such as sun, a time such as 6h, or both, as sun+6h",
    QuotaPeriod.MONTH: "a day of the month from 1 to 31, a time such as 6h, or both, as 15+6h",
}


class PeriodStart(NamedTuple):
    """When a period begins: so many days after its first day, and so many minutes after midnight.

    In a month that is shorter, the period begins on its last day.
    """

    days: int = 0
    minutes: int = 0

    @classmethod
    def parse(cls, period: QuotaPeriod, text: object) -> PeriodStart:
        """Read the text of a start, which is not `client`; ValueError names the allowed values."""
        if period not in _ALLOWED:
            raise ValueError("goes with a day, a week or a month; leave it out")
        day, plus, time = text.lower().partition("+") if isinstance(text, str) else ("", "+", "")
        if not plus and _TIME.fullmatch(day):
            day, time = "", day
        days = 0 if not day and not plus else _days(period, day)
        minutes = 0 if not time and not plus else _minutes(time)
        if days is None or minutes is None:
            raise ValueError(f"must be {_ALLOWED[period]}, or client")
        return cls(days, minutes)

    @classmethod
    def at(cls, period: QuotaPeriod, shown: datetime) -> PeriodStart:
        """Return the start of the periods that begin at a time that clocks show."""
        days = {QuotaPeriod.WEEK: shown.weekday(), QuotaPeriod.MONTH: shown.day - 1}.get(period, 0)
        return cls(days, shown.hour * 60 + shown.minute)

    def text(self, period: QuotaPeriod) -> str:
        """Write the start so that `parse` reads the same one; empty for midnight of the first day."""
        time = "" if not self.minutes else _time_text(self.minutes)
        day = "" if not self.days else WEEKDAYS[self.days] if period is QuotaPeriod.WEEK else str(self.days + 1)
        return "+".join(filter(None, [day, time]))

    def last_before(self, period: QuotaPeriod, shown: datetime) -> datetime:
        """Return the last time at which a period begins up to a time; both are times that clocks show."""
        midnight = shown.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
        if period is QuotaPeriod.MONTH:
            begins = self._in_month(midnight)
            return begins if begins <= shown else self._in_month(midnight.replace(day=1) - timedelta(days=1))
        days = (midnight.weekday() - self.days) % 7 if period is QuotaPeriod.WEEK else 0
        begins = midnight - timedelta(days=days) + timedelta(minutes=self.minutes)
        return begins if begins <= shown else begins - timedelta(days=7 if period is QuotaPeriod.WEEK else 1)

    def next_after(self, period: QuotaPeriod, begins: datetime) -> datetime:
        """Return when the period after the one that begins then begins."""
        if period is QuotaPeriod.MONTH:
            return self._in_month(begins.replace(day=1) + timedelta(days=_MOST_DAYS))
        return begins + timedelta(days=7 if period is QuotaPeriod.WEEK else 1)

    def _in_month(self, shown: datetime) -> datetime:
        last = monthrange(shown.year, shown.month)[1]
        hour, minute = divmod(self.minutes, 60)
        return shown.replace(day=min(self.days + 1, last), hour=hour, minute=minute)


AS_THE_CALENDAR: Final = PeriodStart()
"""Midnight of the first day."""


def _days(period: QuotaPeriod, text: str) -> int | None:
    if period is QuotaPeriod.WEEK:
        names = WEEKDAYS if text in WEEKDAYS else _NAMES
        return names.index(text) if text in names else None
    is_day = period is QuotaPeriod.MONTH and text.isascii() and text.isdecimal() and len(text) <= len(str(_MOST_DAYS))
    return int(text) - 1 if is_day and 1 <= int(text) <= _MOST_DAYS else None


def _minutes(text: str) -> int | None:
    match = _TIME.fullmatch(text)
    minutes = int(match[1]) * (HOUR // MINUTE if match[2] == "h" else 1) if match else DAY
    return minutes if minutes < DAY // MINUTE else None


def _time_text(minutes: int) -> str:
    hours, rest = divmod(minutes, HOUR // MINUTE)
    return f"{minutes}min" if rest else f"{hours}h"
