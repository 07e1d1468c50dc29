"""Serializers that refuse what they do not know, and leave the rules to the models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from django.conf import settings
from django.core.exceptions import NON_FIELD_ERRORS
from django.core.exceptions import ValidationError as Invalid
from django.db import models, router
from django.utils.timezone import is_naive, make_aware
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import ISO_8601, serializers
from rest_framework.fields import get_error_detail
from rest_framework.settings import api_settings

from limits_app.core.amounts import MAX_AMOUNT
from limits_app.models import Configuration
from limits_app.models.fields import ExactTextField, in_site_time
from limits_app.models.limit_rules import amount_of

__all__ = [
    "AmountField",
    "DateTimeField",
    "Exact",
    "NameField",
    "ObjectField",
    "RowSerializer",
    "StrictSerializer",
    "checked",
    "errors_by_field",
    "said",
]

C = TypeVar("C", bound=Configuration)
R = TypeVar("R", bound=models.Model)

_UNKNOWN: Final = _("There is no such field.")


class Exact(serializers.CharField):
    """Text in which spaces count."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"trim_whitespace": False, **options})

    def to_internal_value(self, data: Any) -> str:
        """Take text, and nothing that could be written as text."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({"type": "number", "minimum": 0, "maximum": MAX_AMOUNT})
class AmountField(serializers.DecimalField):
    """A number with at most three decimals, written as people do: 10, not "10.000"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_digits": 16, "decimal_places": 3, "min_value": 0, "max_value": MAX_AMOUNT, **options})

    def to_internal_value(self, data: Any) -> Any:
        """Take a number."""
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)

    def to_representation(self, value: Any) -> Any:
        """Give a whole number where it is one."""
        return amount_of(value)


@extend_schema_field({"type": "object", "additionalProperties": {}})
class ObjectField(serializers.JSONField):
    """A JSON object."""


class DateTimeField(serializers.DateTimeField):
    """A moment as ISO 8601 has it, also at the ends of the calendar, of which a zone has no more than UTC has."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"format": ISO_8601, "input_formats": [ISO_8601], **options})

    def enforce_timezone(self, value: datetime) -> datetime:
        """Give the moment by the site's clock, or in UTC where only that can tell it and models take it."""
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
        """Give it with its offset, which a moment of the site's clock has not; at the ends of the calendar without."""
        if isinstance(value, datetime) and is_naive(value):
            with suppress(OverflowError):
                return make_aware(value).isoformat()
        return super().to_representation(value)


class NameField(serializers.SlugRelatedField[Any]):
    """Another row, by its name, in the database that is written to."""

    def get_queryset(self) -> models.QuerySet[Any]:
        """Give those that there may be."""
        rows = cast("models.QuerySet[Any]", super().get_queryset())
        return rows.using(router.db_for_write(rows.model))

    def to_internal_value(self, data: Any) -> Any:
        """Find it."""
        if not isinstance(data, str) or "\0" in data:
            self.fail("invalid")
        return super().to_internal_value(data)


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses fields that it does not have, so that a mistyped name never passes for a default."""

    def to_internal_value(self, data: Any) -> Any:
        """Give the checked values."""
        if isinstance(data, Mapping):
            unknown = [name for name in data if name not in self.fields]
            if unknown:
                raise serializers.ValidationError({name: [_UNKNOWN] for name in unknown})
        return super().to_internal_value(data)


def said(serializer: type[StrictSerializer], body: Any) -> dict[str, Any]:
    """Give what a body says, checked."""
    found = serializer(data=body)
    found.is_valid(raise_exception=True)
    return cast(dict[str, Any], found.validated_data)


class RowSerializer(StrictSerializer, serializers.ModelSerializer[C]):
    """One row. The model says what it may be; what a PUT leaves out is as in a new row."""

    serializer_field_mapping = serializers.ModelSerializer.serializer_field_mapping | {
        ExactTextField: Exact,
        models.DateTimeField: DateTimeField,
        models.DecimalField: AmountField,
        models.JSONField: ObjectField,
    }
    serializer_related_field = NameField

    def create(self, validated_data: Any) -> C:
        """Save a new row."""
        return self.written(cast(Any, self.Meta.model)(), validated_data)

    def update(self, instance: C, validated_data: Any) -> C:
        """Save what has changed."""
        return self.written(instance, validated_data)

    def written(self, row: C, values: dict[str, Any]) -> C:
        """Check the row with its new values, and save it."""
        self.fill(row, values)
        checked(row).save()
        return row

    def fill(self, row: models.Model, values: Mapping[str, Any]) -> None:
        """Set the values, and the defaults of those that a whole representation leaves out."""
        for name, field in self.fields.items():
            if name in values:
                setattr(row, name, values[name])
            elif not (self.partial or field.read_only or isinstance(field, serializers.BaseSerializer)):
                setattr(row, name, cast(Any, row._meta.get_field(name)).get_default())


def checked(row: R) -> R:
    """Give the row back when it may be; ValidationError says of each field why not."""
    with errors_by_field():
        row.full_clean()
    return row


@contextmanager
def errors_by_field() -> Iterator[None]:
    """Translate what models say is wrong."""
    try:
        yield
    except Invalid as error:
        detail: Any = get_error_detail(error)
        by_field = detail if isinstance(detail, dict) else {NON_FIELD_ERRORS: detail}
        whole = api_settings.NON_FIELD_ERRORS_KEY
        raise serializers.ValidationError(
            {whole if name == NON_FIELD_ERRORS else name: said for name, said in by_field.items()}
        ) from error
