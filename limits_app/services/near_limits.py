"""Limits that are nearly used up: those beyond a threshold of NEAR_THRESHOLDS, which alerts are sent for too.

A threshold is reported once for each limit and window, by one of the processes that share a store.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from limits_app import conf, signals
from limits_app.acquiring import Acquisition, LimitSet
from limits_app.engine import (
    IDEMPOTENCY_LEVEL,
    LEASE_LEVEL,
    SECOND_US,
    PlannedLimit,
    QuotaPeriod,
    Scope,
    ScopedLimits,
    State,
    schema_of,
)
from limits_app.engine.limits import AnyLimit, CallLimit, LimitDefinition, QuotaLimit, RateLimit, RateLimitAlgorithm
from limits_app.engine.outcome import LimitStatus

_MAX_REMEMBERED: Final = 10_000
_CONCURRENCY_SECONDS: Final = 60
"""Concurrency limits have no window: their warnings are sent at most once a minute."""


class Crossing(NamedTuple):
    """A limit whose use is beyond a threshold; the process that acquires `send_limit` sends the signal."""

    status: LimitStatus
    threshold: float
    window: str
    send_limit: LimitSet

    def send(self) -> None:
        """Send `limit_near`, unless another process that shares the store has sent it in this window."""
        if self.send_limit.try_acquire():
            signals.limit_near.send_robust(
                sender=None, status=self.status, threshold=self.threshold, window=self.window
            )


class Thresholds:
    """Finds limits beyond a threshold of NEAR_THRESHOLDS, once for each window; remembers up to `most` of them."""

    def __init__(self, most: int = _MAX_REMEMBERED) -> None:
        self._most = most
        self._sent_until: dict[str, int] = {}

    def crossings(self, acquisition: Acquisition) -> list[Crossing]:
        """The limits of an acquisition beyond a threshold, each with the highest one."""
        return [] if acquisition.outcome.degraded else list(self._crossings(acquisition))

    def clear(self) -> None:
        """Forget which signals were sent."""
        self._sent_until.clear()

    def _crossings(self, acquisition: Acquisition) -> Iterator[Crossing]:
        levels, now = conf.get(conf.NEAR_THRESHOLDS), acquisition.decided_at
        for limit, scope, state in acquisition.limits():
            used = limit.rule.used(state, now) / limit.rule.ceiling_parts
            crossed = [level for level in levels if used >= level]
            if not crossed or limit.level in {IDEMPOTENCY_LEVEL, LEASE_LEVEL}:
                continue
            seconds = _window_seconds(limit.rule.limit)
            name = f"{scope.key}!{limit.rule.key}!{crossed[-1]}!{_window_end(limit, state)}"
            if self._sent_until.get(name, 0) <= now:
                self._remember(name, now + round(seconds * SECOND_US))
                window = _window_end(limit, state) or str(now // round(seconds * SECOND_US))
                send_limit = _send_limit(acquisition, name, seconds)
                [status] = [passed for passed in acquisition.outcome.passed if passed.position == limit.position]
                yield Crossing(status, crossed[-1], window, send_limit)

    def _remember(self, name: str, until: int) -> None:
        if len(self._sent_until) >= self._most:
            self._sent_until = {}  # `send_limit`, in the store, still prevents a second signal
        self._sent_until[name] = until


thresholds: Final = Thresholds()
"""The thresholds of this process."""


def _window_end(limit: PlannedLimit, state: State) -> str:
    """The end of a window or a period in microseconds since 1970; empty for limits without a fixed end."""
    return str(limit.rule.restored_at(state)) if limit.rule.has_fixed_end else ""


def _window_seconds(limit: AnyLimit) -> float:
    match limit:
        case RateLimit() | CallLimit():
            return limit.window_seconds
        case QuotaLimit(period=None, session_seconds=seconds):
            return seconds or _CONCURRENCY_SECONDS
        case QuotaLimit(period=str(period)):
            return QuotaPeriod(period).longest_seconds
        case _:
            return _CONCURRENCY_SECONDS


def _send_limit(acquisition: Acquisition, name: str, seconds: float) -> LimitSet:
    """A limit of one signal in a window, for all processes that share the store."""
    store = acquisition.limit_set.store
    limits: tuple[LimitDefinition, ...] = (CallLimit(1, seconds, RateLimitAlgorithm.FIXED_WINDOW),)
    return LimitSet.composed([ScopedLimits(Scope(name), schema_of(limits, store.lease_us))], store)
