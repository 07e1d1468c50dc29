"""Background jobs: which process does one now, and when it was done last."""

from __future__ import annotations

from datetime import UTC, datetime

from django.db import models, router

from limits_app.engine import namespace_digest
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


def jobs_named(name: str) -> models.QuerySet[BackgroundJob]:
    """The row of a job of the present namespace, or none."""
    rows = BackgroundJob._default_manager.using(router.db_for_write(BackgroundJob))
    return rows.filter(name=_in_namespace(name))


def job_row(name: str) -> models.QuerySet[BackgroundJob]:
    """The row of a job of the present namespace, which is created if it does not exist."""
    row = jobs_named(name)
    if not row.exists():
        created = BackgroundJob(name=_in_namespace(name))
        BackgroundJob._default_manager.using(row.db).bulk_create([created], ignore_conflicts=True)
    return row


def _in_namespace(name: str) -> str:
    digest = namespace_digest(current_keys().counters).hex()
    return f"{name}:{digest}" if digest else name


def note_scheduled(name: str, *, now: datetime | None = None) -> None:
    """Note that a task, a command or code does a job of the present namespace, which then needs no thread."""
    job_row(name).update(scheduled_at=in_site_time(datetime.now(UTC) if now is None else now))
