"""Background jobs: which process does one now, and when it was done last."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import models, router

from limits_app.engine.keys import namespace_digest
from limits_app.models.fields import in_site_time
from limits_app.models.namespaces import current_keys


class BackgroundJob(models.Model):
    """A job of a namespace, such as the roll-up.

    The process that is named by `holder` does it until `leased_until`. `ran_at` is when it was last finished in the
    background, and `scheduled_at` when a task, a command or code did it last.
    """

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=32, blank=True)
    leased_until = models.DateTimeField(null=True)
    ran_at = models.DateTimeField(null=True)
    scheduled_at = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


def job_row(name: str) -> models.QuerySet[BackgroundJob]:
    """The row of a job of the present namespace, which is created if it does not exist."""
    digest = namespace_digest(current_keys().counters).hex()
    name = f"{name}:{digest}" if digest else name
    rows = BackgroundJob._default_manager.using(router.db_for_write(BackgroundJob))
    row = rows.filter(name=name)
    if not row.exists():
        rows.bulk_create([BackgroundJob(name=name)], ignore_conflicts=True)
    return row


def note_scheduled(name: str, *, now: datetime | None = None) -> None:
    """Note that a task, a command or code does a job of the present namespace, which then needs no thread."""
    job_row(name).update(scheduled_at=in_site_time(datetime.now(UTC) if now is None else now))
