"""Outcomes, which are the decision on a request with the reasons for it, and statistics, the live state of limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypedDict

from limits_app.engine.algorithms import Rule, State
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.amounts import Amount
from limits_app.engine.keys import Scope
from limits_app.engine.limits import Blocked, CallLimit, QuotaLimit, ResourceLimit
from limits_app.engine.plan import Claim, PlannedLimit, ScopedLimits
from limits_app.engine.planning import plan_for

if TYPE_CHECKING:
    from limits_app.acquiring.store import Store

_SECOND = 1_000_000
_NEVER = attrgetter("never")
_LISTS = ("violations", "passed", "overdrawn", "shadowed")


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The amounts of one limit that were requested and used (None: not reported)."""

    requested: Amount
    used: Amount | None


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit in a decision; amounts in units, times in seconds from the decision.

    `retry_after` is when the requested amount fits at the earliest: 0 when it does now,
    None when never, or when that depends on a holder giving back its permit.
    `reset_after` is when the limit is unused again, if no further request is admitted.
    `overdrawn` is how much more than its capacity a soft limit has used with this request.
    `member` is the member of a pool, whose name is then `resource`. `shared` marks one bucket for all entities, and
    `total` a limit over all resources.
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
    total: bool = False


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
        binding = self.binding
        return 0.0 if binding is None else binding.retry_after

    @property
    def never(self) -> bool:
        """Whether waiting is pointless, since a limit can never admit as much."""
        return any(map(_NEVER, self.violations))

    @property
    def blocked(self) -> bool:
        """Whether the entity or the resource is blocked, and not rate limited."""
        return any(status.capacity == 0 and status.retry_after is None for status in self.violations)

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
        if status.total:
            what = f"{status.key!r} over all resources{where}"
        if status.capacity == 0 and status.retry_after is None:
            return f"everything{where} is blocked"
        if status.capacity == 0:
            return f"the upstream of {status.resource} cools down: retry in {status.retry_after:g} s"
        if status.never:
            return f"{what} can never admit {status.requested}: its most is {status.capacity}"
        when = "when a permit is given back" if status.retry_after is None else f"in {status.retry_after:g} s"
        return f"{what} has {status.remaining} of {status.capacity} left, {status.requested} requested: retry {when}"


def outcome_of(claim: Claim) -> Outcome:
    """Return the outcome of a claim on which a store has decided, or whose states were read."""
    violations: list[LimitStatus] = []
    passed: list[LimitStatus] = []
    for limit in claim.shape.limits:
        amount, state = claim.amounts[limit.place], claim.states[limit.place]
        rejected = not claim.admitted and limit.rule.charged(state, claim.decided_at, amount) is None
        status = _status(claim, limit, amount, state, rejected=rejected)
        (violations if rejected else passed).append(status)
    return Outcome(not violations, tuple(violations), tuple(passed), claim.shape.is_degraded)


def _status(claim: Claim, limit: PlannedLimit, amount: int, state: State, *, rejected: bool) -> LimitStatus:
    rule, now, scope = limit.rule, claim.decided_at, claim.plan.scopes[limit.scope_index]
    never = amount > rule.most_parts
    retry_after: float | None = 0.0
    if never or (rejected and rule.is_permit):
        retry_after = None
    elif rejected:
        wait_us = claim.wait_us(limit)
        retry_after = None if wait_us == NEVER_US else wait_us / _SECOND
    return LimitStatus(
        key=rule.key,
        resource=scope.resource,
        entity=scope.entity,
        level=limit.level,
        capacity=rule.limit.ceiling,
        requested=units_of(rule, amount),
        remaining=remaining(rule, state, now),
        retry_after=retry_after,
        reset_after=max(rule.restored_at(state) - now, 0) / _SECOND,
        never=never,
        overdrawn=_overdrawn(claim, rule, amount, state) if rule.is_soft else 0,
        member=scope.member,
        shared=scope.shared,
        total=scope.total,
    )


def _overdrawn(claim: Claim, rule: Rule, amount: int, state: State) -> Amount:
    """Return the use of a soft limit beyond its capacity once a request was charged."""
    now = claim.decided_at
    charged = None if claim.admitted else rule.charged(state, now, amount)
    used = rule.used(state if charged is None else charged, now)
    return units_of(rule, max(used - rule.ceiling_parts, 0))


def remaining(rule: Rule, state: State, now: int) -> Amount:
    """Return how much a limit would admit now, in units, rounded down to thousandths."""
    if isinstance(rule.limit, Blocked):
        return 0
    return units_of(rule, max(rule.ceiling_parts - rule.used(state, now), 0))


