"""Deletes old snapshots and denials, optionally after archiving them as gzipped JSON lines."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from django.core.serializers.json import DjangoJSONEncoder
from django.db import router
from django.db.models import Model, Q

from limits_app import conf
from limits_app.engine import namespace_digest
from limits_app.models import (
    BackgroundJob,
    Candidate,
    CollectedBatch,
    Denial,
    EvaluatedEntity,
    EvaluationCount,
    UsagePeriod,
    UsageSnapshot,
    forgotten_jobs,
)
from limits_app.models.fields import in_site_time
from limits_app.models.namespaces import SiteNamespace, current_namespace
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
    for name, (model, old) in _old(moment).items():
        kept = None if archive is None else Archive(archive, f"{name}-{moment:%Y%m%d}")
        pruned[name] = _prune(model, old, kept, progress=partial(progress, name), is_over=is_over)
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


def _old(now: datetime) -> Mapping[str, tuple[type[Model], Q]]:
    """The model and the filter of old rows, by the name of the archive."""
    hours, days, denied = map(conf.get, (conf.USAGE_HOURS_KEPT, conf.USAGE_DAYS_KEPT, conf.DENIALS_HOURS_KEPT))
    filters: dict[str, tuple[type[Model], Q]] = {}
    if hours is not None:
        begun = in_site_time(now - timedelta(hours=hours))
        filters["usage-hours"] = UsageSnapshot, Q(period=UsagePeriod.HOUR, start__lt=begun)
    if days is not None:
        begun = in_site_time(now - timedelta(days=days))
        filters["usage-days"] = UsageSnapshot, Q(period=UsagePeriod.DAY, start__lt=begun)
    if denied is not None:
        filters["denials"] = Denial, Q(minute__lt=in_site_time(now - timedelta(hours=denied)))
    return filters


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
    rows = {name: model._default_manager.filter(old) for name, (model, old) in _old(moment).items()}
    return {name: old_rows.count() for name, old_rows in rows.items()}
