"""Background jobs: which process does one now, and when it was done last."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import models, router

from limits_app.engine import KEPT_HOURS, namespace_digest
from limits_app.models.fields import in_site_time
from limits_app.models.namespaces import current_keys

_REMEMBERED: Final = timedelta(hours=KEPT_HOURS, days=1)
"""How long a helper is looked after: one that was killed may have left work, which stores keep for about `KEPT_HOURS`.

A site may be down for days, so that nobody looks in this time.
"""


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


def helper_name(name: str, number: int) -> str:
    """The name of the job of a process that helps with a job, from 1 on."""
    return f"{name}:{number}"


def leased_helpers(name: str, numbers: Iterable[int], *, since: datetime, but: str | None = None) -> set[int]:
    """Return which helpers of a job of the present namespace have, or had since a time, a lease; not those of `but`."""
    names = {_in_namespace(helper_name(name, number)): number for number in numbers}
    rows = BackgroundJob._default_manager.using(router.db_for_write(BackgroundJob))
    leased = rows.filter(name__in=names, leased_until__gte=in_site_time(since))
    return {names[row_name] for row_name, holder in leased.values_list("name", "holder") if holder != but}


def recent_helpers(name: str, numbers: Iterable[int]) -> set[int]:
    """Return which helpers of a job of the present namespace may have left work."""
    return leased_helpers(name, numbers, since=datetime.now(UTC) - _REMEMBERED)


def forgotten_jobs(now: datetime) -> models.Q:
    """Selects the rows of machines that are gone, and of other jobs that nobody does any more."""
    before = in_site_time(now - _REMEMBERED)
    is_scheduled = models.Q(scheduled_at__isnull=False, scheduled_at__gte=before)
    was_done = models.Q(leased_until__isnull=False) | models.Q(scheduled_at__isnull=False)
    return was_done & ~models.Q(leased_until__isnull=False, leased_until__gte=before) & ~is_scheduled


def _in_namespace(name: str) -> str:
    digest = namespace_digest(current_keys().counters).hex()
    return f"{name}:{digest}" if digest else name


def note_scheduled(name: str, *, now: datetime | None = None) -> None:
    """Note that a task, a command or code does a job of the present namespace, which then needs no thread."""
    job_row(name).update(scheduled_at=in_site_time(datetime.now(UTC) if now is None else now))
