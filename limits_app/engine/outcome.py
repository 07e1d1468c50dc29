"""Outcomes, which are the decision on a request with the reasons for it, and statistics, the live state of limits.

These are plain values: amounts in units, times in seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal
from operator import attrgetter
from typing import Final, NotRequired, TypedDict

OutcomeAmount = int | float
"""An amount in units, with at most three decimals."""

_NEVER, _CAPACITY_AND_WAIT = attrgetter("never"), attrgetter("capacity", "retry_after", "never")
_OF_DEFINITION = ("type", "limit", "window_seconds", "position")
_LISTS = ("violations", "passed", "overdrawn", "shadowed")


@dataclass(slots=True, unsafe_hash=True)
class LimitStatus:
    """One limit in a decision; amounts in units, times in seconds from the decision.

    Nothing changes it: it is not frozen, since one is made for each limit of a request, and freezing takes longest.
    `retry_after` is when the requested amount fits at the earliest: 0 when it does now,
    None when never, or when that depends on a holder giving back its permit.
    `reset_after` is when the limit is unused again, if no further request is admitted.
    `overdrawn` is how much more than its capacity a soft limit has used with this request.
    `member` is the member of a pool, whose name is then `resource`. `shared` marks one bucket for all entities, and
    `total` a limit over all resources.
    `type` is rate, call, quota, resource or blocked. `limit` is what the limit admits in `window_seconds`, without a
    burst, which `capacity` includes; None for the window of a month, of permits and of a block.
    Of a quota it is the length that its period usually has. `position` is that of the limit among those of the request.
    `priority` is the class of the request where the limit keeps a share free for higher classes, else empty; `capacity`
    and `remaining` are then without that share, of which `kept_used` is in use.
    """

    key: str
    resource: str | None
    entity: str | None
    level: str
    capacity: OutcomeAmount
    requested: OutcomeAmount
    remaining: OutcomeAmount
    retry_after: float | None
    reset_after: float
    never: bool = False
    overdrawn: OutcomeAmount = 0
    member: str | None = None
    shared: bool = False
    total: bool = False
    type: str = "rate"
    limit: OutcomeAmount = 0
    window_seconds: float | None = None
    position: int = 0
    priority: str = ""
    kept_used: OutcomeAmount = 0

    @property
    def used(self) -> OutcomeAmount:
        """The amount in use, by requests of all classes; more than the capacity for one that others have exceeded."""
        return self.capacity - self.remaining + self.overdrawn + self.kept_used

    def as_dict(self) -> dict[str, object]:
        """The decision about the limit as plain data, without what its definition says."""
        return {name: value for name, value in asdict(self).items() if name not in _OF_DEFINITION}


@dataclass(slots=True, unsafe_hash=True)
class Outcome:
    """A decision: allowed or rejected, with the limits that rejected and those that passed.

    Nothing changes it: it is not frozen, as `LimitStatus`.

    `degraded` says that the decision was made without the store, which is unavailable; remaining amounts are unknown.
    `shadowed` are the limits of policies in shadow mode that would have rejected this request.
    """

    allowed: bool
    violations: tuple[LimitStatus, ...]
    passed: tuple[LimitStatus, ...]
    degraded: bool = False
    shadowed: tuple[LimitStatus, ...] = ()

    @property
    def binding(self) -> LimitStatus | None:
        """The rejecting limit with the longest wait."""
        if len(self.violations) == 1:
            return self.violations[0]
        return max(self.violations, key=_wait_seconds, default=None)

    @property
    def retry_after(self) -> float | None:
        """Seconds until all limits would admit: 0 when allowed, None when unknown or never."""
        binding = self.binding
        return 0.0 if binding is None else binding.retry_after

    @property
    def never(self) -> bool:
        """Whether waiting is pointless, since a limit can never admit as much."""
        return any(map(_NEVER, self.violations))

    @property
    def blocked(self) -> bool:
        """Whether the entity or the resource is blocked, and not rate limited."""
        return (0, None, False) in map(_CAPACITY_AND_WAIT, self.violations)

    @property
    def overdrawn(self) -> tuple[LimitStatus, ...]:
        """The soft limits that would have rejected as hard limits."""
        return tuple(status for status in self.passed if status.overdrawn)

    def as_dict(self) -> dict[str, object]:
        """The outcome as plain data, for JSON."""
        plain = {name: getattr(self, name) for name in ("allowed", "retry_after", "never", "degraded")}
        return plain | {name: [status.as_dict() for status in getattr(self, name)] for name in _LISTS}

    def summary(self) -> str:
        """One sentence for people."""
        status = self.binding
        if status is None:
            return "allowed"
        where = "" if status.entity is None else f" for {status.entity}"
        if status.member is not None:
            where = f" at {status.member}"
        what = f"{status.key!r}" if status.resource is None else f"{status.key!r} of {status.resource}{where}"
        if status.total:
            what = f"{status.key!r} over all resources{where}"
        of_class = f" for requests of priority {status.priority}" if status.priority else ""
        if status.never:
            return f"{what} can never admit {status.requested}{of_class}: its most is {status.capacity}"
        if status.capacity == 0 and status.retry_after is None:
            return f"everything{where} is blocked"
        if status.capacity == 0:
            return f"the upstream of {status.resource} cools down: retry in {status.retry_after:g} s"
        when = "when a permit is released" if status.retry_after is None else f"in {status.retry_after:g} s"
        left, capacity, requested = map(plain_text, (status.remaining, status.capacity, status.requested))
        return f"{what} has {left} of {capacity} left{of_class}, {requested} requested: retry {when}"


def plain_text(amount: float) -> str:
    """Write an amount for people, without an exponent: 0.00001 instead of 1e-05."""
    text = str(amount)
    return f"{Decimal(text):f}" if "e" in text else text


def _wait_seconds(status: LimitStatus) -> float:
    if status.never:
        return float("inf")
    return -1.0 if status.retry_after is None else status.retry_after


TOTAL_PREFIX: Final = "total:"
"""The prefix of the keys of totals in statistics."""


class Stats(TypedDict):
    """The live state of a limit; `stats_of` describes the fields."""

    type: str
    algorithm: str | None
    window_seconds: float | None
    capacity: OutcomeAmount
    available: OutcomeAmount
    used: OutcomeAmount
    utilization: float
    reset_after: NotRequired[float]
    burst: NotRequired[OutcomeAmount]
    holders: NotRequired[int]
    period: NotRequired[str | None]
    time_zone: NotRequired[str | None]
    starts: NotRequired[str]
    resource: NotRequired[str | None]
    entity: NotRequired[str | None]
    level: NotRequired[str]
    keep: NotRequired[dict[str, OutcomeAmount]]
    buckets: NotRequired[list[Stats]]
    in_slices: NotRequired[OutcomeAmount]
