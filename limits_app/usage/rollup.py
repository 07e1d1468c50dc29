"""Rolling up: what a store has counted becomes snapshots of hours and days, each count exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

from django.db import IntegrityError, router, transaction

from limits_app.core.counting import Batch, Count
from limits_app.core.store import CountingStore
from limits_app.models import Bucket, CollectedBatch, Period, UsageSnapshot
from limits_app.models.usage import ADD, upsert
from limits_app.usage.reading import HOURS_OF, bucket_of, snapshot_row, storable

__all__ = ["roll_up"]

_Row = tuple[Period, int, str, Bucket, str, str]


def roll_up(store: CountingStore, *, seconds: float = 60.0) -> int:
    """Add what a store has counted to the snapshots; returns how many counts that were.

    Where there is always more, since many go on counting, the rest is left for the next time after so many seconds.

    Killed half-way, late, or twice at once, the totals are the same: a batch is added in one transaction with its
    name, and forgotten by the store only then. So this is nothing for the inside of another transaction, and raises
    a RuntimeError there.
    """
    added, ends = 0, monotonic() + seconds
    while (batch := store.collect_counts()) is not None:
        added += _add(batch)
        store.forget_counts(batch.name)
        if not batch.is_full or monotonic() >= ends:
            break
    return added


def _add(batch: Batch) -> int:
    """Add a batch to the snapshots, unless it is there already."""
    using = router.db_for_write(UsageSnapshot)
    try:
        with transaction.atomic(using=using, durable=True):
            CollectedBatch.objects.using(using).create(name=batch.name)
            upsert(UsageSnapshot, list(_rows(batch.counts)), {"admitted_milli": ADD, "refused": ADD}, using=using)
    except IntegrityError:
        if CollectedBatch.objects.using(using).filter(name=batch.name).exists():
            return 0
        raise
    return len(batch.counts)


def _rows(counts: Iterable[Count]) -> Iterator[dict[str, Any]]:
    totals: Counter[_Row] = Counter()
    for count in counts:
        bucket = bucket_of(shared=count.shared, member=count.member)
        who = storable(count.entity if count.member is None else count.member)
        for period, hours in HOURS_OF.items():
            start = count.hour // hours * hours
            for key, amount in count.amounts.items():
                totals[period, start, count.resource or "", bucket, who, key] += amount
    for (period, start, resource, bucket, entity, key), amount in totals.items():
        whose = {"resource": resource, "bucket": bucket, "entity": entity, "key": key}
        yield snapshot_row(period, start, whose, admitted=amount)
