"""Definitions to test with, drawn over the whole range that is allowed."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from limits_app.engine.amounts import from_milli
from limits_app.engine.limits import RateLimit, RateLimitAlgorithm

MAX = 10**12
LONGEST_MS = 366 * 86_400 * 1000

ALGORITHMS = tuple(RateLimitAlgorithm)
WITH_BURST = tuple(algorithm for algorithm in ALGORITHMS if algorithm.takes_burst)


def examples(number: int) -> Any:
    """So many examples where the profile is thorough.

    Fewer for every change, since each run draws others, and for each of a thousand mutants: most die of the first.
    """
    share = {"thorough": 1, "mutants": 3}.get(settings.get_current_profile_name(), 4)
    return settings(max_examples=number // share)


@cache
def spread(most: int) -> st.SearchStrategy[int]:
    """Whole numbers from 1 to `most` of every size, not only large ones."""
    digits = st.integers(0, int(math.log10(most)))
    return digits.flatmap(lambda size: st.integers(1, min(10 ** (size + 1), most)))


@cache
def capacities(algorithm: RateLimitAlgorithm, most: int = MAX) -> st.SearchStrategy[float]:
    """Capacities or bursts that an algorithm takes."""
    whole = spread(most)
    return whole | spread(most * 1000).map(from_milli) if algorithm.takes_decimals else whole


@st.composite
def rates(
    draw: st.DrawFn,
    algorithms: tuple[RateLimitAlgorithm, ...] = ALGORITHMS,
    most: int = MAX,
    longest_ms: int = LONGEST_MS,
) -> RateLimit:
    """Any definition of a rate."""
    algorithm = draw(st.sampled_from(algorithms))
    sizes = capacities(algorithm, most)
    burst = draw(st.none() | sizes) if algorithm.takes_burst else None
    window = from_milli(draw(spread(longest_ms)))
    return RateLimit("drawn", draw(sizes), window, algorithm, burst)


def exact(number: float) -> Fraction:
    """A definition's number as it was meant: 0.1 is a tenth."""
    return Fraction(repr(number))


def rate_per_us(limit: RateLimit) -> Fraction:
    """Units per microsecond."""
    return exact(limit.capacity) / (exact(limit.window_seconds) * 1_000_000)
