"""Back-off: how long to wait before the next attempt.

`delay` computes the wait, `jittered` spreads it at random. Both work in any unit of time, and return the same unit.
Used for retries, for the time that a circuit breaker stays open, for the probes of an unavailable store, and for Celery
tasks that wait for a permit.

Why jitter: clients that failed together would otherwise come back together, and overload the server again. See
"Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf
from random import random as uniform
from typing import Final

_LAST_STEP: Final = 200
"""The attempt after which exponential and Fibonacci delays do not grow further, far above any useful cap."""


class RetryAlgorithm(StrEnum):
    """How delays grow, in units of the first one."""

    FIXED = "fixed"
    """1, 1, 1, 1, 1"""
    LINEAR = "linear"
    """1, 2, 3, 4, 5"""
    EXPONENTIAL = "exponential"
    """1, 2, 4, 8, 16"""
    FIBONACCI = "fibonacci"
    """1, 1, 2, 3, 5"""


def delay(attempt: int, *, first: float, algorithm: str = RetryAlgorithm.EXPONENTIAL, cap: float = inf) -> float:
    """Return the delay after an attempt, which is counted from 1: `first` after the first one, at most `cap`.

    `algorithm` is a value of RetryAlgorithm. Raises ValueError for any other.
    """
    step = min(attempt, _LAST_STEP)
    factor = 1.0
    match RetryAlgorithm(algorithm):
        case RetryAlgorithm.LINEAR:
            factor = attempt
        case RetryAlgorithm.EXPONENTIAL:
            factor = 2.0 ** (step - 1)
        case RetryAlgorithm.FIBONACCI:
            following = 1.0
            for _ in range(step - 1):
                factor, following = following, factor + following
    return min(first * factor, cap)


def jittered(value: float, *, below: float = 0.0, above: float = 0.0, random: Callable[[], float] = uniform) -> float:
    """Return a value between `value - below` and `value + above`, evenly distributed.

    `random` returns numbers from 0 up to 1.
    """
    return value - below + random() * (below + above)
