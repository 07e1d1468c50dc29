"""Token bucket: bursts up to `burst`, `capacity` per window on average.

A bucket of `burst` tokens refills at capacity / window; a request of n passes when n tokens are there.
Unused amounts are refunded, never above `burst`; over-use is debt that refills first.
Weakness: right after idling, `burst` and a window's refill pass within one window.
Choose a sliding window if that hurts.
"""

from __future__ import annotations

from limits_app.core.algorithms.draining import compile_draining
from limits_app.core.algorithms.rule import Rule
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["compile_token_bucket"]


def compile_token_bucket(limit: RateLimit | CallLimit) -> Rule:
    """Compile a token bucket; its state holds the tokens that are missing, and since when."""
    return compile_draining(limit, refunds=True)
