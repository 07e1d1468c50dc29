"""Roll-up: adds the counts of a store to hourly and daily snapshots, each count exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Any

from django.db import IntegrityError, router, transaction

from limits_app.acquiring.store import CountingStore
from limits_app.engine.counting import Batch, Count
from limits_app.models import Bucket, CollectedBatch, Period, UsageSnapshot
from limits_app.models.namespaces import current_keys
from limits_app.models.usage import ADD, upsert
from limits_app.usage.reading import HOURS_OF, bucket_of, snapshot_row, storable

_Row = tuple[Period, int, str, Bucket, str, str]


def roll_up(store: CountingStore, *, seconds: float = 60.0) -> int:
    """Add the counts of a store in the present namespace to the snapshots; returns the number of counts.

    It stops after `seconds` if the store has still more; the next call continues.

    Totals stay exact if it is killed, late, or runs concurrently: a batch is added together with its name in one
    transaction, and the store forgets it only afterwards. Therefore it must not run inside another transaction, and
    raises a RuntimeError there.
    """
    added, ends, namespace = 0, monotonic() + seconds, current_keys().counters
    while (batch := store.collect_counts(namespace)) is not None:
        added += _add(batch)
        store.forget_counts(batch.name, namespace)
        if not batch.is_full or monotonic() >= ends:
            break
    return added


def _add(batch: Batch) -> int:
    """Add a batch to the snapshots, unless it has been added before."""
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
