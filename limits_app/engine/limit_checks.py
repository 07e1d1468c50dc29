"""Validation of definitions, whose errors name the limit and the field; and amounts, times and rates as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Final, Protocol, TypeVar

from limits_app.engine.amounts import (
    MILLI,
    MULTIPLES,
    Amount,
    currency_like,
    exact_amount,
    exact_product,
    from_micro,
    from_milli,
    is_currency,
    shown,
    to_micro,
    to_milli,
)
from limits_app.engine.errors import InvalidLimit
from limits_app.engine.periods import DAY, SECOND_US, UNITS
from limits_app.engine.priorities import Keep, checked_keep

T = TypeVar("T")

_KEY_PATTERN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
MAX_WINDOW_MILLI: Final = 366 * DAY * MILLI
_AMOUNT: Final = re.compile(r"([0-9]{1,64}(?:\.[0-9]{1,64})?) *([kMG]?)", re.ASCII)
_GROUPED: Final = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?", re.ASCII)
_WINDOW: Final = re.compile(r"([0-9]{1,64}(?:\.[0-9]{1,64})?)? *([A-Za-z]+)", re.ASCII)
_LONGEST: Final = 128
_UNITS: Final = {
    name: Decimal(unit.milliseconds) / 1000 for unit in UNITS for name in (unit.symbol, unit.name, *unit.spellings)
}
"""Units of time in seconds, by name."""


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def is_money(self) -> bool | None: ...


class _Sharing(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def keep(self) -> Keep: ...

    @property
    def soft(self) -> bool: ...


def check_key(key: object) -> None:
    """Raise InvalidLimit unless `key` is a letter and up to 63 letters, digits, `_`, `.` or `-`."""
    if not isinstance(key, str) or not _KEY_PATTERN.fullmatch(key):
        raise InvalidLimit(
            f"limit key {shown(key)} must be a letter followed by at most 63 letters, digits, '_', '.' or '-'"
        )


def check_case(key: str) -> None:
    """Raise InvalidLimit for a key that differs from a currency in case only: its amounts would not be money."""
    if currency := currency_like(key):
        raise InvalidLimit(f"limit {key!r} is no currency: write {currency!r}, or choose another key for units")


def check_differ(keys: Sequence[str]) -> None:
    """Raise InvalidLimit for a repeated key."""
    if len({*keys}) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidLimit(f"limit {twice!r} appears twice: keys in a set must differ, such as '{twice}_day'")


def check_seconds(key: str, field: str, value: object) -> None:
    """Raise InvalidLimit unless `value` is from a millisecond to 366 days, in whole milliseconds."""
    if not 1 <= checked_milli(key, field, value, decimals=True) <= MAX_WINDOW_MILLI:
        raise InvalidLimit(
            f"limit {key!r}: {field} must be between 0.001 seconds and 366 days "
            f"({MAX_WINDOW_MILLI // MILLI} seconds), not {shown(value)}"
        )


def computed_seconds(seconds: float) -> float:
    """Return a time that was computed as limits have it: in whole milliseconds, rounded up, and at most 366 days.

    Parts of a microsecond are errors of floating point.
    """
    microseconds = round(min(seconds, MAX_WINDOW_MILLI / MILLI) * SECOND_US)
    return -(-microseconds // 1000) / MILLI


def keep_seconds(limit: object, field: str) -> None:
    """Convert a field that was given as a `timedelta` to seconds."""
    value = getattr(limit, field)
    if isinstance(value, timedelta):
        object.__setattr__(limit, field, value.total_seconds())


def checked_milli(key: str, field: str, value: object, *, decimals: bool) -> int:
    """Return a field in thousandths; InvalidLimit for an invalid number."""
    try:
        return to_milli(value, decimals=decimals)
    except ValueError as error:
        raise InvalidLimit(f"limit {key!r}: {field} {error}, not {shown(value)}") from None


def check_positive(key: str, field: str, value: object, *, decimals: bool) -> None:
    """Raise InvalidLimit unless `value` is an amount of more than 0."""
    milli = checked_milli(key, field, value, decimals=decimals)
    if milli <= 0:
        instead = "; to refuse everything, let the policy be blocked" if milli == 0 and field == "capacity" else ""
        raise InvalidLimit(f"limit {key!r}: {field} must be more than 0, not {shown(value)}{instead}")


def check_soft(key: str, value: object) -> None:
    """Raise InvalidLimit unless `value` is True or False."""
    if not isinstance(value, bool):
        raise InvalidLimit(f"limit {key!r}: soft must be True or False, not {shown(value)}")


def check_money(key: str, field: str, value: object, *, most_micro: int) -> None:
    """Raise InvalidLimit unless `value` is an amount of money of more than 0."""
    try:
        micro = to_micro(value)
    except ValueError as error:
        raise InvalidLimit(f"limit {key!r}: {field} {error}, not {shown(value)}") from None
    if not 0 < micro <= most_micro:
        most = from_micro(most_micro)
        raise InvalidLimit(f"limit {key!r}: {field} must be more than 0 and at most {most}, not {shown(value)}")


def keep_plain(limit: object, *fields: str, is_money: bool = False) -> None:
    """Convert checked numbers to int or float, whatever their type: stores save definitions.

    Equal limits are then saved alike. The numbers of limits in money have six decimals.
    """
    for field in fields:
        value = getattr(limit, field)
        if value is not None:
            plain = from_micro(to_micro(value)) if is_money else from_milli(to_milli(value, decimals=True))
            object.__setattr__(limit, field, plain)


def keep_kind_of_amounts(limit: _Keyed) -> None:
    """Fill in `is_money`: whether the key is a currency. InvalidLimit where it differs from one in case only."""
    if limit.is_money is None:
        check_case(limit.key)
        object.__setattr__(limit, "is_money", is_currency(limit.key))


def keep_shares(limit: _Sharing) -> None:
    """Convert the shares that a limit keeps free for classes; InvalidLimit for invalid ones."""
    if limit.keep != ():
        object.__setattr__(limit, "keep", checked_keep(limit.key, limit.keep, soft=limit.soft))


def parse_amount(text: str) -> Amount:
    """Read an amount such as `"1000"`, `"1,000"`, `"2.5"` or `"400k"`; InvalidLimit for invalid text.

    It has at most six decimals, of which most limits take fewer.
    """
    match = _AMOUNT.fullmatch(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
    if match is None:
        raise InvalidLimit(f"amount {shown(text)} must be a number such as 1000, 2.5, 400k, 5M or 1G")
    try:
        return exact_amount(match[1], MULTIPLES[match[2]])
    except ValueError as error:
        raise InvalidLimit(f"amount {shown(text)} {error}") from None


def parse_seconds(text: str) -> float:
    """Read a stretch of time such as `"30s"`, `"min"` or `"1.5h"` in seconds; InvalidLimit for invalid text."""
    match = _WINDOW.fullmatch(text)
    # A capital M alone is as often meant to be a month.
    unit = _UNITS.get(match[2].lower()) if match and match[2] != "M" else None
    if match is None or unit is None:
        raise InvalidLimit(f"time {shown(text)} must look like 10s, min, 2h or 1d (units: ms, s, min, h, d)")
    try:
        return exact_product(match[1] or "1", unit)
    except ValueError as error:
        raise InvalidLimit(f"time {shown(text)} {error}") from None


def parse_per(kind: str, text: object, parse_period: Callable[[str], T], examples: str) -> tuple[Amount, T]:
    """Read an amount per period, such as `"30/10s"`, whose period `parse_period` reads.

    InvalidLimit names the kind of limit, and the part that is invalid.
    """
    if not isinstance(text, str) or len(text) > _LONGEST or "/" not in text:
        raise InvalidLimit(f"{kind} {shown(text)} must look like {examples}")
    amount, _, period = text.partition("/")
    try:
        return parse_amount(amount.strip()), parse_period(period.strip())
    except InvalidLimit as error:
        raise InvalidLimit(f"{kind} {shown(text)}: {error}") from None


def parse_rate(text: object) -> tuple[Amount, float]:
    """Read a rate such as `"30/10s"` into capacity and window in seconds; InvalidLimit names the error."""
    return parse_per("rate", text, parse_seconds, "'1000/min', '30/10s' or '5/2h'")
