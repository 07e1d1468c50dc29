"""Fields and serializers that reject unknown fields and values of another type."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final, cast

from django.conf import settings
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import ISO_8601, serializers

from limits_app.engine import MAX_AMOUNT
from limits_app.models.fields import decimal_text, in_site_time
from limits_app.models.limit_rules import amount_of

_UNKNOWN: Final = _("Unknown field.")


class Exact(serializers.CharField):
    """Text with significant whitespace."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        """Accept only strings; numbers and booleans are not converted."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "number", "minimum": 0, "maximum": MAX_AMOUNT})
class AmountField(serializers.DecimalField):
    """A number with at most three decimals, represented as 10 and not as "10.000"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_digits": 19, "decimal_places": 6, "min_value": 0, "max_value": MAX_AMOUNT, **options})

    def to_internal_value(self, data: Any) -> Any:
        """Accept only numbers."""
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)

    def to_representation(self, value: Any) -> Any:
        """Return an int for a whole number."""
        return amount_of(value)


@extend_schema_field(
    {"oneOf": [{"type": "string", "pattern": r"^[0-9]{1,20}(\.[0-9]{1,20})?$"}, {"type": "number", "minimum": 0}]}
)
class ExactDecimal(serializers.DecimalField):
    """A decimal with all its digits: represented as text, and accepted as text or as a number."""

    def to_representation(self, value: Any) -> str:
        """Return it as text, without zeros at its end."""
        return decimal_text(Decimal(value))


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """A JSON object."""


class DateTimeField(serializers.DateTimeField):
    """An ISO 8601 timestamp; it accepts the whole range of `datetime` in UTC, whatever the time zone."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": ISO_8601, "input_formats": [ISO_8601], **options})

    def enforce_timezone(self, value: datetime) -> datetime:
        """Return the timestamp in the site's time zone, or in UTC where the conversion would overflow."""
        try:
            if not settings.USE_TZ:
                return in_site_time(value)
            if is_naive(value):
                return super().enforce_timezone(value)
            value = value.astimezone(UTC)
        except OverflowError:
            self.fail("overflow")
        try:
            return super().enforce_timezone(value)
        except serializers.ValidationError:
            return value

    def to_representation(self, value: Any) -> Any:
        """Return it with its UTC offset; without one where adding it would overflow."""
        if isinstance(value, datetime) and is_naive(value):
            with suppress(OverflowError):
                return make_aware(value).isoformat()
        return super().to_representation(value)


class StrictSerializer(serializers.Serializer[Any]):
    """Rejects unknown fields, so that a misspelled name is an error and not a default."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the validated values."""
        if isinstance(data, Mapping):
            unknown = [name for name in data if name not in self.fields]
            if unknown:
                raise serializers.ValidationError({name: [_UNKNOWN] for name in unknown})
        return super().to_internal_value(data)


def validated(serializer: type[StrictSerializer], body: Any) -> dict[str, Any]:
    """Return the validated data of a request body."""
    checked = serializer(data=body)
    checked.is_valid(raise_exception=True)
    return cast(dict[str, Any], checked.validated_data)
