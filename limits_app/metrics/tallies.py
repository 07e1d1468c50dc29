"""Tallies: what this process has decided, counted for whoever exports it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from itertools import accumulate
from threading import Lock
from typing import Final

from limits_app.core.forking import on_fork
from limits_app.core.outcome import Outcome

__all__ = ["BOUNDS", "OTHER", "Result", "Tallies", "tallies"]

OTHER: Final = "other"
"""Stands for the names for which there is no room, and for those that no administrator has made."""

BOUNDS: Final = (0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0)
"""Up to how many seconds each bucket of waits is about; the last one is about those that took longer."""

_MOST: Final = 1_000


class Result(StrEnum):
    """What became of a request."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


class Tallies:
    """A watcher that counts, of `most` different names each; thread safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.on_wait: list[Callable[[float], None]] = []
        """Told of each wait, in seconds."""
        self.clear()
        on_fork(self)

    def clear(self) -> None:
        """Begin anew."""
        self.after_fork()

    def after_fork(self) -> None:
        """What a parent has counted it exports itself."""
        self._lock = Lock()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._waits = [0] * (len(BOUNDS) + 1)
        self._waited = 0.0

    def admitted(self, resource: str) -> None:
        """See `Watcher.admitted`."""
        with self._lock:
            self._add(self._decisions, resource, Result.ADMITTED)

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """See `Watcher.refused`."""
        result = Result.TIMED_OUT if waited else Result.REFUSED
        with self._lock:
            for resource in {status.resource or OTHER for status in outcome.violations}:
                self._add(self._decisions, resource, result)
            for status in outcome.violations:
                self._add(self._refusals, status.resource or OTHER, status.key)

    def waited(self, seconds: float) -> None:
        """See `Watcher.waited`."""
        with self._lock:
            self._waits[bisect_left(BOUNDS, seconds)] += 1
            self._waited += seconds
        for tell in self.on_wait:
            tell(seconds)

    @property
    def decisions(self) -> dict[tuple[str, str], int]:
        """How many there were, by resource and result."""
        with self._lock:
            return dict(self._decisions)

    @property
    def refusals(self) -> dict[tuple[str, str], int]:
        """How many there were, by resource and limit."""
        with self._lock:
            return dict(self._refusals)

    @property
    def waits(self) -> tuple[list[int], float]:
        """How many took at most as long as each of the bounds, and in the end how many there were; their sum."""
        with self._lock:
            return list(accumulate(self._waits)), self._waited

    def _add(self, counter: Counter[tuple[str, str]], resource: str, what: str) -> None:
        name = (resource, what)
        if name not in counter and len(counter) >= self._most:
            name = (OTHER, what if counter is self._decisions else OTHER)
        counter[name] += 1


tallies: Final = Tallies()
"""Those of this process."""
