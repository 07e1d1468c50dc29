"""throttled-py: one object per key and algorithm, over a store in memory or on Redis."""

from __future__ import annotations

from typing import Final

from throttled import BaseStore, MemoryStore, RateLimiterType, RedisStore, Throttled, per_day, per_hour
from throttled.rate_limiter import Quota, RateLimitResult

from benchmarks.harness import Contender

__all__ = ["admitted", "on_redis", "refused"]

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


def on_redis(port: int) -> Contender:
    """The fixed window, over a server."""
    store = RedisStore(server=f"redis://127.0.0.1:{port}/0")
    name = "throttled-py, fixed window"
    return _contender(name, _ALGORITHMS[name], per_hour(1_000_000_000), limited=False, store=store)


def _contender(
    name: str, kind: RateLimiterType, quota: Quota, *, limited: bool, store: BaseStore | None = None
) -> Contender:
    throttle = Throttled(key="user", using=kind.value, quota=quota, store=store or MemoryStore())

    def once() -> RateLimitResult:
        return throttle.limit()

    once()
    assert once().limited is limited
    return Contender(name, once)
