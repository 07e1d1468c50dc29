"""Definitions of limits: immutable, validated when made, without state."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import ClassVar, Final, Self

from limits_app.core.amounts import MILLI, Amount, from_milli, shown, to_milli
from limits_app.core.errors import InvalidLimit

__all__ = ["AnyLimit", "Blocked", "CallLimit", "Limit", "RateLimit", "RateLimitAlgorithm", "ResourceLimit"]

KEY_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_WINDOW_MILLI: Final = 366 * 86_400 * MILLI
_RATE_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", re.IGNORECASE)
_EXACT: Final = Context(prec=100)
"""Decimals by the precision of nobody else: a rate as text has fewer digits."""
_UNITS: Final = {
    "ms": Decimal("0.001"),
    "millisecond": Decimal("0.001"),
    "s": Decimal(1),
    "sec": Decimal(1),
    "second": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "minute": Decimal(60),
    "h": Decimal(3600),
    "hour": Decimal(3600),
    "d": Decimal(86_400),
    "day": Decimal(86_400),
}


class RateLimitAlgorithm(StrEnum):
    """How a rate is measured; each algorithm's module says what it is good for and where it is weak."""

    TOKEN_BUCKET = "token_bucket"
    LEAKY_BUCKET = "leaky_bucket"
    SLIDING_WINDOW = "sliding_window"
    FIXED_WINDOW = "fixed_window"
    GCRA = "gcra"

    @property
    def takes_burst(self) -> bool:
        """Whether a definition may set how much passes at once."""
        return self not in (RateLimitAlgorithm.SLIDING_WINDOW, RateLimitAlgorithm.FIXED_WINDOW)

    @property
    def takes_decimals(self) -> bool:
        """Whether amounts may have up to three decimals."""
        return self in (RateLimitAlgorithm.TOKEN_BUCKET, RateLimitAlgorithm.GCRA)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `capacity` units per `window_seconds`; how much must be said with each request, and used reported.

    `burst` (default: `capacity`) is how much may pass at once; windows do not take it.
    Raises InvalidLimit (a ValueError) that names the limit and the field.
    """

    key: str
    capacity: Amount
    window_seconds: float
    algorithm: RateLimitAlgorithm = RateLimitAlgorithm.TOKEN_BUCKET
    burst: Amount | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        _check_rate(self)

    @property
    def ceiling(self) -> Amount:
        """The most that can ever be admitted at once."""
        return self.capacity if self.burst is None else self.burst

    @classmethod
    def per_second(cls, key: str, capacity: Amount, **options: object) -> Self:
        """At most `capacity` per second; `options` are `algorithm` and `burst`."""
        return cls(key, capacity, 1, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_minute(cls, key: str, capacity: Amount, **options: object) -> Self:
        """At most `capacity` per minute."""
        return cls(key, capacity, 60, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_hour(cls, key: str, capacity: Amount, **options: object) -> Self:
        """At most `capacity` per hour."""
        return cls(key, capacity, 3600, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_day(cls, key: str, capacity: Amount, **options: object) -> Self:
        """At most `capacity` per day of 24 hours."""
        return cls(key, capacity, 86_400, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def parse(cls, text: str, key: str = "rate", **options: object) -> Self:
        """Read `"1000/min"`, `"30/10s"` or `"5/2h"` as a limit called `key`.

        Units are ms, s, min (or m), h and d, or their names in full.
        """
        capacity, window_seconds = parse_rate(text)
        return cls(key, capacity, window_seconds, **options)  # type: ignore[arg-type]  # checked when made


@dataclass(frozen=True, slots=True)
class CallLimit:
    """At most `capacity` calls per `window_seconds`; a call counts 1 unless more is requested.

    The key is always `call_count`. Fields and errors are those of RateLimit.
    """

    capacity: Amount
    window_seconds: float
    algorithm: RateLimitAlgorithm = RateLimitAlgorithm.TOKEN_BUCKET
    burst: Amount | None = None
    key: ClassVar[str] = "call_count"

    def __post_init__(self) -> None:
        _check_rate(self)

    @property
    def ceiling(self) -> Amount:
        """The most that can ever be admitted at once."""
        return self.capacity if self.burst is None else self.burst

    @classmethod
    def per_second(cls, capacity: Amount, **options: object) -> Self:
        """At most `capacity` calls per second; `options` are `algorithm` and `burst`."""
        return cls(capacity, 1, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_minute(cls, capacity: Amount, **options: object) -> Self:
        """At most `capacity` calls per minute."""
        return cls(capacity, 60, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_hour(cls, capacity: Amount, **options: object) -> Self:
        """At most `capacity` calls per hour."""
        return cls(capacity, 3600, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def per_day(cls, capacity: Amount, **options: object) -> Self:
        """At most `capacity` calls per day of 24 hours."""
        return cls(capacity, 86_400, **options)  # type: ignore[arg-type]  # checked when made

    @classmethod
    def parse(cls, text: str, **options: object) -> Self:
        """Read `"1000/min"`, `"30/10s"` or `"5/2h"` as a limit on calls."""
        capacity, window_seconds = parse_rate(text)
        return cls(capacity, window_seconds, **options)  # type: ignore[arg-type]  # checked when made


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """At most `capacity` permits held at the same time, given back when their holder is done.

    `max_hold_seconds` takes a permit away from a holder that keeps it longer (default: never).
    """

    key: str
    capacity: int
    max_hold_seconds: float | None = None

    def __post_init__(self) -> None:
        check_key(self.key)
        if _milli(self.key, "capacity", self.capacity, decimals=False) < MILLI:
            raise InvalidLimit(f"limit {self.key!r}: capacity must be at least 1, not {shown(self.capacity)}")
        if self.max_hold_seconds is not None:
            _check_seconds(self.key, "max_hold_seconds", self.max_hold_seconds)

    @property
    def ceiling(self) -> int:
        """The most permits that one request can ever have."""
        return self.capacity


@dataclass(frozen=True, slots=True)
class Blocked:
    """Nothing at all: what the policy "blocked" means for those whom it is about."""

    key: ClassVar[str] = "blocked"
    capacity: ClassVar[int] = 0
    ceiling: ClassVar[int] = 0


Limit = RateLimit | CallLimit | ResourceLimit
"""What can be set."""

AnyLimit = Limit | Blocked
"""What can hold."""


def checked_limits(limits: Iterable[object]) -> tuple[Limit, ...]:
    """Return definitions as a tuple; InvalidLimit says which of them is none."""
    checked = []
    for limit in limits:
        if not isinstance(limit, Limit):
            raise InvalidLimit(f"{shown(limit)} is no limit: use RateLimit, CallLimit or ResourceLimit")
        checked.append(limit)
    return tuple(checked)


def check_key(key: object) -> None:
    """Raise InvalidLimit unless `key` is a letter and up to 63 letters, digits, `_`, `.` or `-`."""
    if not isinstance(key, str) or not KEY_PATTERN.fullmatch(key):
        raise InvalidLimit(
            f"limit key {shown(key)} must be a letter followed by at most 63 letters, digits, '_', '.' or '-'"
        )


def parse_rate(text: str) -> tuple[Amount, float]:
    """Read a rate such as `"30/10s"` into capacity and window in seconds; InvalidLimit says what is expected."""
    match = _RATE_PATTERN.fullmatch(text) if isinstance(text, str) and len(text) <= 64 else None
    unit = _UNITS.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise InvalidLimit(
            f"rate {shown(text)} must look like '1000/min', '30/10s' or '5/2h' (units: ms, s, min, h, d)"
        )
    seconds = _EXACT.multiply(Decimal(match[2] or 1), unit)
    capacity = Decimal(match[1])
    try:
        return from_milli(to_milli(capacity, decimals=True)), from_milli(to_milli(seconds, decimals=True))
    except ValueError as error:
        raise InvalidLimit(f"rate {shown(text)}: {error}") from None


def _check_rate(limit: RateLimit | CallLimit) -> None:
    key, algorithm = limit.key, limit.algorithm
    if not isinstance(algorithm, RateLimitAlgorithm):
        names = ", ".join(member.name for member in RateLimitAlgorithm)
        raise InvalidLimit(f"limit {key!r}: algorithm must be a RateLimitAlgorithm ({names}), not {shown(algorithm)}")
    decimals = algorithm.takes_decimals
    if _milli(key, "capacity", limit.capacity, decimals=decimals) <= 0:
        raise InvalidLimit(f"limit {key!r}: capacity must be more than 0, not {shown(limit.capacity)}")
    _check_seconds(key, "window_seconds", limit.window_seconds)
    if limit.burst is None:
        return
    if not algorithm.takes_burst:
        raise InvalidLimit(f"limit {key!r}: a {algorithm} has no burst; leave it out")
    if _milli(key, "burst", limit.burst, decimals=decimals) <= 0:
        raise InvalidLimit(f"limit {key!r}: burst must be more than 0, not {shown(limit.burst)}")


def _check_seconds(key: str, field: str, value: object) -> None:
    if not 1 <= _milli(key, field, value, decimals=True) <= MAX_WINDOW_MILLI:
        raise InvalidLimit(f"limit {key!r}: {field} must be between 0.001 and 366 days, not {shown(value)}")


def _milli(key: str, field: str, value: object, *, decimals: bool) -> int:
    try:
        return to_milli(value, decimals=decimals)
    except ValueError as error:
        raise InvalidLimit(f"limit {key!r}: {field} {error}, not {shown(value)}") from None
