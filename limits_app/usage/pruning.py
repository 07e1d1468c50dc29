"""Deletes old snapshots and denials, optionally after archiving them as gzipped JSON lines."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from django.core.serializers.json import DjangoJSONEncoder
from django.db import router
from django.db.models import Model, Q

from limits_app import conf
from limits_app.engine import member_key, namespace_digest, unit_with_mark
from limits_app.models import (
    BackgroundJob,
    Candidate,
    CollectedBatch,
    Denial,
    EvaluatedEntity,
    EvaluationCount,
    Price,
    UsagePeriod,
    UsageSnapshot,
    forgotten_jobs,
)
from limits_app.models.fields import aware, in_site_time
from limits_app.models.namespaces import SiteNamespace, current_namespace
from limits_app.models.patterns import begins
from limits_app.models.snapshots import batches

_LONGEST_FOLDER: Final = 200


class Archive:
    """The file of one run: `NAME.jsonl.gz`, or `NAME-2.jsonl.gz` and so on if that exists. It is created on first use.

    The rows of a namespace are in a folder of its name. A killed run leaves at most an incomplete end, and later runs
    never append to it. Rows that are missing there were not deleted.
    """

    def __init__(self, folder: Path, name: str) -> None:
        namespace = current_namespace()
        self._folder = folder / _folder_of(namespace) if namespace.keys.counters else folder
        self._name = name
        self._file: Path | None = None

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows and fsync. On an OSError the file is restored to its previous length."""
        lines = "".join(json.dumps(row, cls=_Exact) + "\n" for row in rows)
        if not lines:
            return
        file = self._file = self._file or self._made()
        before = file.stat().st_size
        try:
            with file.open("ab") as stream:
                stream.write(gzip.compress(lines.encode()))
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            if before:
                os.truncate(file, before)
            else:
                file.unlink()
                self._file = None
            raise

    def _made(self) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file, number = self._folder / f"{self._name}.jsonl.gz", 1
        while True:
            try:
                file.touch(exist_ok=False)
            except FileExistsError:  # that of an earlier run
                number += 1
                file = self._folder / f"{self._name}-{number}.jsonl.gz"
            else:
                _sync(self._folder)
                return file


def _folder_of(namespace: SiteNamespace) -> str:
    """The name of a folder that no other namespace has; it leads nowhere else, whatever the namespace is named."""
    name = quote(namespace.name, safe="").replace(".", "%2E")
    return name if len(name) <= _LONGEST_FOLDER else namespace_digest(namespace.name).hex()


class _Exact(DjangoJSONEncoder):
    """Django's encoder truncates timestamps to milliseconds; digests of the audit log need microseconds."""

    def default(self, o: Any) -> Any:
        return o.isoformat() if isinstance(o, datetime) else super().default(o)


