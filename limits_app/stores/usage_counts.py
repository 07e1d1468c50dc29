"""Usage counts of a store in memory: amounts by scope and hour, until they are collected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from limits_app.core.counting import KEPT_HOURS, Batch, Count, hour_of
from limits_app.core.engine import close_usage
from limits_app.core.keys import Scope, unique_name
from limits_app.core.record import Record

_BATCH: Final = 1000


class UsageCounts:
    """Finished usage by hour and scope, and the scopes whose records are counting. The store holds its lock."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Scope], dict[str, int]] = {}
        self._counting: dict[str, Scope] = {}
        self._batch: Batch | None = None

    def add(self, scope: Scope, record: Record, now: int) -> None:
        """Take over the finished usage of a record, and note whether it is counting."""
        if record.usage is not None and record.usage.until and scope.key not in self._counting:
            self._counting[scope.key] = scope
        if record.finished:
            while record.finished:
                self._take(scope, record)
            self._remove_old(now)

    def close(self, key: str, record: Record, now: int) -> None:
        """Finish the usage of a record, which is counting no more."""
        scope = self._counting.pop(key, None)
        if scope is not None:
            close_usage(record)
            self.add(scope, record, now)

    def collect(self, records: Mapping[str, Record], now: int) -> Batch | None:
        """Return a batch of counts, as `CountingStore.collect_counts` does."""
        if self._batch is None:
            is_full = len(self._counting) > _BATCH or len(self._counts) > _BATCH
            for key in list(islice(self._counting, _BATCH)):
                self.close(key, records[key], now)
            counts = list(self._taken())
            self._batch = Batch(unique_name(), counts, is_full) if counts else None
        return self._batch

    def forget(self, name: str) -> None:
        """Remove a batch."""
        if self._batch is not None and self._batch.name == name:
            self._batch = None

    def _take(self, scope: Scope, record: Record) -> None:
        """Take over one finished hour of a record."""
        hour, amounts = record.finished[0]
        sums = dict(self._counts.get((hour, scope), {}))
        for key, amount in amounts.items():
            sums[key] = sums.get(key, 0) + amount
        # Without a call in between, where a signal handler could raise.
        self._counts[hour, scope], record.finished = sums, record.finished[1:]

    def _remove_old(self, now: int) -> None:
        """Remove the oldest counts where they were not collected for too long, one at a time."""
        oldest = next(iter(self._counts), None)
        if oldest is not None and oldest[0] < hour_of(now) - KEPT_HOURS:
            del self._counts[oldest]

    def _taken(self) -> Iterator[Count]:
        for hour, scope in list(islice(self._counts, _BATCH)):
            amounts = self._counts.pop((hour, scope))
            yield Count(scope.resource, scope.entity, scope.shared, scope.member, hour, amounts)
