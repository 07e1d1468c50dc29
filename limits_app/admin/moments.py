"""Moments in forms, which may lie at the ends of the calendar."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.forms import SplitDateTimeField
from django.utils.timezone import is_naive

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise

__all__ = ["MomentField", "MomentWidget", "checked_moment"]


def checked_moment(moment: datetime, problem: str | _StrPromise) -> datetime:
    """Give a moment in UTC, as databases keep it; ValidationError with the problem where UTC has none such."""
    try:
        return moment if is_naive(moment) else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValidationError(problem) from error


class MomentWidget(AdminSplitDateTime):
    """Shows a moment that the site's clock cannot tell as the nearest that it can."""

    def decompress(self, value: datetime | None) -> tuple[date | None, time | None]:
        """Give the date and the time."""
        try:
            return super().decompress(value)
        except OverflowError:
            begins = value is not None and value.year == 1
            return (date.min, time.min) if begins else (date.max, time(23, 59, 59))


class MomentField(SplitDateTimeField):
    """A date and a time by the site's clock, which databases can keep."""

    def compress(self, data_list: Any) -> datetime | None:
        """Give the moment, in UTC."""
        moment = super().compress(data_list)
        return None if moment is None else checked_moment(moment, self.error_messages["invalid_date"])
