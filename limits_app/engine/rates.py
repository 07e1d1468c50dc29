"""Rates and call limits: definitions of at most so much per window."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar, Self, TypedDict, Unpack

from limits_app.engine.amounts import MAX_AMOUNT, Amount, shown
from limits_app.engine.errors import InvalidLimit
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
    parse_rate,
)
from limits_app.engine.limit_of_set import LimitOfSet
from limits_app.engine.periods import DAY, HOUR, MINUTE, SECOND, WEEK
from limits_app.engine.priorities import GivenKeep, Keep
from limits_app.engine.rate_algorithms import RateLimitAlgorithm


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
        keep_kind_of_amounts(self)
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
    keep_shares(limit)
    keep_plain(limit, "capacity", "burst", is_money=is_money)
    keep_plain(limit, "window_seconds")
