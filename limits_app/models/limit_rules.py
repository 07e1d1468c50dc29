"""What rows of limits must have: their constraints, and their texts as definitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from django.db import IntegrityError, models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from limits_app.engine import Noted, check_shared, limit_text, parse_body, parse_stored
from limits_app.engine.errors import InvalidLimit, UnknownTimeZone

CONSTRAINTS: Final[list[models.BaseConstraint]] = [
    models.UniqueConstraint(
        fields=["policy", "key"],
        name="limits_app_limit_one_per_key",
        violation_error_message=_("The policy already has a limit with this key."),
    ),
    models.UniqueConstraint(
        fields=["member", "key"],
        name="limits_app_limit_one_per_key_of_member",
        violation_error_message=_("The member already has a limit with this key."),
    ),
    # Validation has an error for each part of this.
    models.CheckConstraint(
        name="limits_app_limit_owner",
        condition=Q(policy__isnull=False, member=None) | Q(policy=None, member__isnull=False, shared=False),
    ),
]

stored_definition: Final = lru_cache(maxsize=4096)(parse_stored)
"""The definition of a row as requests use it, and what is wrong with it; see `parse_stored`."""

definition_of: Final = lru_cache(maxsize=4096)(parse_body)
"""The definition of the key and the text of a row, of which most rows have the same; raises InvalidLimit."""


def row_text(key: str, text: str, *, shared: bool) -> str:
    """Return a row in text notation, such as `tpm=400k/min`; an invalid one in quotes, which no parser accepts."""
    try:
        return limit_text(definition_of(key, text), shared=shared)
    except UnknownTimeZone:
        return f"{key}={text}" + (":shared" if shared else "")
    except InvalidLimit:
        return f"'{key}'='{text}'"


def snapshot_text(limit: Mapping[str, Any]) -> str:
    """Return the limit of a snapshot in text notation, such as `tpm=400k/min`."""
    return row_text(limit.get("key", ""), limit.get("text", ""), shared=limit.get("shared", False))


def noted_in(limit: Mapping[str, Any]) -> Noted:
    """Return the limit of a snapshot; raises InvalidLimit if it is invalid."""
    noted = Noted(definition_of(limit.get("key", ""), limit.get("text", "")), limit.get("shared", False))
    check_shared(noted.limit, shared=noted.shared)
    return noted


def check_definitions(limits: Iterable[Mapping[str, Any]]) -> None:
    """Raise IntegrityError if one of the limits of a snapshot is invalid, which databases do not check."""
    for limit in limits:
        try:
            noted_in(limit)
        except InvalidLimit as error:
            raise IntegrityError(str(error)) from error


def amount_of(value: Decimal | float | None) -> Any:
    """A number of a form for the engine: whole numbers as int, others as float; other values unchanged."""
    if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > 15:
        return value
    return int(value) if value == value.to_integral_value() else float(value)
