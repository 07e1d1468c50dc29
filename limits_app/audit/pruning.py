"""Deletes old events so that the remaining ones can still be verified."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from django.db import router
from django.db.models import QuerySet
from django.utils import timezone

from limits_app.core.errors import InvalidRequest
from limits_app.models import AuditEvent, AuditHead
from limits_app.models.recording import acting


def prune(
    before: datetime,
    *,
    archive: Callable[[Iterable[AuditEvent]], object] | None = None,
    actor: str = "",
    source: str = "code",
    reason: str = "",
    batch: int = 10_000,
    using: str | None = None,
) -> int:
    """Delete the oldest events, up to the first that is not older than `before`; return how many were deleted.

    At most `batch` events are deleted, in one transaction with an event that records it: call it until it returns 0.
    The head keeps the number and digest of the last deleted event, so that `verify` can continue from there.
    `archive` receives the events in order before they are deleted; if it raises, nothing is deleted.
    Raises InvalidRequest for a time in the future, because the event of the pruning would be older than `before`.
    """
    if batch < 1:
        raise InvalidRequest(f"batch must be 1 or more, not {batch}")
    if before > timezone.now():
        raise InvalidRequest(f"before must not be in the future, not {before}")
    using = using or router.db_for_write(AuditEvent)
    with acting(actor=actor, source=source, reason=reason, using=using) as changes:
        events = AuditEvent.objects.using(using).order_by("number")
        kept = events.filter(when__gte=before).values_list("number", flat=True).first()
        old = events if kept is None else events.filter(number__lt=kept)
        oldest = list(old.values_list("number", "digest")[:batch])
        if not oldest:
            return 0
        number, digest = oldest[-1]
        pruned: QuerySet[Any] = events.filter(number__lte=number)
        if archive is not None:
            archive(pruned.iterator())
        # The event comes first: the triggers let the head forget events only after it.
        changes.record_pruning({"count": len(oldest), "number": number, "digest": digest})
        AuditHead.locked(using).advance(using, pruned_number=number, pruned_digest=digest)
        count: int = pruned._raw_delete(using)
        return count
