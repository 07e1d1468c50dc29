"""Definitions of limits: immutable, validated when made, without state.

Rates, calls and quotas have separate modules; they are imported from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from limits_app.engine.amounts import MAX_AMOUNT, MILLI, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.limit_checks import (
    check_key,
    check_seconds,
    checked_milli,
    keep_kind_of_amounts,
    keep_plain,
    keep_seconds,
    keep_shares,
)
from limits_app.engine.limit_of_set import LimitOfSet
from limits_app.engine.priorities import GivenKeep, Keep
from limits_app.engine.quotas import QuotaLimit
from limits_app.engine.rate_algorithms import RateLimitAlgorithm
from limits_app.engine.rates import CallLimit, RateLimit

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
        keep_kind_of_amounts(self)
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
        keep_shares(self)

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
