"""The algorithms: one module each, compiled from a definition into pure functions over integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from limits_app.core.algorithms.blocked import compile_blocked
from limits_app.core.algorithms.fixed_window import compile_fixed_window
from limits_app.core.algorithms.gcra import compile_gcra
from limits_app.core.algorithms.leaky_bucket import compile_leaky_bucket
from limits_app.core.algorithms.permits import compile_permits
from limits_app.core.algorithms.quota import compile_quota
from limits_app.core.algorithms.rule import Rule, State
from limits_app.core.algorithms.sliding_window import compile_sliding_window
from limits_app.core.algorithms.soft import softened
from limits_app.core.algorithms.token_bucket import compile_token_bucket
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

_COMPILERS: Final[Mapping[RateLimitAlgorithm, Callable[[RateLimit | CallLimit], Rule]]] = {
    RateLimitAlgorithm.TOKEN_BUCKET: compile_token_bucket,
    RateLimitAlgorithm.LEAKY_BUCKET: compile_leaky_bucket,
    RateLimitAlgorithm.SLIDING_WINDOW: compile_sliding_window,
    RateLimitAlgorithm.FIXED_WINDOW: compile_fixed_window,
    RateLimitAlgorithm.GCRA: compile_gcra,
}


def compile_rule(limit: AnyLimit, lease_us: int) -> Rule:
    """Turn a definition into what a store works with; `lease_us` is how long a permit is lent without renewal."""
    rule = _compiled(limit, lease_us)
    return softened(rule) if limit.soft else rule


def _compiled(limit: AnyLimit, lease_us: int) -> Rule:
    match limit:
        case ResourceLimit():
            return compile_permits(limit, lease_us)
        case Blocked():
            return compile_blocked(limit)
        case QuotaLimit():
            return compile_quota(limit)
        case RateLimit() | CallLimit():
            return _COMPILERS[limit.algorithm](limit)
        case _:
            assert_never(limit)