def units_of(rule: Rule, parts: int) -> Amount:
    """Return parts of a rule in units, rounded down to thousandths."""
    units, rest = divmod(parts, rule.parts_per_unit)
    if not rest:
        return units
    milli = parts * 1000 // rule.parts_per_unit
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def _wait_seconds(status: LimitStatus) -> float:
    if status.never:
        return float("inf")
    return -1.0 if status.retry_after is None else status.retry_after


TOTAL_PREFIX: Final = "total:"
"""The prefix of the keys of totals in statistics."""


class Stats(TypedDict, total=False):
    """The live state of a limit; `stats_of` describes the fields."""

    type: str
    algorithm: str | None
    window_seconds: float | None
    capacity: Amount
    available: Amount
    used: Amount
    utilization: float
    burst: Amount
    holders: int
    period: str | None
    time_zone: str | None
    resource: str | None
    entity: str | None
    level: str
    buckets: list[Stats]
    in_slices: Amount


def stats_of(claim: Claim) -> dict[str, Stats]:
    """Return the statistics of a claim over all limits, whose states a store has filled in, by limit key.

    Fields: `type` (rate, call, quota or resource), `algorithm`, `capacity`, `window_seconds`, `available`, `used`,
    `utilization` (0 to 1, above 1 in debt), for resources `holders`, the number of current holders,
    and for quotas `period` and `time_zone`, with the length of a session as their `window_seconds`.
    A rate or call limit with a `burst` has that field: `available` and `utilization` are measured against it.
    Where several scopes have a limit with the same key, as with parents, the fields are those of the bucket that binds,
    which has the least available, and `buckets` lists all of them with `resource`, `entity` and `level`.
    Keys of totals over all resources begin with `total:`, which no key of a limit does.
    """
    buckets: dict[str, list[tuple[PlannedLimit, Scope, Stats]]] = {}
    scopes = claim.plan.scopes
    for limit, _, state in claim.limits():
        found = _stats(limit, state, claim.decided_at)
        key = TOTAL_PREFIX + limit.rule.key if scopes[limit.scope_index].total else limit.key
        buckets.setdefault(key, []).append((limit, scopes[limit.scope_index], found))
    return {key: _binding(same) for key, same in buckets.items()}


def survey(scoped: Iterable[ScopedLimits], store: Store, version: int | None) -> dict[str, dict[str, Stats]]:
    """Read different scopes in one step of the store; return statistics by key of the scope and key of the limit.

    Raises StaleConfiguration where `version` is not the present configuration, and StoreUnavailable.
    """
    scopes = list(scoped)
    keys = {key for scope in scopes for rule in scope.schema.rules for key in scope.keys_of(rule)}
    plan = plan_for(scopes, keys, left_out=())
    if not plan.scopes:
        return {}
    claim = Claim(plan, [0] * len(plan.shape.limits), version)
    store.peek(claim)
    stats: dict[str, dict[str, Stats]] = {}
    for limit, _, state in claim.limits():
        stats.setdefault(plan.scope_keys[limit.scope_index], {})[limit.rule.key] = _stats(
            limit, state, claim.decided_at
        )
    return stats


def _binding(same: list[tuple[PlannedLimit, Scope, Stats]]) -> Stats:
    """Return the fields of the bucket that has the least available, and all buckets where there are several."""
    binding = min([found for _, _, found in same], key=lambda found: found["available"])
    if len(same) == 1:
        return binding
    listed = []
    for limit, scope, found in same:
        listed.append(Stats(**found, resource=scope.resource, entity=scope.entity, level=limit.level))
    return Stats(**binding, buckets=listed)


def _stats(limit: PlannedLimit, state: State, now: int) -> Stats:
    rule, definition = limit.rule, limit.rule.limit
    used = rule.used(state, now)
    stats = Stats(
        type="blocked",
        algorithm=None,
        window_seconds=None,
        capacity=definition.capacity,
        available=remaining(rule, state, now),
        used=units_of(rule, used),
        utilization=used / rule.ceiling_parts,
    )
    if isinstance(definition, ResourceLimit):
        stats["type"], stats["holders"] = "resource", state[1]
    elif isinstance(definition, QuotaLimit):
        stats["type"], stats["window_seconds"] = "quota", definition.session_seconds
        stats["period"] = definition.period
        stats["time_zone"] = definition.time_zone if definition.period else None
    elif not isinstance(definition, Blocked):
        stats["type"] = "call" if isinstance(definition, CallLimit) else "rate"
        stats["algorithm"], stats["window_seconds"] = str(definition.algorithm), definition.window_seconds
        if definition.burst is not None:
            stats["burst"] = definition.burst
    return stats
