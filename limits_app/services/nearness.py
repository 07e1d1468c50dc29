"""Nearness: which limits a request has brought near their end, told once for each threshold and window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from limits_app import conf, signals
from limits_app.core.acquisition import Acquisition
from limits_app.core.algorithms import State
from limits_app.core.keys import IDEMPOTENCY_LEVEL, Scope
from limits_app.core.limit_set import LimitSet
from limits_app.core.limits import AnyLimit, CallLimit, Limit, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.core.outcome import LimitStatus
from limits_app.core.plan import PlannedLimit, ScopedLimits
from limits_app.core.record import schema_of

__all__ = ["Crossing", "Nearness", "nearness"]

_SECOND: Final = 1_000_000
_MOST: Final = 10_000
_PERIODS: Final = {"hour": 3_600, "day": 86_400, "week": 604_800, "month": 2_678_400}
_HELD_SECONDS: Final = 60
"""Permits have no window: who holds many is told of once a minute."""


class Crossing(NamedTuple):
    """A limit of which more than a threshold is in use; `once` is acquired by whoever tells of it first."""

    status: LimitStatus
    threshold: float
    once: LimitSet

    def tell(self) -> None:
        """Send the signal, unless somebody who shares the store has sent it in this window."""
        if self.once.try_acquire():
            signals.limit_near.send_robust(sender=None, status=self.status, threshold=self.threshold)


class Nearness:
    """Finds what this process has not told of yet; remembers up to `most` that it has."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._told: dict[str, int] = {}

    def crossings(self, acquisition: Acquisition) -> list[Crossing]:
        """The limits of an acquisition that are near their end, each with the highest threshold that it has passed."""
        return [] if _is_degraded(acquisition) else list(self._crossings(acquisition))

    def clear(self) -> None:
        """Forget what was told."""
        self._told.clear()

    def _crossings(self, acquisition: Acquisition) -> Iterator[Crossing]:
        thresholds, now = conf.get(conf.NEAR_THRESHOLDS), acquisition.claim.decided_at
        for place, (limit, _, state) in enumerate(acquisition.claim.limits()):
            used = limit.rule.used(state, now) / limit.rule.ceiling_parts
            passed = [threshold for threshold in thresholds if used >= threshold]
            if not passed or limit.scope.level == IDEMPOTENCY_LEVEL:
                continue
            seconds, name = _window(limit.rule.limit), _name(limit, state, passed[-1])
            if self._told.get(name, 0) <= now:
                self._remember(name, now + round(seconds * _SECOND))
                yield Crossing(acquisition.outcome.passed[place], passed[-1], _once(acquisition, name, seconds))

    def _remember(self, name: str, until: int) -> None:
        if len(self._told) >= self._most:
            self._told = {}  # who tells it again finds out that it was told
        self._told[name] = until


nearness: Final = Nearness()
"""That of this process."""


def _is_degraded(acquisition: Acquisition) -> bool:
    return any(one.degraded for one in acquisition.claim.plan.scopes)


def _name(limit: PlannedLimit, state: State, threshold: float) -> str:
    """What is told once: of limits that start anew at some moment, once before that moment."""
    begins_anew = isinstance(limit.rule.limit, QuotaLimit) or _is_fixed(limit.rule.limit)
    window = limit.rule.restored_at(state) if begins_anew else ""
    return f"{limit.scope.key}!{limit.rule.key}!{threshold}!{window}"


def _is_fixed(limit: AnyLimit) -> bool:
    return isinstance(limit, RateLimit | CallLimit) and limit.algorithm is RateLimitAlgorithm.FIXED_WINDOW


def _window(limit: AnyLimit) -> float:
    match limit:
        case RateLimit() | CallLimit():
            return limit.window_seconds
        case QuotaLimit(period=None, session_seconds=seconds):
            return seconds or _HELD_SECONDS
        case QuotaLimit(period=str(period)):
            return _PERIODS[period]
        case _:
            return _HELD_SECONDS


def _once(acquisition: Acquisition, name: str, seconds: float) -> LimitSet:
    """A limit of one in a window, which all who share the store have in common."""
    store = acquisition.limit_set.store
    limits: tuple[Limit, ...] = (CallLimit(1, seconds, RateLimitAlgorithm.FIXED_WINDOW),)
    return LimitSet.composed([ScopedLimits(Scope(name), schema_of(limits, store.lease_us))], store)
