"""Statistics: the live state of limits as plain data."""

from __future__ import annotations

from limits_app.core.algorithms import State
from limits_app.core.amounts import Amount
from limits_app.core.claim import Claim
from limits_app.core.limits import Blocked, CallLimit, QuotaLimit, ResourceLimit
from limits_app.core.outcome import remaining, units_of
from limits_app.core.parts import Ask

__all__ = ["Stats", "stats_by_scope", "stats_of"]

Stats = dict[str, str | Amount | None]


def stats_of(claim: Claim) -> dict[str, Stats]:
    """Read a claim over all limits whose states a store has filled in.

    By key: `type` (rate, call, quota or resource), `algorithm`, `capacity`, `window_seconds`, `available`, `used`,
    `utilization` (0 to 1, above 1 in debt), and for resources `holders`, the number of current holders,
    and for quotas `period` and `time_zone`, with the length of a session as their `window_seconds`.
    A rate or call limit with a `burst` says it too: it is what `available` and `utilization` are measured against.
    """
    stats: dict[str, Stats] = {}
    for ask, _, state in claim.asks():
        stats.setdefault(ask.key, _stats(ask, state, claim.decided_at))
    return stats


def stats_by_scope(claim: Claim) -> dict[str, dict[str, Stats]]:
    """The same by key of scope, and then by key."""
    stats: dict[str, dict[str, Stats]] = {}
    for ask, _, state in claim.asks():
        stats.setdefault(ask.part.key, {})[ask.rule.key] = _stats(ask, state, claim.decided_at)
    return stats


def _stats(ask: Ask, state: State, now: int) -> Stats:
    rule, limit = ask.rule, ask.rule.limit
    used = rule.used(state, now)
    common: Stats = {
        "capacity": limit.capacity,
        "available": remaining(rule, state, now),
        "used": units_of(rule, used),
        "utilization": used / rule.ceiling_parts,
    }
    if isinstance(limit, ResourceLimit):
        return {"type": "resource", "algorithm": None, "window_seconds": None, **common, "holders": state[1]}
    if isinstance(limit, Blocked):
        return {"type": "blocked", "algorithm": None, "window_seconds": None, **common}
    if isinstance(limit, QuotaLimit):
        calendar: Stats = {"period": limit.period, "time_zone": limit.time_zone if limit.period else None}
        return {"type": "quota", "algorithm": None, "window_seconds": limit.session_seconds, **common, **calendar}
    kind = "call" if isinstance(limit, CallLimit) else "rate"
    burst: Stats = {} if limit.burst is None else {"burst": limit.burst}
    return {"type": kind, "algorithm": str(limit.algorithm), "window_seconds": limit.window_seconds, **common, **burst}
