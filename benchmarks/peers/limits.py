"""limits: one strategy object per algorithm, over its storage in memory or on Redis."""

from __future__ import annotations

from typing import Final

from limits import RateLimitItemPerDay, RateLimitItemPerHour
from limits.storage import MemoryStorage, RedisStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    RateLimiter,
    SlidingWindowCounterRateLimiter,
)

from benchmarks.harness import Contender

__all__ = ["admitted", "on_redis", "refused", "with_hits"]

_STRATEGIES: Final[dict[str, type[RateLimiter]]] = {
    "limits, fixed window": FixedWindowRateLimiter,
    "limits, moving window": MovingWindowRateLimiter,
    "limits, sliding window": SlidingWindowCounterRateLimiter,
}


def admitted() -> list[Contender]:
    """One contender per strategy."""
    return [_admitted(name, strategy, hits=10) for name, strategy in _STRATEGIES.items()]


def with_hits(count: int) -> list[Contender]:
    """The strategy that remembers hits."""
    return [_admitted("limits, moving window", MovingWindowRateLimiter, hits=count)]


def refused() -> list[Contender]:
    """One contender per strategy."""
    return [_refused(name, strategy) for name, strategy in _STRATEGIES.items()]


def on_redis(port: int) -> Contender:
    """The fixed window, over a server."""
    limiter, item = FixedWindowRateLimiter(RedisStorage(f"redis://127.0.0.1:{port}/0")), RateLimitItemPerHour(10**9)
    assert limiter.hit(item, "user")
    return Contender("limits, fixed window", lambda: limiter.hit(item, "user"))


def _admitted(name: str, strategy: type[RateLimiter], hits: int) -> Contender:
    limiter, item = strategy(MemoryStorage()), RateLimitItemPerHour(1_000_000)

    def once() -> bool:
        return limiter.hit(item, "user")

    def prepare() -> None:
        limiter.clear(item, "user")
        for _ in range(hits - 5):
            limiter.hit(item, "user")

    assert once()
    return Contender(name, once, prepare, slice_calls=10)


def _refused(name: str, strategy: type[RateLimiter]) -> Contender:
    limiter, item = strategy(MemoryStorage()), RateLimitItemPerDay(1)

    def once() -> bool:
        return limiter.hit(item, "user")

    once()
    assert not once()
    return Contender(name, once)
