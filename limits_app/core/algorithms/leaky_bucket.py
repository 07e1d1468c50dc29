"""Leaky bucket as a meter: what was admitted drains at capacity / window and may pile up to `burst`.

With `burst=1` calls are evenly spaced.
Weakness: unused amounts stay spent, so an over-estimate costs throughput.
Choose a token bucket or GCRA where usage is often less than requested.
"""

from __future__ import annotations

from limits_app.core.algorithms.draining import compile_draining
from limits_app.core.algorithms.rule import Rule
from limits_app.core.limits import CallLimit, RateLimit

__all__ = ["compile_leaky_bucket"]


def compile_leaky_bucket(limit: RateLimit | CallLimit) -> Rule:
    """Compile a leaky bucket; its state holds the level, and when it was that high."""
    return compile_draining(limit, refunds=False)
