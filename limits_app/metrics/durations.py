"""Durations: how long something took, counted for whoever exports it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from threading import RLock

from limits_app.core.runtime import on_fork

__all__ = ["Durations", "Labels"]

Labels = tuple[str, ...]


class Durations:
    """Counts by labels, of which there must be an end, and by bounds in seconds; thread safe."""

    def __init__(self, *bounds: float) -> None:
        self.bounds: Sequence[float] = bounds
        """Up to how many seconds each bucket is about; the last one is about what took longer."""
        self.on_note: list[Callable[[float, Labels], None]] = []
        """Told of each duration."""
        self.clear()
        on_fork(self)

    def clear(self) -> None:
        """Begin anew."""
        self.after_fork()

    def after_fork(self) -> None:
        """What a parent has counted it exports itself."""
        # Reentrant, since a finalizer may ask a store in the middle of a step.
        self._lock = RLock()
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def note(self, seconds: float, *labels: str) -> None:
        """Count one."""
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(self.bounds) + 1))
            counts[bisect_left(self.bounds, seconds)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + seconds
        for tell in self.on_note:
            tell(seconds, labels)

    @property
    def noted(self) -> dict[Labels, tuple[list[int], float]]:
        """By labels: how many took at most as long as each bound, and in the end how many there were; their sum."""
        with self._lock:
            return {labels: (list(accumulate(counts)), self._sums[labels]) for labels, counts in self._counts.items()}
