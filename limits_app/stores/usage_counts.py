"""Usage counts of a store in memory: amounts by scope and hour, until they are collected."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from typing import Final

from limits_app.engine import (
    KEPT_HOURS,
    Batch,
    Count,
    Record,
    Rejected,
    RejectionCounts,
    Scope,
    Times,
    close_usage,
    digest_in,
    hour_of,
    namespace_digest,
    unique_name,
)

_BATCH: Final = 1000
_NOTED: Final = b"noted"
"""The label of a record that is known to be counting."""
_MOST_REJECTIONS: Final = 100_000
"""How many limits and minutes wait to be collected in a namespace."""


_Finished = tuple[int, Scope, str]
"""An hour of a scope, for a plan."""


class _Counts:
    """The usage of one namespace: the scopes whose records are counting, the finished hours, and the waiting batch."""

    def __init__(self) -> None:
        self.counting: dict[str, tuple[str, str | None, str | None, bool, str | None, bool]] = {}
        """The scopes as plain tuples of texts, which the garbage collector need not visit."""
        self.finished: OrderedDict[_Finished, dict[str, int]] = OrderedDict()
        """The sums of a finished hour of a scope, for each plan; the oldest are removed without a look at others."""
        self.rejections: OrderedDict[Rejected, Times] = OrderedDict()
        self.batch: Batch | None = None
        self.moved: tuple[list[_Finished], list[Rejected]] = [], []
        """What is in a batch and has yet to be removed from `finished` and `rejections`."""

    def remove_moved(self) -> None:
        """Remove the counts of a batch; whatever interrupts this, the next call goes on."""
        hours, rejections = self.moved
        while hours:
            self.finished.pop(hours[-1], None)
            hours.pop()
        while rejections:
            self.rejections.pop(rejections[-1], None)
            rejections.pop()


class UsageCounts:
    """Finished usage by hour and scope, and the scopes whose records are counting. The store holds its lock.

    It keeps at most `most` hours of scopes; the oldest ones give way to more.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_namespace: dict[bytes, _Counts] = {}

    def __len__(self) -> int:
        """Return how many hours of scopes are kept."""
        kept = 0
        for counts in self._by_namespace.values():
            kept += len(counts.finished)
        return kept

    def give_way(self) -> bool:
        """Drop the oldest hour of a scope in some namespace; returns whether there was one."""
        for counts in self._by_namespace.values():
            counts.remove_moved()
            if counts.finished:
                del counts.finished[next(iter(counts.finished))]
                return True
        return False

    def drop(self, key: str) -> None:
        """Drop what the record of a scope counts, which is deleted next."""
        self._of(key).counting.pop(key, None)

    def clear(self) -> None:
        """Forget all counts."""
        self._by_namespace.clear()

    def note(self, scope: Scope, record: Record) -> None:
        """Note whether a record is counting, before it is stored: whatever interrupts this, its usage is collected."""
        if record.counted_until and not record.label:
            self._of(scope.key).counting[scope.key] = (*scope,)
            record.label = _NOTED

    def add(self, scope: Scope, record: Record, now: int) -> None:
        """Take over the finished usage of a stored record."""
        if record.finished:
            counts = self._of(scope.key)
            counts.remove_moved()
            while record.finished:
                _take(counts, scope, record)
            _remove_old(counts, now)
            if len(self) > self._most:
                self.give_way()

    def close(self, key: str, record: Record, now: int) -> None:
        """Finish the usage of a record, which is counting no more."""
        counting = self._of(key).counting
        counted = counting.get(key)
        if counted is not None:
            close_usage(record)
            self.add(Scope(*counted), record, now)
            counting.pop(key, None)  # last: whatever interrupts this, the rest is done at the next time

    def collect(self, records: Mapping[str, Record], now: int, namespace: str) -> Batch | None:
        """Return a batch of counts, as `CountingStore.collect_counts` does."""
        counts = self._by_namespace.get(namespace_digest(namespace))
        if counts is None:
            return None
        counts.remove_moved()
        if counts.batch is None:
            is_full = max(len(counts.counting), len(counts.finished), len(counts.rejections)) > _BATCH
            for key in list(islice(counts.counting, _BATCH)):
                record = records.get(key)
                if record is None:  # an interrupted step did not store it
                    del counts.counting[key]
                else:
                    self.close(key, record, now)
            _fill_batch(counts, is_full=is_full)
        return counts.batch

    def add_rejections(self, rejections: RejectionCounts, namespace: str) -> None:
        """Add rejections; those of too many limits and minutes replace the oldest."""
        counts = self._in(namespace_digest(namespace))
        counts.remove_moved()
        waiting = counts.rejections
        for rejected, times in rejections.items():
            waiting[rejected] = waiting[rejected].merged(times) if rejected in waiting else times
        for oldest in list(islice(waiting, max(len(waiting) - _MOST_REJECTIONS, 0))):
            del waiting[oldest]

    def forget(self, name: str, namespace: str) -> None:
        """Remove a batch."""
        counts = self._by_namespace.get(namespace_digest(namespace))
        if counts is not None and counts.batch is not None and counts.batch.name == name:
            counts.batch = None

    def _of(self, key: str) -> _Counts:
        """The usage of the namespace in which the key of a scope is."""
        namespace = digest_in(key)
        return self._by_namespace.get(namespace) or self._in(namespace)

    def _in(self, namespace: bytes) -> _Counts:
        counts = self._by_namespace.get(namespace)
        if counts is None:
            counts = self._by_namespace[namespace] = _Counts()
        return counts


def _take(counts: _Counts, scope: Scope, record: Record) -> None:
    """Take over one finished hour of a record."""
    hour, amounts, plan = record.finished[0]
    sums = dict(counts.finished.get((hour, scope, plan), {}))
    for key, amount in amounts.items():
        sums[key] = sums.get(key, 0) + amount
    # Without a call in between, where a signal handler could raise.
    counts.finished[hour, scope, plan], record.finished = sums, record.finished[1:]


def _remove_old(counts: _Counts, now: int) -> None:
    """Remove the oldest counts where they were not collected for too long, one at a time."""
    oldest = next(iter(counts.finished), None)
    if oldest is not None and oldest[0] < hour_of(now) - KEPT_HOURS:
        del counts.finished[oldest]


def _fill_batch(counts: _Counts, *, is_full: bool) -> None:
    """Move the oldest counts into a batch, unless there are none."""
    hours = [*islice(counts.finished, _BATCH)]
    rejections = {rejected: counts.rejections[rejected] for rejected in islice(counts.rejections, _BATCH)}
    if hours or rejections:
        usage = [
            Count(
                scope.resource, scope.entity, scope.shared, scope.member, hour, counts.finished[hour, scope, plan], plan
            )
            for hour, scope, plan in hours
        ]
        batch, moved = Batch(unique_name(), usage, is_full, rejections), (hours, [*rejections])
        # Without a call in between, where a signal handler could raise.
        counts.batch, counts.moved = batch, moved
        counts.remove_moved()
