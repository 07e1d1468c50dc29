"""Back-off: how long to wait before the next attempt.

`delay` computes the wait, `jittered` spreads it at random. Both work in any unit of time, and return the same unit.
Used for retries of outbound requests and of workers' calls, for the time that a circuit breaker stays open,
for the probes of an unavailable store, and for Celery tasks that wait for a permit.

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


def delay(
    attempt: int,
    *,
    first: float,
    algorithm: str = RetryAlgorithm.EXPONENTIAL,
    cap: float = inf,
) -> float:
    """Return the delay after an attempt, which is counted from 1: `first` after the first one, at most `cap`.

    `algorithm` is a value of RetryAlgorithm. Raises ValueError for any other.
    """
    return min(first * _factor(RetryAlgorithm(algorithm), attempt), cap)


def jittered(
    value: float,
    *,
    below: float = 0.0,
    above: float = 0.0,
    random: Callable[[], float] = uniform,
) -> float:
    """Return a value between `value - below` and `value + above`, evenly distributed.

    `below` and `above` are in the unit of the value. `random` returns numbers from 0 up to 1.
    """
    return value - below + random() * (below + above)


def _factor(algorithm: RetryAlgorithm, attempt: int) -> float:
    """The delay after an attempt in units of the first one."""
    step = min(attempt, _LAST_STEP)
    if algorithm is RetryAlgorithm.LINEAR:
        return attempt
    if algorithm is RetryAlgorithm.EXPONENTIAL:
        return 2.0 ** (step - 1)
    return _fibonacci(step) if algorithm is RetryAlgorithm.FIBONACCI else 1


def _fibonacci(number: int) -> float:
    """The Fibonacci number at a position, counted from 1."""
    current, following = 1.0, 1.0
    for _ in range(number - 1):
        current, following = following, current + following
    return current
