"""Findings about usage: roll-ups that are late, unused and unknown resources, entities without rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from django.db.models import Max
from django.utils import timezone

from limits_app import conf
from limits_app.models import Bucket, Denial, Entity, Period, UsageSnapshot
from limits_app.services.doctor.environment import Finding, Severity
from limits_app.services.limits_file.content import Entry
from limits_app.stores import registry

if TYPE_CHECKING:
    from limits_app.stores.redis import RedisStore

_UNUSED: Final = timedelta(days=30)
_HOUR_SECONDS: Final = 3600
_LATE: Final = timedelta(hours=3)
_LATELY: Final = timedelta(days=1)


def used(resources: Mapping[str, Entry], using: str) -> Iterator[Finding]:
    """Compare usage and configuration; no findings for a site that records no usage."""
    snapshots = UsageSnapshot._default_manager.using(using)
    # Rejections are written to snapshots immediately, admitted amounts only by a roll-up.
    rolled_up = snapshots.filter(period=Period.HOUR, admitted_milli__gt=0)
    last = rolled_up.aggregate(last=Max("start"))["last"]
    yield from _late(last, using)
    if last is None:
        return
    now = timezone.now()
    # Members of pools are counted under the name of the pool, which need not be that of a resource.
    own = snapshots.filter(start__gte=now - _UNUSED).exclude(bucket=Bucket.MEMBER)
    lately = {*own.values_list("resource", flat=True).distinct()}
    lately |= {
        *Denial._default_manager.using(using).filter(minute__gte=now - _UNUSED).values_list("resource", flat=True)
    }
    unused = [name for name in resources if name not in lately]
    if unused:
        yield Finding(
            "limits_app.D020",
            Severity.INFO,
            f"{_named(unused)} has not been used for {_UNUSED.days} days",
            "Delete resources that are not needed, or check whether the code uses another name.",
        )
    unknown = sorted({name for name in lately if name not in resources})
    if unknown:
        yield Finding(
            "limits_app.D021",
            Severity.INFO,
            f"{_named(unknown)} is used, but has no row",
            "Create the resource to set specific limits for it, or correct a misspelled name in the code.",
        )
    yield from _without_rows(snapshots.filter(period=Period.HOUR, start__gte=now - _LATELY), using)


def waiting() -> Iterator[Finding]:
    """Whether usage waits in a Redis store to be rolled up, which keeps idle scopes there."""
    for alias in conf.get(conf.STORES):
        if conf.store_settings(alias).kind is not conf.StoreKind.REDIS:
            continue
        oldest = cast("RedisStore", registry.store(alias)).oldest_hour()
        since = None if oldest is None else datetime.fromtimestamp(oldest * _HOUR_SECONDS, UTC)
        if since is not None and timezone.now() - since > _LATE:
            yield Finding(
                "limits_app.D027",
                Severity.WARNING,
                f"the store {alias!r} has usage since {since:%Y-%m-%d %H:%M} UTC that was not rolled up",
                "Run manage.py limits snapshot by a timer, or set LIMITS['USAGE'] to False: the store keeps idle "
                "scopes until their usage is rolled up, and drops the oldest usage when there is too much.",
            )


def _late(last: Any, using: str) -> Iterator[Finding]:
    """Whether usage is still rolled up."""
    refused = Denial._default_manager.using(using).aggregate(last=Max("minute"))["last"]
    if refused is not None and (last is None or refused - last > _LATE + timedelta(hours=1)):
        yield Finding(
            "limits_app.D022",
            Severity.WARNING,
            f"requests were rejected until {refused:%Y-%m-%d %H:%M}, but usage was "
            + ("never rolled up" if last is None else f"last rolled up for the hour from {last:%Y-%m-%d %H:%M}"),
            "Schedule manage.py limits snapshot every minute, or check that the worker that does it is running.",
        )


def _without_rows(snapshots: Any, using: str) -> Iterator[Finding]:
    rows = Entity._base_manager.using(using).values("identifier")
    mine = snapshots.filter(bucket=Bucket.ENTITY).exclude(entity="").exclude(entity__in=rows)
    found = mine.values("entity").distinct().count()
    if found:
        yield Finding(
            "limits_app.D023",
            Severity.INFO,
            f"entities without a row that were active within a day: {found}; the general policies apply to them",
            "No action is required, unless some of them need specific limits.",
        )


def _named(names: list[str]) -> str:
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")
