"""The algorithms: one module each, compiled from a definition into rules over integers."""

from __future__ import annotations

from typing import assert_never

from limits_app.core.algorithms.buckets import LeakyBucket, TokenBucket
from limits_app.core.algorithms.gcra import Gcra
from limits_app.core.algorithms.permits import Permits
from limits_app.core.algorithms.quota import Quota
from limits_app.core.algorithms.rule import BlockedRule, Rule, State
from limits_app.core.algorithms.windows import FixedWindow, SlidingWindow
from limits_app.core.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)

__all__ = ["Rule", "State", "compile_rule"]


def compile_rule(limit: AnyLimit, lease_us: int) -> Rule:
    """Compile a definition; `lease_us` is how long a permit is leased without renewal."""
    match limit:
        case ResourceLimit():
            return Permits(limit, lease_us)
        case Blocked():
            return BlockedRule(limit)
        case QuotaLimit():
            return Quota(limit)
        case RateLimit() | CallLimit():
            return _compile_rate(limit)
        case _:
            assert_never(limit)


def _compile_rate(limit: RateLimit | CallLimit) -> Rule:
    match limit.algorithm:
        case RateLimitAlgorithm.TOKEN_BUCKET:
            return TokenBucket(limit)
        case RateLimitAlgorithm.LEAKY_BUCKET:
            return LeakyBucket(limit)
        case RateLimitAlgorithm.SLIDING_WINDOW:
            return SlidingWindow(limit)
        case RateLimitAlgorithm.FIXED_WINDOW:
            return FixedWindow(limit)
        case RateLimitAlgorithm.GCRA:
            return Gcra(limit)
        case _:
            assert_never(limit.algorithm)
