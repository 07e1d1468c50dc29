"""throttled-py: one object per key and algorithm, over a store in memory."""

from __future__ import annotations

from typing import Final

from throttled import MemoryStore, RateLimiterType, Throttled, per_day, per_hour
from throttled.rate_limiter import Quota, RateLimitResult

from benchmarks.harness import Contender

__all__ = ["admitted", "refused"]

_ALGORITHMS: Final = {
    "throttled-py, fixed window": RateLimiterType.FIXED_WINDOW,
    "throttled-py, sliding window": RateLimiterType.SLIDING_WINDOW,
    "throttled-py, GCRA": RateLimiterType.GCRA,
    "throttled-py, token bucket": RateLimiterType.TOKEN_BUCKET,
    "throttled-py, leaky bucket": RateLimiterType.LEAKING_BUCKET,
}


def admitted() -> list[Contender]:
    """One contender per algorithm."""
    return [_contender(name, kind, per_hour(1_000_000_000), limited=False) for name, kind in _ALGORITHMS.items()]


def refused() -> list[Contender]:
    """One contender per algorithm."""
    return [_contender(name, kind, per_day(1, burst=1), limited=True) for name, kind in _ALGORITHMS.items()]


def _contender(name: str, kind: RateLimiterType, quota: Quota, *, limited: bool) -> Contender:
    throttle = Throttled(key="user", using=kind.value, quota=quota, store=MemoryStore())

    def once() -> RateLimitResult:
        return throttle.limit()

    once()
    assert once().limited is limited
    return Contender(name, once)
