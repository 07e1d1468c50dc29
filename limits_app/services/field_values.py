"""Values of fields, read from plain data, and advice for misspelled names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.dateparse import parse_datetime

from limits_app.engine import parse_amount, parse_seconds, shown
from limits_app.engine.errors import InvalidLimit
from limits_app.models.fields import ExactDecimalField, in_site_time

_DECIMAL: Final = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)

Find = Callable[[type[models.Model], str], models.Model]
"""Returns the row of a model with a name; raises ValidationError if it does not exist."""


def column_value(column: Any, value: Any, find: Find) -> Any:
    """A value as the column takes it; ValidationError where it is of another type, or `find` knows no such name."""
    match column:
        case models.ForeignKey():
            return _named(column.related_model, value, find)
        case models.DateTimeField():
            return None if value is None or value == "" else moment(value)
        case models.JSONField():
            return _json(value)
        case models.BooleanField():
            return _of_type(bool, value, "true or false")
        case models.IntegerField():
            return None if value is None and column.null else _of_type(int, value, "a whole number")
        case ExactDecimalField():
            return _exact_decimal(value)
        case models.DecimalField():
            return _decimal(value, is_time=column.name.endswith("_seconds"))
        case _:
            return _text(column, value)


def _named(model: Any, value: object, find: Find) -> models.Model | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ValidationError(f"Write the name of a {model._meta.verbose_name}, not {shown(value)}.")
    return find(model, value)


def moment(value: object) -> datetime:
    """Read a moment, a datetime or text in ISO 8601, in the site's time zone where it has none; ValidationError."""
    result = value
    if isinstance(value, str):
        try:
            result = parse_datetime(value)
        except ValueError:
            result = None
    if not isinstance(result, datetime):
        raise ValidationError(f"Write a date and time, such as 2026-03-01T00:00:00+01:00, not {shown(value)}.")
    try:
        return in_site_time(result if result.tzinfo is None else result.astimezone(UTC))
    except OverflowError:
        raise ValidationError(f"Write a date and time of the years 1 to 9999 in UTC, not {shown(value)}.") from None


def nearest(word: str, words: Collection[str]) -> str:
    """Advice for a word that is not one of those that are known."""
    matches = difflib.get_close_matches(word, words, n=1)
    return f"did you mean “{matches[0]}”?" if matches else f"choose one of {', '.join(filter(None, words))}."


def _of_type(expected: type, value: object, words: str) -> object:
    if type(value) is not expected:
        raise ValidationError(f"Write {words}, not {shown(value)}.")
    return value


def _decimal(value: object, *, is_time: bool) -> Decimal | None:
    """A number, also as text such as "1M", or for a time "1 min" or "60"."""
    if value is None or isinstance(value, Decimal):
        return value
    if isinstance(value, str):
        try:
            value = parse_seconds(value) if is_time and value[-1:].isalpha() else parse_amount(value)
        except InvalidLimit as error:
            raise ValidationError(f"{error}.") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"Write a number, not {shown(value)}.")
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _exact_decimal(value: object) -> Decimal | None:
    """A decimal as text or as a number, of which a float stands for its shortest decimal form."""
    if value is None or isinstance(value, Decimal):
        return value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValidationError(f"Write a number such as 0.15, not {shown(value)}.")
    return Decimal(value) if isinstance(value, int) else Decimal(repr(value))


def _text(column: Any, value: object) -> str:
    if not isinstance(value, str):
        raise ValidationError(f"Write a text, not {shown(value)}.")
    words = [str(word) for word, _ in column.choices or ()]
    if words and value and value not in words:
        raise ValidationError(f"{shown(value)} is not a valid choice: {nearest(value, words)}")
    return str(value)


def _json(value: Any) -> Any:
    """Plain data as JSON has it: dates, which YAML knows, as text."""
    match value:
        case dict():
            return {key: _json(item) for key, item in value.items()}
        case list():
            return [_json(item) for item in value]
        case date():
            return value.isoformat()
        case _:
            return value
