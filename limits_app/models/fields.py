"""Fields with exact text and decimals, foreign keys that are never set to NULL, and datetimes in raw queries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.conf import settings
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

if TYPE_CHECKING:
    from django.db.models.deletion import Collector

    CharField = models.CharField[str, str]
else:
    CharField = models.CharField  # it takes no parameters when the code runs


_MYSQL_COLLATION = "utf8mb4_0900_bin"
_MARIADB_COLLATION = "utf8mb4_nopad_bin"
"""Collations that distinguish case and trailing spaces, as other databases do by default."""


class ExactTextField(CharField):
    """Short text with significant case and spaces, on every database and in forms."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, str | None]:
        """Add a collation if the default one would treat different names as equal."""
        parameters = super().db_parameters(connection)
        if connection.vendor == "mysql":
            is_mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = _MARIADB_COLLATION if is_mariadb else _MYSQL_COLLATION
        return parameters

    def formfield(self, **kwargs: Any) -> forms.Field | None:
        """Return a form field that does not strip spaces, so that saving a form never renames."""
        return super().formfield(**{"strip": False, **kwargs})


class ExactDecimalField(models.DecimalField):  # type: ignore[type-arg]  # it takes no parameters when the code runs
    """A decimal with all its digits, which definitions and JSON have as text."""


def decimal_text(value: Decimal) -> str:
    """A decimal as text, without zeros at its end and without an exponent."""
    text = f"{value:f}"  # which depends on no context, unlike `normalize`
    return text.rstrip("0").rstrip(".") if "." in text else text


def cascade(
    collector: Collector, field: models.ForeignKey[Any, Any], objects: models.QuerySet[models.Model], using: str
) -> None:
    """`CASCADE` for a nullable foreign key that must not be set to NULL.

    Without deferrable constraints, Django's CASCADE sets it to NULL first, which a check constraint may reject.
    """
    collector.collect(objects, source=field.remote_field.model, source_attr=field.name)


FIRST_MOMENT: Final = datetime.min.replace(tzinfo=UTC)
LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)
ONE_HOUR: Final = timedelta(hours=1)


def aware(moment: datetime) -> datetime:
    """A datetime with its time zone, which sites without USE_TZ leave out: it is the default one."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def in_site_time(moment: datetime) -> datetime:
    """A datetime that is aware or naive according to USE_TZ."""
    if timezone.is_aware(moment) == settings.USE_TZ:
        return moment
    return timezone.make_aware(moment) if settings.USE_TZ else timezone.make_naive(moment)


def to_column(moment: datetime, connection: BaseDatabaseWrapper) -> datetime | str | None:
    """A datetime as a parameter of a raw query."""
    return connection.ops.adapt_datetimefield_value(in_site_time(moment))


def from_column(value: object, connection: BaseDatabaseWrapper) -> datetime | None:
    """A datetime from a raw query, in UTC."""
    moment = parse_datetime(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime):
        return None
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment, connection.timezone)  # None for the default time zone of the site
    return _in_utc(moment)


def _in_utc(moment: datetime) -> datetime:
    """The datetime in UTC, limited to the range of the calendar."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        return LAST_MOMENT if moment.year == LAST_MOMENT.year else FIRST_MOMENT
