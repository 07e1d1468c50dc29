"""Statistics: the live state of limits as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from limits_app.core.algorithms import State
from limits_app.core.amounts import Amount
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, ResourceLimit
from limits_app.core.outcome import remaining, units_of
from limits_app.core.plan import Claim, PlannedLimit, ScopedLimits
from limits_app.core.planning import plan_for
from limits_app.core.store import Store


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


def stats_of(claim: Claim) -> dict[str, Stats]:
    """Return the statistics of a claim over all limits, whose states a store has filled in, by limit key.

    Fields: `type` (rate, call, quota or resource), `algorithm`, `capacity`, `window_seconds`, `available`, `used`,
    `utilization` (0 to 1, above 1 in debt), for resources `holders`, the number of current holders,
    and for quotas `period` and `time_zone`, with the length of a session as their `window_seconds`.
    A rate or call limit with a `burst` has that field: `available` and `utilization` are measured against it.
    Where several scopes have a limit with the same key, as with parents, the fields are those of the bucket that binds,
    which has the least available, and `buckets` lists all of them with `resource`, `entity` and `level`.
    """
    buckets: dict[str, list[tuple[PlannedLimit, Stats]]] = {}
    for limit, _, state in claim.limits():
        found = _stats(limit, state, claim.decided_at)
        buckets.setdefault(limit.key, []).append((limit, found))
    return {key: _binding(same) for key, same in buckets.items()}


def survey(scoped: Iterable[ScopedLimits], store: Store, version: int | None) -> dict[str, dict[str, Stats]]:
    """Read different scopes in one step of the store; return statistics by key of the scope and key of the limit.

    Raises StaleConfiguration where `version` is not the present configuration, and StoreUnavailable.
    """
    scopes = list(scoped)
    keys = {scope.prefix + rule.key for scope in scopes for rule in scope.schema.rules}
    plan = plan_for(scopes, keys, version=version, left_out=())
    if not plan.scopes:
        return {}
    claim = Claim(plan, [0] * len(plan.limits))
    store.peek(claim)
    stats: dict[str, dict[str, Stats]] = {}
    for limit, _, state in claim.limits():
        stats.setdefault(limit.scope.key, {})[limit.rule.key] = _stats(limit, state, claim.decided_at)
    return stats


def _binding(same: list[tuple[PlannedLimit, Stats]]) -> Stats:
    """Return the fields of the bucket that has the least available, and all buckets where there are several."""
    binding = min([found for _, found in same], key=lambda found: found["available"])
    if len(same) == 1:
        return binding
    listed = []
    for limit, found in same:
        scope = limit.scope.scope
        level = limit.scope.level_of(limit.index)
        listed.append(Stats(**found, resource=scope.resource, entity=scope.entity, level=level))
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
