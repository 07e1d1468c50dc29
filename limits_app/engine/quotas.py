"""Quotas: definitions of at most so much per period of a calendar, or per session."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from limits_app.engine.amounts import MAX_MICRO, Amount, shown
from limits_app.engine.clock import DEFAULT_ZONE, zone_of
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limit_checks import (
    check_key,
    check_money,
    check_positive,
    check_seconds,
    check_soft,
    keep_kind_of_amounts,
    keep_plain,
    keep_seconds,
    keep_shares,
    parse_per,
)
from limits_app.engine.limit_of_set import LimitOfSet
from limits_app.engine.period_starts import AS_THE_CALENDAR, CLIENT_START, PeriodStart
from limits_app.engine.periods import QuotaPeriod
from limits_app.engine.priorities import GivenKeep, Keep


class QuotaOptions(TypedDict, total=False):
    """The fields of calendar quotas that have defaults."""

    soft: bool
    starts: str
    keep: GivenKeep


@dataclass(frozen=True, slots=True)
class QuotaLimit(LimitOfSet):
    """At most `capacity` units per period; requests name their amount and report the usage.

    The period is a calendar period (`period`: hour, day, week or month, as clocks in `time_zone` show it),
    or a session of `session_seconds`, which starts with the first use.
    Calendar periods begin at midnight, of Monday or of the first of the month, or as `starts` says: on a day of the
    month (`"15"`; in a shorter month on its last day), on a weekday (`"sun"`), at a time (`"6h"`), both (`"15+6h"`), or
    with the billing date of the client (`"client"`), which policies fill in.
    At its end all of the capacity is available again; before that only unused amounts are refunded.
    A `soft` quota rejects nothing: over-use is recorded as debt, and the outcome has `overdrawn`.
    `keep` maps classes of `LIMITS["PRIORITIES"]` to the percentage that their requests leave free for higher classes.
    `is_money` says whether amounts are money; by default, whether the key is one of `LIMITS["CURRENCIES"]`.
    Raises InvalidLimit (a ValueError) that names the limit and the field.
    """

    key: str
    capacity: Amount
    period: str | None = None
    time_zone: str = DEFAULT_ZONE
    session_seconds: float | None = None
    soft: bool = False
    starts: str = ""
    keep: Keep = field(default=(), kw_only=True, repr=False)
    is_money: bool | None = field(default=None, kw_only=True, repr=False)

    if TYPE_CHECKING:  # see RateLimit

        def __init__(  # noqa: PLR0917 - the fields
            self,
            key: str,
            capacity: Amount,
            period: str | None = None,
            time_zone: str = DEFAULT_ZONE,
            session_seconds: float | timedelta | None = None,
            soft: bool = False,
            starts: str = "",
            *,
            keep: GivenKeep = (),
            is_money: bool | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_key(self.key)
        keep_kind_of_amounts(self)
        is_money = self.is_money is True
        if is_money:
            check_money(self.key, "capacity", self.capacity, most_micro=MAX_MICRO)
        else:
            check_positive(self.key, "capacity", self.capacity, decimals=False)
        check_soft(self.key, self.soft)
        keep_shares(self)
        keep_seconds(self, "session_seconds")
        if (self.period is None) is (self.session_seconds is None):
            raise InvalidLimit(f"limit {self.key!r}: period or session_seconds must be given, and only one of them")
        if self.session_seconds is None:
            self._check_calendar()
        else:
            self._check_session()
        keep_plain(self, "capacity", is_money=is_money)
        keep_plain(self, "session_seconds")

    @property
    def ceiling(self) -> Amount:
        """The largest amount that can be admitted at one time."""
        return self.capacity

    @property
    def starts_with_client(self) -> bool:
        """Whether periods begin with the billing date of the client."""
        return self.starts == CLIENT_START

    @property
    def start(self) -> PeriodStart:
        """When calendar periods begin; those of clients without a billing date begin as the calendar does."""
        if not self.starts or self.starts_with_client or self.period is None:
            return AS_THE_CALENDAR
        return PeriodStart.parse(QuotaPeriod(self.period), self.starts)

    def started(self, billing_from: datetime | None) -> Self:
        """Return the quota of a client with a billing date (None: without one); one with another start stays as it is.

        The day and the time are those that clocks in the time zone of the quota show, in whole minutes.
        """
        if not self.starts_with_client or self.period is None:
            return self
        if billing_from is None:
            return replace(self, starts="")
        period = QuotaPeriod(self.period)
        # The first and the last year do not have each time in every zone; no form takes them.
        billing_from = billing_from.replace(year=min(max(billing_from.year, MINYEAR + 1), MAXYEAR - 1))
        start = PeriodStart.at(period, billing_from.astimezone(zone_of(self.time_zone)))
        return replace(self, starts=start.text(period))

    @classmethod
    def per_hour(
        cls, key: str, capacity: Amount, time_zone: str = DEFAULT_ZONE, *, soft: bool = False, keep: GivenKeep = ()
    ) -> Self:
        """At most `capacity` per full hour of the clock."""
        return cls(key, capacity, QuotaPeriod.HOUR, time_zone, soft=soft, keep=keep)

    @classmethod
    def per_day(
        cls, key: str, capacity: Amount, time_zone: str = DEFAULT_ZONE, **options: Unpack[QuotaOptions]
    ) -> Self:
        """At most `capacity` from midnight to midnight, or with another start."""
        return cls(key, capacity, QuotaPeriod.DAY, time_zone, **options)

    @classmethod
    def per_week(
        cls, key: str, capacity: Amount, time_zone: str = DEFAULT_ZONE, **options: Unpack[QuotaOptions]
    ) -> Self:
        """At most `capacity` from Monday to Sunday, or with another start."""
        return cls(key, capacity, QuotaPeriod.WEEK, time_zone, **options)

    @classmethod
    def per_month(
        cls, key: str, capacity: Amount, time_zone: str = DEFAULT_ZONE, **options: Unpack[QuotaOptions]
    ) -> Self:
        """At most `capacity` per month of the calendar, or with another start."""
        return cls(key, capacity, QuotaPeriod.MONTH, time_zone, **options)

    @classmethod
    def per_session(
        cls, key: str, capacity: Amount, session_seconds: float, *, soft: bool = False, keep: GivenKeep = ()
    ) -> Self:
        """At most `capacity` within `session_seconds` from the first use on."""
        return cls(key, capacity, session_seconds=session_seconds, soft=soft, keep=keep)

    @classmethod
    def parse(cls, text: str, key: str = "quota", *, soft: bool = False) -> Self:
        """Read `"1000/day"` or `"5M/month@Europe/Berlin"` as a limit called `key`.

        The periods are hour, day, week and month; `k`, `M` and `G` are thousands, millions and thousands of them.
        """
        capacity, (period, zone) = parse_per("quota", text, _period_and_zone, "'1000/day' or '5M/month@Europe/Berlin'")
        return cls(key, capacity, period, zone, soft=soft)

    def _check_calendar(self) -> None:
        periods = ", ".join(QuotaPeriod)
        if not isinstance(self.period, str) or self.period not in tuple(QuotaPeriod):
            raise InvalidLimit(f"limit {self.key!r}: period must be one of {periods}, not {shown(self.period)}")
        if zone_of(self.time_zone) is None:
            raise UnknownTimeZone(
                f"limit {self.key!r}: time_zone {shown(self.time_zone)} is not known here: "
                "use an IANA name such as 'Europe/Berlin', and install tzdata where the system has no time zones"
            )
        self._check_start(QuotaPeriod(self.period))

    def _check_start(self, period: QuotaPeriod) -> None:
        if self.starts == "" or (self.starts == CLIENT_START and period is not QuotaPeriod.HOUR):
            return
        try:
            starts = PeriodStart.parse(period, self.starts).text(period)
        except ValueError as error:
            raise InvalidLimit(f"limit {self.key!r}: starts {error}, not {shown(self.starts)}") from None
        object.__setattr__(self, "starts", starts)

    def _check_session(self) -> None:
        check_seconds(self.key, "session_seconds", self.session_seconds)
        if self.time_zone != DEFAULT_ZONE:
            raise InvalidLimit(f"limit {self.key!r}: time_zone goes with a period; leave it out for a session")
        if self.starts:
            raise InvalidLimit(f"limit {self.key!r}: starts goes with a period; leave it out for a session")


def _period_and_zone(text: str) -> tuple[str, str]:
    period, at, zone = map(str.strip, text.partition("@"))
    return period.lower(), zone if at else DEFAULT_ZONE
