"""Names: those that administrators have made, so that nobody else can make labels."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final

from django.db import router

from limits_app.core.limits import CallLimit
from limits_app.metrics.tallies import OTHER
from limits_app.models import Limit, Policy, Pool, Resource

__all__ = ["Known", "known"]

logger = logging.getLogger("limits_app")

_SECONDS: Final = 60.0


class Known:
    """The names of resources, pools and limits in the configuration, as of a minute ago at most."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Ask anew next time."""
        self._until = 0.0
        self._resources: frozenset[str] = frozenset()
        self._limits: frozenset[str] = frozenset()

    def bounded(self, counts: Mapping[tuple[str, str], int], *, by_limit: bool = False) -> dict[tuple[str, str], int]:
        """Counts by a resource and something else, a limit perhaps, in which all others are one."""
        self._refresh()
        found: Counter[tuple[str, str]] = Counter()
        for (resource, what), number in counts.items():
            is_known = not by_limit or what in self._limits
            found[resource if resource in self._resources else OTHER, what if is_known else OTHER] += number
        return dict(found)

    def _refresh(self) -> None:
        if self._clock() < self._until:
            return
        self._until = self._clock() + _SECONDS
        using = router.db_for_read(Policy)
        try:
            resources = [*Resource.objects.using(using).values_list("name", flat=True)]
            pools = [*Pool.objects.using(using).values_list("name", flat=True)]
            limits = [*Limit.objects.using(using).order_by().values_list("key", flat=True).distinct()]
        except Exception as error:  # noqa: BLE001 - metrics are wanted most while something is down
            logger.warning("metrics cannot tell which names are in the configuration: %s", error)
            return
        self._resources, self._limits = frozenset(resources + pools), frozenset([*limits, CallLimit.key])


known: Final = Known()
"""Those of this process."""
