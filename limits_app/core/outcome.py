"""Outcomes: the decision on a request, and the reasons for it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction

from limits_app.core.algorithms import Rule, State
from limits_app.core.amounts import Amount
from limits_app.core.limits import Blocked
from limits_app.core.plan import Claim, PlannedLimit

_SECOND = 1_000_000
_LISTS = ("violations", "passed", "overdrawn", "shadowed")


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit in a decision; amounts in units, times in seconds from the decision.

    `retry_after` is when the requested amount fits at the earliest: 0 when it does now,
    None when never, or when that depends on a holder giving back its permit.
    `reset_after` is when the limit is unused again, if no further request is admitted.
    `overdrawn` is how much more than its capacity a soft limit has used with this request.
    `member` is the member of a pool, whose name is then `resource`. `shared` marks one bucket for all entities.
    """

    key: str
    resource: str | None
    entity: str | None
    level: str
    capacity: Amount
    requested: Amount
    remaining: Amount
    retry_after: float | None
    reset_after: float
    never: bool = False
    overdrawn: Amount = 0
    member: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """A decision: allowed or rejected, with the limits that rejected and those that passed.

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
        return max(self.violations, key=_wait_seconds, default=None)

    @property
    def retry_after(self) -> float | None:
        """Seconds until all limits would admit: 0 when allowed, None when unknown or never."""
        return 0.0 if self.binding is None else self.binding.retry_after

    @property
    def never(self) -> bool:
        """Whether waiting is pointless, since a limit can never admit as much."""
        return any(status.never for status in self.violations)

    @property
    def overdrawn(self) -> tuple[LimitStatus, ...]:
        """The soft limits that would have rejected as hard limits."""
        return tuple(status for status in self.passed if status.overdrawn)

    def as_dict(self) -> dict[str, object]:
        """The outcome as plain data, for JSON."""
        plain = {name: getattr(self, name) for name in ("allowed", "retry_after", "never", "degraded")}
        return plain | {name: [asdict(status) for status in getattr(self, name)] for name in _LISTS}

    def summary(self) -> str:
        """One sentence for people."""
        status = self.binding
        if status is None:
            return "allowed"
        where = "" if status.entity is None else f" for {status.entity}"
        if status.member is not None:
            where = f" at {status.member}"
        what = f"{status.key!r}" if status.resource is None else f"{status.key!r} of {status.resource}{where}"
        if status.capacity == 0:
            return f"everything{where} is blocked"
        if status.never:
            return f"{what} can never admit {status.requested}: its most is {status.capacity}"
        when = "when a permit is given back" if status.retry_after is None else f"in {status.retry_after:g} s"
        return f"{what} has {status.remaining} of {status.capacity} left, {status.requested} requested: retry {when}"


def outcome_of(claim: Claim) -> Outcome:
    """Return the outcome of a claim on which a store has decided, or whose states were read."""
    violations: list[LimitStatus] = []
    passed: list[LimitStatus] = []
    for limit, amount, state in claim.limits():
        rejected = not claim.admitted and limit.rule.charged(state, claim.decided_at, amount) is None
        status = _status(claim, limit, amount, state, rejected=rejected)
        (violations if rejected else passed).append(status)
    degraded = any(scope.degraded for scope in claim.plan.scopes)
    return Outcome(not violations, tuple(violations), tuple(passed), degraded)


def _status(claim: Claim, limit: PlannedLimit, amount: int, state: State, *, rejected: bool) -> LimitStatus:
    rule, now, scope = limit.rule, claim.decided_at, limit.scope.scope
    never = amount > rule.most_parts
    retry_after: float | None = 0.0
    if never or (rejected and (rule.is_permit or isinstance(rule.limit, Blocked))):
        retry_after = None
    elif rejected:
        retry_after = rule.wait(state, now, amount) / _SECOND
    return LimitStatus(
        key=rule.key,
        resource=scope.resource,
        entity=scope.entity,
        level=limit.scope.level_of(limit.index),
        capacity=rule.limit.ceiling,
        requested=units_of(rule, amount),
        remaining=remaining(rule, state, now),
        retry_after=retry_after,
        reset_after=max(rule.restored_at(state) - now, 0) / _SECOND,
        never=never,
        overdrawn=_overdrawn(rule, state if claim.admitted else rule.charged(state, now, amount), now),
        member=scope.member,
        shared=scope.shared,
    )


def _overdrawn(rule: Rule, charged: State | None, now: int) -> Amount:
    """Return the use beyond the capacity once a request was charged; 0 for hard limits."""
    if charged is None or not rule.is_soft:
        return 0
    return units_of(rule, max(rule.used(charged, now) - rule.ceiling_parts, 0))


def remaining(rule: Rule, state: State, now: int) -> Amount:
    """Return how much a limit would admit now, in units, rounded down to thousandths."""
    if isinstance(rule.limit, Blocked):
        return 0
    return units_of(rule, max(rule.ceiling_parts - rule.used(state, now), 0))


def reset_seconds(rule: Rule, state: State, now: int) -> int | None:
    """Return in how many whole seconds, rounded up, the limit is unused again; None for permits."""
    if rule.is_permit:
        return None
    return max(-((now - rule.restored_at(state)) // _SECOND), 0)


def units_of(rule: Rule, parts: int) -> Amount:
    """Return parts of a rule in units, rounded down to thousandths."""
    if rule.parts_per_unit == 1:
        return parts
    units = Fraction(parts, rule.parts_per_unit)
    if units.denominator == 1:
        return units.numerator
    milli = int(units * 1000)
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def _wait_seconds(status: LimitStatus) -> float:
    if status.never:
        return float("inf")
    return -1.0 if status.retry_after is None else status.retry_after
