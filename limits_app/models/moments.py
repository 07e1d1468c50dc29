"""Moments: points in time as the code has them, in UTC, and as the site's settings and its databases do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

__all__ = ["as_setting", "from_column", "to_column"]

_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def as_setting(moment: datetime) -> datetime:
    """A moment with a time zone or without one, as the site's USE_TZ says."""
    is_aware = timezone.is_aware(timezone.now())
    if timezone.is_aware(moment) == is_aware:
        return moment
    return timezone.make_aware(moment) if is_aware else timezone.make_naive(moment)


def to_column(moment: datetime, connection: BaseDatabaseWrapper) -> datetime | str | None:
    """A moment as a parameter of a query that no model makes."""
    return connection.ops.adapt_datetimefield_value(as_setting(moment))


def from_column(value: object, connection: BaseDatabaseWrapper) -> datetime | None:
    """A moment as a query that no model makes gives it, in UTC."""
    moment = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        return None
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment, connection.timezone)  # None is the site's own
    return _in_utc(moment)


def _in_utc(moment: datetime) -> datetime:
    """The moment in UTC; at the ends of the calendar, beyond which a zone may be, that end."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return _LAST if moment.year == _LAST.year else _FIRST
