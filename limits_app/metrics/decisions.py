"""Decisions of this process: counted when they are made, and recorded at the next collection.

Names of resources and limits are labels only where the configuration has them, which a request cannot look up.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from math import inf
from time import monotonic
from typing import Final

from django.db import router

from limits_app.acquiring import on_fork
from limits_app.engine import lasts
from limits_app.engine.limits import CallLimit
from limits_app.engine.locks import RLock
from limits_app.engine.outcome import Outcome
from limits_app.models import Limit, Policy, Pool, Resource

logger = logging.getLogger("limits_app")

OTHER: Final = "other"
"""The label of all names that are not in the configuration."""

_MAX_NAMES: Final = 1_000
_SECONDS: Final = 60.0

DecisionNumbers = Mapping[tuple[str, str], int]


class Result(StrEnum):
    """The result of a request."""

    ADMITTED = "admitted"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"


class DecisionCounts:
    """Counts decisions, of at most `max_names` different names each; thread safe."""

    def __init__(self, max_names: int = _MAX_NAMES) -> None:
        self._max_names = max_names
        self.after_fork()
        on_fork(self)

    def after_fork(self) -> None:
        """Start empty in a child; the parent records its own counts."""
        # Reentrant, since a finalizer may make a request while this thread holds the lock.
        self._lock = RLock()
        self._decisions: Counter[tuple[str, str]] = Counter()
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._priorities: Counter[tuple[str, str]] = Counter()

    def admitted(self, resource: str, priority: str = "") -> None:
        """Count a request that was admitted, of a priority where a limit keeps a share free."""
        with self._lock:
            self._add_decision(resource, Result.ADMITTED, priority)

    def refused(self, outcome: Outcome, *, waited: bool) -> None:
        """Count a request that was refused, for each resource and limit that refused it."""
        result = Result.TIMED_OUT if waited else Result.REFUSED
        statuses = (*outcome.violations, *outcome.passed)
        priority = next((status.priority for status in statuses if status.priority), "")
        with self._lock:
            for resource in {status.resource or OTHER for status in outcome.violations}:
                self._add_decision(resource, result, priority)
            for status in outcome.violations:
                self._add(self._refusals, status.resource or OTHER, status.key)

    def take(self) -> tuple[DecisionNumbers, DecisionNumbers, DecisionNumbers]:
        """Return the counts since the last call, by resource and something else.

        That is the result of decisions, the limit of refusals, and the priority and the result of decisions that have
        a priority, with a space in between.
        """
        with self._lock:
            taken = self._decisions, self._refusals, self._priorities
            self._decisions, self._refusals, self._priorities = Counter(), Counter(), Counter()
        return taken

    def _add_decision(self, resource: str, result: Result, priority: str) -> None:
        self._add(self._decisions, resource, result)
        if priority:
            self._add(self._priorities, resource, f"{priority} {result}")

    def _add(self, counter: Counter[tuple[str, str]], resource: str, what: str) -> None:
        name = (resource, what)
        if name not in counter and len(counter) >= self._max_names:
            name = (OTHER, OTHER if counter is self._refusals else what)
        counter[name] += 1


class KnownNames:
    """The names of resources, pools and limits in the configuration, at most a minute old."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._read_at = -inf
        self._resources: frozenset[str] = frozenset()
        self._limits: frozenset[str] = frozenset()

    def bounded(self, counts: DecisionNumbers, *, by_limit: bool = False) -> DecisionNumbers:
        """Return counts by resource and something else, perhaps a limit, with unknown names combined as `other`."""
        self._refresh()
        bounded: Counter[tuple[str, str]] = Counter()
        for (resource, what), number in counts.items():
            is_known = not by_limit or what in self._limits
            bounded[resource if resource in self._resources else OTHER, what if is_known else OTHER] += number
        return bounded

    def resource(self, name: str) -> str:
        """Return the name of a resource, or `other` for an unknown one."""
        self._refresh()
        return name if name in self._resources else OTHER

    def _refresh(self) -> None:
        if lasts(self._read_at, _SECONDS, self._clock()):
            return
        self._read_at = self._clock()
        using = router.db_for_read(Policy)
        try:
            resources = [*Resource.objects.using(using).values_list("name", flat=True)]
            pools = [*Pool.objects.using(using).values_list("name", flat=True)]
            limits = [*Limit.objects.using(using).order_by().values_list("key", flat=True).distinct()]
        except Exception as error:  # noqa: BLE001 - metrics matter most while something fails
            logger.warning("metrics cannot read the names in the configuration: %s", error)
            return
        self._resources, self._limits = frozenset(resources + pools), frozenset([*limits, CallLimit.key])
