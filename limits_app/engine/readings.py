"""Readings: the outcome and the statistics of claims whose states a store has filled in."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from limits_app.engine.algorithms import Rule, State
from limits_app.engine.algorithms.rule import NEVER_US
from limits_app.engine.amounts import Amount, from_micro
from limits_app.engine.claims import Claim
from limits_app.engine.keys import BLOCK_LEVEL, LEASE_LEVEL, Scope
from limits_app.engine.limits import Blocked, CallLimit, CountedUnit, QuotaLimit, RateLimit, ResourceLimit
from limits_app.engine.outcome import TOTAL_PREFIX, LimitStatus, Outcome, Stats
from limits_app.engine.periods import SECOND_US, QuotaPeriod
from limits_app.engine.plan import PlannedLimit
from limits_app.engine.priorities import Keep

UNLIMITED: Final = "unlimited"
"""The type of a unit that is counted and not limited."""


def outcome_of(claim: Claim) -> Outcome:
    """Return the outcome of a claim on which a store has decided, or whose states were read."""
    violations: list[LimitStatus] = []
    passed: list[LimitStatus] = []
    now, scopes, amounts, states = claim.decided_at, claim.plan.scopes, claim.amounts, claim.states
    for limit in claim.shape.limits:
        rule, scope, position = limit.rule, scopes[limit.scope_index], limit.position
        if rule.is_counted or limit.level == LEASE_LEVEL:
            continue
        amount, state = amounts[position], states[position]
        rejected = not (claim.admitted or rule.is_soft) and rule.take(state, now, amount) is None
        kind, capacity, most, window_seconds = _definition(rule)
        parts, never = rule.parts_per_amount, amount > rule.most_parts
        free = 0 if kind == "blocked" else max(rule.usable_parts - rule.used(state, now), 0)
        # By position, since 20 arguments by name take ten times as long.
        status = LimitStatus(
            rule.key,
            scope.resource,
            scope.entity,
            limit.level,
            capacity,
            units_of(rule, amount) if amount % parts else amount // parts,
            units_of(rule, free) if free % parts else free // parts,
            _retry_after(claim, limit, rejected=rejected) if rejected or never else 0.0,
            max(rule.restored_at(state) - now, 0) / SECOND_US,
            never,
            _overdrawn(claim, rule, amount, state) if rule.is_soft else 0,
            scope.member,
            scope.shared,
            scope.total,
            kind,
            most,
            window_seconds,
            position,
            limit.priority,
            _kept_used(rule, state, now) if rule.kept_parts else 0,
        )
        if rejected:
            violations.append(status)
        elif limit.level != BLOCK_LEVEL:  # a block that does not run limits nothing
            passed.append(status)
    return Outcome(not violations, tuple(violations), tuple(passed), claim.shape.is_degraded)


def _retry_after(claim: Claim, limit: PlannedLimit, *, rejected: bool) -> float | None:
    """Return after how many seconds a limit would admit its amount; None where that is never or unknown."""
    rule = limit.rule
    if claim.amounts[limit.position] > rule.most_parts or rule.is_permit:
        return None
    wait_us = claim.wait_us(limit) if rejected else 0
    return None if wait_us == NEVER_US else wait_us / SECOND_US


@lru_cache(maxsize=4096)
def _definition(rule: Rule) -> tuple[str, Amount, Amount, float | None]:
    """Return the type, capacity, limit and window of the status of a limit."""
    definition = rule.limit
    capacity, most = definition.ceiling, definition.capacity
    if rule.kept_parts:
        capacity = units_of(rule, rule.usable_parts)
    match definition:
        case RateLimit() | CallLimit():
            kind = "call" if isinstance(definition, CallLimit) else "rate"
            return kind, capacity, most, definition.window_seconds
        case ResourceLimit():
            return "resource", capacity, most, None
        case QuotaLimit():
            seconds = QuotaPeriod(definition.period).seconds if definition.period else definition.session_seconds
            return "quota", capacity, most, seconds
        case _:  # units that are only counted have no status
            return "blocked", capacity, 0, None


def _kept_used(rule: Rule, state: State, now: int) -> Amount:
    """Return how much is in use of the share that requests of a class leave free."""
    return units_of(rule, max(rule.used(state, now) - rule.usable_parts, 0))


def _overdrawn(claim: Claim, rule: Rule, amount: int, state: State) -> Amount:
    """Return the use of a soft limit beyond its capacity once a request was charged."""
    now = claim.decided_at
    charged = None if claim.admitted else rule.charged(state, now, amount)
    used = rule.used(state if charged is None else charged, now)
    return units_of(rule, max(used - rule.ceiling_parts, 0))


def remaining(rule: Rule, state: State, now: int) -> Amount:
    """Return how much a limit would admit now, in units, rounded down as `units_of` does."""
    if isinstance(rule.limit, Blocked):
        return 0
    return units_of(rule, max(rule.ceiling_parts - rule.used(state, now), 0))


def units_of(rule: Rule, parts: int) -> Amount:
    """Return parts of a rule in units, rounded down to thousandths, or to millionths of a currency."""
    units, rest = divmod(parts, rule.parts_per_amount)
    if not rest:
        return units
    if rule.is_money:
        return from_micro(parts // rule.parts_per_unit)
    milli = parts * 1000 // rule.parts_per_unit
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


def stats_of(claim: Claim) -> dict[str, Stats]:
    """Return the statistics of a claim over all limits, whose states a store has filled in, by limit key.

    Fields: `type` (rate, call, quota, resource, or unlimited for a unit with a price and no limit), `algorithm`,
    `capacity`, `window_seconds`, `available`, `used`, `utilization` (0 to 1, above 1 in debt), for resources `holders`,
    the number of current holders, and for quotas `period` and `time_zone`, with the length of a session as their
    `window_seconds`; `starts` where periods do not begin as the calendar does.
    Rates, calls and quotas have `reset_after`, the seconds until nothing is used if no further request is admitted.
    A limit that keeps shares free for higher classes has them in `keep`, as percentages by class.
    A rate or call limit with a `burst` has that field: `available` and `utilization` are measured against it.
    Where several scopes have a limit with the same key, as with parents, the fields are those of the bucket that binds,
    which has the least available, and `buckets` lists all of them with `resource`, `entity` and `level`.
    Keys of totals over all resources begin with `total:`, which no key of a limit does. Units that are only counted
    are left out where there is a limit with their key.
    """
    buckets: dict[str, list[tuple[PlannedLimit, Scope, Stats]]] = {}
    scopes = claim.plan.scopes
    for limit, _, state in claim.decisions():
        if limit.is_beside:
            continue
        stats = _stats(limit, state, claim.decided_at)
        key = TOTAL_PREFIX + limit.rule.key if scopes[limit.scope_index].total else limit.key
        buckets.setdefault(key, []).append((limit, scopes[limit.scope_index], stats))
    limited = {key: [bucket for bucket in same if not bucket[0].rule.is_counted] for key, same in buckets.items()}
    return {key: _binding(limited[key] or same) for key, same in buckets.items()}


def stats_by_scope(claim: Claim) -> dict[str, dict[str, Stats]]:
    """Return the statistics of a claim, whose states a store has filled in, by key of the scope and of the limit."""
    stats: dict[str, dict[str, Stats]] = {}
    for limit, _, state in claim.decisions():
        scope_key = claim.plan.scope_keys[limit.scope_index]
        stats.setdefault(scope_key, {})[limit.rule.key] = _stats(limit, state, claim.decided_at)
    return stats


def _binding(same: list[tuple[PlannedLimit, Scope, Stats]]) -> Stats:
    """Return the fields of the bucket that has the least available, and all buckets where there are several."""
    binding = min([stats for _, _, stats in same], key=lambda stats: stats["available"])
    if len(same) == 1:
        return binding
    listed = []
    for limit, scope, stats in same:
        listed.append(Stats(**stats, resource=scope.resource, entity=scope.entity, level=limit.level))
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
    if not isinstance(definition, ResourceLimit | Blocked | CountedUnit):
        stats["reset_after"] = max(rule.restored_at(state) - now, 0) / SECOND_US
    if isinstance(definition, ResourceLimit):
        stats["type"], stats["holders"] = "resource", state[1]
    elif isinstance(definition, CountedUnit):
        stats["type"] = UNLIMITED
    elif isinstance(definition, QuotaLimit):
        stats["type"], stats["window_seconds"] = "quota", definition.session_seconds
        stats["period"] = definition.period
        stats["time_zone"] = definition.time_zone if definition.period else None
        if definition.starts:
            stats["starts"] = definition.starts
    elif not isinstance(definition, Blocked):
        stats["type"] = "call" if isinstance(definition, CallLimit) else "rate"
        stats["algorithm"], stats["window_seconds"] = str(definition.algorithm), definition.window_seconds
        if definition.burst is not None:
            stats["burst"] = definition.burst
    return _with_keep(stats, definition.keep)


def _with_keep(stats: Stats, keep: Keep) -> Stats:
    if keep:
        stats["keep"] = dict(keep)
    return stats
