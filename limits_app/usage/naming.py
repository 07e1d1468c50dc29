"""Naming: whose bucket it was, as the tables of usage say it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from limits_app.core.clock import EPOCH
from limits_app.models import Bucket, Period, UsageSnapshot
from limits_app.models.fields import in_site_time

__all__ = ["HOURS_OF", "bucket_of", "since_1970", "snapshot_row", "storable"]

HOURS_OF: Final = {Period.HOUR: 1, Period.DAY: 24}


def storable(entity: str | None) -> str:
    """An entity as every database can store it, and no longer than its column."""
    text = (entity or "").encode("utf-8", "backslashreplace").decode()
    return text.replace("\0", "\\x00")[: UsageSnapshot._meta.get_field("entity").max_length]


def bucket_of(*, shared: bool, member: str | None) -> Bucket:
    """What kind of bucket it is."""
    if member is not None:
        return Bucket.MEMBER
    return Bucket.SHARED if shared else Bucket.ENTITY


def since_1970(**lapse: float) -> datetime:
    """A moment, as the site's settings have it."""
    return in_site_time(EPOCH + timedelta(**lapse))


def snapshot_row(
    period: Period, hour: int, whose: dict[str, str], *, admitted: int = 0, refused: int = 0
) -> dict[str, Any]:
    """What is added to the snapshot of a period that begins with an hour."""
    counts = {"admitted_milli": admitted, "refused": refused}
    return {"period": period, "start": since_1970(hours=hour), **whose, **counts}
