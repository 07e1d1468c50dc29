"""The tally of a store in memory: what records have counted, once their hour is over or somebody collects it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Final

from limits_app.core.counting import KEPT_HOURS, Batch, Count, hour_of
from limits_app.core.keys import Scope, unique_name
from limits_app.core.layout import Layout
from limits_app.core.unrolled import Record

__all__ = ["Tally"]

_BATCH: Final = 1000


class Tally:
    """Counts by scope and hour, and the scopes whose records are counting."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Scope], dict[str, int]] = {}
        self._open: dict[str, Scope] = {}
        self._batch: Batch | None = None

    def begin(self, scope: Scope) -> None:
        """A record of the scope counts from now on."""
        self._open[scope.key] = scope

    def close(self, scope: str, record: Record, now: int) -> None:
        """Keep what a record of a scope has counted that is about to be replaced by one that begins anew."""
        layout: Layout = record[-1]
        if layout.counts and scope in self._open:
            self.add(self._open.pop(scope), hour_of(record[-2] - 1), layout.counted(record), now)

    def add(self, scope: Scope, hour: int, amounts: Mapping[str, int], now: int) -> None:
        """Add amounts of a scope in an hour, and forget what nobody has collected for too long."""
        if not amounts:
            return
        counts = self._counts.setdefault((hour, scope), {})
        for key, amount in amounts.items():
            counts[key] = counts.get(key, 0) + amount
        oldest = next(iter(self._counts))
        if oldest[0] < hour_of(now) - KEPT_HOURS:
            del self._counts[oldest]

    def collect(self, records: MutableMapping[str, Record], now: int) -> Batch | None:
        """A batch of what was counted, as `CountingStore.collect_counts` gives it."""
        if self._batch is None:
            is_full = len(self._open) > _BATCH or len(self._counts) > _BATCH
            for scope in list(islice(self._open, _BATCH)):
                record = records[scope]
                self.close(scope, record, now)
                records[scope] = record[-1].recounting(record)
            counts = list(self._taken())
            self._batch = Batch(unique_name(), counts, is_full) if counts else None
        return self._batch

    def _taken(self) -> Iterator[Count]:
        for hour, scope in list(islice(self._counts, _BATCH)):
            amounts = self._counts.pop((hour, scope))
            yield Count(scope.resource, scope.entity, scope.shared, scope.member, hour, amounts)

    def forget(self, name: str) -> None:
        """Forget a batch."""
        if self._batch is not None and self._batch.name == name:
            self._batch = None
