"""Retention: deletes old usage, rejections and audit events, optionally after archiving them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from limits_app import audit, conf
from limits_app.models import AuditEvent, note_scheduled
from limits_app.usage import pruning
from limits_app.usage.pruning import Archive, PruneProgress

_SOURCE: Final = "retention"


class Pruned(NamedTuple):
    """The number of deleted rows by table, and whether there was time for all old rows."""

    rows: dict[str, int]
    is_complete: bool


def prune_usage(*, archive: Path | str | None = None, progress: PruneProgress = pruning.no_progress) -> dict[str, int]:
    """Delete usage, rejections and audit events that are older than the retention of the settings.

    Returns the number of rows by table; audit events are among them if `LIMITS["AUDIT_DAYS_KEPT"]` is set. With
    `archive`, a directory, the rows are first written to files of this run there, as gzipped lines of JSON.
    `progress` is called with the table and the number of its rows that were deleted so far.
    """
    note_scheduled("prune")
    return prune_all(archive=None if archive is None else Path(archive), progress=progress).rows


def prune_all(
    *, archive: Path | None = None, seconds: float | None = None, progress: PruneProgress = pruning.no_progress
) -> Pruned:
    """See `prune_usage`; stops after some seconds, where the next call goes on."""
    ends = None if seconds is None else monotonic() + seconds

    def is_over() -> bool:
        return ends is not None and monotonic() >= ends

    rows = pruning.prune(archive=archive, progress=progress, is_over=is_over)
    days = conf.get(conf.AUDIT_DAYS_KEPT)
    if days is not None:
        before = datetime.now(UTC) - timedelta(days=days)
        rows["audit"] = prune_audit(before, archive=archive, source=_SOURCE, progress=progress, is_over=is_over)
    return Pruned(rows, not is_over())


def prunable(*, audit_before: datetime | None = None) -> dict[str, int]:
    """Number of rows by table that `prune_usage` would delete, and with `audit_before` those of older audit events."""
    rows, days = pruning.prunable(), conf.get(conf.AUDIT_DAYS_KEPT)
    kept_since = [] if days is None else [datetime.now(UTC) - timedelta(days=days)]
    kept_since += [] if audit_before is None else [audit_before]
    return rows | ({"audit": _old_events(max(kept_since))} if kept_since else {})


def _old_events(before: datetime) -> int:
    """Number of events before the first one that is kept."""
    events = AuditEvent.objects.order_by("number")
    kept = events.filter(when__gte=before).values_list("number", flat=True).first()
    return (events if kept is None else events.filter(number__lt=kept)).count()


def prune_audit(
    before: datetime,
    *,
    archive: Path | None = None,
    actor: str = "",
    source: str,
    reason: str = "",
    progress: PruneProgress = pruning.no_progress,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    """Delete the oldest audit events in batches; returns how many. The events that record this are kept.

    `audit.verify` continues from the last deleted event, whose number and digest the head of the log keeps.
    """
    file = Archive(archive, f"audit-{datetime.now(UTC):%Y%m%d}") if archive else None
    columns = [field.attname for field in AuditEvent._meta.concrete_fields]

    def keep(events: Iterable[AuditEvent]) -> None:
        if file is not None:
            file.add({name: getattr(event, name) for name in columns} for event in events)

    pruned = 0
    while not is_over():
        count = audit.prune(before, archive=keep, actor=actor, source=source, reason=reason)
        if not count:
            break
        pruned += count
        progress("audit", pruned)
    return pruned
