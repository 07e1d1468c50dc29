"""Definitions of limits: immutable, validated when made, without state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import MAXYEAR, MINYEAR, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Self, TypedDict, Unpack

from limits_app.engine.amounts import MAX_AMOUNT, MAX_MICRO, MILLI, Amount, is_currency, shown
from limits_app.engine.clock import DEFAULT_ZONE, zone_of
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone
from limits_app.engine.limit_checks import (
    check_case,
    check_key,
    check_money,
    check_positive,
    check_seconds,
    check_soft,
    checked_milli,
    keep_plain,
    keep_seconds,
    parse_per,
    parse_rate,
)
from limits_app.engine.limit_of_set import LimitOfSet
from limits_app.engine.period_starts import AS_THE_CALENDAR, CLIENT_START, PeriodStart
from limits_app.engine.periods import DAY, HOUR, MINUTE, SECOND, WEEK, QuotaPeriod
from limits_app.engine.priorities import GivenKeep, Keep, checked_keep
from limits_app.engine.rate_algorithms import RateLimitAlgorithm

__all__ = (
    "AnyLimit",
    "Blocked",
    "CallLimit",
    "LimitDefinition",
    "MeteredLimit",
    "QuotaLimit",
    "RateLimit",
    "RateLimitAlgorithm",
    "ResourceLimit",
)


class RateOptions(TypedDict, total=False):
    """The fields of rates and call limits that have defaults."""

    algorithm: RateLimitAlgorithm | str
    burst: Amount | None
    soft: bool
    keep: GivenKeep


@dataclass(frozen=True, slots=True)
class RateLimit(LimitOfSet):
    """At most `capacity` units per `window_seconds`; requests name their amount and report the usage.

    `burst` (default: `capacity`) is the largest amount at one time; windows do not take it.
    The window may be a `timedelta`, and the algorithm its name, such as "gcra".
    A `soft` limit rejects nothing: over-use is recorded as debt, and the outcome has `overdrawn`.
    `keep` maps classes of `LIMITS["PRIORITIES"]` to the percentage that their requests leave free for higher classes.
    `is_money` says whether amounts are money; by default, whether the key is one of `LIMITS["CURRENCIES"]`.
    Raises InvalidLimit (a ValueError) that names the limit and the field.
    """

    key: str
    capacity: Amount
    window_seconds: float
    algorithm: RateLimitAlgorithm = RateLimitAlgorithm.TOKEN_BUCKET
    burst: Amount | None = None
    soft: bool = False
    keep: Keep = field(default=(), kw_only=True, repr=False)
    is_money: bool | None = field(default=None, kw_only=True, repr=False)

    if TYPE_CHECKING:  # what may be passed; the fields have the types that are kept

        def __init__(  # noqa: PLR0917 - the fields
            self,
            key: str,
            capacity: Amount,
            window_seconds: float | timedelta,
            algorithm: RateLimitAlgorithm | str = ...,
            burst: Amount | None = None,
            soft: bool = False,
            *,
            keep: GivenKeep = (),
            is_money: bool | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_key(self.key)
        _keep_kind_of_amounts(self)
        _check_rate(self)

    @property
    def ceiling(self) -> Amount:
        """The largest amount that can be admitted at one time."""
        return self.capacity if self.burst is None else self.burst

    @classmethod
    def per_second(cls, key: str, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` per second."""
        return cls(key, capacity, SECOND, **options)

    @classmethod
    def per_minute(cls, key: str, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` per minute."""
        return cls(key, capacity, MINUTE, **options)

    @classmethod
    def per_hour(cls, key: str, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` per hour."""
        return cls(key, capacity, HOUR, **options)

    @classmethod
    def per_day(cls, key: str, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` per day of 24 hours."""
        return cls(key, capacity, DAY, **options)

    @classmethod
    def per_week(cls, key: str, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` per 7 days."""
        return cls(key, capacity, WEEK, **options)

    @classmethod
    def parse(cls, text: str, key: str = "rate", **options: Unpack[RateOptions]) -> Self:
        """Read `"1000/min"`, `"30/10s"` or `"5/2h"` as a limit called `key`.

        Units are ms, s, min (or m), h and d, or their names in full; `k`, `M` and `G` are thousands, millions and
        thousands of them.
        """
        capacity, window_seconds = parse_rate(text)
        return cls(key, capacity, window_seconds, **options)


@dataclass(frozen=True, slots=True)
class CallLimit(LimitOfSet):
    """At most `capacity` calls per `window_seconds`; a call counts 1 unless more is requested.

    The key is always `call_count`. Fields and errors are those of RateLimit.
    """

    capacity: Amount
    window_seconds: float
    algorithm: RateLimitAlgorithm = RateLimitAlgorithm.TOKEN_BUCKET
    burst: Amount | None = None
    soft: bool = False
    keep: Keep = field(default=(), kw_only=True, repr=False)
    key: ClassVar[str] = "call_count"

    if TYPE_CHECKING:  # see RateLimit

        def __init__(  # noqa: PLR0917 - the fields
            self,
            capacity: Amount,
            window_seconds: float | timedelta,
            algorithm: RateLimitAlgorithm | str = ...,
            burst: Amount | None = None,
            soft: bool = False,
            *,
            keep: GivenKeep = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_rate(self)

    @property
    def ceiling(self) -> Amount:
        """The largest amount that can be admitted at one time."""
        return self.capacity if self.burst is None else self.burst

    @classmethod
    def per_second(cls, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` calls per second."""
        return cls(capacity, SECOND, **options)

    @classmethod
    def per_minute(cls, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` calls per minute."""
        return cls(capacity, MINUTE, **options)

    @classmethod
    def per_hour(cls, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` calls per hour."""
        return cls(capacity, HOUR, **options)

    @classmethod
    def per_day(cls, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` calls per day of 24 hours."""
        return cls(capacity, DAY, **options)

    @classmethod
    def per_week(cls, capacity: Amount, **options: Unpack[RateOptions]) -> Self:
        """At most `capacity` calls per 7 days."""
        return cls(capacity, WEEK, **options)

    @classmethod
    def parse(cls, text: str, **options: Unpack[RateOptions]) -> Self:
        """Read `"1000/min"`, `"30/10s"` or `"5/2h"` as a limit on calls."""
        capacity, window_seconds = parse_rate(text)
        return cls(capacity, window_seconds, **options)


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
    capacity: int
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
            capacity: int,
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
        _keep_kind_of_amounts(self)
        is_money = self.is_money is True
        if is_money:
            check_money(self.key, "capacity", self.capacity, most_micro=MAX_MICRO)
        else:
            check_positive(self.key, "capacity", self.capacity, decimals=False)
        check_soft(self.key, self.soft)
        _keep_shares(self)
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
    def ceiling(self) -> int:
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
        cls, key: str, capacity: int, time_zone: str = DEFAULT_ZONE, *, soft: bool = False, keep: GivenKeep = ()
    ) -> Self:
        """At most `capacity` per full hour of the clock."""
        return cls(key, capacity, QuotaPeriod.HOUR, time_zone, soft=soft, keep=keep)

    @classmethod
    def per_day(
        cls,
        key: str,
        capacity: int,
        time_zone: str = DEFAULT_ZONE,
        *,
        soft: bool = False,
        starts: str = "",
        keep: GivenKeep = (),
    ) -> Self:
        """At most `capacity` from midnight to midnight, or with another start."""
        return cls(key, capacity, QuotaPeriod.DAY, time_zone, soft=soft, starts=starts, keep=keep)

    @classmethod
    def per_week(
        cls,
        key: str,
        capacity: int,
        time_zone: str = DEFAULT_ZONE,
        *,
        soft: bool = False,
        starts: str = "",
        keep: GivenKeep = (),
    ) -> Self:
        """At most `capacity` from Monday to Sunday, or with another start."""
        return cls(key, capacity, QuotaPeriod.WEEK, time_zone, soft=soft, starts=starts, keep=keep)

    @classmethod
    def per_month(
        cls,
        key: str,
        capacity: int,
        time_zone: str = DEFAULT_ZONE,
        *,
        soft: bool = False,
        starts: str = "",
        keep: GivenKeep = (),
    ) -> Self:
        """At most `capacity` per month of the calendar, or with another start."""
        return cls(key, capacity, QuotaPeriod.MONTH, time_zone, soft=soft, starts=starts, keep=keep)

    @classmethod
    def per_session(
        cls, key: str, capacity: int, session_seconds: float, *, soft: bool = False, keep: GivenKeep = ()
    ) -> Self:
        """At most `capacity` within `session_seconds` from the first use on."""
        return cls(key, capacity, session_seconds=session_seconds, soft=soft, keep=keep)

    @classmethod
    def parse(cls, text: str, key: str = "quota", *, soft: bool = False) -> Self:
        """Read `"1000/day"` or `"5M/month@Europe/Berlin"` as a limit called `key`.

        The periods are hour, day, week and month; `k`, `M` and `G` are thousands, millions and thousands of them.
        """
        capacity, (period, zone) = parse_per("quota", text, _period_and_zone, "'1000/day' or '5M/month@Europe/Berlin'")
        return cls(key, capacity, period, zone, soft=soft)  # type: ignore[arg-type]  # checked when made

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


@dataclass(frozen=True, slots=True)
class ResourceLimit(LimitOfSet):
    """At most `capacity` permits held at the same time, returned when their holder is done.

    `max_hold_seconds` takes a permit away from a holder that keeps it longer (default: never). `keep` is that of rates.
    Resource limits are always hard, and permits are never money.
    """

    key: str
    capacity: int
    max_hold_seconds: float | None = None
    keep: Keep = field(default=(), kw_only=True, repr=False)
    is_money: bool | None = field(default=None, kw_only=True, repr=False)
    soft: ClassVar[bool] = False

    if TYPE_CHECKING:  # see RateLimit

        def __init__(
            self,
            key: str,
            capacity: int,
            max_hold_seconds: float | timedelta | None = None,
            *,
            keep: GivenKeep = (),
            is_money: bool | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_key(self.key)
        _keep_kind_of_amounts(self)
        if self.is_money:
            raise InvalidLimit(
                f"limit {self.key!r}: a currency cannot be held as permits: write {self.key}=50/month, or change "
                "LIMITS['CURRENCIES']"
            )
        if checked_milli(self.key, "capacity", self.capacity, decimals=False) < MILLI:
            raise InvalidLimit(f"limit {self.key!r}: capacity must be at least 1, not {shown(self.capacity)}")
        keep_seconds(self, "max_hold_seconds")
        if self.max_hold_seconds is not None:
            check_seconds(self.key, "max_hold_seconds", self.max_hold_seconds)
        keep_plain(self, "capacity", "max_hold_seconds")
        _keep_shares(self)

    @property
    def ceiling(self) -> int:
        """The largest number of permits of one request."""
        return self.capacity


@dataclass(frozen=True, slots=True)
class Blocked(LimitOfSet):
    """Rejects every request: the effect of a policy that is blocked.

    `until` is the end of a cool-down, in microseconds of the clock of the store; None for no end.
    """

    until: int | None = None
    key: ClassVar[str] = "blocked"
    capacity: ClassVar[int] = 0
    ceiling: ClassVar[int] = 0
    soft: ClassVar[bool] = False
    keep: ClassVar[Keep] = ()


@dataclass(frozen=True, slots=True)
class CountedUnit(LimitOfSet):
    """A unit that is counted and not limited: one with a price, of which no limit is set.

    Requests name it by the key `requested_as`, which is another one for requests that are counted under the unit of a
    price, and for money. Amounts have at most three decimals; those of calls are whole. Where it `is_money`, it counts
    what is requested under a currency, and its key is that of `given_key`. One of a `member` counts what that member of
    the pool serves, beside the unit, and its key is that of `prices.member_key`.
    """

    key: str
    requested_as: str
    is_money: bool = False
    member: str = ""
    capacity: ClassVar[int] = MAX_AMOUNT
    ceiling: ClassVar[int] = MAX_AMOUNT
    soft: ClassVar[bool] = False
    keep: ClassVar[Keep] = ()


MeteredLimit = RateLimit | QuotaLimit
"""Limits that may be of any key."""

LimitDefinition = RateLimit | CallLimit | QuotaLimit | ResourceLimit
"""Limits that can be set."""

EnforcedLimit = LimitDefinition | Blocked
"""Limits that policies can have in force."""

AnyLimit = EnforcedLimit | CountedUnit
"""What the amounts of a request are decided by."""


def _keep_kind_of_amounts(limit: RateLimit | QuotaLimit | ResourceLimit) -> None:
    if limit.is_money is None:
        check_case(limit.key)
        object.__setattr__(limit, "is_money", is_currency(limit.key))


def _period_and_zone(text: str) -> tuple[str, str]:
    period, at, zone = map(str.strip, text.partition("@"))
    return period.lower(), zone if at else DEFAULT_ZONE


def _check_rate(limit: RateLimit | CallLimit) -> None:
    key = limit.key
    try:
        algorithm = RateLimitAlgorithm(limit.algorithm)
    except ValueError:
        names = ", ".join(RateLimitAlgorithm)
        raise InvalidLimit(f"limit {key!r}: algorithm must be one of {names}, not {shown(limit.algorithm)}") from None
    object.__setattr__(limit, "algorithm", algorithm)
    keep_seconds(limit, "window_seconds")
    if limit.burst is not None and not algorithm.takes_burst:
        raise InvalidLimit(f"limit {key!r}: a {algorithm} has no burst; leave it out")
    is_money = isinstance(limit, RateLimit) and limit.is_money is True
    for name in ("capacity", "burst") if limit.burst is not None else ("capacity",):
        if is_money:
            check_money(key, name, getattr(limit, name), most_micro=MAX_AMOUNT)
        else:
            check_positive(key, name, getattr(limit, name), decimals=algorithm.takes_decimals)
    check_seconds(key, "window_seconds", limit.window_seconds)
    check_soft(key, limit.soft)
    _keep_shares(limit)
    keep_plain(limit, "capacity", "burst", is_money=is_money)
    keep_plain(limit, "window_seconds")


def _keep_shares(limit: LimitDefinition) -> None:
    if limit.keep != ():
        object.__setattr__(limit, "keep", checked_keep(limit.key, limit.keep, soft=limit.soft))
