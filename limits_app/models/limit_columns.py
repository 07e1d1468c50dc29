"""The columns of a limit, read as an immutable value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from django.db import IntegrityError

from limits_app.core.clock import DEFAULT_ZONE
from limits_app.core.limits import CallLimit, QuotaLimit, RateLimit, RateLimitAlgorithm, ResourceLimit
from limits_app.core.limits import Limit as Definition
from limits_app.models.limit_rules import LimitKind

__all__ = ["COLUMNS", "amount_of", "check_definitions", "definition_of"]

Number = Decimal | float | None

COLUMNS: Final = (
    "kind",
    "key",
    "capacity",
    "window_seconds",
    "algorithm",
    "burst",
    "max_hold_seconds",
    "period",
    "time_zone",
    "session_seconds",
    "soft",
)
"""What a definition is read from, in this order."""


def definition_of(kind: str, key: str, capacity: Number, *rest: Any) -> Definition:
    """Give columns, in the order of the model, as an immutable value; InvalidLimit where they are none."""
    window_seconds, algorithm, burst, max_hold_seconds, period, time_zone, session_seconds, soft = rest
    if kind == LimitKind.RESOURCE:
        return ResourceLimit(key, amount_of(capacity), amount_of(max_hold_seconds))
    soft = bool(soft)  # read without a model, it may be a number
    if kind == LimitKind.QUOTA:
        calendar = (period or None, time_zone or DEFAULT_ZONE)
        return QuotaLimit(key, amount_of(capacity), *calendar, amount_of(session_seconds), soft)
    rate = (amount_of(capacity), amount_of(window_seconds), RateLimitAlgorithm(algorithm), amount_of(burst), soft)
    return CallLimit(*rate) if kind == LimitKind.CALL else RateLimit(key, *rate)


def check_definitions(limits: Iterable[Mapping[str, Any]]) -> None:
    """Raise IntegrityError for limits, as snapshots tell them, of which one is no definition.

    No constraint of the database reads keys and time zones.
    """
    for limit in limits:
        columns: list[Any] = [limit.get(column) for column in COLUMNS]
        try:
            definition_of(*columns)
        except ValueError as error:
            raise IntegrityError(str(error)) from error


def amount_of(value: Number) -> Any:
    """A column as the core takes it: whole numbers as int, others as float; what is no number is left to the core.

    Read without a model, a database gives decimals as it likes, as floats for instance.
    """
    if isinstance(value, float):
        return int(value) if value.is_integer() else round(value, 3)
    if not isinstance(value, Decimal) or not value.is_finite() or value.adjusted() > 15:
        return value
    return int(value) if value == value.to_integral_value() else float(value)
