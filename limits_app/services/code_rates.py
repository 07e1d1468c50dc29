"""Rates in code, in the notation of other libraries: the limits that they stand for."""

from __future__ import annotations

from typing import Any, cast

from limits_app.engine import computed_seconds, parse_seconds
from limits_app.engine.limits import Blocked, CallLimit, LimitDefinition, RateLimitAlgorithm

__all__ = ["limits_of_rate", "parse_seconds"]


def limits_of_rate(calls: int, seconds: float, algorithm: RateLimitAlgorithm) -> tuple[LimitDefinition, ...]:
    """Return the limit of so many calls in a window; no calls at all block everything.

    Raises InvalidLimit for an invalid number.
    """
    if calls == 0:
        return (cast(Any, Blocked()),)
    return (CallLimit(calls, computed_seconds(seconds), algorithm),)
