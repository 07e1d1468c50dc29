"""Snapshots as the roll-up writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from limits_app.models import BucketKind, UsagePeriod, UsageSnapshot

__all__ = ["used"]


def used(
    resource: str,
    entity: str,
    key: str,
    units: float,
    *,
    hours_ago: int = 0,
    refused: int = 0,
    bucket: BucketKind = BucketKind.ENTITY,
) -> None:
    """Have somebody use so much in an hour, and in its day."""
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours_ago)
    for period, start in ((UsagePeriod.HOUR, hour), (UsagePeriod.DAY, hour.replace(hour=0))):
        snapshot, _ = UsageSnapshot.objects.get_or_create(
            resource=resource, bucket=bucket, entity=entity, key=key, period=period, start=start
        )
        snapshot.admitted_milli += round(units * 1000)
        snapshot.refused += refused
        snapshot.save()
