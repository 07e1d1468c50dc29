"""The algorithms: one module each, compiled from a definition into rules over integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, assert_never

from limits_app.engine.algorithms.buckets import BucketRule
from limits_app.engine.algorithms.counted import CountedRule
from limits_app.engine.algorithms.keeping import KeepingRule
from limits_app.engine.algorithms.permits import Permits
from limits_app.engine.algorithms.quota import QuotaRule
from limits_app.engine.algorithms.rule import BlockedRule, Rule, State
from limits_app.engine.algorithms.windows import FixedWindow, SlidingWindow
from limits_app.engine.limits import (
    AnyLimit,
    Blocked,
    CallLimit,
    CountedUnit,
    QuotaLimit,
    RateLimit,
    RateLimitAlgorithm,
    ResourceLimit,
)
from limits_app.engine.priorities import kept_parts

__all__ = ["Rule", "State", "compile_rule", "rule_of_class"]

RATE_RULES: Final[Mapping[RateLimitAlgorithm, Callable[[RateLimit | CallLimit], Rule]]] = {
    RateLimitAlgorithm.TOKEN_BUCKET: BucketRule,
    RateLimitAlgorithm.LEAKY_BUCKET: BucketRule,
    RateLimitAlgorithm.SLIDING_WINDOW: SlidingWindow,
    RateLimitAlgorithm.FIXED_WINDOW: FixedWindow,
    RateLimitAlgorithm.GCRA: BucketRule,
}
"""The rule that decides by each algorithm of a rate."""


def rule_of_class(rule: Rule, priority: str) -> Rule:
    """Return a rule as requests of a class have it: the rule itself where they leave nothing free."""
    parts = kept_parts(rule.limit.keep, priority, rule.ceiling_parts) if rule.limit.keep else 0
    return KeepingRule(rule, parts) if parts else rule


def compile_rule(limit: AnyLimit, lease_us: int) -> Rule:
    """Compile a definition; `lease_us` is how long a permit is leased without renewal."""
    match limit:
        case ResourceLimit():
            return Permits(limit, lease_us)
        case Blocked():
            return BlockedRule(limit)
        case CountedUnit():
            return CountedRule(limit)
        case QuotaLimit():
            return QuotaRule(limit)
        case RateLimit() | CallLimit():
            return _rate_rule(limit)
        case _:
            assert_never(limit)


def _rate_rule(limit: RateLimit | CallLimit) -> Rule:
    """Compile a rate; LookupError says what an algorithm still needs."""
    make = RATE_RULES.get(limit.algorithm)
    if make is None:
        raise LookupError(f"algorithm {str(limit.algorithm)!r} has no rule: add it to RATE_RULES")
    return make(limit)
