"""Roll-up: adds the counts of a store to hourly and daily snapshots and to rejections, each count exactly once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from time import monotonic
from typing import Any, Final

from django.db import DataError, IntegrityError, router, transaction

from limits_app.acquiring import CountingStore
from limits_app.engine import BELOW, Batch, Count, Rejected, RejectionCounts, Times, short_key
from limits_app.models import CollectedBatch, Denial, UsagePeriod, UsageSnapshot
from limits_app.models.namespaces import current_digest, current_keys
from limits_app.models.usage import ADD, EARLIEST, LATEST, PREPEND, upsert
from limits_app.usage.one_time_clients import is_one_time
from limits_app.usage.reading import bucket_of, counted_for, since_1970, storable

logger = logging.getLogger("limits_app")

_MINUTES: Final = 60
_DAY_HOURS: Final = 24

CountedLimit = tuple[str, str, str, str, str]
"""A limit that counts: its resource, the kind of bucket, the entity, the key and the plan."""


CountsAdded = Callable[[int], object]
"""Takes the number of counts that were added so far."""


def no_progress(added: int) -> None:
    """Show nothing."""


def roll_up(
    store: CountingStore, *, seconds: float = 60.0, progress: CountsAdded = no_progress, collector: int = 0
) -> int:
    """Add the counts of a store in the present namespace to the snapshots; returns the number of counts.

    It stops after `seconds` if the store has still more; the next call continues. `progress` is called with the number
    of counts that were added so far. Several processes share the work if each is another `collector`, of which the
    store has so many.

    Totals stay exact if it is killed, late, or runs concurrently: a batch is added together with its name in one
    transaction, and the store forgets it only afterwards. Therefore it must not run inside another transaction, and
    raises a RuntimeError there.
    """
    added, ends, namespace = 0, monotonic() + seconds, current_keys().counters
    while (batch := store.collect_counts(namespace, collector)) is not None:
        added += add_storable(batch)
        store.forget_counts(batch.name, namespace)
        progress(added)
        if not batch.is_full or monotonic() >= ends:
            break
    return added


def add_storable(batch: Batch) -> int:
    """Add a batch, and of one that no database can store all that can be stored, so that it does not stop the others.

    Such a batch is halved until what is left is one count, which is logged and dropped. A batch has the same halves at
    each time, and they have names of their own, so that each is added once.
    """
    try:
        return add(batch)
    except (DataError, OverflowError) as error:
        number = len(batch.counts) + len(batch.rejections)
        if number <= 1:
            logger.error("a count of usage cannot be stored and is dropped: %s", error)  # noqa: TRY400 - no fault of code
            return 0
    return sum(add_storable(half) for half in _halves(batch, number // 2))


def _halves(batch: Batch, middle: int) -> Iterator[Batch]:
    """The counts and rejections up to the one in the middle, and the others."""
    for name, first, last in (("a", 0, middle), ("b", middle, None)):
        counts, before = batch.counts[first:last], len(batch.counts)
        until = None if last is None else max(last - before, 0)
        rejections = dict(islice(batch.rejections.items(), max(first - before, 0), until))
        yield Batch(short_key(batch.name + name).hex(), counts, batch.is_full, rejections)


def add(batch: Batch, *, using: str | None = None) -> int:
    """Add a batch to the tables, unless it has been added before; returns the number of its counts of usage."""
    using = router.db_for_write(UsageSnapshot) if using is None else using
    rejections = _storable(batch.rejections)
    usage = _BatchSums()
    for count in batch.counts:
        usage.add_count(count)
    for rejected, times in rejections.items():
        usage.add_rejections(rejected, times.number)
    try:
        with transaction.atomic(using=using, durable=True):
            CollectedBatch.objects.using(using).create(name=batch.name, unfolded_since=usage.unfolded_since())
            upsert(UsageSnapshot, [*usage.rows()], {"admitted_milli": ADD, "refused": ADD}, using=using)
            merge = {"count": ADD, "first": EARLIEST, "last": LATEST, "request_ids": PREPEND}
            upsert(Denial, [*_rejection_rows(rejections)], merge, using=using)
    except IntegrityError:
        if CollectedBatch.objects.using(using).filter(name=batch.name).exists():
            return 0
        raise
    return len(batch.counts)


class _BatchSums:
    """Sums of a batch by hour and limit: admitted amounts, in thousandths, and how many requests were rejected."""

    def __init__(self) -> None:
        self._hours: dict[int, dict[CountedLimit, list[int]]] = {}

    def add_count(self, count: Count) -> None:
        bucket = bucket_of(shared=count.shared, member=count.member)
        entity = storable(counted_for(entity=count.entity, member=count.member))
        sums = self._hours.setdefault(count.hour, {})
        for key, amount in count.amounts.items():
            sums.setdefault((count.resource or "", bucket, entity, key, count.plan), [0, 0])[0] += amount

    def add_rejections(self, rejected: Rejected, number: int) -> None:
        sums = self._hours.setdefault(rejected.minute // _MINUTES, {})
        sums.setdefault((*rejected[1:], ""), [0, 0])[1] += number

    def unfolded_since(self) -> datetime | None:
        """The first hour with one-time clients; None without any."""
        hours = [hour for hour, sums in self._hours.items() if any(is_one_time(limit[2]) for limit in sums)]
        return since_1970(hours=min(hours)) if hours else None

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows of the hours, and of their days."""
        days: dict[int, dict[CountedLimit, list[int]]] = {}
        for hour, sums in self._hours.items():
            yield from _snapshots(UsagePeriod.HOUR, hour, sums)
            day = days.setdefault(hour // _DAY_HOURS * _DAY_HOURS, {})
            for limit, (admitted, refused) in sums.items():
                total = day.setdefault(limit, [0, 0])
                total[0] += admitted
                total[1] += refused
        for begin, sums in days.items():
            yield from _snapshots(UsagePeriod.DAY, begin, sums)


def _snapshots(
    period: UsagePeriod, hour: int, sums: Mapping[CountedLimit, Iterable[int]]
) -> Iterator[Mapping[str, Any]]:
    start, namespace = since_1970(hours=hour), current_digest()
    for limit, (admitted, refused) in sums.items():
        yield {
            "period": period,
            "start": start,
            **_whose(limit[:-1], namespace),
            "plan": limit[-1].removeprefix(BELOW),
            "below": limit[-1].startswith(BELOW),
            "admitted_milli": admitted,
            "refused": refused,
        }


def _whose(limit: Iterable[str], namespace: str) -> dict[str, str]:
    return {"namespace": namespace, **dict(zip(("resource", "bucket", "entity", "key"), limit, strict=True))}


def _storable(rejections: RejectionCounts) -> dict[Rejected, Times]:
    """RejectionCounts by identifiers that every database can store."""
    stored: dict[Rejected, Times] = {}
    for rejected, times in rejections.items():
        storable_rejected = rejected._replace(entity=storable(rejected.entity))
        stored[storable_rejected] = stored[storable_rejected].merged(times) if storable_rejected in stored else times
    return stored


def _rejection_rows(rejections: Mapping[Rejected, Times]) -> Iterator[Mapping[str, Any]]:
    namespace = current_digest()
    for rejected, times in rejections.items():
        yield {
            "minute": since_1970(minutes=rejected.minute),
            **_whose(rejected[1:], namespace),
            "count": times.number,
            "first": since_1970(seconds=times.first),
            "last": since_1970(seconds=times.last),
            "request_ids": times.ids,
        }
