"""Tallies: what this process has decided, counted for whoever exports it."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from threading import RLock
from typing import Final

from limits_app.core.outcome import Outcome
from limits_app.core.runtime import on_fork
from limits_app.metrics.durations import Durations

__all__ = ["OTHER", "Result", "Tallies", "tallies"]

OTHER: Final = "other"
"""Stands for the names for which there is no room, and for those that no administrator has made."""

_MOST: Final = 1_000


class Result(StrEnum):
    """What became of a request."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


class Tallies:
    """A watcher and a timer that counts, of `most` different names each; thread safe."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self.waits = Durations(0.001, 0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0, 30.0, 120.0)
        """How long requests have waited."""
        self.store_calls = Durations(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25)
        """How long each store has taken, by its alias and the verb."""
        self.after_fork()
        on_fork(self)

    def clear(self) -> None:
        """Begin anew."""
        self.waits.clear()
        self.store_calls.clear()
        self.after_fork()

    def after_fork(self) -> None:
        """What a parent has counted it exports itself."""
        # Reentrant, since a finalizer may ask a store in the middle of a step.
        self._lock = RLock()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._store_errors: Counter[tuple[str, str]] = Counter()

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
        self.waits.note(seconds)

    def store_called(self, alias: str, verb: str, seconds: float, *, failed: bool) -> None:
        """See `Timer`."""
        self.store_calls.note(seconds, alias, verb)
        if failed:
            with self._lock:
                self._store_errors[alias, verb] += 1

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
    def store_errors(self) -> dict[tuple[str, str], int]:
        """How many calls a store could not do, by its alias and the verb."""
        with self._lock:
            return dict(self._store_errors)

    def _add(self, counter: Counter[tuple[str, str]], resource: str, what: str) -> None:
        name = (resource, what)
        if name not in counter and len(counter) >= self._most:
            name = (OTHER, what if counter is self._decisions else OTHER)
        counter[name] += 1


tallies: Final = Tallies()
"""Those of this process."""
