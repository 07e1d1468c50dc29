"""Rolling up: what a store has counted becomes snapshots of hours and days, each count exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import IntegrityError, router, transaction

from limits_app.core.counting import Batch, Count
from limits_app.core.store import CountingStore
from limits_app.models import Bucket, CollectedBatch, Period, UsageSnapshot
from limits_app.models.moments import as_setting
from limits_app.models.upsert import ADD, upsert

__all__ = ["roll_up", "storable"]

_HOURS_OF: Final = {Period.HOUR: 1, Period.DAY: 24}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Row = tuple[Period, int, str, Bucket, str, str]


def roll_up(store: CountingStore) -> int:
    """Add what a store has counted to the snapshots; returns how many counts that were.

    Killed half-way, late, or twice at once, the totals are the same: a batch is added in one transaction with its
    name, and forgotten by the store only then. So this is nothing for the inside of another transaction, and raises
    a RuntimeError there.
    """
    added = 0
    while (batch := store.collect_counts()) is not None:
        added += _add(batch)
        store.forget_counts(batch.name)
        if not batch.is_full:
            break
    return added


def storable(entity: str | None) -> str:
    """An entity as every database can store it, and no longer than its column."""
    text = (entity or "").encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")[: UsageSnapshot._meta.get_field("entity").max_length]


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
        for period, hours in _HOURS_OF.items():
            start = count.hour // hours * hours
            for key, amount in count.amounts.items():
                totals[period, start, count.resource or "", _bucket(count), _whose(count), key] += amount
    for (period, start, resource, bucket, entity, key), amount in totals.items():
        yield {
            "period": period,
            "start": as_setting(_EPOCH + timedelta(hours=start)),
            "resource": resource,
            "bucket": bucket,
            "entity": entity,
            "key": key,
            "admitted_milli": amount,
            "refused": 0,
        }


def _bucket(count: Count) -> Bucket:
    if count.member is not None:
        return Bucket.MEMBER
    return Bucket.SHARED if count.shared else Bucket.ENTITY


def _whose(count: Count) -> str:
    return storable(count.entity if count.member is None else count.member)
