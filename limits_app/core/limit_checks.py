"""What a definition may be: keys, amounts, seconds, and rates as text; each error names the limit and the field."""

from __future__ import annotations

import re
from decimal import Context, Decimal
from typing import Final

from limits_app.core.amounts import MILLI, Amount, from_milli, shown, to_milli
from limits_app.core.errors import InvalidLimit

__all__ = [
    "KEY_PATTERN",
    "MAX_WINDOW_MILLI",
    "UNITS",
    "check_key",
    "check_seconds",
    "check_soft",
    "checked_milli",
    "parse_rate",
]

KEY_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_WINDOW_MILLI: Final = 366 * 86_400 * MILLI
_RATE_PATTERN: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*", re.IGNORECASE)
_EXACT: Final = Context(prec=100)
"""Decimals by the precision of nobody else: a rate as text has fewer digits."""
UNITS: Final = {
    "ms": Decimal("0.001"),
    "millisecond": Decimal("0.001"),
    "s": Decimal(1),
    "sec": Decimal(1),
    "second": Decimal(1),
    "m": Decimal(60),
    "min": Decimal(60),
    "minute": Decimal(60),
    "h": Decimal(3600),
    "hour": Decimal(3600),
    "d": Decimal(86_400),
    "day": Decimal(86_400),
}
"""Units of time in seconds, by what people call them."""


def check_key(key: object) -> None:
    """Raise InvalidLimit unless `key` is a letter and up to 63 letters, digits, `_`, `.` or `-`."""
    if not isinstance(key, str) or not KEY_PATTERN.fullmatch(key):
        raise InvalidLimit(
            f"limit key {shown(key)} must be a letter followed by at most 63 letters, digits, '_', '.' or '-'"
        )


def check_seconds(key: str, field: str, value: object) -> None:
    """Raise InvalidLimit unless `value` is from a millisecond to 366 days, in whole milliseconds."""
    if not 1 <= checked_milli(key, field, value, decimals=True) <= MAX_WINDOW_MILLI:
        raise InvalidLimit(f"limit {key!r}: {field} must be between 0.001 and 366 days, not {shown(value)}")


def checked_milli(key: str, field: str, value: object, *, decimals: bool) -> int:
    """Give a field in thousandths; InvalidLimit when it is no such number."""
    try:
        return to_milli(value, decimals=decimals)
    except ValueError as error:
        raise InvalidLimit(f"limit {key!r}: {field} {error}, not {shown(value)}") from None


def check_soft(key: str, value: object) -> None:
    """Raise InvalidLimit unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidLimit(f"limit {key!r}: soft must be True or False, not {shown(value)}")


def parse_rate(text: str) -> tuple[Amount, float]:
    """Read a rate such as `"30/10s"` into capacity and window in seconds; InvalidLimit says what is expected."""
    match = _RATE_PATTERN.fullmatch(text) if isinstance(text, str) and len(text) <= 64 else None
    unit = UNITS.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise InvalidLimit(
            f"rate {shown(text)} must look like '1000/min', '30/10s' or '5/2h' (units: ms, s, min, h, d)"
        )
    seconds = _EXACT.multiply(Decimal(match[2] or 1), unit)
    capacity = Decimal(match[1])
    try:
        return from_milli(to_milli(capacity, decimals=True)), from_milli(to_milli(seconds, decimals=True))
    except ValueError as error:
        raise InvalidLimit(f"rate {shown(text)}: {error}") from None
