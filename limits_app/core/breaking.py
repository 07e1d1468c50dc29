"""Breaking: what circuit breakers have in common, whether they stand before a store or before an upstream."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = ["SLICES", "BreakerState", "RecentCalls"]

SLICES: Final = 10
"""Into how many parts an interval is cut."""


class BreakerState(StrEnum):
    """Whether calls get through."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"

    @property
    def level(self) -> int:
        """The state as metrics have it: 0 closed, 1 half open, 2 open."""
        return (BreakerState.CLOSED, BreakerState.HALF_OPEN, BreakerState.OPEN).index(self)


@dataclass(slots=True)
class _Slice:
    """The calls of one part of the interval."""

    number: int
    calls: int = 0
    failures: int = 0


class RecentCalls:
    """The calls of the last interval, by the number of the slice in which each of them ended.

    They fail too often when `failure_ratio` of at least `min_calls` have failed.
    """

    __slots__ = ("_failure_ratio", "_min_calls", "_slices")

    def __init__(self, failure_ratio: float, min_calls: int) -> None:
        self._failure_ratio = failure_ratio
        self._min_calls = min_calls
        self._slices: deque[_Slice] = deque()

    def fail_too_often(self, number: int, *, failed: bool) -> bool:
        """Count a call; says whether it is one failure too many."""
        self._forget_before(number)
        if not self._slices or self._slices[-1].number != number:
            self._slices.append(_Slice(number))
        self._slices[-1].calls += 1
        self._slices[-1].failures += failed
        calls = sum(one.calls for one in self._slices)
        return failed and calls >= self._min_calls and self._failures() >= calls * self._failure_ratio

    def any_failed(self, number: int) -> bool:
        """Whether any of them failed, in the interval that ends with a slice."""
        self._forget_before(number)
        return self._failures() > 0

    def clear(self) -> None:
        """Forget all of them."""
        self._slices.clear()

    def _failures(self) -> int:
        return sum(one.failures for one in self._slices)

    def _forget_before(self, number: int) -> None:
        while self._slices and self._slices[0].number <= number - SLICES:
            self._slices.popleft()