def _sync(folder: Path) -> None:
    """Fsync a directory, if its file system supports that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


PruneProgress = Callable[[str, int], object]
"""Takes a table and the number of its rows that were deleted so far."""


def no_progress(table: str, deleted: int) -> None:
    """Show nothing."""


_BATCH: Final = 5_000
_BATCH_DAYS_KEPT: Final = 31
"""How long the names of collected batches are kept, so that a batch that a store offers again is not added twice."""

_MOST_PRICES: Final = 100
"""How many prices of a day a query names; databases limit the size of a condition."""
_ENTITY_DAYS_KEPT: Final = 1
"""How long the entities of a candidate are kept after the time for which it is watched."""


def prune(
    *,
    archive: Path | None = None,
    now: datetime | None = None,
    progress: PruneProgress = no_progress,
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, int]:
    """Delete rows that are older than the retention settings; returns the number of rows by table.

    Rows are deleted in batches of 5,000, until there are none or `is_over` returns True. With `archive`, a directory,
    each batch is first written and fsynced to the archive file of its table and this run. If a run is killed or fails,
    the next one may archive the same rows again. After an OSError, every deleted row is in the archive.
    """
    moment = datetime.now(UTC) if now is None else now
    pruned = {}
    for name, (model, filters) in _old(moment).items():
        kept = None if archive is None else Archive(archive, f"{name}-{moment:%Y%m%d}")
        pruned[name] = 0
        for old in filters:
            show = _after(pruned[name], partial(progress, name))
            pruned[name] += _prune(model, old, kept, progress=show, is_over=is_over)
    forgotten = in_site_time(moment - timedelta(days=_BATCH_DAYS_KEPT))
    _prune(CollectedBatch, Q(collected_at__lt=forgotten, unfolded_since=None))
    _prune(BackgroundJob, forgotten_jobs(moment))
    watched = Candidate.objects.using(router.db_for_write(Candidate)).exclude(watched_until=None)
    late = watched.filter(watched_until__gte=in_site_time(moment - timedelta(days=_ENTITY_DAYS_KEPT)))
    _prune(EvaluatedEntity, ~Q(candidate_id__in=[*late.values_list("pk", flat=True)]))
    hours = conf.get(conf.USAGE_HOURS_KEPT)
    if hours is not None:
        _prune(EvaluationCount, Q(hour__lt=in_site_time(moment - timedelta(hours=hours))))
    return pruned


def _after(before: int, progress: Callable[[int], object]) -> Callable[[int], object]:
    """Show the rows that are deleted after earlier rows."""
    return lambda deleted: progress(before + deleted)


def _old(now: datetime) -> Mapping[str, tuple[type[Model], list[Q]]]:
    """The model and the filters of old rows, of which each is in one, by the name of the archive."""
    hours, days, denied = map(conf.get, (conf.USAGE_HOURS_KEPT, conf.USAGE_DAYS_KEPT, conf.DENIALS_HOURS_KEPT))
    filters: dict[str, tuple[type[Model], list[Q]]] = {}
    if hours is not None:
        begun = now - timedelta(hours=hours)
        days_begun = None if days is None else now - timedelta(days=days)
        filters["usage-hours"] = UsageSnapshot, [*_old_hours(begun, days_begun)]
    if days is not None:
        begun = in_site_time(now - timedelta(days=days))
        filters["usage-days"] = UsageSnapshot, [Q(period=UsagePeriod.DAY, start__lt=begun)]
    if denied is not None:
        filters["denials"] = Denial, [Q(minute__lt=in_site_time(now - timedelta(hours=denied)))]
    return filters


def _old_hours(begun: datetime, days_begun: datetime | None) -> Iterator[Q]:
    """The filters of hours that begin before a time, without those that the cost of a day needs.

    The hours of a day in which a price changes are kept as long as the day. `days_begun` is from when on days are kept.
    """
    using, since = router.db_for_write(UsageSnapshot), None
    for day, prices in _days_with_changes(days_begun, begun).items():
        hours = Q(period=UsagePeriod.HOUR, start__lt=in_site_time(day))
        yield hours if since is None else hours & Q(start__gte=in_site_time(since))
        since = min(day + timedelta(days=1), begun)
        if len(prices) > _MOST_PRICES:  # as after an import: all hours of the day are kept
            continue
        priced = reduce(or_, [_of_price(price, using) for price in sorted(prices)])
        yield Q(period=UsagePeriod.HOUR, start__gte=in_site_time(day), start__lt=in_site_time(since)) & ~priced
    hours = Q(period=UsagePeriod.HOUR, start__lt=in_site_time(begun))
    yield hours if since is None else hours & Q(start__gte=in_site_time(since))


class _Priced(NamedTuple):
    """What a price is for: a resource, a pattern or the member of a pool, and the unit."""

    resource: str
    member: str
    unit: str


def _days_with_changes(since: datetime | None, until: datetime) -> dict[datetime, set[_Priced]]:
    """The days within a time in which prices change after midnight, with what these prices are for, in order."""
    prices = Price.objects.using(router.db_for_read(Price)).filter(valid_from__lt=in_site_time(until))
    if since is not None:
        prices = prices.filter(valid_from__gte=in_site_time(since))
    days: dict[datetime, set[_Priced]] = {}
    for moment, *priced in prices.order_by("valid_from").values_list("valid_from", *_Priced._fields):
        change = aware(moment).astimezone(UTC)
        day = change.replace(hour=0)
        if day != change:
            days.setdefault(day, set()).add(_Priced(*priced))
    return days


def _of_price(price: _Priced, using: str) -> Q:
    """The filter for usage that a price is for, also of the members that have other ones."""
    resource, member, unit = price
    if member:
        return Q(key=member_key(unit, resource, member))
    of_unit = Q(key=unit) | begins("key", unit_with_mark(unit), using)
    return of_unit & (begins("resource", resource[:-1], using) if resource.endswith("*") else Q(resource=resource))


def _prune(
    model: type[Model],
    old: Q,
    archive: Archive | None = None,
    *,
    progress: Callable[[int], object] | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    rows = model._default_manager.using(router.db_for_write(model))
    pruned = 0
    while not is_over() and (keys := [*rows.filter(old).order_by().values_list("pk", flat=True)[:_BATCH]]):
        for some in batches(keys):
            batch = rows.filter(pk__in=some)
            if archive is not None:
                archive.add(batch.order_by().values())
            pruned += batch.delete()[0]
        if progress is not None:
            progress(pruned)
    return pruned


def prunable(*, now: datetime | None = None) -> dict[str, int]:
    """Number of rows by table that `prune` would delete."""
    moment = datetime.now(UTC) if now is None else now
    return {
        name: sum(model._default_manager.filter(old).count() for old in filters)
        for name, (model, filters) in _old(moment).items()
    }
